"""The handshake as two pure sides, wired to each other."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.meshes import plan_of, spec_of

from antfarm.link.handshake import Context, Refused, dial, listen
from antfarm.link.topology import Purpose, Wire
from antfarm.secret import Secret
from antfarm.types import WireFormat

PLAN = plan_of(2)
OURS = spec_of(PLAN, 0).context()
WIRE = Wire(Purpose.REDUCE, 0, 1)
Tamper = Callable[[int, bytes], bytes]


def meet(
    dialers: Context, listeners: Context, wire: Wire = WIRE, tamper: Tamper = lambda step, data: data
) -> tuple[object, object]:
    """How both sides end. `tamper(n, data)` sees message n on its way."""
    ends: dict[str, object] = {"dialer": None, "listener": None}
    sides = {"dialer": dial(dialers, wire, b"d" * 32), "listener": listen(listeners, {WIRE}, b"l" * 32)}
    wants = {name: next(side) for name, side in sides.items()}
    data, turn = wants["dialer"].send, "listener"
    for step in range(4):
        data = tamper(step, data)
        assert len(data) == wants[turn].want
        try:
            data, given = b"", data
            wants[turn] = sides[turn].send(given)
            data = wants[turn].send
            if not wants[turn].want:
                sides[turn].send(b"")
        except StopIteration as done:
            ends[turn] = done.value or "ok"
        except Refused as refused:
            ends[turn] = refused
        turn = "dialer" if turn == "listener" else "listener"
        if not data:
            break
    return ends["dialer"], ends["listener"]


def test_the_same_secret_and_context_agree() -> None:
    assert meet(OURS, OURS) == ("ok", WIRE)


def test_a_wrong_secret_is_refused_on_both_sides() -> None:
    theirs = replace(OURS, key=Secret("another secret, as long").link_key())
    dialer, listener = meet(theirs, OURS)
    assert isinstance(dialer, Refused) and dialer.why == "the colony secrets differ"
    assert isinstance(listener, Refused) and listener.why == "the colony secrets differ"
    assert listener.wire == WIRE


@pytest.mark.parametrize(
    "change",
    [
        {"replica": "r2"},
        {"fingerprint": "g"},
        {"plan": plan_of(1, 1)},
        {"format": WireFormat.F16},
        {"width": 128},
        {"max_rows": 1},
    ],
)
def test_another_load_is_refused(change: dict[str, object]) -> None:
    dialer, listener = meet(replace(OURS, **change), OURS)  # type: ignore[arg-type]
    assert isinstance(dialer, Refused) and "another load" in dialer.why
    assert isinstance(listener, Refused) and "another load" in listener.why


def test_another_epoch_is_named() -> None:
    _, listener = meet(replace(OURS, epoch=2), OURS)
    assert isinstance(listener, Refused) and listener.why == "it is of epoch 2; this is epoch 3"


def test_a_wire_that_is_not_expected_is_refused() -> None:
    dialer, listener = meet(OURS, OURS, Wire(Purpose.RESULT, 0, 1))
    assert isinstance(dialer, Refused) and "not part of the plan" in dialer.why
    assert isinstance(listener, Refused) and listener.wire is None


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("place", [0, 20, -1])
def test_a_changed_byte_anywhere_is_noticed(step: int, place: int) -> None:
    def flip(at: int, data: bytes) -> bytes:
        if at != step:
            return data
        changed = bytearray(data)
        changed[place] ^= 1
        return bytes(changed)

    dialer, listener = meet(OURS, OURS, tamper=flip)
    assert isinstance(dialer, Refused) or isinstance(listener, Refused)


def test_a_proof_can_not_be_reflected() -> None:
    """A listener without the key that sends the dialer's own proof back is not believed."""
    side = dial(OURS, WIRE, b"d" * 32)
    hello = next(side).send
    proof = side.send(hello[:8] + b"l" * 32).send
    with pytest.raises(Refused, match="could not prove"):
        side.send(b"\x00" + proof)


def test_strangers_are_called_so() -> None:
    side = listen(OURS, {WIRE}, b"l" * 32)
    want = next(side).want
    with pytest.raises(Refused) as caught:
        side.send(b"GET / HTTP/1.1\r\n".ljust(want, b"x"))
    assert caught.value.stranger
    answer = dial(OURS, WIRE, b"d" * 32)
    want = next(answer).want
    with pytest.raises(Refused) as caught:
        answer.send(b"HTTP/1.1 400 Bad Request".ljust(want, b"x"))
    assert caught.value.stranger
