"""The queen ends while clients wait: each is told so in OpenAI's shape, soon, and no traceback is logged."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from support.scripted import ScriptedQueen, said
from support.served import DEADLINE_S

from antfarm.errors import Reason
from antfarm.messages import Failure, TaskFinished
from antfarm.queen.api import ApiServer, bind, create_app

BODY = {"messages": [{"role": "user", "content": "Say hello"}]}
DOWN = Failure(Reason.COLONY_DOWN, "the queen is ending")


async def ended(
    queen: ScriptedQueen, body: dict[str, object], ends: asyncio.Event | None = None
) -> httpx.Response:
    """The answer to a request that is underway when the API stops."""
    server = await ApiServer.start(create_app(queen), bind("127.0.0.1", 0))
    async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        await asyncio.wait_for(queen.started.wait(), DEADLINE_S)
        await asyncio.sleep(0.1)
        began = time.monotonic()
        if ends:
            ends.set()
        await server.stop()
        reply = await asking
        assert time.monotonic() - began < 10
        return reply


async def test_an_answer_underway_is_refused_in_shape(caplog: pytest.LogCaptureFixture) -> None:
    accepted, *_ = said("Hello")
    ends = asyncio.Event()
    queen = ScriptedQueen([accepted, ends, TaskFinished("t", 0, "error", failure=DOWN)])
    reply = await ended(queen, BODY, ends)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "colony-down"
    assert caplog.text == ""


async def test_a_stream_underway_ends_with_an_error_frame(caplog: pytest.LogCaptureFixture) -> None:
    accepted, first, *_ = said("Hel", "lo")
    ends = asyncio.Event()
    queen = ScriptedQueen([accepted, first, ends, TaskFinished("t", 1, "error", failure=DOWN)])
    reply = await ended(queen, BODY | {"stream": True}, ends)
    frames = [line for line in reply.text.splitlines() if line]
    assert "Hel" in reply.text
    assert '"code":"colony-down"' in frames[-1]
    assert caplog.text == ""


async def test_one_that_does_not_end_is_cut_and_told(caplog: pytest.LogCaptureFixture) -> None:
    queen = ScriptedQueen([asyncio.Event()])
    reply = await ended(queen, BODY)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "colony-down"
    assert "Traceback" not in caplog.text
