"""One authenticated connection to a peer: whole buffers out and in, deadlines, typed errors.

The socket stays blocking, with the kernel's own receive timeout. A receive looks for a moment, then sleeps.
Whatever does not go at once goes through `pump`, which sends and receives whichever way is open,
so two peers with full buffers never wait for each other.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from antfarm.errors import LinkError, Reason

# The peer closed its end. Linux tells by an event of its own; elsewhere the next receive finds out.
HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
SPIN_S = 100e-6  # before a receive sleeps
_LOST_HINT = "the peer's process ended or its host is unreachable; its log and `antc ops` say more"


@dataclass
class Traffic:
    """What crossed the channels of one mesh."""

    sent: int = 0  # bytes
    received: int = 0  # bytes
    waited: float = 0.0  # seconds spent in receives


class Channel:
    """A connection to one peer. `timeout` bounds each wait, in seconds."""

    def __init__(self, sock: socket.socket, peer: str, timeout: float, traffic: Traffic) -> None:
        self.sock = sock
        self.peer = peer
        self.timeout = timeout
        self.traffic = traffic
        tune(sock, timeout)

    def offer(self, data: memoryview) -> int:
        """Send what the socket takes at once; returns how many bytes that was."""
        try:
            sent = self.sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.lost(error) from error
        self.traffic.sent += sent
        return sent

    def receive(self, into: memoryview) -> None:
        """Fill `into`, within the timeout."""
        start = time.perf_counter()
        got = self._spin(into, start + SPIN_S)
        if got < len(into):
            self._block(into[got:], start + self.timeout)
        self.traffic.waited += time.perf_counter() - start

    def _spin(self, into: memoryview, until: float) -> int:
        """Look again and again until something is there; returns the bytes received.

        Ranks of a stage end their halves of a layer within microseconds of each other. Being woken up
        takes longer than that, and happens twice a layer.
        """
        while not (got := self.take(into)) and time.perf_counter() < until:
            pass
        return got

    def _block(self, into: memoryview, deadline: float) -> None:
        try:
            got = self.sock.recv_into(into, 0, socket.MSG_WAITALL)
        except BlockingIOError as error:
            raise self.stalled() from error
        except OSError as error:
            raise self.lost(error) from error
        self.traffic.received += got
        if not got:
            raise self.lost()
        if got < len(into):
            pump({}, {self: into[got:]}, deadline=deadline)

    def take(self, into: memoryview) -> int:
        """Receive what is there now into the front of `into`; 0 when nothing is."""
        try:
            got = self.sock.recv_into(into, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.lost(error) from error
        if not got:
            raise self.lost()
        self.traffic.received += got
        return got

    def check(self) -> None:
        """Raise when the peer is known to be gone; never waits."""
        try:
            if self.sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b"":
                raise self.lost()
        except BlockingIOError:
            return
        except OSError as error:
            raise self.lost(error) from error

    def shutdown(self) -> None:
        """From any thread: wake whoever waits here, now and later."""
        with contextlib.suppress(OSError):  # the peer was faster
            self.sock.shutdown(socket.SHUT_RDWR)

    def lost(self, why: object = "it closed the connection") -> LinkError:
        return LinkError(Reason.LINK_LOST, f"lost {self.peer}: {why}", peer=self.peer, hint=_LOST_HINT)

    def stalled(self) -> LinkError:
        text = f"{self.peer} did not answer within {self.timeout:g} s"
        return LinkError(
            Reason.LINK_TIMEOUT, text, peer=self.peer, hint="is its host overloaded, or the network?"
        )

    def garbage(self, why: object) -> LinkError:
        text = f"{self.peer} sent what can't be a frame now: {why}"
        return LinkError(Reason.LINK_GARBAGE, text, peer=self.peer, hint="do all hosts run the same version?")


def tune(sock: socket.socket, timeout: float) -> None:
    """No Nagle delay, kernel timeouts, and a dead host noticed while nothing is sent."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    whole = int(timeout)
    interval = struct.pack("@ll", whole, int((timeout - whole) * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Where the system has them. The user timeout also ends a connection whose peer lives but has not
    # read for so long, so it must not be shorter than a step.
    keep_alive = {
        "TCP_KEEPIDLE": 5,
        "TCP_KEEPINTVL": 2,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": max(1, int(timeout * 1e3)),
    }
    for name, value in keep_alive.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def pump(
    out: Mapping[Channel, memoryview],
    into: Mapping[Channel, memoryview],
    *,
    deadline: float,
    drain: tuple[Channel, Callable[[], None]] | None = None,
    watch: Iterable[Channel] = (),
) -> None:
    """Send all of `out` and fill all of `into`, in whatever order the sockets allow.

    `drain` is a channel with the function that reads one frame from it: it is called whenever something
    arrives there meanwhile, so that its sender is never kept waiting by us. A channel in `watch` that hangs
    up ends the wait. `deadline` is a `time.perf_counter()` time.
    """
    out, into = dict(out), dict(into)
    while out or into:
        reading = {*into, *([drain[0]] if drain else [])}
        ready = wait(_events(out, reading, watch), deadline)
        if not ready:
            raise next(iter(into or out)).stalled()
        raise_if_gone(ready, {*out, *reading})
        for channel, happened in ready.items():
            if channel in out and happened & (select.POLLOUT | HANGUP):
                _advance(out, channel, channel.offer(out[channel]))
            if channel in into and happened & (select.POLLIN | HANGUP):
                _advance(into, channel, channel.take(into[channel]))
            elif drain and channel is drain[0]:
                drain[1]()


def raise_if_gone(ready: Iterable[Channel], used: Container[Channel]) -> None:
    """A ready channel that is only watched has hung up.

    Asked before the used ones are looked at: when a peer goes, the others that miss it go soon after, and the
    first one is to be named.
    """
    for channel in ready:
        if channel not in used:
            raise channel.lost()


def wait(events: Mapping[Channel, int], deadline: float | None) -> dict[Channel, int]:
    """Wait for poll events; returns those that happened, none when the deadline passed."""
    poll = select.poll()
    by_number = {channel.sock.fileno(): channel for channel in events}
    for number, channel in by_number.items():
        poll.register(number, events[channel])
    left = None if deadline is None else max(0.0, (deadline - time.perf_counter()) * 1e3)
    return {by_number[number]: happened for number, happened in poll.poll(left)}


def _events(out: Iterable[Channel], into: Iterable[Channel], watch: Iterable[Channel]) -> dict[Channel, int]:
    events = dict.fromkeys(watch, HANGUP)
    for channel in out:
        events[channel] = events.get(channel, 0) | select.POLLOUT
    for channel in into:
        events[channel] = events.get(channel, 0) | select.POLLIN
    return events


def _advance(rest: dict[Channel, memoryview], channel: Channel, done: int) -> None:
    """Drop what has been moved; forget a channel that is through."""
    if done == len(rest[channel]):
        del rest[channel]
    else:
        rest[channel] = rest[channel][done:]
