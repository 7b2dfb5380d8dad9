from __future__ import annotations

import os
import signal
import subprocess

import msgspec
import psutil
import pytest

from antfarm.client.launch import ForagerOptions, QueenOptions, Ready, Starter, divide_host, stop_processes
from antfarm.client.state import Process
from antfarm.errors import Reason, RequestError, StateError
from antfarm.forager.settings import cores
from antfarm.messages import Failure


def told(descriptor: int) -> Ready | Failure:
    with os.fdopen(descriptor, "rb") as pipe:
        return msgspec.json.decode(pipe.read(), type=Ready | Failure)


def test_a_daemon_tells_that_it_is_ready_and_then_no_more() -> None:
    read, write = os.pipe()
    queen = Process("queen", "", 1, 2.0, api="http://here")
    with pytest.raises(RequestError), Starter(write) as starter:
        assert starter.waits
        starter.tell(Ready(queen))
        raise RequestError(Reason.BAD_SETTING, "too late")
    assert told(read) == Ready(queen)


def test_a_daemon_tells_what_kept_it() -> None:
    read, write = os.pipe()
    with pytest.raises(RequestError), Starter(write):
        raise RequestError(Reason.BAD_SETTING, "no", hint="do")
    assert told(read) == Failure("bad-setting", "no", "do")


def test_a_daemon_whose_starter_has_gone_does_not_stay() -> None:
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(StateError) as gone, Starter(write) as starter:
        starter.tell(Ready(Process("queen", "")))
    assert gone.value.reason is Reason.CANCELLED


def test_a_daemon_in_the_foreground_has_nobody_to_tell() -> None:
    with Starter(-1) as starter:
        assert not starter.waits
        starter.tell(Ready(Process("queen", "")))


def test_foragers_of_one_host_share_it() -> None:
    one, two = divide_host(2)
    assert (one.name, two.name) == ("forager-1", "forager-2")
    assert one.threads == two.threads == max(1, cores() // 2)
    assert 0 < one.memory == two.memory
    (given,) = divide_host(1, ForagerOptions("ant", memory=5, threads=7))
    assert given == ForagerOptions("ant-1", memory=5, threads=7)


def test_options_become_arguments_without_empty_ones() -> None:
    assert QueenOptions(api_port=0, bus_port=0).arguments() == [
        "--listen", "127.0.0.1", "--api-port", "0", "--bus-port", "0"
    ]  # fmt: skip
    foreign = QueenOptions(bus="nats://there", token_file="/t").arguments()
    assert foreign[-4:] == ["--bus", "nats://there", "--bus-token", "/t"]
    assert ForagerOptions("a", cpus=(0, 1)).arguments() == ["--name", "a", "--cpus", "0,1"]


def test_no_child_stays_unnoticed_that_ends_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "60"])

    def status(process: psutil.Process) -> str:
        """What it is, a moment later: by then it has ended."""
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return psutil.STATUS_ZOMBIE

    monkeypatch.setattr(psutil.Process, "status", status)
    stop_processes([child.pid])
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    child.wait()
