"""Meeting the other shards: one listening socket, connections out and in, each authenticated.

A shard first dials every lower shard it has a wire to, then accepts from every higher one. Shard k waits
only for shards below k, so no two wait for each other; a dialer that comes early sits in the backlog.
Many handshakes can be open at once on the accepting side, all in one poll loop without threads; a stranger's
bytes, silence or slowness costs that connection alone, and only for `HANDSHAKE_S`.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from antfarm.errors import LinkError, Reason, StateError
from antfarm.link.handshake import NONCE_BYTES, Context, Move, Refused, dial, listen
from antfarm.link.topology import Wire

HANDSHAKE_S = 5.0  # from accepting a connection to being sure of it
_OPEN_HANDSHAKES = 64  # more are closed at once; a real peer dials again
_RETRY_S = 0.05
_log = logging.getLogger(__name__)


class Listener:
    """A bound, listening socket, before anyone knows who will connect."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    @classmethod
    def bind(cls, address: str, port: int = 0) -> Listener:
        """Listen on `address` (name, IPv4 or IPv6). Port 0 takes any free one."""
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            raise _cannot_listen(address, port, error) from error
        try:
            sock.bind(where)
            sock.listen(128)
        except OSError as error:
            sock.close()
            raise _cannot_listen(address, port, error) from error
        return cls(sock)

    @property
    def port(self) -> int:
        return int(self.sock.getsockname()[1])

    def close(self) -> None:
        self.sock.close()


def _cannot_listen(address: str, port: int, error: OSError) -> StateError:
    hint = "choose an address of this host with `antc forager --listen`"
    return StateError(Reason.PORT_IN_USE, f"can't listen on {address}:{port}: {error.strerror}", hint=hint)


# ---- dialing


def connect(
    context: Context, wire: Wire, peer: str, where: tuple[str, int], deadline: float
) -> socket.socket:
    """Dial `where` until it answers, and shake hands. Raises `LinkError` naming `peer`.

    Returns the stream to use from here on: where links get encrypted, this is where it begins.
    """
    trouble: object = "no answer"
    while (left := deadline - time.monotonic()) > 0:
        sock = None
        try:
            sock = socket.create_connection(where, timeout=left)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _greet(sock, dial(context, wire, secrets.token_bytes(NONCE_BYTES)), deadline)
            return sock
        except Refused as refusal:
            _close(sock)
            reason = Reason.LINK_GARBAGE if refusal.stranger else Reason.LINK_REFUSED
            raise LinkError(
                reason, f"{peer} refused the link: {refusal.why}", peer=peer, hint=_HINT
            ) from None
        except OSError as error:  # nobody listens yet, or it closed before the end: it may come up
            _close(sock)
            trouble = error
            time.sleep(min(_RETRY_S, max(0.0, deadline - time.monotonic())))
    text = f"could not link to {peer} at {where[0]}:{where[1]} in time: {trouble}"
    raise LinkError(Reason.LINK_TIMEOUT, text, peer=peer, hint="can this host reach that address and port?")


_HINT = "all hosts of a colony join with the same line, which the queen printed"


def _greet(sock: socket.socket, handshake: Generator[Move, bytes, None], deadline: float) -> None:
    """Drive one handshake over a blocking socket. `OSError` when it closes or the deadline passes."""
    move = next(handshake)
    while True:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.sendall(move.send)
        data = b""
        while len(data) < move.want:
            more = sock.recv(move.want - len(data))
            if not more:
                raise ConnectionResetError("it closed the connection in the handshake")
            data += more
        try:
            move = handshake.send(data)
        except StopIteration:
            return


def _close(sock: socket.socket | None) -> None:
    if sock:
        sock.close()


# ---- accepting


@dataclass
class _Guest:
    """A connection whose handshake is under way."""

    sock: socket.socket
    origin: str
    handshake: Generator[Move, bytes, Wire]
    deadline: float
    want: int = 0
    data: bytes = b""


@dataclass
class Reception:
    """Accepts wires until all expected ones are there."""

    listener: Listener
    context: Context
    expected: set[Wire]
    name_of: Callable[[int], str]
    accepted: dict[Wire, socket.socket] = field(default_factory=dict)
    _guests: dict[int, _Guest] = field(default_factory=dict)
    _refusals: dict[Wire, str] = field(default_factory=dict)

    def run(self, deadline: float) -> None:
        """Fill `accepted`. Raises `LinkError` naming the first peer that is missing at the deadline."""
        self.listener.sock.setblocking(False)
        try:
            while self.expected:
                if time.monotonic() >= deadline:
                    raise self._missing()
                for number in self._poll(deadline):
                    if number == self.listener.sock.fileno():
                        self._accept()
                    else:
                        self._advance(self._guests[number])
                self._expire()
        finally:
            for guest in list(self._guests.values()):
                self._dismiss(guest, None)

    def _poll(self, deadline: float) -> list[int]:
        poll = select.poll()
        for number in (self.listener.sock.fileno(), *self._guests):
            poll.register(number, select.POLLIN)
        until = min([deadline, *(guest.deadline for guest in self._guests.values())])
        return [number for number, _ in poll.poll(max(0.0, (until - time.monotonic()) * 1e3))]

    def _accept(self) -> None:
        try:
            sock, where = self.listener.sock.accept()
        except OSError:  # it went away again
            return
        if len(self._guests) >= _OPEN_HANDSHAKES:
            sock.close()
            return
        sock.setblocking(False)
        handshake = listen(self.context, self.expected, secrets.token_bytes(NONCE_BYTES))
        guest = _Guest(sock, f"{where[0]}:{where[1]}", handshake, time.monotonic() + HANDSHAKE_S)
        guest.want = next(handshake).want
        self._guests[sock.fileno()] = guest

    def _advance(self, guest: _Guest) -> None:
        """Read what came and go on with that handshake."""
        try:
            more = guest.sock.recv(guest.want - len(guest.data))
            if not more:
                raise ConnectionResetError("it closed the connection in the handshake")
            guest.data += more
            if len(guest.data) == guest.want:
                self._move(guest, guest.handshake.send(guest.data))
        except BlockingIOError:
            return
        except StopIteration as done:
            self._welcome(guest, done.value)
        except Refused as refusal:
            self._dismiss(guest, refusal.why, refusal.wire)
        except OSError as error:
            self._dismiss(guest, error)

    def _move(self, guest: _Guest, move: Move) -> None:
        """Send (a few bytes, which an empty send buffer takes at once) and set what is wanted next."""
        guest.sock.sendall(move.send)
        guest.data, guest.want = b"", move.want
        if not move.want:
            guest.handshake.send(b"")  # ends it: StopIteration or Refused

    def _welcome(self, guest: _Guest, wire: Wire) -> None:
        del self._guests[guest.sock.fileno()]
        if wire not in self.expected:  # two handshakes for one wire: the first to end has it
            guest.sock.close()
            return
        self.expected.discard(wire)
        self.accepted[wire] = guest.sock

    def _dismiss(self, guest: _Guest, why: object, wire: Wire | None = None) -> None:
        if why is not None:
            _log.warning("refused a connection from %s: %s", guest.origin, why)
        if wire is not None:
            self._refusals[wire] = str(why)
        del self._guests[guest.sock.fileno()]
        guest.sock.close()

    def _expire(self) -> None:
        now = time.monotonic()
        for guest in [guest for guest in self._guests.values() if guest.deadline <= now]:
            self._dismiss(guest, f"no handshake within {HANDSHAKE_S:g} s")

    def _missing(self) -> LinkError:
        wire = min(self.expected, key=lambda wire: (wire not in self._refusals, wire))
        peer = self.name_of(wire.dialer)
        if why := self._refusals.get(wire):
            return LinkError(
                Reason.LINK_REFUSED, f"refused the link from {peer}: {why}", peer=peer, hint=_HINT
            )
        hint = "is its host up, and can it reach this one?"
        return LinkError(Reason.LINK_TIMEOUT, f"{peer} did not connect in time", peer=peer, hint=hint)
