"""From a task to what the lead runs: prompts, vectors, grammars, tokens and text, and what is refused."""

from __future__ import annotations

import json
import queue
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import Models
from support.panic import Panic

from antfarm.errors import ModelError, Reason
from antfarm.messages import ChatMessage, Failure, TaskAssign, TaskOutput, Tool, Wanted
from antfarm.model.gguf import GgufFile
from antfarm.model.schema import MAX_REFS
from antfarm.shard.intake import MAX_TEXT, SHORT, Intake, Prepared
from antfarm.shard.pooling import LAST, MEAN, Pool
from antfarm.shard.sequence import Sequence
from antfarm.types import Sampling

ASK = (ChatMessage("user", "Ants?"),)
REST = Tool("rest")


@pytest.fixture(scope="module")
def intake(models: Models) -> Intake:
    with GgufFile.open(models.path("tiny-llama")) as file:
        return Intake.from_gguf(file, context=8000)


def prepared(intake: Intake, wanted: Wanted | None = None, **task: Any) -> Sequence | TaskOutput | Failure:
    sampling = task.pop("sampling", Sampling())
    return intake.prepare(TaskAssign("t", "r", 1, sampling, **task, wanted=wanted or Wanted()), 0.0).outcome


def sequence(intake: Intake, wanted: Wanted | None = None, **task: Any) -> Sequence:
    outcome = prepared(intake, wanted, **task)
    assert isinstance(outcome, Sequence), outcome
    return outcome


def refusal(intake: Intake, wanted: Wanted | None = None, **task: Any) -> tuple[str, object]:
    outcome = prepared(intake, wanted, **task)
    assert isinstance(outcome, Failure), outcome
    return outcome.reason, outcome.numbers.get("param")


def test_tokens_without_an_embedding_are_refused(models: Models, tmp_path: Path) -> None:
    data = bytearray(models.path("tiny-llama").read_bytes())
    name = b"token_embd.weight"
    at = data.index(name) + len(name) + 4 + 8  # the second of its two dimensions
    assert struct.unpack_from("<Q", data, at) == (512,)
    struct.pack_into("<Q", data, at, 511)
    (tmp_path / "m.gguf").write_bytes(data)
    with GgufFile.open(tmp_path / "m.gguf") as file, pytest.raises(ModelError, match="512 tokens") as caught:
        Intake.from_gguf(file, 64)
    assert caught.value.reason is Reason.UNSUPPORTED_TOKENIZER


def test_tools_are_told_to_the_model_and_the_form_to_the_client(intake: Intake) -> None:
    plain = sequence(intake, messages=ASK)
    tooled = sequence(intake, Wanted(tools=(REST,)), messages=ASK)
    assert (plain.tools, tooled.tools) == ("", "hermes")
    assert '"name": "rest"' in intake.tokenizer.decode(tooled.prompt.tolist())
    assert len(tooled.prompt) > len(plain.prompt)


def test_an_unknown_token_is_blamed_on_the_field_it_came_in(intake: Intake) -> None:
    for wanted, field in ((Wanted(), "prompt"), (Wanted(kind="vector"), "input")):
        assert refusal(intake, wanted, tokens=(512,)) == (Reason.INVALID_REQUEST, field)


def test_a_prompt_that_is_too_long_is_blamed_on_the_field_it_came_in(intake: Intake) -> None:
    for length in (9000, 900_000):  # counted, and not worth counting
        text = "\n" * length
        overflow = Reason.CONTEXT_OVERFLOW
        assert refusal(intake, messages=(ChatMessage("user", text),)) == (overflow, "messages")
        assert refusal(intake, text=text) == (overflow, "prompt")
        assert refusal(intake, Wanted("vector"), text=text) == (overflow, "input")
    assert refusal(intake, tokens=(40,) * 8000) == (Reason.CONTEXT_OVERFLOW, "prompt")


def test_a_schema_bounds_the_first_token(intake: Intake) -> None:
    row = np.zeros(512, np.float32)
    bound = sequence(intake, Wanted(schema='{"type": "boolean"}'), text="x")
    assert intake.tokenizer.token_bytes(bound.sampler.sample(row))[:1] in (b"t", b"f")


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (Wanted(schema='{"type": "nonsense"}'), "response_format"),
        (Wanted(schema=json.dumps({"anyOf": [{"$ref": "#"}] * (MAX_REFS + 1)})), "response_format"),
        (
            Wanted(tools=(Tool("f", "", '{"type": 5}'),), tool_choice="required"),
            "tools[0].function.parameters",
        ),
        (
            Wanted(tools=(REST, Tool("f", "", json.dumps({"anyOf": [{"$ref": "#"}] * (MAX_REFS + 1)})))),
            "tools[1].function.parameters",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_field(
    intake: Intake, wanted: Wanted, param: str
) -> None:
    assert refusal(intake, wanted, messages=ASK) == (Reason.INVALID_REQUEST, param)


def test_ids_outside_the_vocabulary_are_refused(intake: Intake) -> None:
    assert refusal(intake, tokens=(512,)) == (Reason.INVALID_REQUEST, "prompt")
    assert refusal(intake, Wanted("text"), tokens=(-1,)) == (Reason.INVALID_REQUEST, "tokens")
    biased = Sampling(logit_bias={512: 1.0})
    assert refusal(intake, text="x", sampling=biased) == (Reason.INVALID_REQUEST, "logit_bias")
    assert sequence(intake, text="x", sampling=Sampling(logit_bias={511: 1.0}))


def ids(output: TaskOutput) -> tuple[int, ...]:
    return (*np.frombuffer(output.tokens, "<i4").tolist(),)


def test_tokens_and_text_need_no_slot_and_no_room(intake: Intake) -> None:
    text = "ants " * 9000
    output = prepared(intake, Wanted("tokens"), text=text)
    assert isinstance(output, TaskOutput)
    assert ids(output) == (*intake.tokenizer.encode(text),)
    back = prepared(intake, Wanted("text"), tokens=ids(output))
    assert isinstance(back, TaskOutput)
    assert back.text == text
    empty = prepared(intake, Wanted("tokens"), text="")
    assert isinstance(empty, TaskOutput) and empty.tokens == b""
    special = prepared(intake, Wanted("tokens"), text="<|im_start|>ants<|im_end|>")
    assert isinstance(special, TaskOutput)
    named = prepared(intake, Wanted("text"), tokens=ids(special))
    assert isinstance(named, TaskOutput) and named.text == "<|im_start|>ants<|im_end|>"
    assert refusal(intake, Wanted("tokens"), text="x" * (MAX_TEXT + 1))[0] == Reason.INVALID_REQUEST


def test_vectors_are_pooled_as_the_file_says_or_refused(intake: Intake, models: Models) -> None:
    pooled = sequence(intake, Wanted("vector"), text="ants")
    assert pooled.pool
    assert sequence(intake, text="ants").pool is None
    with GgufFile.open(models.path("tiny-llama")) as file:
        other = Intake.from_gguf(file, 64)
    other._pooling = "cls"
    assert refusal(other, Wanted("vector"), text="ants") == (Reason.INVALID_REQUEST, "model")


def test_a_library_that_panics_fails_its_task_alone(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    with GgufFile.open(models.path("tiny-llama")) as file:
        broken = Intake.from_gguf(file, 64)
    done: queue.Queue[Prepared] = queue.Queue()
    assign = broken.start(done.put)
    pieces = broken.tokenizer.pieces

    def panics(text: str, **how: bool) -> Iterator[list[int]]:
        if text == "bad":
            raise Panic("index out of bounds")
        return pieces(text, **how)

    monkeypatch.setattr(broken.tokenizer, "pieces", panics)
    for name in ("bad", "good"):
        assign(TaskAssign(name, "r", 1, Sampling(), text=name))
    bad, good = (done.get(timeout=60) for _ in range(2))
    assert isinstance(bad.outcome, Failure) and bad.outcome.reason == Reason.INTERNAL
    assert (bad.task, good.task) == ("bad", "good")
    assert isinstance(good.outcome, Sequence)


@pytest.mark.parametrize("cuts", [(7,), (1, 6), (3, 3, 1)])
def test_rows_are_pooled_in_pieces_as_in_one(cuts: tuple[int, ...]) -> None:
    rows = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    wanted = {MEAN: rows.mean(axis=0), LAST: rows[-1]}
    for kind, vector in wanted.items():
        pool, at = Pool(kind, 7), 0
        for cut in cuts:
            assert not pool.complete
            pool.add(rows[at : at + cut])
            at += cut
        assert pool.complete
        assert pool.vector().dtype == np.dtype("<f4")
        assert np.allclose(pool.vector(), vector / np.linalg.norm(vector), atol=1e-6)
    nothing = Pool(MEAN, 1)
    nothing.add(np.zeros((1, 5), np.float32))
    assert nothing.vector().tolist() == [0] * 5


def test_a_prompt_that_can_not_be_taken_is_named(models: Models) -> None:
    with GgufFile.open(models.path("tiny-llama")) as file:
        roomy, narrow = Intake.from_gguf(file, context=1 << 20), Intake.from_gguf(file, context=8)
    vector = Wanted("vector")
    for more, name in (({"text": "x" * (1 << 19)}, "prompt"), ({"text": "\ud800"}, "prompt")):
        assert refusal(roomy, **more) == (Reason.INVALID_REQUEST, name)
        assert refusal(roomy, vector, **more) == (Reason.INVALID_REQUEST, "input")
    for wanted, said in (
        (Wanted(), "the prompt has 8 tokens; the context, answer included, holds 8"),
        (vector, "the input has 8 tokens; at most 7 fit"),
    ):
        outcome = prepared(narrow, wanted, tokens=(1,) * 8)
        assert isinstance(outcome, Failure) and outcome.message == said


def test_a_short_prompt_does_not_wait_for_long_ones(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    with GgufFile.open(models.path("tiny-llama")) as file:
        intake = Intake.from_gguf(file, context=1 << 20)
    done: queue.Queue[Prepared] = queue.Queue()
    assign, go_on = intake.start(done.put), threading.Event()
    pieces = intake.tokenizer.pieces

    def held_up(text: str, **how: bool) -> Iterator[list[int]]:
        assert len(text) < SHORT or go_on.wait(10)
        return pieces(text, **how)

    monkeypatch.setattr(intake.tokenizer, "pieces", held_up)
    long = " ".join(["ant"] * SHORT)
    for name, messages in (("book", [long]), ("talk", ["a"] * (SHORT + 1)), ("question", ["Ants?"])):
        said = tuple(ChatMessage("user", text) for text in messages)
        assign(TaskAssign(name, "r", 1, Sampling(), messages=said))
    assert done.get(timeout=60).task == "question"
    go_on.set()
    assert [done.get(timeout=60).task for _ in range(2)] == ["book", "talk"]
