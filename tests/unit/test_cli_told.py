"""What commands say of models: progress without a terminal, short memory, failures, whole answers."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from antfarm.cli.app import app
from antfarm.cli.loading import what_did_not_fit
from antfarm.cli.models import newest_failures
from antfarm.cli.progress import Display
from antfarm.client.answers import Answers
from antfarm.client.wire import joined
from antfarm.errors import Reason
from antfarm.messages import Failure, LoadModel, ModelStatus, ShardView
from antfarm.types import RunOptions

READY = ModelStatus("m", "file", "ready", "tensor", "m-1", 1, 768, 4, (), trained=8192)


def test_a_line_is_not_said_again_until_there_is_something_new(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antfarm.cli.progress.PLAIN_EVERY_S", 0.0)
    with Display() as display:
        for state, loaded in (("loading", 0.1), ("loading", 0.1), ("loading", 0.5), *[("linked", 1.0)] * 3):
            shard = ShardView(0, "f", "layers 0-4", state, loaded, 1 << 20, 0)
            display.loading(msgspec.structs.replace(READY, shards=(shard,)))
    told = capfd.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in told] == ["loading", "loading", "linked"]


def test_memory_that_took_from_a_model_is_told_unless_it_was_asked_for() -> None:
    assert "a context of 768 tokens instead of 4096" in what_did_not_fit(LoadModel("m"), READY)
    assert not what_did_not_fit(LoadModel("m", options=RunOptions(context=768)), READY)
    assert not what_did_not_fit(LoadModel("m"), msgspec.structs.replace(READY, trained=768))
    fewer = what_did_not_fit(LoadModel("m"), msgspec.structs.replace(READY, context=4096, slots=2))
    assert "2 answers at once instead of 4" in fewer and "context" not in fewer


def test_of_a_models_failures_the_newest_is_told() -> None:
    def failed(message: str, created: float) -> ModelStatus:
        failure = Failure(Reason.NO_CAPACITY, message)
        return msgspec.structs.replace(READY, failure=failure, created=created)

    (told,) = newest_failures([failed("second", 2.0), failed("first", 1.0)]).values()
    assert told.message == "second"


def test_a_new_split_that_failed_is_no_news_of_a_model_that_serves() -> None:
    refused = Failure(Reason.NO_CAPACITY, "too wide")
    failed = msgspec.structs.replace(READY, state="failed", failure=refused, created=2.0)
    assert not newest_failures([failed, READY])
    lost = msgspec.structs.replace(READY, state="unavailable")
    assert newest_failures([failed, lost]) == {"m": refused}
    other = msgspec.structs.replace(READY, replica="m-2")
    assert newest_failures([failed, lost, other]) == {"m": refused}


class Scripted:
    """An API that answers everything with one word."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, str]]] = []

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        self.asked.append(body["messages"])
        yield {"choices": [{"delta": {"content": "Aha."}}]}

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def chatting(monkeypatch: pytest.MonkeyPatch, home: Path, *lines: str) -> tuple[list[str], str]:
    """What the model is asked, and what is told on the way."""
    api = Scripted()
    monkeypatch.setattr(Answers, "of", lambda _: api)
    done = CliRunner().invoke(
        app, ["--home", str(home), "chat"], input="".join(f"{line}\n" for line in lines)
    )
    assert done.exit_code == 0, done.output
    return [messages[-1]["content"] for messages in api.asked], done.stderr


@pytest.mark.parametrize("leave", ["/bye", "/exit", "/quit"])
def test_a_chat_is_left_with_a_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, leave: str) -> None:
    asked, told = chatting(monkeypatch, tmp_path, "Hi", leave, "Who is there?")
    assert asked == ["Hi"] and "/bye" in told


def test_no_command_goes_to_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked, told = chatting(monkeypatch, tmp_path, "/rest", "/help", "/?", "//etc/hosts is what?", "a / b")
    assert asked == ["/etc/hosts is what?", "a / b"]
    assert "there is no command /rest: " in told and told.count("one / less") == 2


def test_a_streams_chunks_make_a_whole_answer() -> None:
    head = {"id": "c", "object": "chat.completion.chunk", "model": "m", "created": 1}

    def chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, object]:
        return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    said = [chunk({"role": "assistant", "content": ""}), chunk({"content": "Hel"}), chunk({"content": "lo"})]
    whole = joined([*said, chunk({}, "stop"), head | {"choices": [], "usage": {"total_tokens": 3}}])
    assert whole == head | {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"total_tokens": 3},
    }


def test_a_model_that_was_loaded_elsewhere_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here.gguf"
    here.touch()
    sources = ("https://host/m.gguf", "/not/on/this/host.gguf", str(here))
    loaded = [msgspec.structs.replace(READY, model=f"m{n}", source=s) for n, s in enumerate(sources)]
    monkeypatch.setattr("antfarm.cli.models._loaded", lambda _home: loaded)
    shown = CliRunner().invoke(app, ["--home", str(tmp_path), "models", "--json"]).stdout
    paths = [row["path"] for row in json.loads(shown) if row["state"]]
    assert paths == ["", "", str(here)]
