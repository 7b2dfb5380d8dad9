"""The line between a shard and its forager, over real pipes and in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from antfarm.errors import AntfarmError, Reason
from antfarm.messages import ShardLinked, ShardOutput, ShardStop, TaskCancel
from antfarm.shard.stdio import Stdio


@pytest.fixture
def pipes() -> Iterator[tuple[Stdio, int, int]]:
    """A `Stdio`, where to write its commands, where to read its events."""
    source, commands = os.pipe()
    events, sink = os.pipe()
    stdio = Stdio(source, sink)
    yield stdio, commands, events
    stdio._source.close()
    for number in (commands, events, sink):
        os.close(number)


def test_lines_become_commands_and_events_become_lines(pipes: tuple[Stdio, int, int]) -> None:
    stdio, commands, events = pipes
    for task in ("a", "b"):
        os.write(commands, msgspec.json.encode(TaskCancel(task, "r", 1)) + b"\n")
    assert [stdio.read(), stdio.read()] == [TaskCancel("a", "r", 1), TaskCancel("b", "r", 1)]
    sent = [ShardLinked("r", 1, shard) for shard in range(2)]
    stdio.emit(*sent)
    lines = os.read(events, 4096).splitlines()
    assert [msgspec.json.decode(line, type=ShardOutput) for line in lines] == sent


@pytest.mark.parametrize(
    "line", [b"not json", b'{"type": "dance"}', b'{"type": "task-cancel", "task": 1, "replica": "r"}']
)
def test_a_line_that_is_no_command_is_refused(pipes: tuple[Stdio, int, int], line: bytes) -> None:
    stdio, commands, _ = pipes
    os.write(commands, line + b"\n")
    with pytest.raises(AntfarmError) as failure:
        stdio.read()
    assert failure.value.reason == Reason.INVALID_REQUEST


PROGRAM = """
import time
from antfarm.messages import ShardLinked
from antfarm.shard.stdio import Stdio
stdio = Stdio.claim()
print("for the log")
stdio.listen(lambda error: stdio.emit(ShardLinked("failed", 1, 0)))
command = stdio.get(60)
assert stdio.get(0) is None
stdio.emit(ShardLinked(command.task, 1, 0))
time.sleep(60)  # busy with something that never looks at its commands
"""


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        (b"", 0, []),
        (msgspec.json.encode(ShardStop("r", 1)) + b"\n", 0, []),
        (b"nonsense\n", 1, [ShardLinked("failed", 1, 0)]),
    ],
    ids=["end of stdin", "stop", "nonsense"],
)
def test_the_process_ends_whatever_its_main_thread_does(last: bytes, code: int, said: list[object]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(msgspec.json.encode(TaskCancel("hello", "r", 1)) + b"\n")
        process.stdin.flush()
        first = msgspec.json.decode(process.stdout.readline(), type=ShardOutput)
        assert first == ShardLinked("hello", 1, 0)
        process.stdin.write(last)
        if last:
            process.stdin.flush()  # and stdin stays open
            assert process.wait(30) == code
        else:
            process.stdin.close()
            assert process.wait(30) == code
        rest = [msgspec.json.decode(line, type=ShardOutput) for line in process.stdout]
        assert rest == said
        assert b"for the log" in process.stderr.read()
