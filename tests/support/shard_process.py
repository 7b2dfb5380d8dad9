"""Plays the forager: starts real shard processes and speaks with them over stdin and stdout."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from antfarm.messages import (
    Peer,
    ReplicaProved,
    ShardCommand,
    ShardLink,
    ShardLinked,
    ShardListening,
    ShardLoad,
    ShardLoaded,
    ShardOutput,
    ShardSpec,
    TaskAccepted,
    TaskAssign,
    TaskFinished,
    TaskTokens,
    TokenLogprob,
)
from antfarm.model.gguf import GgufFile
from antfarm.types import Memory, ModelFacts, Part, Plan, RunOptions, Sampling, Span, SplitMode

SECRET = "a secret of the tests alone"
REPLICA = "replica-1"
EPOCH = 3
WAIT_S = 30.0
EXACT = RunOptions(context=128, chunk=16, kv_type="f32")  # an f16 cache rounds, splits then differ by 1e-3

M = TypeVar("M")
_decoder: msgspec.json.Decoder[ShardOutput] = msgspec.json.Decoder(ShardOutput)


def cut(total: int, parts: int, unit: int = 1) -> list[Span]:
    """`total` in `parts` spans of whole units, the first ones larger."""
    units = total // unit
    edges = [-(-units * i // parts) * unit for i in range(parts)] + [total]
    return [Span(lo, hi) for lo, hi in pairwise(edges)]


def plan_of(facts: ModelFacts, stages: int, ranks: int) -> Plan:
    """A plain split in `stages` x `ranks`, shares as equal as they go."""
    parts = [
        Part(stage * ranks + rank, stage, rank, ranks, halves, kv_heads, feed_forward)
        for stage, halves in enumerate(cut(2 * facts.layers, stages))
        for rank, (kv_heads, feed_forward) in enumerate(
            zip(cut(facts.kv_heads, ranks), cut(facts.feed_forward, ranks, 32), strict=True)
        )
    ]
    mode = SplitMode.TENSOR if stages == 1 else SplitMode.PIPELINE if ranks == 1 else SplitMode.HYBRID
    return Plan(mode, tuple(parts), tuple(Memory(0, 0, 0, 0) for _ in parts))


class Shard:
    """One shard process and everything it has said."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "antfarm.shard"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self.said: list[ShardOutput] = []
        self.strange: list[bytes] = []  # lines on stdout that are no message
        self._new: queue.Queue[ShardOutput | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, command: ShardCommand) -> None:
        self.tell_raw(msgspec.json.encode(command) + b"\n")

    def tell_raw(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def hang_up(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def next(self, timeout: float = WAIT_S) -> ShardOutput:
        """The next message. AssertionError, with the log, when none comes."""
        try:
            message = self._new.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"nothing within {timeout} s; log:\n{self.log.read_text()}") from None
        if message is None:
            self._new.put(None)
            raise AssertionError(f"ended after {self.said[-3:]}; log:\n{self.log.read_text()}")
        return message

    def expect(self, kind: type[M], timeout: float = WAIT_S) -> M:
        """The next message of a kind; those before it are skipped (and stay in `said`)."""
        deadline = time.monotonic() + timeout
        while True:
            message = self.next(deadline - time.monotonic())
            if isinstance(message, kind):
                return message

    def wait(self, timeout: float = WAIT_S) -> int:
        return self.process.wait(timeout)

    def close(self) -> None:
        """End the process if it still runs, and everything that belongs to it here."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                message = _decoder.decode(line)
            except msgspec.DecodeError:
                self.strange.append(line)
                continue
            self.said.append(message)
            self._new.put(message)
        self._new.put(None)


@dataclass
class Answer:
    """All that came of one task."""

    task: str
    prompt_tokens: int = 0
    text: str = ""
    tokens: list[TaskTokens] = field(default_factory=list)
    finished: TaskFinished | None = None

    def add(self, event: ShardOutput) -> None:
        if isinstance(event, TaskAccepted):
            self.prompt_tokens = event.prompt_tokens
        elif isinstance(event, TaskTokens):
            assert event.index == self.count, "tokens lost or doubled"
            self.tokens.append(event)
            self.text += event.text
        elif isinstance(event, TaskFinished):
            assert event.index == self.count, "tokens lost or doubled"
            self.finished = event

    @property
    def count(self) -> int:
        return sum(event.count for event in self.tokens)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [each for event in self.tokens for each in event.logprobs]

    @property
    def ids(self) -> tuple[int, ...]:
        """Its tokens, of which the text tells little where they are no characters. Comes with `logprobs`."""
        assert len(self.logprobs) == self.count, "no log-probabilities were asked for"
        return tuple(each.token for each in self.logprobs)

    @property
    def end(self) -> TaskFinished:
        assert self.finished, "not finished"
        return self.finished


@dataclass
class Replica:
    """The shards of one model, shard 0 first."""

    shards: list[Shard]

    @property
    def lead(self) -> Shard:
        return self.shards[0]

    def load(self) -> list[ShardListening]:
        """Wait until all have loaded; returns where they listen."""
        listening = [shard.expect(ShardListening) for shard in self.shards]
        for shard in self.shards:
            shard.expect(ShardLoaded)
        return listening

    def link(self, listening: Sequence[ShardListening]) -> None:
        peers = tuple(Peer(each.shard, f"shard {each.shard}", each.address, each.port) for each in listening)
        for shard in self.shards:
            shard.tell(ShardLink(REPLICA, EPOCH, peers))

    def prove(self) -> None:
        for shard in self.shards:
            shard.expect(ShardLinked)
        self.lead.expect(ReplicaProved)

    def ready(self) -> Replica:
        self.link(self.load())
        self.prove()
        return self

    def assign(self, task: str, prompt: str | Sequence[int], sampling: Sampling) -> None:
        text, tokens = (prompt, None) if isinstance(prompt, str) else (None, tuple(prompt))
        self.lead.tell(TaskAssign(task, REPLICA, EPOCH, sampling, text=text, tokens=tokens))

    def collect(self, *tasks: str) -> list[Answer]:
        """The answers to tasks that were assigned, when all are finished. Others' events are passed over."""
        answers = {task: Answer(task) for task in tasks}
        while not all(answer.finished for answer in answers.values()):
            event = self.lead.next()
            if isinstance(event, TaskAccepted | TaskTokens | TaskFinished) and event.task in answers:
                answers[event.task].add(event)
        return list(answers.values())

    def ask(self, prompt: str | Sequence[int], sampling: Sampling, task: str = "task") -> Answer:
        self.assign(task, prompt, sampling)
        return self.collect(task)[0]


@contextmanager
def replica(
    path: Path,
    folder: Path,
    *,
    stages: int = 1,
    ranks: int = 1,
    options: RunOptions | None = None,
    change: Callable[[ShardSpec], ShardSpec] = lambda spec: spec,
) -> Iterator[Replica]:
    """Shard processes for a model, split in stages x ranks, told what to load. All are gone at the end.

    `change` may put something wrong into a spec.
    """
    options = options or EXACT
    with GgufFile.open(path) as file:
        facts = file.facts
    plan = plan_of(facts, stages, ranks)
    shards: list[Shard] = []
    try:
        for part in plan.parts:
            shards.append(Shard(folder / f"shard-{part.shard}.log"))
            load = ShardLoad(REPLICA, EPOCH, str(path), facts.fingerprint, plan, part.shard, options)
            spec = ShardSpec(load, str(path), f"shard {part.shard}", "127.0.0.1", SECRET, threads=1)
            shards[-1].tell(change(spec))
        yield Replica(shards)
    finally:
        for shard in shards:
            shard.close()
    assert not [line for shard in shards for line in shard.strange], "stdout carries messages alone"
