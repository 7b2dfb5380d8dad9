"""Many streams at once through real shard processes: company, prefixes, queues, deadlines, counters."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from msgspec.structs import replace
from support.models import Models, smollm2
from support.shard_process import EPOCH, REPLICA, Answer, Replica, Shard, replica

from antfarm.messages import (
    ChatMessage,
    LeadStats,
    ShardStats,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskFinished,
    TaskTokens,
    Timings,
    Wanted,
)
from antfarm.types import RunOptions, Sampling

SPLITS = {"one": (1, 1), "tensor-2": (1, 2), "pipeline-2": (2, 1), "pipeline-3": (3, 1), "hybrid-2x2": (2, 2)}
GREEDY = Sampling(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)  # which tell the tokens' ids
EIGHT = RunOptions(context=256, slots=8, chunk=16, kv_type="f32")

Start = Callable[..., Replica]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def go(path: Path, split: str = "one", options: RunOptions = EIGHT) -> Replica:
            folder = tmp_path / f"{split}-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            stages, ranks = SPLITS[split]
            return stack.enter_context(
                replica(path, folder, stages=stages, ranks=ranks, options=options)
            ).ready()

        yield go


def prompts(count: int) -> dict[str, list[int]]:
    """Random prompts of all lengths up to a few chunks; every fifth begins like the one before it."""
    rng = np.random.default_rng(7)
    made = [rng.integers(3, 500, rng.integers(1, 60)).tolist() for _ in range(count)]
    for i in range(4, count, 5):
        made[i] = made[i - 1] + made[i]
    return {f"task-{i}": each for i, each in enumerate(made)}


def timings(answer: Answer) -> Timings:
    assert answer.end.timings
    return answer.end.timings


@pytest.mark.parametrize("split", ["one", "pipeline-2"])
def test_a_question_is_answered_while_a_book_is_read(models: Models, start: Start, split: str) -> None:
    many = start(models.path("tiny-llama"), split, replace(EIGHT, context=16384, slots=2))
    rng = np.random.default_rng(3)
    many.assign("book", rng.integers(3, 500, 16000).tolist(), GREEDY)
    many.assign("question", rng.integers(3, 500, 60).tolist(), GREEDY)
    heard = [many.lead.expect(TaskTokens).task for _ in range(12)]
    assert heard == ["question"] * 12


@pytest.mark.parametrize(
    ("model", "split"),
    [*(("tiny-llama", split) for split in SPLITS), ("tiny-qwen2", "one"), ("tiny-qwen3", "one")],
)
def test_fifty_answers_do_not_depend_on_their_company(
    models: Models, start: Start, model: str, split: str
) -> None:
    """Eight slots, all prompts at once: batches, lanes, chunks between them, reused and copied prefixes."""
    wanted = prompts(50)
    alone = start(models.path(model), options=replace(EIGHT, slots=1))
    tokens = {task: alone.ask(prompt, GREEDY).ids for task, prompt in wanted.items()}
    many = start(models.path(model), split)
    for task, prompt in wanted.items():
        many.assign(task, prompt, GREEDY)
    answers = many.collect(*wanted)
    assert {answer.task: answer.ids for answer in answers} == tokens
    assert sum(timings(answer).cached_tokens for answer in answers) > 0
    assert {len(ids) for ids in tokens.values()} == {12} and len(set(tokens.values())) > 40


@pytest.mark.parametrize("split", ["one", "tensor-2", "pipeline-2"])
def test_a_second_turn_reads_only_what_is_new(models: Models, start: Start, split: str) -> None:
    many = start(models.path("tiny-llama"), split)
    first = list(range(3, 103))
    cold = many.ask(first, GREEDY)
    turn = first + list(range(200, 220))
    warm = many.ask(turn, GREEDY)
    assert (timings(cold).cached_tokens, timings(warm).cached_tokens) == (0, 100)
    assert warm.ids == start(models.path("tiny-llama")).ask(turn, GREEDY).ids
    assert timings(many.ask(turn, GREEDY)).cached_tokens == len(turn) - 1


@pytest.mark.parametrize("split", ["one", "hybrid-2x2"])
def test_a_busy_slots_prefix_is_copied(models: Models, start: Start, split: str) -> None:
    """Four answers to one prompt: it is read once."""
    many = start(models.path("tiny-llama"), split)
    prompt = list(range(3, 153))
    for i in range(4):
        many.assign(f"n-{i}", prompt, replace(GREEDY, max_tokens=60))
    answers = many.collect(*(f"n-{i}" for i in range(4)))
    assert sorted(timings(answer).cached_tokens for answer in answers) == [0, 149, 149, 149]
    assert len({answer.ids for answer in answers}) == 1


def test_a_q8_cache_serves_prefixes_too(models: Models, start: Start) -> None:
    many = start(models.path("tiny-llama"), "tensor-2", replace(EIGHT, kv_type="q8_0"))
    prompt = list(range(3, 153))
    many.assign("a", prompt, replace(GREEDY, max_tokens=60))
    many.assign("b", prompt, GREEDY)
    a, b = many.collect("a", "b")
    assert timings(b).cached_tokens == 149
    assert a.ids[:12] == b.ids


def test_one_more_than_the_queue_holds_is_refused(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama"), options=replace(EIGHT, context=16384, slots=2, queue=1))
    for i in range(4):
        one.assign(f"t-{i}", [5, 6, 7], replace(GREEDY, max_tokens=None if i < 2 else 3))
    refused = one.lead.expect(TaskFinished)
    assert (refused.task, refused.finish) == ("t-3", "error")
    assert refused.failure and refused.failure.reason == "queue-full"
    one.lead.tell(TaskCancel("t-0", REPLICA, EPOCH))
    assert one.lead.expect(TaskFinished).task == "t-0"
    assert one.lead.expect(TaskFinished).task == "t-2"


def test_a_task_beyond_its_deadline_ends_wherever_it_is(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama"), options=replace(EIGHT, context=32768, slots=1))
    endless = replace(GREEDY, max_tokens=None)
    for task, deadline in (("runs", 2.0), ("waits", 0.1), ("stays", 0.0)):
        sampling = GREEDY if task == "stays" else endless
        one.lead.tell(TaskAssign(task, REPLICA, EPOCH, sampling, tokens=(5, 6), deadline=deadline))
    waits, runs, stays = one.collect("waits", "runs", "stays")
    for late in (waits, runs):
        assert late.end.failure and late.end.failure.reason == "timeout"
    assert (waits.count, stays.count) == (0, 12) and runs.count > 0


@pytest.mark.parametrize("split", ["one", "pipeline-3"])
def test_cancelled_slots_are_free_at_once(models: Models, start: Start, split: str) -> None:
    """Waves of tasks that are cancelled at any moment; afterwards all slots answer, and rightly."""
    many = start(models.path("tiny-llama"), split)
    fresh = start(models.path("tiny-llama"))
    rng = np.random.default_rng(5)
    given = prompts(40)
    for task, prompt in given.items():
        many.assign(task, prompt, replace(GREEDY, max_tokens=100))
        if rng.random() < 0.8:
            many.lead.tell(TaskCancel(task, REPLICA, EPOCH))
        elif rng.random() < 0.7:
            many.lead.expect(TaskTokens)
    finishes = [answer.end.finish for answer in collected(many, *given)]
    assert set(finishes) == {"cancelled", "length"}
    for task, prompt in list(given.items())[:8]:
        many.assign(f"after-{task}", prompt, GREEDY)
    after = many.collect(*(f"after-{task}" for task in list(given)[:8]))
    assert [each.ids for each in after] == [fresh.ask(given[each.task[6:]], GREEDY).ids for each in after]


def collected(many: Replica, *tasks: str) -> list[Answer]:
    """As `collect`, with what was said already."""
    answers = {task: Answer(task) for task in tasks}
    for event in many.lead.said.copy():
        if isinstance(event, TaskAccepted | TaskTokens | TaskFinished):
            answers[event.task].add(event)
    while not all(answer.finished for answer in answers.values()):
        event = many.lead.next()
        if isinstance(event, TaskFinished) and not answers[event.task].finished:
            answers[event.task].finished = event
    return list(answers.values())


def test_a_megabyte_is_refused_at_once_and_long_texts_hold_up_nobody(models: Models, start: Start) -> None:
    one = start(models.path("tiny-llama"), options=replace(EIGHT, context=8192))
    one.assign("huge", "ant " * 250_000, GREEDY)
    one.assign("long", "ant " * 15_000, GREEDY)
    huge, long = one.collect("huge", "long")
    assert huge.end.failure and huge.end.failure.reason == "context-overflow"
    assert long.end.failure and long.end.failure.numbers["context"] == 8192

    counted = [f"count-{i}" for i in range(4)]
    for name in counted:
        one.lead.tell(TaskAssign(name, REPLICA, EPOCH, GREEDY, text="1 " * 250_000, wanted=Wanted("tokens")))
    one.assign("short", "Ants?", GREEDY)
    ended: list[str] = []
    while len(ended) < 5:
        event = one.lead.next()
        if isinstance(event, TaskFinished):
            assert not event.failure
            ended.append(event.task)
    assert ended.index("short") < ended.index(counted[-1]), "a question waited for all the long texts"


@pytest.mark.parametrize("split", ["one", "pipeline-2"])
def test_every_shard_counts_what_it_does(models: Models, start: Start, split: str) -> None:
    many = start(models.path("tiny-llama"), split)
    for i in range(2):
        many.assign(f"t-{i}", list(range(3, 43)), GREEDY)
    many.collect("t-0", "t-1")
    many.ask([7] * 30, GREEDY)
    lead, *others = [last(shard) for shard in many.shards]
    rows = 110 - 39 + 33 + 3  # prompts' and answers', and three that proved the replica
    assert lead.prompt_rows + lead.decode_rows == rows
    assert lead.lead == LeadStats(
        waiting=0, running=0, slots=8, kv_rows=0, kv_capacity=8 * 256,
        prompt_tokens=110, cached_tokens=39, tokens=36,
        decode_steps=lead.lead.decode_steps if lead.lead else 0, decode_rows=33,
    )  # fmt: skip
    assert lead.lead and 22 <= lead.lead.decode_steps <= 33
    assert lead.computed > 0
    for other in others:
        assert other.prompt_rows + other.decode_rows == rows
        assert (other.lead, other.steps) == (None, lead.steps)
        assert (other.bytes_sent, other.bytes_received) == (lead.bytes_received, lead.bytes_sent)
        assert other.computed > 0 and lead.waited > 0


def last(shard: Shard) -> ShardStats:
    """The counters that a shard tells last: it says no more once nothing changes."""
    told: ShardStats = shard.expect(ShardStats)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            told = shard.expect(ShardStats, 2.5)
        except AssertionError:
            return told
    pytest.fail("it goes on and on")


@pytest.mark.skipif(smollm2() is None, reason="the real model is not installed")
def test_streams_go_on_while_a_long_prompt_is_read(
    start: Start, record_property: Callable[[str, object], None]
) -> None:
    """Whole chunks in turn with single steps would give each stream 8 tokens meanwhile. How much of their
    rate they keep, and their longest pause, are reported; what is promised is tested on a made-up clock."""
    path = smollm2()
    assert path
    one = start(path, options=RunOptions(context=2048, slots=5))
    endless = replace(GREEDY, max_tokens=1500)
    for i in range(4):
        one.assign(f"stream-{i}", list(range(100, 110)), endless)
    times: dict[str, list[float]] = defaultdict(list)
    listen(one, times, until=lambda: len(times) == 4 and all(len(each) > 40 for each in times.values()))
    usual = median(gap for each in times.values() for gap in np.diff(each[-30:]))
    times.clear()
    began = time.perf_counter()
    one.assign("long", [5 + i % 900 for i in range(1000)], GREEDY)
    listen(one, times, until=lambda: "long" in times)
    streams = [each for task, each in times.items() if task != "long"]
    kept = sum(map(len, streams)) * usual / 4 / (time.perf_counter() - began)
    longest = max(np.diff(each).max() for each in streams) / usual
    record_property("share of the streams' rate that is left", kept)
    record_property("longest pause, in usual ones", longest)
    assert len(streams) == 4 and min(map(len, streams)) >= 25


def listen(one: Replica, times: dict[str, list[float]], until: Callable[[], bool]) -> None:
    while not until():
        event = one.lead.next()
        if isinstance(event, TaskTokens):
            times[event.task].append(time.perf_counter())
        assert not isinstance(event, TaskFinished), event


@pytest.mark.skipif(smollm2() is None, reason="the real model is not installed")
@pytest.mark.parametrize("split", ["one", "tensor-2", "pipeline-2"])
def test_the_real_models_probabilities_in_company(
    start: Start, split: str, record_property: Callable[[str, object], None]
) -> None:
    """Kernels may round quantized weights otherwise for eight rows than for one; by how much is reported."""
    path = smollm2()
    assert path
    questions = ["Why is the sky blue?", "Name a river.", "What is 2 + 2?", "Who wrote Faust?"] * 2
    many = start(path, split, RunOptions(context=512, slots=8))
    sampling = Sampling(temperature=0, max_tokens=16, logprobs=1)

    def ask(task: str, question: str) -> None:
        chat = (ChatMessage("user", question),)
        many.lead.tell(TaskAssign(task, REPLICA, EPOCH, sampling, messages=chat))

    alone = []
    for i, question in enumerate(questions[:4]):
        ask(f"alone-{i}", question)
        alone += many.collect(f"alone-{i}")
    for i, question in enumerate(questions):
        ask(f"many-{i}", question)
    together = many.collect(*(f"many-{i}" for i in range(8)))
    differences = []
    for i, answer in enumerate(together):
        for mine, other in zip(alone[i % 4].logprobs, answer.logprobs, strict=False):
            if mine.token != other.token:
                break
            differences.append(abs(mine.logprob - other.logprob))
    record_property("largest log-probability difference", max(differences))
    record_property("tokens", len(differences))
    assert len(differences) >= 8 * 4
    assert max(differences) < 0.5
