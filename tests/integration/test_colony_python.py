"""`Colony` with real processes on a small model, and the examples as people run them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import OpenAI
from support.starts import Starts

from antfarm import AntfarmError, Colony, Reason
from antfarm.client import state
from antfarm.config import Home
from antfarm.messages import ModelStatus
from antfarm.model import synthetic

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("files") / "tiny-llama.gguf"
    synthetic.write(path, synthetic.SHAPES["tiny-llama"], "f32")
    return str(path)


@pytest.fixture(scope="module")
def colony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Colony]:
    """Two foragers in a home of their own; afterwards nothing of them is left."""
    home = tmp_path_factory.mktemp("home")
    with Colony(foragers=2, home=home) as colony:
        yield colony
    assert state.read(Home(home)).processes == ()
    assert [child.name() for child in psutil.Process().children(recursive=True)] == []


def test_every_split_gives_the_same_answer(colony: Colony, tiny: str) -> None:
    seen: list[ModelStatus] = []
    whole = colony.load(tiny, name="whole", split=1)
    halves = colony.load(tiny, name="halves", split=2, mode="tensor", progress=seen.append)
    stages = colony.load(tiny, name="stages", split=2, mode="pipeline")
    said = [model.ask("Ants", max_tokens=12, temperature=0) for model in (whole, halves, stages)]
    assert said[0].text == said[1].text == said[2].text != ""
    assert (said[0].completion_tokens, said[0].finish_reason) == (12, "length")
    assert said[0].tokens_per_second > 0
    assert "".join(halves.stream("Ants", max_tokens=12, temperature=0)) == said[0].text
    assert seen[-1].state == "ready"
    assert {shard.forager for shard in seen[-1].shards} == {"forager-1", "forager-2"}
    assert {model.model for model in colony.models()} >= {"halves", "stages", "whole"}
    for name in ("whole", "halves", "stages"):
        colony.unload(name)
    with pytest.raises(AntfarmError) as raised:
        whole.ask("Ants")
    assert raised.value.reason is Reason.MODEL_RETIRED


async def test_several_questions_at_once_without_blocking(colony: Colony, tiny: str) -> None:
    async with Colony.connect(colony.home) as same:
        model = await same.aload(tiny, name="async", split=2)
        answers = await asyncio.gather(
            *(model.aask("Ants", max_tokens=8, temperature=1, seed=5) for _ in range(3))
        )
        assert len({answer.text for answer in answers}) == 1
        stream = model.astream("Ants", ignore_eos=True, max_tokens=400)
        await anext(stream)
        await stream.aclose()
        after = await asyncio.wait_for(model.aask("Ants", max_tokens=8, temperature=1, seed=5), 20)
        assert after.text == answers[0].text
        await same.aunload("async")


def test_others_connect_by_home_and_by_url(colony: Colony, tiny: str, tmp_path: Path) -> None:
    colony.load(tiny, name="tiny")
    with pytest.raises(AntfarmError) as raised, Colony(home=colony.home):
        pass
    assert raised.value.reason is Reason.COLONY_EXISTS
    with Colony.connect(colony.home) as same, Colony.connect(colony.base_url) as by_url:
        assert "tiny" in [model.model for model in same.models()]
        assert same.model("tiny").ask("Ants", max_tokens=4).completion_tokens > 0
        assert by_url.model("tiny").ask("Ants", max_tokens=4).completion_tokens > 0
    with pytest.raises(AntfarmError) as raised, Colony.connect(tmp_path):
        pass
    assert raised.value.reason is Reason.COLONY_DOWN
    colony.unload("tiny")


def test_bad_input_has_a_reason_and_leaves_the_colony_working(
    colony: Colony, tiny: str, tmp_path: Path
) -> None:
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"no model")
    model = colony.load(tiny, name="tiny")
    wrong: list[tuple[Callable[[], object], Reason]] = [
        (lambda: colony.load("nobody"), Reason.MODEL_UNKNOWN),
        (lambda: colony.load(str(junk)), Reason.NOT_A_GGUF),
        (lambda: colony.load(tiny, name="six", split=6), Reason.NO_CAPACITY),
        (lambda: model.ask([]), Reason.INVALID_REQUEST),
        (lambda: model.ask("ants " * 5000), Reason.CONTEXT_OVERFLOW),
    ]
    for call, reason in wrong:
        with pytest.raises(AntfarmError) as raised:
            call()
        assert raised.value.reason is reason
    assert model.ask("Ants", max_tokens=4).completion_tokens > 0
    colony.unload("tiny")


def test_openais_client_on_the_real_thing(colony: Colony, tiny: str) -> None:
    colony.load(tiny, name="tiny")
    done = _example("openai_client.py", colony.base_url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("models: tiny\n")
    assert done.stdout.removeprefix("models: tiny\n").strip()
    ask: Any = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    with OpenAI(base_url=colony.base_url, api_key="any", max_retries=0) as client:
        chat = client.chat.completions.create(
            **ask, messages=[{"role": "user", "content": "Ants"}], logprobs=True, top_logprobs=3, n=2
        )
        text = client.completions.create(**ask, prompt=["Ants are", "Bees are"], logprobs=2)
        again = client.completions.create(**ask, prompt="Bees are", stream=True)
        streamed = "".join(chunk.choices[0].text for chunk in again)
    assert [choice.message.content for choice in chat.choices] == [chat.choices[0].message.content] * 2
    assert chat.choices[0].logprobs
    tokens = chat.choices[0].logprobs.content or []
    assert len(tokens) == 6
    assert all(token.top_logprobs[0].logprob == token.logprob <= 0 for token in tokens)
    assert [len(token.top_logprobs) for token in tokens] == [3] * 6
    assert text.choices[1].text == streamed
    assert text.choices[0].logprobs
    assert len(text.choices[0].logprobs.token_logprobs or []) == 6
    colony.unload("tiny")


@pytest.mark.parametrize("name", ["quickstart.py", "stream.py"])
def test_examples_that_start_a_colony(
    name: str, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTFARM_HOME", str(tmp_path))
    done = _example(name, tiny)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_ctrl_c_while_loading_leaves_nothing(tiny: str, tmp_path: Path, starts: Starts) -> None:
    command = [sys.executable, str(EXAMPLES / "quickstart.py"), tiny]
    env = {**os.environ, "ANTFARM_HOME": str(tmp_path / "user"), "TMPDIR": str(tmp_path)}
    with (
        starts.held("antfarm.shard"),
        subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as example,
    ):
        assert example.stderr
        assert "is loading" in example.stderr.readline()
        example.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in example.stderr.read()
    assert [path.name for path in tmp_path.iterdir()] == ["user"]
    assert [process.pid for process in psutil.process_iter() if _is_of(process, tmp_path)] == []


def _is_of(process: psutil.Process, home: Path) -> bool:
    try:
        return any(str(home) in word for word in process.cmdline())
    except psutil.Error:
        return False


def _example(name: str, argument: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), argument],
        capture_output=True,
        text=True,
        timeout=90,
        env=dict(os.environ),
        check=False,
    )
