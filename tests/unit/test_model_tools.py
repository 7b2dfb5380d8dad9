"""Tools: which form a template has, what a model is told, and calls out of text however it is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antfarm.errors import RequestError
from antfarm.messages import ChatMessage, Tool, ToolCall
from antfarm.model.schema import MAX_CHARS, MAX_DEPTH, MAX_REFS, check_schema
from antfarm.model.template import CHATML, ChatTemplate
from antfarm.model.toolform import ToolForm, ToolSupport
from antfarm.model.toolparser import Arguments, Called, Piece, Said, ToolParser

HERMES, LLAMA = ToolForm.HERMES, ToolForm.LLAMA

# A template that knows tools, in the manner of Qwen's.
HERMES_TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    "<tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}"
)
LLAMA_TEMPLATE = 'Environment: ipython {{ tools }} {"name": x, "parameters": y}'

ADD = Tool("add", "Adds numbers.", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}))
HISTORY = [
    ChatMessage("user", "Add."),
    ChatMessage("assistant", "", (ToolCall("c1", "add", '{"a": 1}'), ToolCall("c2", "add", '{"a": 2}'))),
    ChatMessage("tool", "11", tool_call_id="c1"),
    ChatMessage("tool", "22", tool_call_id="c2"),
]


def parsed(pieces: list[Piece]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and each call's name and arguments. Pieces must come in OpenAI's order."""
    said, calls = "", []
    for piece in pieces:
        match piece:
            case Said():
                assert piece.text
                said += piece.text
            case Called():
                assert piece.index == len(calls)
                calls.append((piece.name, ""))
            case Arguments():
                assert piece.index == len(calls) - 1
                assert piece.text
                calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return said, calls


def read(form: ToolForm, *texts: str, most: int | None = None) -> tuple[str, list[tuple[str, str]]]:
    parser = ToolParser(form, most=most)
    pieces = [piece for text in texts for piece in parser.push(text)] + parser.flush()
    assert parser.calls == sum(isinstance(piece, Called) for piece in pieces)
    return parsed(pieces)


NESTED = '{"a": "}\\"<", "b": [1, {"c": "</tool_call>"}]}'
TEXTS: list[tuple[ToolForm, str, str, list[tuple[str, str]]]] = [
    (HERMES, "Hi <b> a <tool x", "Hi <b> a <tool x", []),
    (HERMES, "  \n", "  \n", []),
    (
        HERMES,
        f'Sure.\n<tool_call>\n{{"name": "f", "arguments": {NESTED}}}\n</tool_call>\n',
        "Sure.",
        [("f", NESTED)],
    ),
    (
        HERMES,
        '<tool_call>{"arguments": {}, "name":"g"}</tool_call> <tool_call>{"name": "h", "arguments": {"x":1}',
        "",
        [("g", "{}"), ("h", '{"x":1}')],
    ),
    (HERMES, '<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}</tool_call> ok', " ok", [("f", '{"a":1}')]),
    (HERMES, '<tool_call>{"name":"f","arguments":null}', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name":"f","arguments":{"a":', "", [("f", '{"a":')]),
    (HERMES, "<tool_call>no json</tool_call> x", "<tool_call>no json</tool_call> x", []),
    *(  # half a surrogate pair
        (HERMES, f"<tool_call>{half}</tool_call>", f"<tool_call>{half}</tool_call>", [])
        for half in (r'{"name":"\ud83d","arguments":{}}', r'{"name":"f","arguments":"{\"a\":\"\ud83d\"}"}')
    ),
    (HERMES, '<tool_call>{"name":"f"}</tool_call>', '<tool_call>{"name":"f"}</tool_call>', []),
    (HERMES, '<tool_call>{"name":"f","arguments":{}}\n</tool_', "", [("f", "{}")]),
    (LLAMA, ' {"name": "f", "parameters": {"x": 1}}', "", [("f", '{"x": 1}')]),
    (
        LLAMA,
        '{"name":"f","parameters":{"x":";"}}; {"name":"g","parameters":{}}',
        "",
        [("f", '{"x":";"}'), ("g", "{}")],
    ),
    (LLAMA, '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    (LLAMA, 'So: {"name": "f", "parameters": {}}', 'So: {"name": "f", "parameters": {}}', []),
]


@pytest.mark.parametrize(("form", "text", "said", "calls"), TEXTS)
def test_calls_are_read_out_of_text(
    form: ToolForm, text: str, said: str, calls: list[tuple[str, str]]
) -> None:
    assert read(form, text) == (said, calls)
    assert read(form, *text) == (said, calls)


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 120)))
def test_how_the_text_is_cut_changes_nothing(case: Any, cuts: list[int]) -> None:
    form, text, said, calls = case
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert read(form, *(text[lo:hi] for lo, hi in pairwise(edges))) == (said, calls)


@given(st.text(alphabet='<tool_call>/{}",:name arguments\\;\n', max_size=80), st.sampled_from(ToolForm))
def test_any_text_comes_out_or_is_a_call(text: str, form: ToolForm) -> None:
    said, calls = read(form, *text)
    assert calls or said == text or said.split() == text.split()


def test_arguments_come_as_the_model_writes_them() -> None:
    parser = ToolParser(HERMES)
    begun = parser.push('<tool_call>{"name": "f", "arguments": {"city')
    assert begun == [Called(0, "f"), Arguments(0, '{"city')]
    assert parser.push('": "Bern"') == [Arguments(0, '": "Bern"')]


def test_after_the_calls_that_are_wanted_all_is_dropped() -> None:
    call = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    assert read(HERMES, call + call + " and so on", most=1) == ("", [("f", "{}")])


def test_a_templates_form_is_recognised() -> None:
    assert ToolSupport.of(HERMES_TEMPLATE) == ToolSupport(HERMES, native=True)
    assert ToolSupport.of(LLAMA_TEMPLATE) == ToolSupport(LLAMA, native=True)
    assert ToolSupport.of(CHATML) == ToolSupport(HERMES, native=False)
    assert not ToolSupport.of("{{ tools }} [TOOL_CALLS]").native


def test_a_template_that_knows_tools_gets_them_as_values() -> None:
    text = ChatTemplate(HERMES_TEMPLATE).render(HISTORY, [ADD])
    assert text.startswith(
        '<tools>{"type": "function", "function": {"name": "add", "description": "Adds numbers."'
    )
    assert '<tool_call>add {"a": 1}</tool_call><tool_call>add {"a": 2}</tool_call>' in text
    assert text.endswith("[tool]11[tool]22")
    assert "<tools>" not in ChatTemplate(HERMES_TEMPLATE).render(HISTORY)


def test_a_template_that_knows_none_is_told_in_words() -> None:
    template = ChatTemplate(CHATML)
    system, user, assistant, results = template.render(HISTORY, [ADD]).split("<|im_start|>")[1:5]
    assert system.startswith("system\nYou can call functions.")
    assert '{"name": "add", "description": "Adds numbers."' in system
    assert user == "user\nAdd.<|im_end|>\n"
    assert read(HERMES, assistant.removeprefix("assistant\n")) == (
        "<|im_end|>",
        [("add", '{"a": 1}'), ("add", '{"a": 2}')],
    )
    assert results.count("<tool_response>") == 2
    given = template.render([ChatMessage("system", "Be brief."), *HISTORY], [ADD])
    assert given.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert given.count("<|im_start|>system") == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["x" * MAX_CHARS]},
        {"anyOf": [{"$ref": "#/$defs/a"}] * (MAX_REFS + 1)},
        json.loads('{"items":' * MAX_DEPTH + "{}" + "}" * MAX_DEPTH),
        [json.loads('{"items":' * 59 + "{}" + "}" * 59), *[{"$ref": "#"}] * 40],
    ],
)
def test_a_schema_beyond_the_limits_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError) as raised:
        check_schema(json.dumps(schema), "response_format")
    assert raised.value.numbers["param"] == "response_format"
    check_schema(json.dumps({"anyOf": [{"$ref": "#/$defs/a"}] * MAX_REFS}), "response_format")
