"""The API over real HTTP, with the official client: uvicorn on a free port, task events from a script."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from support.scripted import ScriptedQueen, model, said
from support.served import DEADLINE_S, Api, served

from antfarm.bus.server import MAX_PAYLOAD
from antfarm.errors import AntfarmError, ModelError, Reason
from antfarm.messages import ChatMessage, Failure, TaskAccepted, TaskFinished, TaskTokens
from antfarm.queen.api import ApiServer, bind, create_app, exposed, running
from antfarm.queen.api.gate import MAX_BODY

HELLO: Any = [{"role": "user", "content": "Say hello"}]

# ---- chat


async def test_chat_answers_in_one_body_with_counts_and_timings() -> None:
    async with served(said("Hel", "lo", "!")) as api, api.client() as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=HELLO, temperature=0.5, seed=3, max_tokens=9, stop=["\n"], top_p=0.9
        )
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        7,
        3,
        10,
    )
    assert answer.model == "tiny"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model_extra
    assert (
        answer.model_extra["timings"]["answer_tokens_per_second"] == 1.0
    )  # 2 tokens after the first, in 2 s
    task = api.queen.requests[0]
    assert task.messages == (ChatMessage("user", "Say hello"),)
    assert (task.sampling.temperature, task.sampling.seed, task.sampling.max_tokens) == (0.5, 3, 9)
    assert (task.sampling.stop, task.sampling.top_p) == (("\n",), 0.9)


async def test_chat_streams_a_role_then_text_then_a_finish_then_counts() -> None:
    async with served(said("Hel", "lo")) as api, api.client() as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert [delta.content for delta in deltas] == ["", "Hel", "lo", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == 9


def test_the_synchronous_client_works_too() -> None:
    def talk(url: str) -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            whole = client.chat.completions.create(model="tiny", messages=HELLO)
            stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        return whole.choices[0].message.content, text

    async def main() -> None:
        async with served(said("Hel", "lo")) as api:
            assert await asyncio.to_thread(talk, api.url) == ("Hello", "Hello")

    asyncio.run(main())


async def test_the_bytes_of_a_stream_are_openais() -> None:
    """Held against the raw text, since a lenient client would hide a missing or superfluous field."""
    async with served(said("Hi")) as api:
        reply = await api.post("/v1/chat/completions", {"model": "tiny", "messages": HELLO, "stream": True})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    frames = reply.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    bodies = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
    for body in bodies:
        ChatCompletionChunk.model_validate(body, strict=True, extra="forbid")
        assert {"id", "object", "created", "model", "system_fingerprint", "choices"} == set(body)
    choices = [body["choices"][0] for body in bodies]
    assert choices == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"},
    ]


async def test_whole_answers_are_openais_too() -> None:
    async with served(said("Hi", logprobs=True)) as api:
        chat = await api.post(
            "/v1/chat/completions", {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
        )
        text = await api.post("/v1/completions", {"model": "tiny", "prompt": "x", "logprobs": 2})
    for reply, shape in ((chat, ChatCompletion), (text, Completion)):
        body = reply.json()
        assert body.pop("timings")
        assert shape.model_validate(body, strict=True, extra="forbid")


async def test_logprobs_come_with_each_token_whole_and_streamed() -> None:
    async with served(said("Hi", "!", logprobs=True)) as api, api.client() as client:
        ask: Any = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
        whole = await client.chat.completions.create(**ask)
        stream = await client.chat.completions.create(**ask, stream=True)
        streamed = [
            token
            async for chunk in stream
            if chunk.choices[0].logprobs
            for token in chunk.choices[0].logprobs.content or []
        ]
        assert api.queen.requests[0].sampling.logprobs == 2
    assert whole.choices[0].logprobs
    assert whole.choices[0].logprobs.content == streamed
    assert [(token.token, token.bytes, token.logprob) for token in streamed] == [
        ("Hi", [72, 105], -0.25),
        ("!", [33], -0.25),
    ]
    assert [other.logprob for other in streamed[0].top_logprobs] == [-0.25, -9999.0]


async def test_several_answers_run_side_by_side_and_count_the_prompt_once() -> None:
    async with served(said("a", "b")) as api, api.client() as client:
        answer = await client.chat.completions.create(model="tiny", messages=HELLO, n=3, seed=10)
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, n=2, stream=True)
        texts = ["", ""]
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 6)
    assert [task.sampling.seed for task in api.queen.requests[:3]] == [10, 11, 12]
    assert texts == ["ab", "ab"]


async def test_the_only_model_needs_no_name() -> None:
    async with served(said("Hi")) as api:
        for given in ({}, {"model": ""}, {"model": "default"}, {"model": None}):
            reply = await api.post("/v1/chat/completions", {"messages": HELLO, **given})
            assert reply.json()["model"] == "tiny"
        api.queen.models[:0] = [model("broken", "failed"), model("gone", "retired")]
        reply = await api.post("/v1/chat/completions", {"messages": HELLO})
        assert reply.json()["model"] == "tiny"
        api.queen.models.append(model("other"))
        reply = await api.post("/v1/chat/completions", {"messages": HELLO})
    assert reply.status_code == 400
    assert "tiny, other" in reply.json()["error"]["message"]


async def test_a_model_that_failed_says_why_where_there_is_no_other() -> None:
    failed = ModelError(Reason.UNSUPPORTED_FILE, "b did not load: it is no GGUF")
    async with served([failed], [model("a", "failed"), model("b", "failed")]) as api:
        reply = await api.post("/v1/chat/completions", {"messages": HELLO})
        assert reply.json()["error"]["message"] == failed.message
        assert [task.model for task in api.queen.requests] == ["b"]


# ---- plain completions


async def test_plain_completions_take_every_form_of_prompt() -> None:
    async with served(said("a", "b")) as api, api.client() as client:
        one = await client.completions.create(model="tiny", prompt="x")
        two = await client.completions.create(model="tiny", prompt=["x", "y"], n=2)
        await client.completions.create(model="tiny", prompt=[1, 2, 3])
        await client.completions.create(model="tiny", prompt=[[1], [2]])
    assert one.choices[0].text == "ab"
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    assert two.usage
    assert (two.usage.prompt_tokens, two.usage.completion_tokens) == (14, 8)
    prompts = [(task.text, task.tokens) for task in api.queen.requests]
    assert prompts[:5] == [("x", None), ("x", None), ("x", None), ("y", None), ("y", None)]
    assert prompts[5:] == [(None, (1, 2, 3)), (None, (1,)), (None, (2,))]
    assert api.queen.requests[0].sampling.max_tokens == 16


async def test_plain_completions_stream_with_integer_logprobs() -> None:
    async with served(said("ab", "c", logprobs=True)) as api, api.client() as client:
        ask: Any = {"model": "tiny", "prompt": "x", "logprobs": 1}
        whole = await client.completions.create(**ask)
        stream = await client.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].logprobs
    assert whole.choices[0].logprobs.tokens == ["ab", "c"]
    assert whole.choices[0].logprobs.text_offset == [0, 2]
    assert whole.choices[0].logprobs.top_logprobs == [{"ab": -0.25, "?": -9999.0}, {"c": -0.25, "?": -9999.0}]
    assert [chunk.choices[0].text for chunk in chunks[:-1]] == ["ab", "c", ""]
    assert chunks[1].choices[0].logprobs
    assert chunks[1].choices[0].logprobs.text_offset == [2]
    assert chunks[2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 2


# ---- failures


@pytest.mark.parametrize(
    ("reason", "shape", "retry"),
    [
        (Reason.CONTEXT_OVERFLOW, openai.BadRequestError, None),
        (Reason.SHARD_MISSING, openai.InternalServerError, "5"),
        (Reason.MODEL_LOADING, openai.InternalServerError, "2"),
        (Reason.QUEUE_FULL, openai.RateLimitError, "1"),
        (Reason.MODEL_RETIRED, openai.NotFoundError, None),
        (Reason.INTERNAL, openai.InternalServerError, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_task_refused_at_once_has_its_http_status(
    reason: Reason, shape: type[openai.APIStatusError], retry: str | None, stream: bool
) -> None:
    refused = Failure(reason, "it can't be", hint="do this")
    finished = TaskFinished(task="t", index=0, finish="error", failure=refused)
    for script in ([refused.error()], [finished]):
        async with served(script) as api, api.client() as client:
            with pytest.raises(shape) as raised:
                await client.chat.completions.create(model="tiny", messages=HELLO, stream=stream)
        assert raised.value.code == reason
        assert "it can't be (do this)" in raised.value.message
        assert raised.value.response.headers.get("retry-after") == retry


async def test_a_failure_mid_stream_is_said_in_the_stream_which_then_ends() -> None:
    lost = Failure(Reason.FORAGER_LOST, "forager-b is gone")
    script = [*said("Hel")[:2], TaskFinished(task="t", index=1, finish="error", failure=lost)]
    async with served(script) as api, api.client() as client:
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        text = ""
        with pytest.raises(openai.APIError) as raised:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        raw = await api.post("/v1/chat/completions", {"messages": HELLO, "stream": True})
    assert text == "Hel"
    assert raised.value.code == "forager-lost"
    assert "[DONE]" not in raw.text
    assert json.loads(raw.text.strip().split("data: ")[-1])["error"]["code"] == "forager-lost"


@pytest.mark.parametrize("before", [0, 2])
async def test_no_traceback_reaches_a_client(before: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with served([*said("Hi")[:before], RuntimeError("secret detail")]) as api:
        whole = await api.post("/v1/chat/completions", {"messages": HELLO})
        stream = await api.post("/v1/chat/completions", {"messages": HELLO, "stream": True})
    assert whole.status_code == 500
    assert whole.json()["error"]["code"] == "internal"
    assert stream.status_code == (200 if before else 500)
    assert '"code":"internal"' in stream.text
    assert "secret detail" not in whole.text + stream.text


async def test_when_one_of_several_fails_the_others_end() -> None:
    async with served(said("a")) as api:
        forever = asyncio.Event()
        calls = 0
        first_run = api.queen.run

        async def run(request: Any) -> AsyncIterator[Any]:
            nonlocal calls
            calls += 1
            api.queen.script = [forever] if calls == 1 else [AntfarmError(Reason.SHARD_MISSING, "gone")]
            async for event in first_run(request):
                yield event

        api.queen.run = run  # type: ignore[method-assign]
        reply = await api.post("/v1/chat/completions", {"messages": HELLO, "n": 2})
        assert reply.status_code == 503
        assert calls == 2
        assert api.queen.running == 0


# ---- wrong requests


async def test_a_body_that_the_bus_might_not_take_is_too_large() -> None:
    assert 2 * MAX_BODY <= MAX_PAYLOAD
    async with served(said("never")) as api:
        reply = await api.post("/v1/chat/completions", b" " * (MAX_BODY + 1))
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "invalid-request"


async def test_unknown_models_and_paths_are_404_in_openais_shape() -> None:
    async with served(said("never")) as api, api.client() as client:
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.create(model="nobody", messages=HELLO)
        path = await api.get("/v1/nothing")
        method = await api.get("/v1/completions")
        slash = await api.post("/v1/completions/", b"{}")
    assert (raised.value.code, raised.value.param) == ("model-unknown", "model")
    assert "tiny" in raised.value.message
    assert (path.status_code, method.status_code, slash.status_code) == (404, 405, 404)
    assert (path.json()["error"]["code"], path.json()["error"]["type"]) == ("path-unknown", "not_found_error")
    assert "GET /v1/nothing" in path.json()["error"]["message"]
    assert method.headers["allow"] == "POST"


# ---- the key


async def test_the_key_guards_v1_and_nothing_else() -> None:
    async with served(said("Hi"), api_key="sesame") as api:
        async with api.client("wrong") as client:
            with pytest.raises(openai.AuthenticationError) as raised:
                await client.models.list()
        assert (await api.get("/v1/models", Authorization="Bearer sesame")).status_code == 200
        assert (await api.get("/v1/models", Authorization="Basic wrong")).status_code == 401
        assert (await api.get("/v1/models")).headers["www-authenticate"] == "Bearer"
        assert (await api.post("/v1/chat/completions", b"{not json")).status_code == 401
        for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
            assert (await api.get(path)).status_code == 200
    assert raised.value.code == "unauthorized"


async def test_the_openapi_page_needs_no_other_host() -> None:
    async with served(said("Hi")) as api:
        page = (await api.get("/docs")).text
        sources = re.findall(r'(?:src|href)="([^"]*)"', page)
        assert sources and all(source.startswith("/") and source[1] != "/" for source in sources)
        for source in sources:
            assert (await api.get(source)).status_code == 200


def test_an_open_api_on_the_network_is_noticed() -> None:
    hosts = ["127.0.0.1", "localhost", "::1", "0.0.0.0", "192.168.1.5", "my-host"]
    assert [exposed(host, None) for host in hosts] == [False, False, False, True, True, True]
    assert not any(exposed(host, "key") for host in hosts)


# ---- models and health


async def test_models_are_listed_and_shown() -> None:
    async with (
        served([], [model("a"), model("org/b", "loading"), model("x", "failed")]) as api,
        api.client() as client,
    ):
        listed = [card.id async for card in client.models.list()]
        card = await client.models.retrieve("org/b")
        assert listed == ["a", "org/b"]
        assert (card.id, card.object, card.created) == ("org/b", "model", 1_000_000_000)
        assert card.model_extra == {"state": "loading", "context_length": 512}
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("c")


async def test_ready_only_with_a_ready_model() -> None:
    async with served([], []) as api:
        alive = await api.get("/healthz")
        assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
        assert (await api.get("/readyz")).status_code == 503
        api.queen.models.append(model("a", "loading"))
        reply = await api.get("/readyz")
        assert reply.status_code == 503
        assert reply.json()["models"] == [{"model": "a", "state": "loading", "reason": None}]
        api.queen.models.append(model("b"))
        assert (await api.get("/readyz")).status_code == 200


# ---- clients that leave, dawdle, or never finish


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("before", [0, 2])
async def test_a_client_that_leaves_ends_its_task(stream: bool, before: int) -> None:
    """Whether it waits for the whole answer, the first event, or the next one."""
    script = [*said("Hel", "lo")[:before], asyncio.Event()]
    async with served(script) as api:
        body = json.dumps({"messages": HELLO, "stream": stream}).encode()
        _, writer = await _open(api, b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await asyncio.wait_for(api.queen.started.wait(), DEADLINE_S)
        writer.close()
        await asyncio.wait_for(api.queen.ended.wait(), DEADLINE_S)
        assert api.queen.running == 0


async def test_closing_an_openai_stream_early_ends_its_task() -> None:
    async with served([*said("Hel", "lo")[:3], asyncio.Event()]) as api, api.client() as client:
        async with await client.chat.completions.create(model="", messages=HELLO, stream=True) as stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
        await asyncio.wait_for(api.queen.ended.wait(), DEADLINE_S)


async def test_a_reader_that_takes_nothing_is_held_back_and_then_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SEND_S", 0.3)
    played = 0

    async def endless(request: Any) -> AsyncIterator[Any]:
        nonlocal played
        yield TaskAccepted(task="t", prompt_tokens=1)
        try:
            while True:
                await asyncio.sleep(0)
                yield TaskTokens(task="t", index=played, count=1, text="x" * 10_000)
                played += 1
        finally:
            ended.set()

    ended = asyncio.Event()
    async with served([]) as api:
        api.queen.run = endless  # type: ignore[method-assign]
        body = json.dumps({"messages": HELLO, "stream": True}).encode()
        _, writer = await _open(api, b"Content-Length: %d\r\n\r\n" % len(body) + body, receive_buffer=4096)
        await asyncio.wait_for(ended.wait(), DEADLINE_S)
        assert played < 3000  # what the kernel and uvicorn buffer, not all that could be said
        writer.close()


async def test_a_body_that_never_arrives_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antfarm.queen.api.gate.BODY_S", 0.2)
    async with served([]) as api:
        reader, writer = await _open(api, b'Content-Length: 500\r\n\r\n{"messages"')
        status = await asyncio.wait_for(reader.readline(), DEADLINE_S)
        assert status.startswith(b"HTTP/1.1 408 ")
        writer.close()


async def _open(
    api: Api, rest: bytes, receive_buffer: int = 0
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection that has sent the head of a chat request and `rest`."""
    host, port = api.url.removeprefix("http://").split(":")
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + rest
    )
    await writer.drain()
    return reader, writer


# ---- the server


def test_a_taken_port_is_refused_before_anything_starts() -> None:
    with bind("127.0.0.1", 0) as first, pytest.raises(AntfarmError) as raised:
        bind("127.0.0.1", first.getsockname()[1])
    assert raised.value.reason is Reason.PORT_IN_USE


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_a_bad_setting(host: str) -> None:
    with pytest.raises(AntfarmError) as raised:
        bind(host, 0)
    assert raised.value.reason is Reason.BAD_SETTING


async def test_stopping_ends_a_stream_that_would_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antfarm.queen.api.server.GRACE_S", 1)
    queen = ScriptedQueen([*said("Hi")[:2], asyncio.Event()])
    server = await ApiServer.start(create_app(queen), bind("127.0.0.1", 0))
    api = Api(queen, server.url)
    ask = asyncio.create_task(api.post("/v1/chat/completions", {"messages": HELLO, "stream": True}))
    await asyncio.wait_for(queen.started.wait(), DEADLINE_S)
    await asyncio.wait_for(server.stop(), DEADLINE_S)
    await asyncio.wait_for(queen.ended.wait(), DEADLINE_S)
    with pytest.raises(httpx.HTTPError):
        await ask
