"""Mutual authentication of two shards, before the first frame. Pure: bytes in, bytes out.

    dialer -> listener   hello      magic, nonce, who I am, whom I want, purpose, epoch, context digest
    listener -> dialer   challenge  magic, nonce
    dialer -> listener   proof      HMAC-SHA256(key, "dialer" + hello + challenge)
    listener -> dialer   verdict    code, HMAC-SHA256(key, "listener" + hello + challenge) when accepted

Both nonces are fresh and both ends' roles are in what is signed, so that nothing can be replayed or
reflected. The context (replica, epoch, plan, wire format, width) is part of the hello, so that two shards
that agree on the secret yet belong to different loads refuse each other. The dialer proves itself first:
a stranger learns nothing but a nonce. Every message has a fixed size, which bounds what is read.

Each side is a generator: it yields a `Move` (bytes to send, how many bytes it wants next), is sent those
bytes, and returns or raises `Refused`. Blocking sockets and selectors can both drive it.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Container, Generator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import msgspec

from antfarm.link.topology import Purpose, Wire
from antfarm.types import Plan, WireFormat

MAGIC = b"ANTLINK\x01"  # the last byte is the version
NONCE_BYTES = 32
_MAC_BYTES = 32
_HELLO = struct.Struct(f"<8s{NONCE_BYTES}sHHBxxxQ32s")
_CHALLENGE = struct.Struct(f"<8s{NONCE_BYTES}s")
_VERDICT = struct.Struct(f"<B{_MAC_BYTES}s")


class Verdict(IntEnum):
    ACCEPTED = 0
    WRONG_SECRET = 1
    WRONG_CONTEXT = 2
    UNEXPECTED = 3


_WHY = {
    Verdict.WRONG_SECRET: "the colony secrets differ",
    Verdict.WRONG_CONTEXT: "it belongs to another load (replica, epoch, plan or wire format differ)",
    Verdict.UNEXPECTED: "this connection is not part of the plan, or is there already",
}


class Refused(Exception):
    """The handshake ended with a no. `wire` is set when the other side said which wire it wanted."""

    def __init__(self, why: str, *, stranger: bool = False, wire: Wire | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.stranger = stranger  # it does not speak this protocol at all
        self.wire = wire


class Move(NamedTuple):
    """Send these bytes, then give me exactly `want` bytes."""

    send: bytes
    want: int


@dataclass(frozen=True)
class Context:
    """What two shards must agree on."""

    key: bytes  # `Secret.link_key()`
    replica: str
    epoch: int
    fingerprint: str  # of the model file's header
    plan: Plan
    format: WireFormat
    width: int
    max_rows: int

    def digest(self) -> bytes:
        facts = (
            self.replica,
            self.epoch,
            self.fingerprint,
            self.plan,
            self.format,
            self.width,
            self.max_rows,
        )
        return hashlib.sha256(msgspec.json.encode(facts)).digest()

    def proof(self, role: bytes, hello: bytes, challenge: bytes) -> bytes:
        return hmac.new(self.key, role + hello + challenge, hashlib.sha256).digest()


def dial(context: Context, wire: Wire, nonce: bytes) -> Generator[Move, bytes, None]:
    """The connecting side; returns when both ends are sure of each other, else raises `Refused`."""
    ends = (wire.dialer, wire.listener, int(wire.purpose))
    hello = _HELLO.pack(MAGIC, nonce, *ends, context.epoch, context.digest())
    challenge = yield Move(hello, _CHALLENGE.size)
    if challenge[: len(MAGIC)] != MAGIC:
        raise Refused("what listens there is not a shard of this version", stranger=True)
    code, proof = _VERDICT.unpack((yield Move(context.proof(b"dialer", hello, challenge), _VERDICT.size)))
    if code != Verdict.ACCEPTED:
        raise Refused(_WHY.get(code, f"verdict {code}"), wire=wire)
    if not hmac.compare_digest(proof, context.proof(b"listener", hello, challenge)):
        raise Refused("it could not prove that it holds the colony secret", wire=wire)


def listen(context: Context, expected: Container[Wire], nonce: bytes) -> Generator[Move, bytes, Wire]:
    """The accepting side; returns the wire that the dialer wanted, else raises `Refused`."""
    hello = yield Move(b"", _HELLO.size)
    magic, _, dialer, listener, purpose, epoch, digest = _HELLO.unpack(hello)
    if magic != MAGIC:
        raise Refused("a stranger's bytes", stranger=True)
    challenge = _CHALLENGE.pack(MAGIC, nonce)
    wire = _wire(purpose, dialer, listener, expected)
    proof = yield Move(challenge, _MAC_BYTES)
    if not hmac.compare_digest(proof, context.proof(b"dialer", hello, challenge)):
        verdict = Verdict.WRONG_SECRET
    elif epoch != context.epoch or digest != context.digest():
        verdict = Verdict.WRONG_CONTEXT
    elif wire is None:
        verdict = Verdict.UNEXPECTED
    else:
        yield Move(_VERDICT.pack(Verdict.ACCEPTED, context.proof(b"listener", hello, challenge)), 0)
        return wire
    yield Move(_VERDICT.pack(verdict, bytes(_MAC_BYTES)), 0)
    why = _WHY[verdict]
    if verdict is Verdict.WRONG_CONTEXT and epoch != context.epoch:
        why = f"it is of epoch {epoch}; this is epoch {context.epoch}"
    raise Refused(why, wire=wire)


def _wire(purpose: int, dialer: int, listener: int, expected: Container[Wire]) -> Wire | None:
    """The expected wire that a hello names, if there is one."""
    for known in Purpose:
        for wire in (Wire(known, dialer, listener), Wire(known, listener, dialer)):
            if known == purpose and wire in expected:
                return wire
    return None
