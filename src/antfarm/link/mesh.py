"""All links of one shard: partial sums in its stage, steps between stages, results to the lead.

One thread, the one that computes, uses a mesh; only `stop` may be called from another.

    lead        start_step(batch, embedded)  ->  forward  ->  pass_on(step, rows) ... receive_result()
    others      receive_step()               ->  forward  ->  pass_on(step, rows)

Several steps may be in flight. All shards see all steps in one order, and each connection counts its frames.

Why it can't lock up: the chain lead -> ... -> last stage -> lead is a ring, and a ring of blocking sends
stops when all buffers are full. So the lead takes in results whenever it waits for anything else (a send,
a partial sum): the last stage can always send, hence always gets back to receiving, hence so can the stage
above it, up to the lead. Ranks of a stage send all their partials before they wait and, when a send buffer
is full, send and receive at once. Between two stages the feeds of step k leave every rank before those of
step k + 1, so a rank that waits for its mate's feed never waits for one that is stuck behind a later step.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch
from antfarm.config import LINK_S, STEP_S
from antfarm.errors import AntfarmError, LinkError, Reason
from antfarm.link import numbers
from antfarm.link.channel import HANGUP, Channel, Traffic, pump, raise_if_gone, wait
from antfarm.link.exchange import Exchange
from antfarm.link.frame import HEADER_BYTES, BadFrame, Codec, Header, Kind, parse
from antfarm.link.handshake import Context
from antfarm.link.listener import Listener, Reception, connect
from antfarm.link.topology import Purpose, Wire, wires_of
from antfarm.messages import Peer
from antfarm.secret import Secret
from antfarm.types import Plan, RunOptions, WireFormat


@dataclass(frozen=True)
class MeshSpec:
    """What a shard knows before it links."""

    replica: str
    epoch: int
    fingerprint: str  # of the model
    plan: Plan
    shard: int
    options: RunOptions
    width: int  # the model's embedding
    secret: Secret
    step_s: float = STEP_S  # bounds each wait inside a step

    @property
    def max_rows(self) -> int:
        """Rows of the largest step: a prompt's chunk, or one row of every slot."""
        return max(self.options.chunk, self.options.slots)

    def context(self) -> Context:
        """What the handshake makes sure of."""
        return Context(
            key=self.secret.link_key(),
            replica=self.replica,
            epoch=self.epoch,
            fingerprint=self.fingerprint,
            plan=self.plan,
            format=self.options.wire,
            width=self.width,
            max_rows=self.max_rows,
        )


@dataclass(frozen=True)
class Step:
    """One step on its way. `rows` [rows, E] of a received one is valid until the next `receive_step`."""

    number: int
    batch: Batch
    rows: NDArray[np.float32]


@dataclass(frozen=True)
class Result:
    """The wanted rows [outputs, E] of step `number`, after the last layer. None may be wanted."""

    number: int
    rows: NDArray[np.float32]


class Mesh:
    """The links of one shard. A context manager; `connect` makes one."""

    def __init__(self, spec: MeshSpec, links: dict[Wire, tuple[socket.socket, str]]) -> None:
        self._spec = spec
        self._traffic = Traffic()
        self._stopped = False
        self._codec = Codec(spec.epoch, spec.options.wire, spec.width, spec.max_rows)
        self._channels = {
            wire: Channel(sock, peer, spec.step_s, self._traffic) for wire, (sock, peer) in links.items()
        }
        part = spec.plan.parts[spec.shard]
        self._is_lead = part.lead
        self._in_last_stage = part.stage == spec.plan.parts[-1].stage
        self._feed = self._only(Purpose.FEED, to_me=True)
        self._result = self._only(Purpose.RESULT, to_me=not self._in_last_stage)
        stage_of = {other.shard: other.stage for other in spec.plan.parts}
        fed = [
            (w, c) for w, c in self._channels.items() if w.purpose is Purpose.FEED and w.source == spec.shard
        ]
        self._mates = [channel for wire, channel in fed if stage_of[wire.target] == part.stage]
        self._below = [channel for wire, channel in fed if stage_of[wire.target] != part.stage]
        self._drain = (self._result, self._take_result) if self._result and self._is_lead else None
        self._frame = self._codec.buffer(Kind.STEP)  # to send
        self._incoming = self._codec.buffer(Kind.STEP)
        self._hidden = np.empty((spec.max_rows, spec.width), np.float32)
        self._results: deque[Result] = deque()
        self._wanted: deque[int] = deque()  # rows of the results that are still to arrive
        self._started = self._received = self._finished = 0  # steps
        ranks = {other.shard: other.rank for other in spec.plan.parts}
        reduce = {
            ranks[wire.other(spec.shard)]: channel
            for wire, channel in self._channels.items()
            if wire.purpose is Purpose.REDUCE
        }
        self._exchange = Exchange(self._codec, part.rank, reduce, self._drain) if reduce else None

    @classmethod
    def connect(
        cls, listener: Listener, spec: MeshSpec, peers: Sequence[Peer], timeout: float = LINK_S
    ) -> Mesh:
        """Connect to all peers that the plan gives this shard, authenticate, and close the listener.

        Raises `LinkError` naming the peer: `link-refused` (secret, epoch or plan differ), `link-garbage`
        (something else listens there), `link-timeout`. `bad-setting` when q8 does not fit the embedding.
        """
        deadline = time.monotonic() + timeout
        context = spec.context()
        known = {peer.shard: peer for peer in peers}
        wires = wires_of(spec.plan, spec.shard)
        expected = {wire for wire in wires if wire.listener == spec.shard}
        reception = Reception(listener, context, expected, lambda shard: known[shard].name)
        links: dict[Wire, socket.socket] = {}
        try:
            _check_format(spec)
            for wire in sorted(set(wires) - expected, key=lambda wire: wire.listener):
                peer = known[wire.listener]
                links[wire] = connect(context, wire, peer.name, (peer.address, peer.port), deadline)
            reception.run(deadline)
            links.update(reception.accepted)
            return cls(
                spec, {wire: (sock, known[wire.other(spec.shard)].name) for wire, sock in links.items()}
            )
        except BaseException:
            for sock in (*links.values(), *reception.accepted.values()):
                sock.close()
            raise
        finally:
            listener.close()

    # ---- within a stage

    def all_reduce(self, partial: NDArray[np.float32], total: NDArray[np.float32]) -> None:
        """Fill `total` [rows, E] with the sum over this stage's ranks: the engine's `reduce`."""
        assert self._exchange is not None, "a stage of one rank has nothing to reduce"
        self._exchange.all_reduce(partial, total)

    # ---- down the stages

    def start_step(self, batch: Batch, rows: NDArray[np.float32]) -> Step:
        """The lead's next step: hands the embedded rows [rows, E] to the other ranks of its stage."""
        step = Step(self._started, batch, rows)
        self._started += 1
        if self._drain:
            self._wanted.append(len(batch.outputs))
        self._send_step(self._mates, step, rows)
        return step

    def receive_step(self) -> Step | None:
        """Wait for the next step, as long as it takes. None once `stop` was called.

        Raises `LinkError` when any peer is gone, or sends what can't be the next step.
        """
        feed = self._feed
        assert feed is not None, "the lead starts steps, it does not receive them"
        try:
            self._await(feed, None)
            header = self._receive(feed, self._incoming, Kind.STEP, self._received)
        except LinkError:
            if self._stopped:
                return None
            raise
        hidden = self._hidden[: header.rows]
        try:
            batch = self._codec.read_step(
                self._incoming[HEADER_BYTES : HEADER_BYTES + header.length], header, hidden
            )
        except BadFrame as error:
            raise feed.garbage(error) from error
        self._received += 1
        return Step(header.step, batch, hidden)

    def pass_on(self, step: Step, rows: NDArray[np.float32]) -> None:
        """Send this shard's output [rows, E] of a step to where the plan wants it.

        That is the next stage, or from the last stage's first rank the wanted rows to the lead, or nowhere.
        """
        if not self._in_last_stage:
            self._send_step(self._below, step, rows)
        elif self._is_lead:
            self._results.append(Result(step.number, rows[step.batch.outputs]))
        elif self._result:
            wanted = rows[step.batch.outputs]
            end = self._codec.write_result(self._frame, step.number, step.batch.rows, wanted)
            self._send([self._result], end)

    def receive_result(self) -> Result:
        """The next step's result, in the order of steps; also of steps that want no rows."""
        if not self._results:
            assert self._result is not None and self._started > self._finished, "no step is in flight"
            start = time.perf_counter()
            self._await(self._result, start + self._spec.step_s)
            self._take_result()
            self._traffic.waited += time.perf_counter() - start
        return self._results.popleft()

    # ---- the whole

    def check(self) -> None:
        """Raise `LinkError` when a peer is known to be gone; never waits."""
        for channel in self._channels.values():
            channel.check()

    @property
    def bytes_sent(self) -> int:
        return self._traffic.sent

    @property
    def bytes_received(self) -> int:
        return self._traffic.received

    @property
    def seconds_waited(self) -> float:
        return self._traffic.waited

    def stop(self) -> None:
        """From any thread: end whatever this mesh waits for, now and later."""
        self._stopped = True
        for channel in self._channels.values():
            channel.shutdown()

    def close(self) -> None:
        self.stop()
        for channel in self._channels.values():
            channel.sock.close()

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- behind the scenes

    def _only(self, purpose: Purpose, *, to_me: bool) -> Channel | None:
        """The channel of that purpose and direction, if there is one; a plan gives a shard at most one."""
        me = self._spec.shard
        for wire, channel in self._channels.items():
            if wire.purpose is purpose and (wire.target == me) == to_me:
                return channel
        return None

    def _send_step(self, channels: Sequence[Channel], step: Step, rows: NDArray[np.float32]) -> None:
        if channels:
            self._send(channels, self._codec.write_step(self._frame, step.number, step.batch, rows))

    def _send(self, channels: Sequence[Channel], end: int) -> None:
        """Send the first `end` bytes of our frame to all; back when the kernel has them."""
        data = self._frame.data[:end]
        rest = {channel: data[sent:] for channel in channels if (sent := channel.offer(data)) < end}
        if rest:
            deadline = time.perf_counter() + self._spec.step_s
            pump(rest, {}, deadline=deadline, drain=self._drain, watch=self._channels.values())

    def _await(self, channel: Channel, deadline: float | None) -> None:
        """Wait until something arrives on `channel`, while any peer's hanging up ends the wait."""
        events = dict.fromkeys(self._channels.values(), HANGUP)
        events[channel] |= select.POLLIN
        ready = wait(events, deadline)
        if not ready:
            raise channel.stalled()
        raise_if_gone(ready, {channel})

    def _receive(self, channel: Channel, frame: NDArray[np.uint8], kind: Kind, number: int) -> Header:
        """Receive one whole frame into `frame`; returns its header, checked."""
        view = frame.data
        channel.receive(view[:HEADER_BYTES])
        try:
            header = parse(view)
            self._codec.check(header, kind, number)
        except BadFrame as error:
            raise channel.garbage(error) from error
        if header.length:
            channel.receive(view[HEADER_BYTES : HEADER_BYTES + header.length])
        return header

    def _take_result(self) -> None:
        """Read one result, which is arriving, into the queue."""
        assert self._result is not None
        header = self._receive(self._result, self._incoming, Kind.RESULT, self._finished)
        wanted = self._wanted.popleft() if self._wanted else "none"
        if header.outputs != wanted:
            raise self._result.garbage(f"{header.outputs} rows of step {header.step}; wanted: {wanted}")
        rows = np.empty((header.outputs, self._codec.width), np.float32)
        payload = self._incoming[HEADER_BYTES : HEADER_BYTES + header.length]
        numbers.decode(self._codec.format, payload, rows)
        self._finished += 1
        self._results.append(Result(header.step, rows))


def _check_format(spec: MeshSpec) -> None:
    if spec.options.wire is WireFormat.Q8 and spec.width % numbers.BLOCK:
        text = f"wire format q8 needs rows of whole blocks of {numbers.BLOCK}, not of {spec.width}"
        raise AntfarmError(Reason.BAD_SETTING, text, hint="use f16")
