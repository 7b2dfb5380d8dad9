"""Embeddings, tokens and text, from what a task gives to what a client gets."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import numpy as np
import pytest
from support.scripted import ScriptedQueen, model

from antfarm.errors import Reason
from antfarm.messages import (
    ChatMessage,
    Failure,
    TaskAccepted,
    TaskEvent,
    TaskFinished,
    TaskOutput,
    Tool,
    Wanted,
)
from antfarm.queen.api import create_app
from antfarm.queen.api.outputs import PARALLEL, gathered
from antfarm.queen.tasks import TaskRequest
from antfarm.types import Sampling

VECTOR = np.array([0.6, 0.0, 0.8, 0.0], "<f4")


async def post(queen: ScriptedQueen, path: str, body: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app=create_app(queen), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        return await http.post(path, json=body)


def giving(**output: Any) -> ScriptedQueen:
    return ScriptedQueen([TaskAccepted("t", 5), TaskOutput("t", **output), TaskFinished("t", 0, "stop")])


async def test_embeddings_of_every_form_of_input() -> None:
    queen = giving(vector=VECTOR.tobytes())
    for given, count in (("a", 1), (["a", "b"], 2), ([1, 2], 1), ([[1], [2, 3]], 2)):
        body = (await post(queen, "/v1/embeddings", {"input": given})).json()
        assert [each["index"] for each in body["data"]] == list(range(count))
        assert body["usage"] == {"prompt_tokens": 5 * count, "total_tokens": 5 * count}
        assert np.allclose(body["data"][0]["embedding"], VECTOR)
    assert [(task.text, task.tokens) for task in queen.requests] == [
        ("a", None), ("a", None), ("b", None), (None, (1, 2)), (None, (1,)), (None, (2, 3)),
    ]  # fmt: skip
    assert {task.wanted.kind for task in queen.requests} == {"vector"}


async def test_embeddings_as_base64_and_shortened() -> None:
    queen = giving(vector=VECTOR.tobytes())
    body = (await post(queen, "/v1/embeddings", {"input": "a", "encoding_format": "base64"})).json()
    assert base64.b64decode(body["data"][0]["embedding"]) == VECTOR.tobytes()
    body = (await post(queen, "/v1/embeddings", {"input": "a", "dimensions": 2})).json()
    assert body["data"][0]["embedding"] == [1.0, 0.0]
    refused = await post(queen, "/v1/embeddings", {"input": "a", "dimensions": 5})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": ""}, "input"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, None),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1] * (2**18 + 1)}, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "nobody"}, "model"),
    ],
)
async def test_a_wrong_field_is_named(path: str, body: Any, param: str | None) -> None:
    queen = giving()
    reply = await post(queen, path, body)
    assert reply.status_code == (404 if param == "model" else 400)
    assert reply.json()["error"]["param"] == param
    assert queen.requests == []


async def test_texts_and_conversations_to_tokens() -> None:
    queen = giving(tokens=np.array([1, 2, 3], "<i4").tobytes())
    add = {"type": "function", "function": {"name": "add"}}
    reply = await post(queen, "/tokenize", {"prompt": "abc"})
    assert reply.json() == {"tokens": [1, 2, 3], "count": 3, "max_model_len": model().context}
    await post(queen, "/tokenize", {"content": "abc", "add_special_tokens": False})
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [add], "add_generation_prompt": False}
    await post(queen, "/tokenize", chat)
    first, second, third = queen.requests
    assert (first.text, first.wanted) == ("abc", Wanted("tokens"))
    assert (second.text, second.wanted) == ("abc", Wanted("tokens", bos=False))
    assert third.messages == (ChatMessage("user", "hi"),)
    assert third.wanted == Wanted("tokens", tools=(Tool("add"),), generation_prompt=False)


async def test_tokens_to_text() -> None:
    queen = giving(text="abc")
    reply = await post(queen, "/detokenize", {"tokens": [5, 6]})
    assert reply.json() == {"prompt": "abc", "content": "abc"}
    assert (queen.requests[0].tokens, queen.requests[0].wanted) == ((5, 6), Wanted("text"))


async def test_a_failure_keeps_its_status() -> None:
    failure = Failure(Reason.CONTEXT_OVERFLOW, "too long", numbers={"param": "input"})
    for script in ([failure.error()], [TaskFinished("t", 0, "error", failure=failure)]):
        reply = await post(ScriptedQueen(script), "/v1/embeddings", {"input": ["a", "b"]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context-overflow")


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/embeddings", {"input": "a"}), ("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})],
)
async def test_an_output_that_was_lost_is_no_empty_one(path: str, body: Any) -> None:
    reply = await post(ScriptedQueen([TaskAccepted("t", 1), TaskFinished("t", 0, "stop")]), path, body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal")
    assert "lost on its way" in reply.json()["error"]["message"]


async def test_of_many_inputs_few_are_under_way() -> None:
    class Counting(ScriptedQueen):
        most = 0

        async def run(self, request: TaskRequest) -> AsyncGenerator[TaskEvent, None]:
            async for event in super().run(request):
                self.most = max(self.most, self.running)
                await asyncio.sleep(0)
                yield event

    queen = Counting([TaskAccepted("t", 1), TaskOutput("t", b"\0\0\0\0"), TaskFinished("t", 0, "stop")])
    tasks = [TaskRequest("tiny", Sampling(), text=str(i)) for i in range(3 * PARALLEL)]
    assert len(await gathered(queen, tasks)) == len(tasks)
    assert queen.most == PARALLEL
