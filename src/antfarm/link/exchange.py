"""The all-reduce of one stage: every rank sends its partial sum to every other and adds all in rank order.

For the few ranks of a stage, one hop and no coordinator is the shortest way. All ranks add the same numbers
in the same order (a rank's own partial goes through the wire's number format too), so their hidden rows stay
bit-identical and no rank ever has to be corrected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antfarm.link import numbers
from antfarm.link.channel import Channel, pump
from antfarm.link.frame import HEADER_BYTES, BadFrame, Codec, Kind, parse
from antfarm.types import WireFormat


@dataclass(frozen=True)
class _Frame:
    """One rank's partial for a given number of rows: the same bytes, seen in three ways."""

    bytes: memoryview  # header and payload
    header: memoryview
    payload: NDArray[np.uint8]
    values: NDArray[np.float32]  # [rows, E]; in f32 the payload itself, else what it decodes to


class Exchange:
    """Buffers and channels of one rank; `channels` has the other ranks of its stage by rank."""

    def __init__(
        self,
        codec: Codec,
        rank: int,
        channels: Mapping[int, Channel],
        drain: tuple[Channel, Callable[[], None]] | None,
    ) -> None:
        self._codec = codec
        self._rank = rank
        self._channels = dict(channels)
        self._drain = drain
        self._buffers = [codec.buffer(Kind.PARTIAL) for _ in range(len(channels) + 1)]
        decoded = 0 if codec.format is WireFormat.F32 else codec.max_rows * codec.width
        self._decoded = [np.empty(decoded, np.float32) for _ in self._buffers]
        self._by_rows: dict[int, list[_Frame]] = {}
        self._count = 0

    def all_reduce(self, partial: NDArray[np.float32], total: NDArray[np.float32]) -> None:
        """Fill `total` [rows, E] with the sum of all ranks' `partial` [rows, E]."""
        rows = len(partial)
        frames = self._by_rows.get(rows) or self._frames(rows)
        own = frames[self._rank]
        self._codec.write_header(self._buffers[self._rank], Kind.PARTIAL, self._count, rows)
        numbers.encode(self._codec.format, partial, own.payload)
        self._swap(frames)
        for rank, channel in self._channels.items():
            # All ranks count alike, so a good frame starts with the very bytes of our own header.
            if frames[rank].header != own.header:
                raise self._garbage(channel, frames[rank].header, rows)
        self._count += 1
        if self._codec.format is not WireFormat.F32:
            for frame in frames:
                numbers.decode(self._codec.format, frame.payload, frame.values)
        np.add(frames[0].values, frames[1].values, out=total)
        for frame in frames[2:]:
            np.add(total, frame.values, out=total)

    def _swap(self, frames: list[_Frame]) -> None:
        """Send our frame to all and receive theirs. What the sockets do not take at once is pumped."""
        data = frames[self._rank].bytes
        unsent: dict[Channel, memoryview] = {}
        for channel in self._channels.values():
            sent = channel.offer(data)
            if sent < len(data):
                unsent[channel] = data[sent:]
        if not unsent and not self._drain:
            for rank, channel in self._channels.items():
                channel.receive(frames[rank].bytes)
            return
        start = time.perf_counter()
        into = {channel: frames[rank].bytes for rank, channel in self._channels.items()}
        first = next(iter(self._channels.values()))
        pump(unsent, into, deadline=start + first.timeout, drain=self._drain)
        first.traffic.waited += time.perf_counter() - start

    def _frames(self, rows: int) -> list[_Frame]:
        """The views for that many rows, by rank; made once, and of the same memory for any number."""
        if rows > self._codec.max_rows:
            raise ValueError(f"{rows} rows; this mesh was made for {self._codec.max_rows}")
        end = HEADER_BYTES + self._codec.length(Kind.PARTIAL, rows)
        frames = []
        for buffer, decoded in zip(self._buffers, self._decoded, strict=True):
            payload = buffer[HEADER_BYTES:end]
            exact = self._codec.format is WireFormat.F32
            values = payload.view(np.float32) if exact else decoded[: rows * self._codec.width]
            view = buffer.data
            shaped = values.reshape(rows, self._codec.width)
            frames.append(_Frame(view[:end], view[:HEADER_BYTES], payload, shaped))
        self._by_rows[rows] = frames
        return frames

    def _garbage(self, channel: Channel, header: memoryview, rows: int) -> Exception:
        try:
            got = parse(header)
            self._codec.check(got, Kind.PARTIAL, self._count)
        except BadFrame as error:
            return channel.garbage(error)
        return channel.garbage(f"{got.rows} rows instead of {rows}")
