"""Foragers on one machine: what each may fill, by what is told and what is used."""

from __future__ import annotations

import pytest
from support.colony_script import Script, forager, kinds
from support.models import Models

from antfarm.colony.events import ForagerHeard, LogOps
from antfarm.colony.sharing import share
from antfarm.errors import Reason
from antfarm.messages import ForagerFacts
from antfarm.model.gguf import GgufFile

MIB = 1 << 20


def found(id: str, mib: int) -> ForagerFacts:
    """One that was not told its memory."""
    return forager(id, mib=mib, machine="one", memory_told=False)


@pytest.mark.parametrize(
    ("finds", "used", "left"),
    [
        ((900,), (0,), (900,)),
        ((900, 900, 900), (0, 0, 0), (300, 300, 300)),
        ((900, 900), (600, 0), (0, 300)),
        ((900, 900), (400, 0), (50, 450)),
        ((900, 900, 900), (600, 0, 0), (0, 150, 150)),
        ((900, 900, 900), (600, 400, 0), (0, 0, 0)),
        ((800, 320), (480, 0), (0, 320)),  # the second came when the first had filled much
        ((300, 900), (0, 0), (300, 450)),
    ],
)
def test_what_foragers_find_is_shared(
    finds: tuple[int, ...], used: tuple[int, ...], left: tuple[int, ...]
) -> None:
    there = [found(f"f{number}", mib) for number, mib in enumerate(finds)]
    taken = {one.id: mib * MIB for one, mib in zip(there, used, strict=True)}
    shares = [max(0, share(one, there, taken) - taken[one.id]) // MIB for one in there]
    assert tuple(shares) == left
    assert sum(shares) <= max(0, max(finds) - sum(used))


def test_who_was_told_has_it_and_other_machines_do_not_count() -> None:
    told, beside, far = forager("a", mib=800, machine="one"), found("b", 800), forager("c", memory_told=False)
    there = [told, beside, far]
    used = dict.fromkeys("abc", 0)
    assert [share(one, there, used) // MIB for one in there] == [800, 400, 1024]


@pytest.mark.parametrize("told", [True, False])
def test_two_shards_that_fit_each_forager_but_not_the_machine(models: Models, told: bool) -> None:
    with GgufFile.open(models.path("tiny-llama")) as file:
        script = Script(file.facts)
    (joined,) = script.on(ForagerHeard(forager("a", mib=70, machine="one", memory_told=told)))
    assert isinstance(joined, LogOps) and "--memory" not in joined.text
    (joined,) = script.on(ForagerHeard(forager("b", mib=70, machine="one", memory_told=told)))
    assert isinstance(joined, LogOps) and ("it shares that memory with a" in joined.text) is not told
    loads = script.loads(split=2)
    if told:
        assert kinds(loads) == ["SendLoad", "SendLoad"]
    else:
        assert script.refusal().reason is Reason.NO_CAPACITY
        assert "a, b share their machine's memory" in script.refusal().message
