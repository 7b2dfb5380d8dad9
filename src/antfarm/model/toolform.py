"""The forms in which models call tools: which one a chat template was written for, its grammar, and a
form for models that know none. Pure.

Two are in wide use. Hermes (NousResearch, also Qwen): `<tool_call>` around an object with `name` and
`arguments`, any number of them, with text around. Llama 3: the whole answer is one such object, with
`parameters`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from antfarm.messages import ChatMessage, Tool, ToolCall, Wanted

MOST_CALLS = 16  # in one answer that is made to call

CALL, CALL_END = "<tool_call>", "</tool_call>"
RESPONSE, RESPONSE_END = "<tool_response>", "</tool_response>"

# Of whitespace between JSON's tokens a model may write one space, or a line's end with its indent: with
# any amount allowed, models run on in it for ever.
JSON_OPTIONS = {"whitespace_pattern": r"[ ]?|\n[ ]{0,20}"}


class ToolForm(StrEnum):
    """How an answer calls tools."""

    HERMES = "hermes"
    LLAMA = "llama"


# An answer that is text, or calls, as the model likes: from the form's opening mark on it is a call.
_FREE = {
    ToolForm.HERMES: rf"""start: call* TAIL
mark[lazy]: TEXT "{CALL}"
TEXT: /(.|\n)*/
TAIL: TEXT & ~/(.|\n)*{CALL}(.|\n)*/""",
    ToolForm.LLAMA: r"""start: call | TAIL
mark: ""
TAIL: /(.|\n)*/ & ~/[ \t\r\n]*\{[ \t\r\n]*"name"(.|\n)*/""",
}


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """What a model's chat template does about tools. Not `native`: the tools are described to the model
    in a message, and calls and results in the history are written as text."""

    form: ToolForm
    native: bool

    @classmethod
    def of(cls, template: str) -> ToolSupport:
        if "tools" in template and CALL in template and "<function=" not in template:
            return cls(ToolForm.HERMES, native=True)
        if "tools" in template and '"parameters"' in template and "ipython" in template:
            return cls(ToolForm.LLAMA, native=True)
        return cls(ToolForm.HERMES, native=False)


def described(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools in OpenAI's shape, which chat templates expect."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": _parameters(tool),
            },
        }
        for tool in tools
    ]


def in_words(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """The messages for a template without tools: with the description in the system's message, and calls
    and results as text of the assistant and the user. Results in a row are one message, since such
    templates often insist on taking turns."""
    out: list[ChatMessage] = []
    if tools:
        given, messages = (messages[:1], messages[1:]) if messages[0].role == "system" else ((), messages)
        out.append(ChatMessage("system", "\n\n".join([*(m.content for m in given), _instructions(tools)])))
    follows_result = False
    for message in messages:
        plain, is_result = _in_words(message), message.role == "tool"
        if is_result and follows_result:
            plain = ChatMessage(plain.role, f"{out.pop().content}\n{plain.content}")
        out.append(plain)
        follows_result = is_result
    return out


def grammar(wanted: Wanted, form: ToolForm) -> str | None:
    """What the answer must look like, as a Lark grammar of llguidance; None leaves it free."""
    answer = None if wanted.schema is None else f"answer: %json {_with_options(json.loads(wanted.schema))}"
    if wanted.tools and wanted.tool_choice == "required":
        return "\n".join(["start: calls", *_calls(wanted, form)])
    if answer is None and any(tool.strict for tool in wanted.tools):
        return "\n".join([_FREE[form], *_rules(wanted, form, free=True)])
    if answer is None:
        return None
    if wanted.tools:
        return "\n".join(["start: calls | answer", answer, *_calls(wanted, form)])
    return f"start: answer\n{answer}"


def field_of(rule: str) -> str:
    """The field of a request whose JSON schema is in this rule of `grammar`."""
    index = rule.removeprefix("call_")
    return "response_format" if index == rule else f"tools[{index}].function.parameters"


def _calls(wanted: Wanted, form: ToolForm) -> list[str]:
    """The rule `calls`, with what it needs."""
    tagged = form is ToolForm.HERMES
    more = f' ("\\n" call){{0,{MOST_CALLS - 1}}}' if tagged and wanted.parallel_calls else ""
    return [f"calls: call{more}", f'mark: "{CALL if tagged else ""}"', *_rules(wanted, form)]


def _rules(wanted: Wanted, form: ToolForm, *, free: bool = False) -> list[str]:
    """The rule `call`. When the model is `free` to call, only strict tools bind their arguments."""
    tools = {i: tool for i, tool in enumerate(wanted.tools) if wanted.tool in ("", tool.name)}
    tagged = form is ToolForm.HERMES
    begin, key, end = ("\n", "arguments", f"\n{CALL_END}") if tagged else ("", "parameters", "")
    rules = ["call: mark (" + " | ".join(f"call_{i}" for i in tools) + ")"]
    for i, tool in tools.items():
        head = json.dumps(f'{begin}{{"name": "{tool.name}", "{key}": ')
        schema = {"type": "object"} if free and not tool.strict else _parameters(tool)
        rules.append(f"call_{i}: {head} %json {_with_options(schema)} {json.dumps('}' + end)}")
    return rules


def _with_options(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": JSON_OPTIONS})


def _parameters(tool: Tool) -> dict[str, Any]:
    if tool.parameters:
        schema: dict[str, Any] = json.loads(tool.parameters)
        return schema
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _instructions(tools: Sequence[Tool]) -> str:
    functions = "\n".join(json.dumps(each, ensure_ascii=False) for each in described(tools))
    return (
        "You can call functions. These are the functions, each with a JSON schema of its arguments:\n"
        f"<tools>\n{functions}\n</tools>\n"
        "When a function helps with the request, call it: answer with its name and its arguments as JSON "
        "between tags, like this, and nothing else.\n"
        f'{CALL}\n{{"name": "the function", "arguments": {{"an argument": "its value"}}}}\n{CALL_END}\n'
        f"Its result then comes between {RESPONSE} tags. When no function helps, answer in plain words."
    )


def _in_words(message: ChatMessage) -> ChatMessage:
    if message.role == "tool":
        return ChatMessage("user", f"{RESPONSE}\n{message.content}\n{RESPONSE_END}")
    calls = "\n".join(map(_call_in_words, message.tool_calls))
    return ChatMessage(message.role, "\n".join(filter(None, (message.content, calls))))


def _call_in_words(call: ToolCall) -> str:
    return f'{CALL}\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n{CALL_END}'
