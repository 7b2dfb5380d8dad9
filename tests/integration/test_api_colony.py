"""The API of a whole colony: from HTTP to real shards, and back."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import one_of
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.world import World

from antfarm.types import RunOptions

CHAT = "/v1/chat/completions"
ROOMY = RunOptions(context=32768, slots=1, queue=1)
ENDLESS: Any = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True}  # fills ROOMY
SHORT: Any = {**ENDLESS, "max_tokens": 3}
FUZZ_S = 20.0  # at most
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
FEW = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


async def test_more_than_the_queue_takes_is_told_to_come_again(world: World, tiny: Path) -> None:
    await world.forager("a")
    await world.load(tiny, 1, options=ROOMY)
    async with world.http() as http:
        async with AsyncExitStack() as stack:
            streams = [  # one has the slot, one waits for it
                await stack.enter_async_context(http.stream("POST", CHAT, json={**ENDLESS, "stream": True}))
                for _ in range(2)
            ]
            assert [stream.status_code for stream in streams] == [200, 200]
            for stream in (False, True):
                refused = await http.post(CHAT, json={**SHORT, "stream": stream})
                error = refused.json()["error"]
                assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
                assert (error["code"], error["type"]) == ("queue-full", "rate_limit_error")
        assert await asyncio.wait_for(answered(http), 60) == 3


async def test_clients_that_leave_at_once_leave_nothing_behind(world: World, tiny: Path) -> None:
    """Some before their task has come to the lead: a cancel must not overtake it on the way there."""
    await world.forager("a")
    await world.load(tiny, 1, options=RunOptions(context=32768, slots=4, queue=64))

    def leave(host: str, port: int) -> None:
        body = json.dumps({**ENDLESS, "stream": True}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        for number in range(60):
            with socket.create_connection((host, port), 60) as one:
                one.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                if number % 2:
                    one.recv(100)

    def idle() -> bool:
        leads = [shard.lead for shard in world.queen.stats().shards if shard.lead]
        return bool(leads) and leads[0].running == leads[0].waiting == 0

    async with world.http() as http:
        await asyncio.to_thread(leave, http.base_url.host, http.base_url.port or 0)
        reply = await asyncio.wait_for(http.post(CHAT, json=SHORT), 60)
        assert reply.json()["usage"]["completion_tokens"] == 3
        await world.until(idle)


async def answered(http: httpx.AsyncClient) -> int:
    while True:  # the lead hears of the clients' leaving a moment later
        reply = await http.post(CHAT, json=SHORT)
        if reply.status_code != 429:
            return int(reply.json()["usage"]["completion_tokens"])
        await asyncio.sleep(0.05)


async def test_whatever_the_page_allows_the_colony_goes_on(world: World, tiny: Path) -> None:
    await world.forager("a")
    await world.load(tiny, 1, options=RunOptions(context=64, slots=4))
    async with world.http() as http:
        statuses = await asyncio.to_thread(fuzz, str(http.base_url))
        assert 200 in statuses
        assert await asyncio.wait_for(answered(http), 60) == 3
    assert [replica.state for replica in world.queen.replicas()] == ["ready"]
    assert "shard-missing" not in [event.kind for event in await world.ops()]


def fuzz(url: str) -> Counter[int]:
    """The statuses of all answers, of which none may be a failure of the server."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    cases = one_of([one.as_strategy() for one in operations if one.method == "post"])
    statuses: Counter[int] = Counter()
    end = time.monotonic() + FUZZ_S

    @given(case=cases)
    @FEW
    def ask(case: Any) -> None:
        if time.monotonic() < end:
            body = case.body = {**case.body, "model": "tiny"}
            reply = case.call_and_validate(checks=CHECKS, timeout=60)
            late = reply.status_code == 504 and body.get("timeout")
            assert reply.status_code < 500 or late, (body, reply.text)
            statuses[reply.status_code] += 1

    ask()
    return statuses
