"""Answers held to a grammar: whatever is sampled, the text is what the schema or the tools ask for."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from pydantic import TypeAdapter
from support.models import Models
from support.panic import Panic

from antfarm.errors import AntfarmError, RequestError
from antfarm.messages import Tool, Wanted
from antfarm.model.gguf import GgufFile
from antfarm.model.tokenizer import Tokenizer
from antfarm.model.toolform import ToolForm, grammar
from antfarm.model.toolparser import Arguments, Called, ToolParser
from antfarm.shard.constraint import Constraint, Grammars

PARAM = "response_format"
ANT = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["worker", "queen"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 12},
        "name": {"type": "string", "maxLength": 8},
        "eats": {"type": "array", "items": {"$ref": "#/$defs/food"}, "maxItems": 2},
    },
    "required": ["kind", "legs", "name", "eats"],
    "additionalProperties": False,
    "$defs": {"food": {"enum": ["leaf", "sugar"]}},
}
TOOLS = (
    Tool("feed", "", json.dumps({**ANT, "required": ["legs"], "properties": {"legs": {"type": "boolean"}}})),
    Tool("rest"),
)


@lru_cache
def language(path: Path) -> tuple[Tokenizer, Grammars]:
    with GgufFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    return tokenizer, Grammars(tokenizer)


@pytest.fixture(params=["tiny-llama", "tiny-qwen2"])
def vocabulary(request: pytest.FixtureRequest, models: Models) -> tuple[Tokenizer, Grammars]:
    return language(models.path(request.param))


def drawn(vocabulary: tuple[Tokenizer, Grammars], wanted: Wanted, form: ToolForm, seed: int) -> str:
    """An answer drawn from random logits."""
    tokenizer, grammars = vocabulary
    constraint = grammars.compile(grammar(wanted, form) or "", PARAM)
    random = np.random.default_rng(seed)
    tokens: list[int] = []
    while len(tokens) < 600:
        row = random.normal(size=tokenizer.size + 3).astype(np.float32)  # embeddings are padded
        masked = constraint.mask(row)
        token = int(masked.argmax())
        assert masked[token] == row[token]
        if token not in tokenizer.eog:
            tokens.append(token)
        if constraint.accept(token):
            return tokenizer.decode(tokens)
    raise AssertionError(f"no end: {tokenizer.decode(tokens)!r}")


@pytest.mark.parametrize("seed", range(5))
def test_an_answer_follows_its_schema(vocabulary: tuple[Tokenizer, Grammars], seed: int) -> None:
    text = drawn(vocabulary, Wanted(schema=json.dumps(ANT)), ToolForm.HERMES, seed)
    value = json.loads(text)
    assert list(value) == ["kind", "legs", "name", "eats"]
    assert value["kind"] in ("worker", "queen")
    assert 0 <= value["legs"] <= 12
    assert len(value["name"]) <= 8
    assert len(value["eats"]) <= 2


@pytest.mark.parametrize("form", ToolForm)
@pytest.mark.parametrize("tool", ["", "rest"])
def test_an_answer_made_to_call_does(
    vocabulary: tuple[Tokenizer, Grammars], form: ToolForm, tool: str
) -> None:
    wanted = Wanted(tools=TOOLS, tool_choice="required", tool=tool)
    for seed in range(4):
        parser = ToolParser(form)
        pieces = parser.push(drawn(vocabulary, wanted, form, seed)) + parser.flush()
        names = [piece.name for piece in pieces if isinstance(piece, Called)]
        assert names
        assert len(names) == 1 or form is ToolForm.HERMES
        assert set(names) <= ({tool} if tool else {"feed", "rest"})
        for index, name in enumerate(names):
            text = "".join(p.text for p in pieces if isinstance(p, Arguments) and p.index == index)
            assert list(json.loads(text)) == (["legs"] if name == "feed" else [])


HERMES_CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
LLAMA_CALL = '{"name": "%s", "parameters": %s}'


@pytest.mark.parametrize(("form", "call"), [(ToolForm.HERMES, HERMES_CALL), (ToolForm.LLAMA, LLAMA_CALL)])
def test_of_strict_tools_a_call_that_is_begun_follows_its_schema(
    vocabulary: tuple[Tokenizer, Grammars], form: ToolForm, call: str
) -> None:
    wanted = Wanted(tools=(msgspec.structs.replace(TOOLS[0], strict=True), TOOLS[1]))
    for text in (
        "",
        "Ants say <tool",
        '{"x": 1}',
        call % ("feed", '{"legs": true}'),
        call % ("rest", '{"a": 1}'),
    ):
        assert followed(vocabulary, wanted, form, text) == text
    assert followed(vocabulary, wanted, ToolForm.LLAMA, '{ "name"') == '{ "name'
    for args in ('{"legs": 1}', '{"arms": true}', "[]"):
        assert followed(vocabulary, wanted, form, call % ("feed", args)) != call % ("feed", args)
    assert grammar(Wanted(tools=TOOLS), form) is None


def test_strict_calls_stand_anywhere_in_a_text(vocabulary: tuple[Tokenizer, Grammars]) -> None:
    wanted = Wanted(tools=(msgspec.structs.replace(TOOLS[0], strict=True),))
    fed = HERMES_CALL % ("feed", '{"legs": true}')
    text = f"First\n{fed}\n{fed} then <tools> and"
    assert followed(vocabulary, wanted, ToolForm.HERMES, text) == text
    assert followed(vocabulary, wanted, ToolForm.HERMES, "So <tool_call>?") == "So <tool_call>"


def followed(vocabulary: tuple[Tokenizer, Grammars], wanted: Wanted, form: ToolForm, text: str) -> str:
    """How far an answer may be this text; all of it only when it may end there."""
    tokenizer, grammars = vocabulary
    constraint = grammars.compile(grammar(wanted, form) or "", PARAM)
    tokens = tokenizer.encode_within(text)
    for index, token in enumerate(tokens):
        if not constraint.allowed()[token]:
            return b"".join(map(tokenizer.token_bytes, tokens[:index])).decode()
        constraint.accept(token)
    return text if constraint.allowed()[list(tokenizer.eog)].any() else f"{text}..."


def test_with_a_schema_and_tools_an_answer_is_the_one_or_calls_the_others(
    vocabulary: tuple[Tokenizer, Grammars],
) -> None:
    wanted = Wanted(schema=json.dumps(ANT), tools=TOOLS)
    texts = [drawn(vocabulary, wanted, ToolForm.HERMES, seed) for seed in range(8)]
    assert {text.startswith("<tool_call>") for text in texts} == {True, False}


def test_one_call_where_parallel_ones_are_not_wanted(vocabulary: tuple[Tokenizer, Grammars]) -> None:
    wanted = Wanted(tools=TOOLS[1:], tool_choice="required", parallel_calls=False)
    assert all(
        drawn(vocabulary, wanted, ToolForm.HERMES, seed).count("<tool_call>") == 1 for seed in range(8)
    )


def test_schemas_that_pydantic_writes(vocabulary: tuple[Tokenizer, Grammars]) -> None:
    adapter = TypeAdapter[Any](dict[bool, tuple[int | None, bool]] | list[bool])
    schema = {"anyOf": [{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, {"type": "null"}]}
    assert grammars_accept(vocabulary, adapter.json_schema())
    assert json.loads(drawn(vocabulary, Wanted(schema=json.dumps(schema)), ToolForm.HERMES, 1)) is not False


def grammars_accept(vocabulary: tuple[Tokenizer, Grammars], schema: Any) -> bool:
    source = grammar(Wanted(schema=json.dumps(schema)), ToolForm.HERMES) or ""
    return bool(vocabulary[1].compile(source, PARAM).allowed().any())


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nonsense"}, "no type 'nonsense'"),
        ({"type": 12}, "type must be"),
        ({"properties": [1]}, "properties must be"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "no text satisfies the schema: minLength"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "no text satisfies"),
        ({"enum": []}, "no text satisfies"),
        ({"$ref": "#"}, "no text satisfies"),
        ({"allOf": [{"$ref": "#"}]}, "no text satisfies"),
        ({"$ref": "#/nowhere"}, "nothing at '#/nowhere'"),
        ({"$ref": "http://example.com/schema"}, "example.com"),
        ({"not": {"type": "string"}}, 'not supported: "not"'),
        ({"type": "string", "pattern": "^(?=a)b"}, "look-around"),
        ({"type": "string", "x-guidance": {"lenient": True}, "not": {}}, 'not supported: "not"'),
        ({"oneOf": [{}, {"type": "string"}]}, "not supported: oneOf"),
        ({"enum": ["x" * 5000], "format": "f" * 5000, "type": "string"}, "the format"),
    ],
)
def test_a_schema_that_is_none_or_cannot_be_met_is_refused(models: Models, schema: Any, words: str) -> None:
    _, grammars = language(models.path("tiny-llama"))
    source = grammar(Wanted(schema=json.dumps(schema)), ToolForm.HERMES)
    with pytest.raises(RequestError) as raised:
        grammars.compile(source or "", PARAM)
    message = raised.value.message
    assert words in message
    assert len(message) < 400
    assert not any(internal in message for internal in ("%json", "compile", "x-guidance", "\n"))
    assert raised.value.numbers["param"] == PARAM


@pytest.mark.parametrize("tool", ["", "bad"])
def test_of_several_tools_the_one_that_is_wrong_is_named(models: Models, tool: str) -> None:
    _, grammars = language(models.path("tiny-llama"))
    tools = (*TOOLS, Tool("bad", "", '{"properties": {"a": {"type": "nonsense"}}}'))
    wanted = Wanted(schema="{}", tools=tools, tool_choice="required", tool=tool)
    with pytest.raises(RequestError) as raised:
        grammars.compile(grammar(wanted, ToolForm.HERMES) or "", PARAM)
    assert raised.value.numbers["param"] == "tools[2].function.parameters"


def test_an_answer_that_left_its_grammar_is_not_taken_for_complete(models: Models) -> None:
    tokenizer, grammars = language(models.path("tiny-llama"))
    constraint = grammars.compile('start: "ab"', PARAM)
    with pytest.raises(AntfarmError, match="any further"):
        constraint.accept(tokenizer.encode_within("b")[0])
    with pytest.raises(AntfarmError, match="any further"):
        constraint.mask(np.zeros(tokenizer.size, np.float32))


@pytest.mark.parametrize(("raised", "seen"), [(SystemExit, SystemExit), (Panic, RuntimeError)])
def test_a_panic_becomes_an_exception_and_an_interrupt_does_not(
    raised: type[BaseException], seen: type[BaseException]
) -> None:
    broken = Constraint(Mock(consume_token=Mock(side_effect=raised("beyond"))), 8)
    with pytest.raises(seen, match="beyond"):
        broken.accept(1)


def test_tokens_inside_a_text_have_its_bytes_alone(models: Models) -> None:
    for shape in ("tiny-llama", "tiny-qwen2"):
        tokenizer, _ = language(models.path(shape))
        for text in ('{"a": 1}', " x", "<s>", "é"):
            ids = tokenizer.encode_within(text)
            assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
