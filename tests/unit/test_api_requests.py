"""Request bodies: what is wrong is refused with the field's name, what is harmless is tolerated."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from support.scripted import ScriptedQueen, model, said

from antfarm.errors import BusError, Reason
from antfarm.messages import (
    ChatMessage,
    TaskAccepted,
    TaskEvent,
    TaskFinished,
    TaskOutput,
    Tool,
    ToolCall,
    Wanted,
)
from antfarm.queen.api import create_app
from antfarm.queen.tasks import TaskRequest
from antfarm.shard.sampler import check
from antfarm.types import Sampling

HELLO: Any = [{"role": "user", "content": "Say hello"}]
TINY = {"messages": HELLO}


def tool(name: str, parameters: Any = None) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def schema_of(json_schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": json_schema}


ADD = tool("add", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
ADD_TOOL = Tool("add", "", json.dumps(ADD["function"]["parameters"]))
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({**TINY, "model": 5}, "model"),
        ({**TINY, "model": "\ud800"}, "model"),
        ({**TINY, "temperature": "hot"}, "temperature"),
        ({**TINY, "temperature": "1"}, "temperature"),
        ({**TINY, "temperature": float("nan")}, "temperature"),
        ({**TINY, "temperature": float("inf")}, "temperature"),
        ({**TINY, "temperature": -1}, "temperature"),
        ({**TINY, "temperature": True}, "temperature"),
        ({**TINY, "top_p": 1.5}, "top_p"),
        ({**TINY, "repetition_penalty": 0}, "repetition_penalty"),
        ({**TINY, "repetition_penalty": 1e-60}, "repetition_penalty"),
        ({**TINY, "max_tokens": 0}, "max_tokens"),
        ({**TINY, "max_tokens": 1.5}, "max_tokens"),
        ({**TINY, "n": 1000}, "n"),
        ({**TINY, "seed": 2**70}, "seed"),
        ({**TINY, "stop": ["x"] * 17}, "stop"),
        ({**TINY, "stop": [""]}, "stop"),
        ({**TINY, "stop": "x" * 1000}, "stop"),
        ({**TINY, "top_logprobs": 21}, "top_logprobs"),
        ({**TINY, "top_logprobs": 2}, "top_logprobs"),
        ({**TINY, "top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({**TINY, "top_logprobs": 2, "logprobs": 5}, "logprobs"),
        ({**TINY, "timeout": 0}, "timeout"),
        ({**TINY, "timeout": -1}, "timeout"),
        ({**TINY, "timeout": 86_401}, "timeout"),
        ({**TINY, "timeout": float("inf")}, "timeout"),
        ({**TINY, "timeout": "5"}, "timeout"),
        ({**TINY, "stream": "yes"}, "stream"),
        ({**TINY, "stream_options": 3}, "stream_options"),
        ({**TINY, "functions": [{"name": "x"}]}, "functions"),
        ({**TINY, "function_call": "auto"}, "function_call"),
        ({**TINY, "modalities": ["text", "audio"]}, "modalities"),
        ({**TINY, "audio": {"voice": "alloy"}}, "audio"),
        ({**TINY, "web_search_options": {}}, "web_search_options"),
        ({**TINY, "stop": ["x"] * 1000}, "stop"),
        ({**TINY, "stop": [5]}, "stop"),
        ({**TINY, "max_tokens": 10**12}, "max_tokens"),
        ({**TINY, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({**TINY, "tools": {}}, "tools"),
        ({**TINY, "tools": [{"type": "function"}]}, "tools[0].function"),
        ({**TINY, "tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type"),
        ({**TINY, "tools": [ADD, ADD]}, "tools"),
        ({**TINY, "tools": [ADD] * 129}, "tools"),
        ({**TINY, "tools": [tool("no spaces")]}, "tools[0].function.name"),
        ({**TINY, "tools": [tool("")]}, "tools[0].function.name"),
        ({**TINY, "tools": [tool("a\n")]}, "tools[0].function.name"),
        ({**TINY, "tools": [ADD, tool("x" * 65)]}, "tools[1].function.name"),
        ({**TINY, "tools": [tool("f", [])]}, "tools[0].function.parameters"),
        ({**TINY, "tools": [tool("f", "{}")]}, "tools[0].function.parameters"),
        ({**TINY, "tools": [tool("f", {"type": "string"})]}, "tools[0].function.parameters"),
        ({**TINY, "tools": [ADD], "tool_choice": "perhaps"}, "tool_choice"),
        ({**TINY, "tools": [ADD], "tool_choice": named("other")}, "tool_choice"),
        ({**TINY, "tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({**TINY, "tool_choice": "required"}, "tool_choice"),
        ({**TINY, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"messages": [{**HELLO[0], "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].content"),
        ({"messages": [{"role": "tool"}]}, "messages[0].content"),
        ({**TINY, "logit_bias": [5]}, "logit_bias"),
        ({**TINY, "logit_bias": {"x": 5}}, "logit_bias"),
        ({**TINY, "logit_bias": {"-1": 5}}, "logit_bias"),
        ({**TINY, "logit_bias": {"9" * 5000: 5}}, "logit_bias"),
        ({**TINY, "logit_bias": {"1": 101}}, "logit_bias"),
        ({**TINY, "logit_bias": {"1": float("nan")}}, "logit_bias"),
        ({**TINY, "logit_bias": {"1": "5"}}, "logit_bias"),
        ({**TINY, "logit_bias": {"1": True}}, "logit_bias"),
        ({**TINY, "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({**TINY, "response_format": "json"}, "response_format"),
        ({**TINY, "response_format": {}}, "response_format.type"),
        ({**TINY, "response_format": {"type": "xml"}}, "response_format.type"),
        ({**TINY, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({**TINY, "response_format": schema_of({})}, "response_format.json_schema.schema"),
        ({**TINY, "response_format": schema_of({"schema": True})}, "response_format.json_schema.schema"),
        (
            {**TINY, "response_format": schema_of({"schema": {}, "name": "?"})},
            "response_format.json_schema.name",
        ),
        ([], None),
        ("x", None),
    ],
)
async def test_a_wrong_chat_field_is_named(body: Any, param: str | None) -> None:
    await _refused("/v1/chat/completions", body, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["x"] * 65}, "prompt"),
        ({"prompt": ["x"] * 33, "n": 2}, "n"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "n": 2, "best_of": 3}, "best_of"),
        ({"prompt": "x", "best_of": 0}, "best_of"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
    ],
)
async def test_a_wrong_completion_field_is_named(body: Any, param: str) -> None:
    await _refused("/v1/completions", body, param)


async def _refused(path: str, body: Any, param: str | None) -> None:
    queen = ScriptedQueen(said("never"))
    reply = await post(queen, path, body)
    assert queen.requests == []
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (
        param,
        "invalid-request",
        "invalid_request_error",
    )
    if param:
        assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("path", "more", "max_tokens", "logprobs"),
    [
        ("chat/completions", {"max_tokens": 5}, 5, None),
        ("chat/completions", {"max_tokens": 5, "max_completion_tokens": 6}, 6, None),
        ("chat/completions", {"logprobs": True, "top_logprobs": 3}, None, 3),
        ("chat/completions", {"logprobs": True}, None, 0),
        ("completions", {"max_tokens": 5, "logprobs": 3}, 5, 3),
        ("completions", {"max_completion_tokens": 6}, 16, None),  # which is chat's alone
    ],
)
async def test_every_sampling_field_reaches_the_lead(
    path: str, more: Any, max_tokens: int | None, logprobs: int | None
) -> None:
    body = {
        "temperature": 0.1,
        "top_k": 20,
        "top_p": 0.3,
        "min_p": 0.04,
        "repetition_penalty": 1.5,
        "presence_penalty": -0.6,
        "frequency_penalty": 0.7,
        "seed": 8,
        "stop": ["nine", "ten"],
        "ignore_eos": True,
        "logit_bias": {"11": -12, "13": 0.5},
        "n": 2,
        **more,
    }
    wanted = Sampling(
        temperature=0.1,
        top_k=20,
        top_p=0.3,
        min_p=0.04,
        repetition_penalty=1.5,
        presence_penalty=-0.6,
        frequency_penalty=0.7,
        seed=8,
        max_tokens=max_tokens,
        stop=("nine", "ten"),
        logprobs=logprobs,
        ignore_eos=True,
        logit_bias={11: -12.0, 13: 0.5},
    )
    queen = ScriptedQueen(said("Hi"))
    prompt = TINY if path.startswith("chat") else {"prompt": "x"}
    reply = await post(queen, f"/v1/{path}", {**prompt, **body})
    assert reply.status_code == 200, reply.text
    sampled = sorted((request.sampling for request in queen.requests), key=lambda one: one.seed or 0)
    assert sampled == [wanted, msgspec.structs.replace(wanted, seed=9)]


async def test_what_is_not_set_is_off() -> None:
    queen = ScriptedQueen(said("Hi"))
    for path, body in (("chat/completions", TINY), ("completions", {"prompt": "x", "stop": "one"})):
        assert (await post(queen, f"/v1/{path}", body)).status_code == 200
    assert [request.sampling for request in queen.requests] == [
        Sampling(),
        Sampling(max_tokens=16, stop=("one",)),
    ]


async def test_harmless_and_unknown_fields_are_tolerated() -> None:
    extra = {"user": "me", "tools": [], "response_format": {"type": "text"}, "unheard_of": 1, "top_k": -1}
    extra |= {"modalities": ["text"], "function_call": "none", "audio": None, "web_search_options": None}
    queen = ScriptedQueen(said("Hi"))
    reply = await post(queen, "/v1/chat/completions", {**TINY, **extra, "temperature": None, "seed": -1})
    assert reply.status_code == 200
    assert queen.requests[0].sampling.temperature == 1.0
    assert queen.requests[0].sampling.top_k == 0
    assert queen.requests[0].sampling.seed == 2**63 - 1


async def test_a_requests_time_reaches_the_lead() -> None:
    queen = ScriptedQueen(said("Hi"))
    for more in ({}, {"timeout": None}, {"timeout": 2}, {"timeout": 0.5, "top_logprobs": 0}):
        assert (await post(queen, "/v1/chat/completions", {**TINY, **more})).status_code == 200
    for path, body in (("completions", {"prompt": "x", "best_of": 1}), ("embeddings", {"input": [[5]]})):
        await post(queen, f"/v1/{path}", {**body, "timeout": 7})
    assert [request.deadline for request in queen.requests] == [None, None, 2, 0.5, 7, 7]


async def test_more_than_a_model_ever_takes_is_no_reason_to_try_again() -> None:
    queen = ScriptedQueen(said("Hi"), [msgspec.structs.replace(model(), room=2)])
    for path, body in (("chat/completions", TINY), ("completions", {"prompt": "x"})):
        reply = await post(queen, f"/v1/{path}", {**body, "n": 3})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, "invalid-request", "n")
        assert queen.requests == []
    assert (await post(queen, "/v1/chat/completions", {**TINY, "n": 2})).status_code == 200


async def test_no_more_inputs_are_under_way_than_a_model_takes() -> None:
    vector = TaskOutput("t", vector=np.ones(4, "<f4").tobytes())
    script = [TaskAccepted("t", 1), vector, TaskFinished("t", 0, "stop")]
    queen = ScriptedQueen(script, [msgspec.structs.replace(model(), room=2)])
    most = 0
    run = queen.run

    async def counted(request: TaskRequest) -> AsyncGenerator[TaskEvent, None]:
        nonlocal most
        async for event in run(request):
            most = max(most, queen.running)
            yield event

    queen.run = counted  # type: ignore[method-assign]
    reply = await post(queen, "/v1/embeddings", {"input": ["x"] * 5})
    assert len(reply.json()["data"]) == 5
    assert most == 2


async def test_a_best_of_n_is_what_n_gives() -> None:
    queen = ScriptedQueen(said("Hi"))
    reply = await post(queen, "/v1/completions", {"prompt": "x", "n": 2, "best_of": 2})
    assert reply.status_code == 200 and len(reply.json()["choices"]) == 2


async def test_a_top_p_of_0_takes_the_likeliest_token_as_openais_does() -> None:
    queen = ScriptedQueen(said("Hi"))
    assert (await post(queen, "/v1/chat/completions", {**TINY, "top_p": 0})).status_code == 200
    check(queen.requests[0].sampling)
    assert 0 < queen.requests[0].sampling.top_p < 1e-6


async def test_what_the_bus_refuses_is_told_without_its_subjects() -> None:
    refused = BusError(Reason.INVALID_REQUEST, "a message of 9 bytes on antfarm.task; the bus takes 8")
    reply = await post(ScriptedQueen([refused]), "/v1/chat/completions", TINY)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "the request is too large for the colony's bus"


async def test_what_an_answer_must_be_reaches_the_lead() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}}
    asks: list[tuple[Any, Wanted]] = [
        ({"response_format": {"type": "json_object"}}, Wanted(schema='{"type": "object"}')),
        ({"response_format": schema_of({"schema": schema})}, Wanted(schema=json.dumps(schema))),
        ({"tools": [ADD]}, Wanted(tools=(ADD_TOOL,))),
        ({"tools": [ADD], "tool_choice": "none"}, Wanted()),
        ({"tools": [ADD], "tool_choice": "required"}, Wanted(tools=(ADD_TOOL,), tool_choice="required")),
        (
            {"tools": [ADD, tool("rest")], "tool_choice": named("rest"), "parallel_tool_calls": False},
            Wanted(tools=(ADD_TOOL, Tool("rest")), tool_choice="required", tool="rest", parallel_calls=False),
        ),
    ]
    queen = ScriptedQueen(said("x"))
    for ask, _ in asks:
        assert (await post(queen, "/v1/chat/completions", {**TINY, **ask})).status_code == 200
    assert [request.wanted for request in queen.requests] == [wanted for _, wanted in asks]


async def test_a_history_with_calls_reaches_the_lead() -> None:
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
    ]
    queen = ScriptedQueen(said("x"))
    reply = await post(
        queen, "/v1/chat/completions", {"messages": history, "logit_bias": {"7": -100, "8": 0.5}}
    )
    assert reply.status_code == 200
    assert queen.requests[0].messages == (
        ChatMessage("user", "Say hello"),
        ChatMessage("assistant", "", (ToolCall("c1", "add", '{"a": 1}'),)),
        ChatMessage("tool", "2", tool_call_id="c1"),
    )
    assert queen.requests[0].sampling.logit_bias == {7: -100.0, 8: 0.5}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the body is empty: a JSON object is needed"),
        (b"null", "the body: a JSON object is needed, not null"),
        (b"[]", "the body: a JSON object is needed, not a list"),
        (b'""', "the body: a JSON object is needed, not a string"),
        (b"{", "Expecting property name"),
        (b'{"messages": ', "Expecting value"),
        (b'{"messages": "\xff"}', "byte 14 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", "too many digits"),
    ],
    ids=["empty", "null", "list", "string", "cut", "cut value", "invalid UTF-8", "deep", "endless number"],
)
async def test_what_is_not_json_is_refused(content: bytes, words: str) -> None:
    queen = ScriptedQueen(said("never"))
    reply = await post(queen, "/v1/chat/completions", content)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["type"]) == ("invalid-request", "invalid_request_error")
    assert error["message"].startswith("the body")
    assert words in error["message"]


HALF = "not valid Unicode text: half of a surrogate pair is in it"
TEXT_PARTS = 'a string, or a list of text parts: {"type": "text", "text": "..."}'
IMAGE = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({**TINY, "response_format": schema_of({"schema": True})}, "a JSON object is needed, not true"),
        ({**TINY, "tools": [tool("f", False)]}, "a JSON object is needed, not false"),
        ({"messages": [5]}, "a JSON object is needed, not a number"),
        ({"messages": None}, "a value is needed"),
        ({**TINY, "response_format": {"type": "json_schema"}}, "a value is needed"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, HALF),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]}, HALF),
        ({**TINY, "stop": "\ud800"}, HALF),
        ({**TINY, "tools": [tool("f", {"description": "\ud800"})]}, HALF),
        ({**TINY, "response_format": schema_of({"schema": {"const": "\ud800"}})}, HALF),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, IMAGE]}]},
            f"parts of type 'image_url' are not supported; it is {TEXT_PARTS}",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, TEXT_PARTS),
    ],
)
async def test_what_is_refused_is_told_in_plain_words(body: Any, words: str) -> None:
    reply = await post(ScriptedQueen(said("never")), "/v1/chat/completions", body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["message"] == f"{error['param']}: {words}"


async def test_no_depth_of_a_schema_is_the_servers_failure() -> None:
    """Where JSON that can just be read is too deep to be written again."""

    async def said_of(depth: int) -> str:
        schema = b'{"items": ' * depth + b"{}" + b"}" * depth
        wanted = b', "response_format": {"type": "json_schema", "json_schema": {"schema": ' + schema + b"}}}"
        body = json.dumps(TINY)[:-1].encode() + wanted
        return (await post(ScriptedQueen(said("x")), "/v1/chat/completions", body)).text

    read, unread = 100, 2000
    while unread - read > 1:
        depth = (read + unread) // 2
        if "the body is not JSON" in await said_of(depth):
            unread = depth
        else:
            read = depth
    for depth in range(read - 5, read + 1):
        assert "nested too deeply" in (text := await said_of(depth)) or "choices" in text


async def test_developers_speak_as_the_system() -> None:
    queen = ScriptedQueen(said("Yes."))
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Ants?"}]
    assert (await post(queen, "/v1/chat/completions", {"messages": messages})).status_code == 200
    assert [message.role for message in queen.requests[0].messages or ()] == ["system", "user"]
    unknown = await post(queen, "/v1/chat/completions", {"messages": [{"role": "ant", "content": "x"}]})
    assert "'developer'" in unknown.json()["error"]["message"]


async def test_a_form_is_told_how_to_send_json() -> None:
    queen = ScriptedQueen(said("never"))
    reply = await post(
        queen, "/v1/chat/completions", TINY, **{"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert reply.status_code == 400
    assert "Content-Type: application/json" in reply.json()["error"]["message"]


async def post(queen: ScriptedQueen, path: str, body: Any, **headers: str) -> httpx.Response:
    """`body` is JSON when it is not bytes. No server: the app is called directly."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    transport = httpx.ASGITransport(create_app(queen))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
        return await http.post(path, content=content, headers={"Content-Type": "application/json", **headers})
