"""Clients that send nonsense, too much, or nothing: each is refused or cut, and everyone else is served."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from support.scripted import said
from support.served import DEADLINE_S, Api, served

SOME_S = 1.5
CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Say hello"}]
OPEN: Any = {"messages": HELLO}

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def others_are_served(api: Api) -> AsyncIterator[None]:
    """Someone else asks all the while, and is answered."""
    done = asyncio.Event()

    async def ask() -> int:
        count = 0
        while not done.is_set() or not count:
            reply = await api.post(CHAT, OPEN)
            assert reply.json()["choices"][0]["message"]["content"] == "Hello!"
            count += 1
            await asyncio.sleep(0.01)
        return count

    other = asyncio.create_task(ask())
    try:
        yield
    finally:
        done.set()
        await asyncio.wait_for(other, DEADLINE_S)


async def connect(api: Api) -> Connection:
    host, port = api.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def cut(connection: Connection) -> bytes:
    """What the server said before it closed the connection."""
    reader, writer = connection
    try:
        return await asyncio.wait_for(reader.read(), DEADLINE_S)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def nested(depth: int) -> Any:
    """JSON text of lists in lists: `json` itself would not write it."""
    return b"[" * depth + b"]" * depth


BODIES: dict[str, bytes] = {
    "a thousand stop strings": json.dumps({**OPEN, "stop": ["x"] * 1000}).encode(),
    "no tokens": json.dumps({**OPEN, "max_tokens": 0}).encode(),
    "NaN": json.dumps({**OPEN, "temperature": float("nan")}).encode(),
    "a thousand answers": json.dumps({**OPEN, "n": 1000}).encode(),
    "a bad tool": json.dumps({**OPEN, "tools": [{"type": "function", "function": {"name": "a b"}}]}).encode(),
    "invalid UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "half a surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "deep JSON": nested(200_000),
    "deep content": b'{"messages": [{"role": "user", "content": ' + nested(50_000) + b"}]}",
    "deep unknown field": b'{"messages": [], "unheard_of": ' + nested(50_000) + b"}",
    "deep schema": json.dumps(OPEN)[:-1].encode()
    + b', "response_format": {"type": "json_schema", "json_schema": {"schema": {"items": '
    + nested(50_000)
    + b"}}}}",
    "a million keys": json.dumps({f"k{i}": i for i in range(200_000)}).encode(),
    "a long number": b'{"n": ' + b"9" * 100_000 + b"}",
    "not JSON": b"\x00\x01\x02" * 1000,
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_bad_body_is_a_400_in_openais_shape(name: str) -> None:
    async with served(said("Hel", "lo!")) as api, others_are_served(api):
        reply = await api.post(CHAT, BODIES[name])
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["code"] == "invalid-request"
    assert len(reply.text) < 1000


async def test_a_body_larger_than_allowed_is_a_413_before_it_is_all_there() -> None:
    async with served(said("Hel", "lo!")) as api, others_are_served(api):
        reader, writer = await connect(api)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        sent = 0
        try:
            while sent < (64 << 20) and not reader.at_eof():
                writer.write(b" " * (1 << 20))
                await asyncio.wait_for(writer.drain(), DEADLINE_S)
                sent += 1 << 20
        except ConnectionError:
            pass
        assert sent < (64 << 20)
        writer.close()


async def test_heads_that_never_end_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antfarm.queen.api.connection.HEAD_S", SOME_S)
    async with served(said("Hel", "lo!")) as api, others_are_served(api):
        silent, halfway, dripping = [await connect(api) for _ in range(3)]
        halfway[1].write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-".encode())

        async def drip() -> None:
            for _ in range(1000):
                dripping[1].write(b"G")
                await asyncio.sleep(SOME_S / 10)

        dripper = asyncio.create_task(drip())
        assert [await cut(each) for each in (silent, halfway, dripping)] == [b""] * 3
        dripper.cancel()


async def test_bodies_that_never_end_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred at once; each is told so, and cut though it goes on."""
    monkeypatch.setattr("antfarm.queen.api.gate.BODY_S", SOME_S)
    monkeypatch.setattr("antfarm.queen.api.connection.HEAD_S", SOME_S)
    async with served(said("Hel", "lo!")) as api, others_are_served(api):
        connections = [await connect(api) for _ in range(100)]
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n"

        async def drip(writer: asyncio.StreamWriter) -> None:
            writer.write(head.encode())
            for _ in range(900):
                writer.write(b" ")
                await asyncio.sleep(SOME_S / 5)

        drips = [asyncio.create_task(drip(writer)) for _, writer in connections]
        answers = await asyncio.gather(*map(cut, connections))
        for each in drips:
            each.cancel()
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers if answer)


async def test_five_hundred_idle_connections_harm_nobody() -> None:
    async with served(said("Hel", "lo!")) as api:
        host, port = api.url.removeprefix("http://").split(":")
        with ExitStack() as idle:
            for _ in range(500):
                idle.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))
            async with others_are_served(api):
                await asyncio.sleep(SOME_S)


async def test_a_long_answer_is_not_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antfarm.queen.api.connection.HEAD_S", SOME_S)
    wait = asyncio.Event()
    script = said("Hel", "lo!")
    async with served([*script[:2], wait, *script[2:]]) as api:
        asking = asyncio.create_task(api.post(CHAT, OPEN))
        await asyncio.sleep(1.5 * SOME_S)
        wait.set()
        assert (await asking).json()["choices"][0]["message"]["content"] == "Hello!"
