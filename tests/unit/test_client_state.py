from __future__ import annotations

import os
from pathlib import Path

import msgspec
import psutil
import pytest

from antfarm.client import state
from antfarm.client.control import no_queen
from antfarm.client.state import ColonyState, Process
from antfarm.config import Home
from antfarm.errors import Reason, StateError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def write(home: Home, *processes: Process) -> None:
    home.path.mkdir(parents=True, exist_ok=True)
    home.state_file.write_bytes(msgspec.json.encode(ColonyState(processes)))


def other(role: str, name: str = "") -> Process:
    """An entry of a process that lives and is not ours."""
    parent = psutil.Process(os.getppid())
    return Process(role, name, parent.pid, parent.create_time(), bus="nats://here")


def test_a_home_without_a_colony_has_no_processes(home: Home) -> None:
    assert state.read(home) == ColonyState()
    assert state.read(home).queen() is None and state.read(home).on_bus() is None


def test_a_claim_is_seen_while_it_is_held_and_can_be_amended(home: Home) -> None:
    with state.claim(home, "queen") as announce:
        announce(Process("queen", "", 1, 0.0, api="http://there"))
        queen = state.read(home).queen()
        assert queen is not None
        assert (queen.pid, queen.api) == (os.getpid(), "http://there")
    assert state.read(home).processes == ()


@pytest.mark.parametrize(
    ("mine", "theirs"), [("queen", "queen"), ("up", "queen"), ("up", "up"), ("forager", "forager")]
)
def test_a_role_that_is_taken_is_refused_and_stays_theirs(home: Home, mine: str, theirs: str) -> None:
    write(home, other(theirs))
    with pytest.raises(StateError) as refused, state.claim(home, mine):
        pass
    assert refused.value.reason is Reason.COLONY_EXISTS
    assert str(os.getppid()) in refused.value.message
    assert [p.role for p in state.read(home).processes] == [theirs]


def test_roles_that_go_together(home: Home) -> None:
    write(home, other("up"), other("forager", "a"))
    with state.claim(home, "queen"), state.claim(home, "forager", "b"):
        assert [p.role for p in state.read(home).processes] == ["up", "forager", "queen", "forager"]


def test_the_dead_and_another_process_of_the_same_id_count_for_nothing(home: Home) -> None:
    gone = Process("queen", "", 2**22 - 1, 1.0)
    reused = msgspec.structs.replace(other("queen"), started=psutil.boot_time() - 3600)
    write(home, gone, reused)
    assert state.read(home).processes == ()
    with state.claim(home, "queen"):
        assert len(state.read(home).processes) == 1


def ports_of_last(home: Home) -> tuple[str, str]:
    last = state.last_queen(home)
    assert last is not None
    return last.api, last.bus


def test_the_last_queen_is_remembered_until_the_next_is_ready(home: Home) -> None:
    write(
        home, Process("queen", "", 2**22 - 1, 1.0, api="http://here:1", bus="nats://here"), other("forager")
    )
    assert state.bereft(home)
    with state.claim(home, "forager", "b"):
        assert state.bereft(home)
    with state.claim(home, "queen"):  # one that does not come to be ready
        assert not state.bereft(home) and ports_of_last(home) == ("http://here:1", "nats://here")
    assert state.bereft(home) and ports_of_last(home) == ("http://here:1", "nats://here")
    with state.claim(home, "queen") as announce:
        announce(Process("queen", "", api="http://here:2", bus="nats://there"))
        assert [p.role for p in state.read(home).processes] == ["forager", "queen"]
    assert ports_of_last(home) == ("http://here:2", "nats://there")
    assert state.read(home).queen() is None
    assert not state.bereft(home), "the forager that is left is another queen's"


def test_beside_a_queen_that_has_ended_the_hint_is_what_repairs_it(home: Home) -> None:
    write(home, Process("queen", "", 2**22 - 1, 1.0, bus="nats://here"), other("forager", "a"))
    for role in ("up", "forager"):
        with pytest.raises(StateError) as refused:
            state.check_free(home, role, "a")
        assert refused.value.hint == state.REVIVE
    assert no_queen(home).hint == state.REVIVE
    write(home, other("forager", "a"))
    assert "this host" not in no_queen(home).hint and "run this there" in no_queen(home).hint
    write(home, msgspec.structs.replace(other("forager", "a"), bus="nats://127.0.0.1:1"))
    assert "--home" in no_queen(home).hint and "`antc queen`" in no_queen(home).hint


def test_a_damaged_state_says_so(home: Home) -> None:
    home.path.mkdir()
    home.state_file.write_text("{")
    with pytest.raises(StateError) as broken:
        state.read(home)
    assert broken.value.reason is Reason.BAD_SETTING
    assert str(home.state_file) in broken.value.message
