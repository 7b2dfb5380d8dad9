"""One streamed answer, as servers of several kinds send it, without sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from antfarm.bench.endpoint import only_model, settle
from antfarm.bench.mix import Stay
from antfarm.bench.stream import COMPLETIONS, Trace, ask
from antfarm.errors import AntfarmError, Reason

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def sse(*bodies: Any, done: bool = True) -> bytes:
    lines = [b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n" for body in bodies]
    return b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def delta(**said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": None}], "usage": None}


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece}]}


def client(*parts: bytes | Exception | float, status: int = 200) -> httpx.AsyncClient:
    """A server that sends `parts`; a number is a pause in seconds, an exception breaks the connection."""

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            if isinstance(part, bytes):
                yield part
            elif isinstance(part, Exception):
                raise part
            else:
                await asyncio.sleep(part)

    return serving(lambda _: httpx.Response(status, content=body()))


def serving(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://test")


async def asked(http: httpx.AsyncClient, **how: Any) -> Trace:
    async with http:
        return await ask(http, COMPLETIONS, {"prompt": "x"}, Trace(prompt=5), **how)


CHAT = sse(
    delta(role="assistant", content=""),
    delta(content='He said "content":"x" '),
    delta(content="é"),
    delta(reasoning_content="hm"),
    delta(),
    {"choices": [], "usage": USAGE},
)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
async def test_pieces_are_found_however_the_bytes_are_cut(size: int) -> None:
    trace = await asked(client(*(CHAT[at : at + size] for at in range(0, len(CHAT), size))), keep=True)
    assert (trace.outcome, trace.error) == ("answered", "")
    assert len(trace.pieces) == 3, "a role or an end without text is none"
    assert trace.text == 'He said "content":"x" é'
    assert (trace.prompt_tokens, trace.answer_tokens, trace.cached_tokens) == (7, 3, 0)
    assert trace.sent <= trace.pieces[0] <= trace.pieces[-1] <= trace.ended


async def test_spaces_after_colons_are_json_as_well() -> None:
    spaced = (
        b'data: {"choices": [{"text": "a"}], "usage": null}\r\n\r\ndata: {"choices": [{"text": ""}]}\r\n\r\n'
    )
    counts = (
        b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}\n\ndata: [DONE]\n\n'
    )
    trace = await asked(client(spaced, counts))
    assert (trace.outcome, len(trace.pieces), trace.prompt_tokens) == ("answered", 1, 2)


async def test_without_counts_a_piece_is_a_token() -> None:
    trace = await asked(client(sse(text("a"), text(""), text("b"))))
    assert (trace.outcome, trace.prompt_tokens, trace.answer_tokens) == ("answered", 5, 2)


async def test_a_client_leaves_after_so_many_pieces_or_seconds() -> None:
    trace = await asked(client(sse(text("a"), text("b")), 60.0), stay=Stay(2, 60.0))
    assert (trace.outcome, len(trace.pieces)) == ("cancelled", 2)
    trace = await asked(client(60.0), stay=Stay(2, 0.02))
    assert (trace.outcome, trace.error, len(trace.pieces)) == ("cancelled", "", 0)


async def test_the_deadline_cuts() -> None:
    trace = await asked(client(sse(text("a"), done=False), 60.0), deadline=time.perf_counter() + 1)
    assert (trace.outcome, len(trace.pieces)) == ("cut", 1)
    late = await asked(client(60.0), deadline=time.perf_counter() - 1, stay=Stay(9, 5.0))
    assert late.outcome == "cut"


@pytest.mark.parametrize(
    ("parts", "status", "code", "message"),
    [
        ([b'{"error":{"code":"queue-full","type":"x","message":"later"}}'], 429, "429 queue-full", "later"),
        ([b'{"error":{"code":400,"type":"bad_request","message":"no"}}'], 400, "400 bad_request", "no"),
        ([b"<html>gone</html>"], 502, "502", "<html>gone</html>"),
        ([b"[]"], 500, "500", "[]"),
        (
            [sse(text("a"), {"error": {"code": "forager-lost", "message": "gone"}})],
            200,
            "forager-lost",
            "gone",
        ),
        ([b'error: {"error":{"message":"odd"}}\n\n'], 200, "error", "odd"),
        ([sse(text("a"), done=False)], 200, "stream-ended", ""),
        ([sse(text("a")), httpx.ReadError("reset")], 200, "ReadError", "reset"),
    ],
)
async def test_failures_have_a_code(parts: list[Any], status: int, code: str, message: str) -> None:
    trace = await asked(client(*parts, status=status))
    assert (trace.outcome, trace.error, trace.message) == ("failed", code, message)
    assert trace.ended >= trace.sent


async def test_growing_ends_with_the_trace() -> None:
    trace = Trace()
    waiting = asyncio.create_task(trace.grow(3))
    async with client(sse(text("a")), 0.01, sse(text("b"))) as http:
        await ask(http, COMPLETIONS, {}, trace)
    await asyncio.wait_for(waiting, 20)
    await asyncio.wait_for(trace.grow(1), 20)


def picky(*unknown: str) -> httpx.AsyncClient:
    """A server that refuses bodies with some fields, as OpenAI does. A word is two tokens, an opening ten."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if wrong := [name for name in unknown if name in body]:
            return httpx.Response(400, json={"error": {"message": f"unknown: {wrong}", "type": "invalid"}})
        said = body["messages"][-1]["content"] if "messages" in body else ""
        usage = {"prompt_tokens": 10 + 2 * len(said.split(" ")), "completion_tokens": 2}
        counted = [{"choices": [], "usage": usage}] if "stream_options" in body else []
        return httpx.Response(200, stream=httpx.ByteStream(sse(text("a"), text("b"), *counted)))

    return serving(answer)


async def test_fields_that_a_server_refuses_are_left_out() -> None:
    async with picky() as http:
        dialect = await settle(http, "m", chat=True)
        assert dialect.extras == {"stream_options": {"include_usage": True}, "ignore_eos": True}
        assert (dialect.counts, dialect.word, dialect.opening) == (True, 2.0, 10.0)
        assert len(dialect.message(0, 1, 50)["content"].split(" ")) == 20
    async with picky("ignore_eos") as http:
        dialect = await settle(http, "m", chat=False)
        assert dialect.extras == {"stream_options": {"include_usage": True}} and dialect.counts
    async with picky("ignore_eos", "stream_options") as http:
        dialect = await settle(http, "m", chat=False)
        assert dialect.extras == {} and not dialect.counts


async def test_an_endpoint_that_can_not_be_used_says_so() -> None:
    async with picky("model") as http:
        with pytest.raises(AntfarmError, match="unknown"):
            await settle(http, "m", chat=False)
    loading = {"error": {"code": "model-loading", "message": "wait"}}
    async with serving(lambda _: httpx.Response(503, json=loading)) as http:
        with pytest.raises(AntfarmError) as raised:
            await settle(http, "m", chat=False)
    assert raised.value.reason is Reason.MODEL_LOADING


@pytest.mark.parametrize("names", [[], ["a", "b"]])
async def test_the_model_is_taken_when_there_is_one(names: list[str]) -> None:
    def cards(names: list[str]) -> httpx.AsyncClient:
        return serving(lambda _: httpx.Response(200, json={"data": [{"id": name} for name in names]}))

    async with cards(["only"]) as http:
        assert await only_model(http) == "only"
    async with cards(names) as http:
        with pytest.raises(AntfarmError) as raised:
            await only_model(http)
    assert raised.value.reason is Reason.MODEL_UNKNOWN


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, "<html>no such page</html>", Reason.COLONY_DOWN),
        (502, '"bad gateway"', Reason.COLONY_DOWN),
        (200, "<html>a page</html>", Reason.BAD_SETTING),
        (200, '{"data": 3}', Reason.BAD_SETTING),
        (401, '{"error": {"code": "unauthorized", "message": "no key"}}', Reason.UNAUTHORIZED),
    ],
)
async def test_what_is_no_endpoint_is_told(status: int, body: str, reason: Reason) -> None:
    async with serving(lambda _: httpx.Response(status, text=body)) as http:
        with pytest.raises(AntfarmError) as raised:
            await only_model(http)
    assert raised.value.reason is reason
