"""Requests at the edge of what is allowed, and clients that vanish, through a whole colony: everyone else's
answers are as they would have been. And whose next turn finds its beginning again."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from prometheus_client.parser import text_string_to_metric_families as parse
from support.models import smollm2

from antfarm import Colony
from antfarm.model import synthetic
from antfarm.types import RunOptions

SOON_S = 30.0
LONG = 3500  # tokens of an answer that goes on while others come and go
HELLO: Any = [{"role": "user", "content": "Why do ants walk in a line?"}]
MORE: dict[str, Any] = {"ignore_eos": True}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "tiny-llama.gguf"
    synthetic.write(path, replace(synthetic.SHAPES["tiny-llama"], context=16384), "f32")
    return path


@pytest.fixture(scope="module")
def colony(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Colony]:
    """`many` answers on two shards, four at once; `one` answers one at a time; `pair` has two replicas."""
    with Colony(foragers=2, home=tmp_path_factory.mktemp("home")) as colony:
        many = RunOptions(context=4096, slots=4)
        colony.load(str(tiny), name="many", split=2, mode="pipeline", options=many)
        colony.load(str(tiny), name="one", split=1, options=RunOptions(context=16384, slots=1))
        colony.load(str(tiny), name="pair", split=1, replicas=2, options=RunOptions(context=2048, slots=2))
        yield colony


@pytest.fixture
def client(colony: Colony) -> Iterator[OpenAI]:
    with OpenAI(base_url=colony.base_url, api_key="any", max_retries=0, timeout=60) as client:
        yield client


def metric(colony: Colony, name: str, **labels: str) -> float:
    """The sum over all rows with these labels."""
    page = httpx.get(colony.base_url.removesuffix("/v1") + "/metrics", timeout=SOON_S).text
    samples = [sample for family in parse(page) for sample in family.samples if sample.name == name]
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


def until_left(colony: Colony, model: str, tasks: int) -> None:
    """Wait until the queen counts no more tasks of the model than that, and the lead no more slots."""
    deadline = time.monotonic() + SOON_S
    names = "antfarm_requests_underway", "antfarm_slots_used"
    while max(left := [metric(colony, name, model=model) for name in names]) > tasks:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@contextmanager
def streaming(client: OpenAI, model: str, tokens: int) -> Iterator[Iterator[Any]]:
    """An answer that has begun; its other chunks."""
    with client.chat.completions.create(
        model=model,
        messages=HELLO,
        temperature=0,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=MORE,
    ) as stream:
        chunks = iter(stream)
        while not next(chunks).choices[0].delta.content:
            pass
        yield chunks


def vanishes(colony: Colony, model: str) -> None:
    """A client that sends its request, sees some of its answer, and is gone without a goodbye."""
    url = urlsplit(colony.base_url)
    body = {"model": model, "messages": HELLO, "stream": True, **MORE}
    content = json.dumps(body).encode()
    with socket.create_connection((url.hostname or "", url.port or 0), SOON_S) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # ends with a reset
        head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        sock.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        seen = b""
        while b'"content":"' not in seen.replace(b'"content":""', b""):
            seen += sock.recv(4096)
        assert seen.startswith(b"HTTP/1.1 200 ")


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e-60, "top_p": 0.5},
    {"temperature": 1e-300, "min_p": 1.0},
    {"temperature": 5e-324, "top_p": 1e-300},
    {"temperature": 1e-39, "top_k": 3, "top_p": 0.1},
    {"temperature": 2.0, "top_p": 1e-9, "min_p": 1.0},
    {"temperature": 2.0, "top_k": 2**31 - 1, "top_p": 0, "min_p": 1e-300},
    {"temperature": 2.0, "repetition_penalty": 10.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"temperature": 1e-30, "repetition_penalty": 0.01, "presence_penalty": -2.0, "frequency_penalty": -2.0},
    {"temperature": 1e-60, "logit_bias": {str(token): -100.0 for token in range(511)}, "top_p": 0.1},
    {"temperature": 2.0, "logit_bias": {"5": 100.0}, "logprobs": True, "top_logprobs": 20},
    {"seed": -(2**63), "stop": ["x" * 256] * 16, "n": 16},
    {"seed": 2**63 - 1, "max_tokens": 1, "timeout": 86_400},
]


def test_extreme_settings_and_vanished_clients_harm_no_neighbour(colony: Colony, client: OpenAI) -> None:
    with streaming(client, "many", LONG) as chunks:
        for ask in EXTREMES:
            body = {"model": "many", "messages": HELLO, "max_tokens": 4, **MORE, **ask}
            reply = httpx.post(f"{colony.base_url}/chat/completions", json=body, timeout=60)
            assert reply.status_code == 200, (ask, reply.text)
            wanted = ask.get("max_tokens", 4) * ask.get("n", 1)
            assert reply.json()["usage"]["completion_tokens"] == wanted, ask
        for _ in range(3):
            vanishes(colony, "many")
        until_left(colony, "many", 1)
        rest = list(chunks)
    assert rest[-1].usage.completion_tokens == LONG
    assert rest[-2].choices[0].finish_reason == "length"
    until_left(colony, "many", 0)
    assert metric(colony, "antfarm_requests_total", model="many", outcome="cancelled") == 3
    again = client.chat.completions.create(model="many", messages=HELLO, max_tokens=4, extra_body=MORE)
    assert again.usage and again.usage.completion_tokens == 4


def test_the_only_slot_of_a_client_that_vanished_is_free_at_once(colony: Colony, client: OpenAI) -> None:
    vanishes(colony, "one")  # its answer would have filled the whole context
    began = time.monotonic()
    answer = client.chat.completions.create(
        model="one", messages=HELLO, max_tokens=4, timeout=SOON_S, extra_body=MORE
    )
    assert answer.usage and answer.usage.completion_tokens == 4
    assert time.monotonic() - began < 5, "it waited for the other's end"
    assert metric(colony, "antfarm_requests_total", model="one", outcome="cancelled") == 1
    until_left(colony, "one", 0)


def test_an_answer_that_takes_longer_than_its_client_allows(colony: Colony, client: OpenAI) -> None:
    late: Any = {"model": "one", "messages": HELLO, "extra_body": {**MORE, "timeout": 0.3}}
    with pytest.raises(openai.InternalServerError) as whole:
        client.chat.completions.create(**late)
    assert (whole.value.status_code, whole.value.code) == (504, "timeout")
    with pytest.raises(openai.APIError) as streamed:
        for _ in client.chat.completions.create(**late, stream=True):
            pass
    assert streamed.value.code == "timeout"
    with streaming(client, "one", 16_000), pytest.raises(openai.InternalServerError) as waited:
        client.chat.completions.create(**late)
    assert (waited.value.status_code, waited.value.code) == (504, "timeout")
    until_left(colony, "one", 0)
    answer = client.chat.completions.create(
        model="one", messages=HELLO, max_tokens=4, extra_body={**MORE, "timeout": 30}
    )
    assert answer.usage and answer.usage.completion_tokens == 4


# ---- second turns


def turn(client: OpenAI, model: str, messages: list[Any]) -> ChatCompletion:
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16, temperature=0)
    said = answer.choices[0].message.content or ""
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And why is that?"}]
    return answer


def reused(client: OpenAI, model: str, messages: list[Any]) -> float:
    """Have two turns; how much of the first one's prompt the second found again."""
    first, second = [turn(client, model, messages).usage for _ in range(2)]
    assert first and second and second.prompt_tokens_details
    return (second.prompt_tokens_details.cached_tokens or 0) / first.prompt_tokens


def story(about: str) -> list[Any]:
    return [{"role": "user", "content": f"A story about {about}. " + "They walk in a line. " * 20}]


def test_a_second_turn_does_not_read_the_first_again(client: OpenAI) -> None:
    assert reused(client, "many", story("ants")) >= 0.9


def test_a_second_turn_goes_to_the_replica_of_the_first(colony: Colony, client: OpenAI) -> None:
    """Which is not the one that an idle colony would choose."""
    bees = story("bees")
    with streaming(client, "pair", 1500):
        first = turn(client, "pair", bees).usage
    until_left(colony, "pair", 0)
    second = turn(client, "pair", bees).usage
    assert first and second and second.prompt_tokens_details
    assert (second.prompt_tokens_details.cached_tokens or 0) >= 0.9 * first.prompt_tokens


@pytest.mark.skipif(smollm2() is None, reason="the real model is not installed")
def test_the_real_models_second_turn(tmp_path: Path) -> None:
    path = smollm2()
    assert path
    with Colony(foragers=1, home=tmp_path) as colony:
        colony.load(str(path), name="real", options=RunOptions(context=1024, slots=2))
        with OpenAI(base_url=colony.base_url, api_key="any", max_retries=0, timeout=60) as client:
            assert reused(client, "real", story("ants")) >= 0.9
