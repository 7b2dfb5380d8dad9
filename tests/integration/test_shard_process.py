"""Real shard processes on small models, driven as a forager drives them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from support.models import Models, smollm2
from support.shard_process import EPOCH, EXACT, REPLICA, Replica, replica

from antfarm.messages import (
    ChatMessage,
    ShardFailed,
    ShardLinked,
    ShardListening,
    ShardLoaded,
    ShardProgress,
    ShardSpec,
    ShardStats,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskFinished,
    TaskTokens,
)
from antfarm.types import RunOptions, Sampling, WireFormat

SPLITS = {"one": (1, 1), "tensor-2": (1, 2), "tensor-3": (1, 3), "pipeline-2": (2, 1), "hybrid-2x2": (2, 2)}
GREEDY = Sampling(temperature=0, max_tokens=24, ignore_eos=True)
TRACED = replace(GREEDY, logprobs=0)  # tells the tokens' ids
PROMPT = "and the wise ant said to another of the farm: "
LONG = RunOptions(context=32768, chunk=64)  # room for an answer that goes on for a while

Start = Callable[..., Replica]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts replicas; asserts at the end that nothing of them is left."""
    pids: list[int] = []
    with ExitStack() as stack:

        def go(path: Path, **how: object) -> Replica:
            folder = tmp_path / str(len(pids))
            folder.mkdir()
            made = stack.enter_context(replica(path, folder, **how))  # type: ignore[arg-type]
            pids.extend(shard.pid for shard in made.shards)
            return made

        yield go
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_model_in_one_shard_is_loaded_proved_and_answers(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama"), stages=1).ready()
    kinds = [type(message) for message in one.lead.said]
    order = [ShardListening, ShardProgress, ShardLoaded, ShardLinked]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
    progress = [message for message in one.lead.said if isinstance(message, ShardProgress)]
    assert progress[-1].done == progress[-1].total > 0
    answer = one.ask(PROMPT, GREEDY)
    assert (answer.end.finish, answer.count) == ("length", 24)
    timings = answer.end.timings
    assert timings and timings.completion_tokens == 24 and timings.prompt_tokens == answer.prompt_tokens > 16
    assert timings.prefill > 0 and timings.decode > 0 and timings.queued >= 0
    assert timings.wire_bytes == 0


@pytest.mark.parametrize("architecture", ["tiny-llama", "tiny-qwen3"])
def test_every_split_gives_the_same_tokens(models: Models, start: Start, architecture: str) -> None:
    path = models.path(architecture)
    tokens = {}
    for name, (stages, ranks) in SPLITS.items():
        split = start(path, stages=stages, ranks=ranks).ready()
        answer = split.ask(PROMPT, TRACED)
        tokens[name] = answer.ids
        timings = answer.end.timings
        assert timings and (timings.wire_bytes > 0) == (name != "one")
        for shard in split.shards:
            shard.close()
    assert set(tokens.values()) == {tokens["one"]}
    assert len(set(tokens["one"])) > 10


def test_a_narrow_wire_format_answers_too(models: Models, start: Start) -> None:
    options = replace(EXACT, wire=WireFormat.F16)
    split = start(models.path("tiny-llama"), stages=2, ranks=2, options=options).ready()
    assert split.ask(PROMPT, GREEDY).count == 24


def test_the_smallest_settings_answer(models: Models, start: Start) -> None:
    options = RunOptions(context=2, chunk=1)
    split = start(models.path("tiny-llama"), stages=2, options=options).ready()
    assert split.ask([7], GREEDY).count == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere libraries reserve addresses by the terabyte")
def test_a_chunk_longer_than_the_context_takes_no_room(models: Models, start: Start) -> None:
    options = RunOptions(context=16, chunk=1 << 24)
    split = start(models.path("tiny-llama"), stages=2, options=options).ready()
    assert split.ask([7] * 12, GREEDY).count == 4
    for shard in split.shards:
        assert psutil.Process(shard.pid).memory_info().vms < 4 << 30  # such a chunk's rows take 6 GiB


def test_the_same_seed_gives_the_same_tokens_split_or_not(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama")).ready()
    two = start(models.path("tiny-llama"), ranks=2).ready()
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=42, max_tokens=20, ignore_eos=True, logprobs=0)
    first = one.ask(PROMPT, sampling).ids
    assert one.ask(PROMPT, sampling).ids == first
    assert two.ask(PROMPT, sampling).ids == first
    assert one.ask(PROMPT, replace(sampling, seed=43)).ids != first


def test_a_chat_goes_through_the_models_template(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama")).ready()
    chat = (ChatMessage("user", "the ant"),)
    one.lead.tell(TaskAssign("chat", REPLICA, EPOCH, GREEDY, messages=chat))
    (answer,) = one.collect("chat")
    assert answer.prompt_tokens > len("the ant")
    written = "<|im_start|>user\nthe ant<|im_end|>\n<|im_start|>assistant\n"
    assert answer.text == one.ask(written, GREEDY).text


def test_stop_strings_and_log_probabilities(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama"), ranks=2).ready()
    whole = one.ask(PROMPT, GREEDY)
    stop = whole.text[6:9]
    cut = one.ask(PROMPT, replace(GREEDY, stop=(stop,), logprobs=3))
    assert cut.end.finish == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.count <= whole.count
    assert cut.logprobs and all(len(each.top) == 3 for each in cut.logprobs)
    for each in cut.logprobs:  # greedy takes the most likely one
        assert each.token == each.top[0].token and each.logprob == each.top[0].logprob <= 0


def test_a_running_task_is_cancelled_within_a_step(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama"), options=LONG).ready()
    one.assign("long", PROMPT, replace(GREEDY, max_tokens=None))
    one.assign("waiting", PROMPT, GREEDY)
    one.assign("next", PROMPT, GREEDY)
    one.lead.expect(TaskTokens)
    one.lead.tell(TaskCancel("waiting", REPLICA, EPOCH))
    one.lead.tell(TaskCancel("long", REPLICA, EPOCH))
    one.lead.tell(TaskCancel("nobody knows this one", REPLICA, EPOCH))
    finished = {}
    while "next" not in finished:
        event = one.lead.expect(TaskFinished)
        finished[event.task] = event
    assert {task: event.finish for task, event in finished.items()} == {
        "long": "cancelled",
        "waiting": "cancelled",
        "nobody knows this one": "cancelled",
        "next": "length",
    }
    assert finished["waiting"].index == 0
    counts = [
        event.count for event in one.lead.said if isinstance(event, TaskTokens) and event.task == "long"
    ]
    assert sum(counts) == finished["long"].index
    told = sum(event.index for event in finished.values())
    while not (stats := one.lead.expect(ShardStats).lead) or stats.running or stats.tokens < told:
        pass
    assert stats.tokens == told
    assert stats.decode_rows <= told - 2 + 1  # the two first tokens are prompts'; one step was under way


def test_a_long_prompt_is_cancelled_between_its_chunks(models: Models, start: Start) -> None:
    options = RunOptions(context=32768, chunk=2)
    one = start(models.path("tiny-llama"), options=options).ready()
    one.assign("long", [7] * 32000, GREEDY)
    one.lead.expect(TaskAccepted)
    one.lead.tell(TaskCancel("long", REPLICA, EPOCH))
    finished = one.lead.expect(TaskFinished)
    assert (finished.finish, finished.index) == ("cancelled", 0)
    assert one.ask(PROMPT, GREEDY).count == 24


def test_answers_do_not_depend_on_the_company(models: Models, start: Start) -> None:
    """Two others answer all the while: all decode in one batch, prompts come in between, and each answer is
    what it is alone."""
    options = replace(EXACT, slots=3, context=8192)
    prompts = {f"task-{i}": PROMPT[i:] * (1 + i % 2) for i in range(6)}
    alone = start(models.path("tiny-llama")).ready()
    wanted = {task: alone.ask(prompt, TRACED).ids for task, prompt in prompts.items()}
    many = start(models.path("tiny-llama"), ranks=2, options=options).ready()
    for task in ("one", "two"):
        many.assign(task, PROMPT, replace(GREEDY, max_tokens=None))
    for task, prompt in prompts.items():
        many.assign(task, prompt, TRACED)
    answers = many.collect(*prompts)
    assert {answer.task: answer.ids for answer in answers} == wanted
    ended = [event.task for event in many.lead.said if isinstance(event, TaskFinished)]
    assert not {"one", "two"} & set(ended)


def test_the_context_is_a_limit(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama")).ready()
    over = one.ask([7] * 128, GREEDY)
    assert over.end.finish == "error" and over.end.failure
    assert over.end.failure.reason == "context-overflow"
    assert over.end.failure.numbers == {"prompt_tokens": 128, "context": 128, "param": "prompt"}
    endless = replace(GREEDY, max_tokens=None)
    brim = one.ask([7] * 127, endless)
    assert (brim.end.finish, brim.count) == ("length", 1)
    rest = one.ask([7] * 100, endless)
    assert (rest.end.finish, rest.count) == ("length", 28)


def test_a_request_that_cannot_be_ends_alone(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama")).ready()
    prompts: list[str | list[int]] = ["", [], [512], [-1]]
    wrong = [(prompt, GREEDY) for prompt in prompts]
    wrong += [("a", replace(GREEDY, temperature=-1.0)), ("a", replace(GREEDY, max_tokens=0))]
    for prompt, sampling in wrong:
        bad = one.ask(prompt, sampling)
        assert bad.end.finish == "error" and bad.end.failure
        assert bad.end.failure.reason == "invalid-request"
    assert one.ask("a", GREEDY).count == 24


@pytest.mark.parametrize("split", ["tensor-2", "pipeline-2", "hybrid-2x2"])
@pytest.mark.parametrize("busy", [True, False], ids=["decoding", "idle"])
def test_a_killed_follower_is_named_by_the_lead(models: Models, start: Start, split: str, busy: bool) -> None:
    stages, ranks = SPLITS[split]
    several = start(models.path("tiny-llama"), stages=stages, ranks=ranks, options=LONG).ready()
    if busy:
        several.assign("long", PROMPT, replace(GREEDY, max_tokens=None))
        several.lead.expect(TaskTokens)
    victim = several.shards[-1]
    killed = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    failed = several.lead.expect(ShardFailed)
    assert time.monotonic() - killed < 10
    assert failed.failure.reason == "link-lost"
    assert failed.lost_peer is not None
    if split != "hybrid-2x2":  # there the lead may first see a shard that fell over with the victim
        assert failed.lost_peer == 1
    for shard in several.shards:
        assert shard.wait() != 0


def test_a_lost_lead_ends_its_followers(models: Models, start: Start) -> None:
    several = start(models.path("tiny-llama"), stages=2, ranks=2).ready()
    os.kill(several.lead.pid, signal.SIGKILL)
    for shard in several.shards[1:]:
        failed = shard.expect(ShardFailed)
        assert failed.failure.reason == "link-lost"
        assert shard.wait() == 1


@pytest.mark.parametrize("when", ["loading", "loaded", "idle", "computing"])
def test_without_its_forager_a_shard_ends(models: Models, start: Start, when: str) -> None:
    several = start(models.path("tiny-llama"), stages=2, options=LONG)
    if when == "loading":
        several.lead.expect(ShardListening)
    else:
        listening = several.load()
    if when in ("idle", "computing"):
        several.link(listening)
        several.prove()
    if when == "computing":
        several.assign("long", PROMPT, replace(GREEDY, max_tokens=None))
        several.lead.expect(TaskTokens)
    for shard in several.shards:
        shard.hang_up()
    for shard in several.shards:
        assert shard.wait(10) is not None


def test_a_terminals_interrupt_is_ignored_and_a_request_to_terminate_is_not(
    models: Models, start: Start
) -> None:
    one = start(models.path("tiny-llama")).ready()
    os.kill(one.lead.pid, signal.SIGINT)
    assert one.ask(PROMPT, GREEDY).count == 24
    os.kill(one.lead.pid, signal.SIGTERM)
    assert one.lead.wait() == -signal.SIGTERM


def test_another_model_than_planned_is_refused(models: Models, start: Start) -> None:
    def change(spec: ShardSpec) -> ShardSpec:
        return replace(spec, load=replace(spec.load, fingerprint="0" * 64))

    one = start(models.path("tiny-llama"), change=change)
    assert one.lead.expect(ShardFailed).failure.reason == "model-mismatch"
    assert one.lead.wait() == 1


@pytest.mark.parametrize(("content", "reason"), [(b"no model", "not-a-gguf"), (None, "model-unknown")])
def test_a_bad_file_is_one_failure(
    models: Models, start: Start, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "bad.gguf"
    if content is not None:
        path.write_bytes(content)
    one = start(models.path("tiny-llama"), change=lambda spec: replace(spec, path=str(path)))
    failed = one.lead.expect(ShardFailed)
    assert failed.failure.reason == reason
    assert one.lead.wait() == 1
    assert "Traceback" not in one.lead.log.read_text()


def test_a_line_that_is_no_command_ends_the_shard(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama")).ready()
    one.lead.tell_raw(b'{"type": "dance"}\n')
    assert one.lead.expect(ShardFailed).failure.reason == "invalid-request"
    assert one.lead.wait() == 1


def test_strangers_at_the_door_change_nothing(models: Models, start: Start) -> None:
    two = start(models.path("tiny-llama"), ranks=2)
    listening = two.load()
    with ExitStack() as stack:
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, b""):
            for each in listening:
                sock = stack.enter_context(socket.create_connection((each.address, each.port)))
                sock.sendall(noise)
        two.link(listening)
        two.prove()
    assert two.ask(PROMPT, GREEDY).count == 24


def test_a_shard_with_another_secret_is_refused(models: Models, start: Start) -> None:
    def change(spec: ShardSpec) -> ShardSpec:
        return replace(spec, secret="another colony's secret") if spec.load.shard == 1 else spec

    two = start(models.path("tiny-llama"), ranks=2, change=change)
    two.link(two.load())
    failed = two.shards[1].expect(ShardFailed)
    assert (failed.failure.reason, failed.lost_peer) == ("link-refused", 0)
    assert two.shards[1].wait() == 1


def test_a_follower_holds_no_tokenizer(models: Models, start: Start) -> None:
    two = start(models.path("tiny-llama"), ranks=2).ready()
    loaded = [Path(f"/proc/{shard.pid}/maps").read_text() for shard in two.shards]
    assert "tokenizers" in loaded[0]
    assert "tokenizers" not in loaded[1] and "jinja2" not in loaded[1]


def test_an_idle_replica_costs_no_processor(models: Models, start: Start) -> None:
    two = start(models.path("tiny-llama"), ranks=2).ready()
    two.ask(PROMPT, GREEDY)
    processes = [psutil.Process(shard.pid) for shard in two.shards]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = used()
    time.sleep(2.5)
    assert used() - before <= 0.03


@pytest.mark.skipif(smollm2() is None, reason="the real model is not installed")
@pytest.mark.parametrize(("stages", "ranks"), [(1, 1), (1, 2), (2, 1)], ids=["one", "tensor-2", "pipeline-2"])
def test_the_real_model_knows_a_capital(start: Start, stages: int, ranks: int) -> None:
    path = smollm2()
    assert path
    real = start(path, stages=stages, ranks=ranks, options=RunOptions(context=256)).ready()
    chat = (ChatMessage("user", "Name the capital of Germany."),)
    real.lead.tell(TaskAssign("chat", REPLICA, EPOCH, Sampling(temperature=0, max_tokens=32), messages=chat))
    (answer,) = real.collect("chat")
    assert "Berlin" in answer.text
    assert answer.end.finish == "stop"
