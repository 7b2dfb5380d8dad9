"""Chat messages to a prompt, by the model's own Jinja template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from antfarm.errors import ModelError, Reason, RequestError
from antfarm.messages import ChatMessage, Tool
from antfarm.model.gguf import GgufFile
from antfarm.model.header import Metadata
from antfarm.model.toolform import ToolSupport, described, in_words

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


class _Refused(Exception):
    """A template's own `raise_exception`: these messages do not fit the model."""


class ChatTemplate:
    """A compiled template. It runs sandboxed: it came with the model, from wherever that came."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises `bad-chat-template` when it does not compile."""
        self.source = source
        self.tools = ToolSupport.of(source)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise _bad(error) from None

    @classmethod
    def from_gguf(cls, file: GgufFile) -> ChatTemplate:
        """The file's template; without one, ChatML where the vocabulary knows it, else `role: text` lines."""
        metadata = file.metadata
        tokens: list[str] = metadata.typed("tokenizer.ggml.tokens", list, [])
        source = metadata.typed("tokenizer.chat_template", str, "")
        if not source.strip():
            source = CHATML if "<|im_start|>" in tokens else PLAIN
        return cls(
            source,
            bos_token=_token(metadata, tokens, "bos"),
            eos_token=_token(metadata, tokens, "eos"),
        )

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool] = (),
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text, with control tokens by name. `tools` are described as `self.tools` says.

        Raises `invalid-request` when there are no messages or the template refuses them (roles that
        must alternate), and `bad-chat-template` when the template itself fails.
        """
        if not messages:
            raise _refused("there are no messages")
        native = self.tools.native
        dialog = [_entry(each) for each in (messages if native else in_words(messages, tools))]
        given = {"tools": described(tools)} if native and tools else {}
        try:
            return self._template.render(
                messages=dialog, add_generation_prompt=add_generation_prompt, **given, **self._tokens
            )
        except _Refused as error:
            raise _refused(f"the model's chat template says: {error}") from None
        except Exception as error:  # noqa: BLE001 - a template is a foreign program: it may raise anything
            raise _bad(error) from None


def _entry(message: ChatMessage) -> dict[str, Any]:
    """A message as templates expect it: calls' arguments as values, and no keys that are not set."""
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        entry["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _value(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        entry["tool_call_id"] = message.tool_call_id
    if message.name:
        entry["name"] = message.name
    return entry


def _value(arguments: str) -> Any:
    """What a call's arguments say; their text when that is not JSON."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _environment() -> ImmutableSandboxedEnvironment:
    """The dialect that model authors write for (as `transformers` sets it up)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Unlike Jinja's own filter, for text and not for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _token(metadata: Metadata, tokens: Sequence[str], name: str) -> str:
    index = metadata.typed(f"tokenizer.ggml.{name}_token_id", int, -1)
    return tokens[index] if 0 <= index < len(tokens) else ""


def _refused(why: str) -> RequestError:
    return RequestError(Reason.INVALID_REQUEST, why, hint="change the messages")


def _bad(error: Exception) -> ModelError:
    return ModelError(
        Reason.BAD_CHAT_TEMPLATE,
        f"the model's chat template fails: {type(error).__name__}: {error}",
        hint="use the completions API, or a model file with a working template",
    )
