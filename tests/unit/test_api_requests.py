"""Request bodies: what is wrong is refused with the field's name, what is harmless is tolerated."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.scripted import ScriptedQueen, said

from antfarm.queen.api import create_app

HELLO: Any = [{"role": "user", "content": "Say hello"}]
TINY = {"messages": HELLO}


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
        ({**TINY, "max_tokens": 0}, "max_tokens"),
        ({**TINY, "max_tokens": 1.5}, "max_tokens"),
        ({**TINY, "n": 1000}, "n"),
        ({**TINY, "seed": 2**70}, "seed"),
        ({**TINY, "stop": ["x"] * 17}, "stop"),
        ({**TINY, "stop": [""]}, "stop"),
        ({**TINY, "stop": "x" * 1000}, "stop"),
        ({**TINY, "top_logprobs": 21}, "top_logprobs"),
        ({**TINY, "stream": "yes"}, "stream"),
        ({**TINY, "stream_options": 3}, "stream_options"),
        ({**TINY, "tools": [{"type": "function"}]}, "tools"),
        ({**TINY, "logit_bias": {"1": 5}}, "logit_bias"),
        ({**TINY, "response_format": {"type": "json_object"}}, "response_format"),
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


async def test_harmless_and_unknown_fields_are_tolerated() -> None:
    extra = {"user": "me", "tools": [], "response_format": {"type": "text"}, "unheard_of": 1, "top_k": -1}
    queen = ScriptedQueen(said("Hi"))
    reply = await post(queen, "/v1/chat/completions", {**TINY, **extra, "temperature": None, "seed": -1})
    assert reply.status_code == 200
    assert queen.requests[0].sampling.temperature == 1.0
    assert queen.requests[0].sampling.top_k == 0
    assert queen.requests[0].sampling.seed == 2**63 - 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"messages": ', b'{"messages": "\xff"}', b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"],
    ids=["empty", "cut", "cut value", "invalid UTF-8", "deep", "endless number"],
)
async def test_what_is_not_json_is_refused(content: bytes) -> None:
    queen = ScriptedQueen(said("never"))
    reply = await post(queen, "/v1/chat/completions", content)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "invalid-request"


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
