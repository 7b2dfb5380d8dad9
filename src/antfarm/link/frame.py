"""The `infer.act` frame: a fixed 40-byte header, then the payload. Pure: no sockets here.

    offset 0   magic      4 bytes  "ifra"
           4   version    u8
           5   kind       u8       step, partial, result
           6   format     u8       of the hidden rows: f32, f16, q8
           7   -
           8   rows       u32      of the step
          12   outputs    u32      how many rows are wanted at the end (0 in a partial)
          16   length     u32      of the payload
          20   -
          24   epoch      u64      of the replica; another one's frames are refused
          32   step       u64      counts the frames of one connection from 0: a lost or doubled one shows

Little-endian. Payloads, with E the embedding's width, hidden rows in the wire's number format, and
with a copy's source, target and rows (0: there is none):

    step       slots i32 [rows], positions i32 [rows], outputs i32 [outputs], copy i32 [3], hidden [rows, E]
    partial    hidden [rows, E]
    result     hidden [outputs, E]

A header is believed only after `Codec.check`, so nothing is allocated by a peer's word: buffers are
made once, for the largest frame that the plan allows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch, Copy
from antfarm.link import numbers
from antfarm.types import WireFormat

MAGIC = b"ifra"
VERSION = 1
_STRUCT = struct.Struct("<4sBBBxIIIxxxxQQ")
HEADER_BYTES = _STRUCT.size
_NO_COPY = Copy(0, 0, 0)
_FORMATS = {WireFormat.F32: 1, WireFormat.F16: 2, WireFormat.Q8: 3}


class Kind(IntEnum):
    STEP = 1
    PARTIAL = 2
    RESULT = 3


class BadFrame(ValueError):
    """A frame that can't be what was expected; the text says which field and both values."""


class Header(NamedTuple):
    kind: int
    format: int
    rows: int
    outputs: int
    length: int
    epoch: int
    step: int


def parse(data: memoryview) -> Header:
    """The fields of a header; only magic and version are checked here."""
    magic, version, *fields = _STRUCT.unpack_from(data)
    if magic != MAGIC:
        raise BadFrame(f"magic {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise BadFrame(f"frame version {version} instead of {VERSION}")
    return Header(*fields)


@dataclass(frozen=True)
class Codec:
    """Sizes, bounds and layouts of one mesh's frames."""

    epoch: int
    format: WireFormat
    width: int  # values of a hidden row
    max_rows: int

    def hidden_bytes(self, rows: int) -> int:
        return numbers.encoded_bytes(self.format, rows * self.width)

    def length(self, kind: Kind, rows: int, outputs: int = 0) -> int:
        """Bytes of a payload."""
        if kind is Kind.STEP:
            return 4 * _ints(rows, outputs) + self.hidden_bytes(rows)
        return self.hidden_bytes(outputs if kind is Kind.RESULT else rows)

    def buffer(self, kind: Kind) -> NDArray[np.uint8]:
        """A buffer for the largest frame of a kind."""
        return np.zeros(HEADER_BYTES + self.length(kind, self.max_rows, self.max_rows), np.uint8)

    def write_header(
        self, frame: NDArray[np.uint8], kind: Kind, step: int, rows: int, outputs: int = 0
    ) -> int:
        """Put a header at the start of `frame`; returns the whole frame's bytes."""
        length = self.length(kind, rows, outputs)
        fields = (int(kind), _FORMATS[self.format], rows, outputs, length, self.epoch, step)
        _STRUCT.pack_into(frame.data, 0, MAGIC, VERSION, *fields)
        return HEADER_BYTES + length

    def check(self, header: Header, kind: Kind, step: int) -> None:
        """Raise `BadFrame` unless this is frame number `step` of that kind, within this mesh's bounds."""
        wanted = {"kind": int(kind), "format": _FORMATS[self.format], "epoch": self.epoch, "step": step}
        for field, value in wanted.items():
            if getattr(header, field) != value:
                raise BadFrame(f"{field} {getattr(header, field)} instead of {value}")
        if not 1 <= header.rows <= self.max_rows:
            raise BadFrame(f"{header.rows} rows; a step here has 1 to {self.max_rows}")
        if header.outputs > header.rows:
            raise BadFrame(f"{header.outputs} outputs of {header.rows} rows")
        length = self.length(kind, header.rows, header.outputs)
        if header.length != length:
            raise BadFrame(f"payload of {header.length} bytes instead of {length}")

    def write_step(
        self, frame: NDArray[np.uint8], step: int, batch: Batch, hidden: NDArray[np.float32]
    ) -> int:
        """A whole step frame; returns its bytes."""
        rows, outputs = batch.rows, len(batch.outputs)
        end = self.write_header(frame, Kind.STEP, step, rows, outputs)
        at = HEADER_BYTES
        for part in (batch.slots, batch.positions, batch.outputs, batch.copy or _NO_COPY):
            frame[at : at + 4 * len(part)].view(np.int32)[:] = part
            at += 4 * len(part)
        numbers.encode(self.format, hidden, frame[at:end])
        return end

    def read_step(self, payload: NDArray[np.uint8], header: Header, hidden: NDArray[np.float32]) -> Batch:
        """The batch in a step's payload (copied); its rows are decoded into `hidden` [rows, E]."""
        rows, outputs = header.rows, header.outputs
        count = _ints(rows, outputs)
        ints = payload[: 4 * count].view(np.int32).copy()
        copy = Copy(*ints[-3:].tolist())
        batch = Batch(ints[:rows], ints[rows : 2 * rows], ints[2 * rows : -3], copy if copy.rows else None)
        if outputs and (int(batch.outputs.min()) < 0 or int(batch.outputs.max()) >= rows):
            raise BadFrame(f"outputs {batch.outputs.tolist()} of {rows} rows")
        if int(ints.min()) < 0:
            raise BadFrame("a negative slot or position")
        numbers.decode(self.format, payload[4 * count :], hidden)
        return batch

    def write_result(
        self, frame: NDArray[np.uint8], step: int, rows: int, hidden: NDArray[np.float32]
    ) -> int:
        """A whole result frame of a step of `rows`; `hidden` is [outputs, E]. Returns its bytes."""
        end = self.write_header(frame, Kind.RESULT, step, rows, len(hidden))
        numbers.encode(self.format, hidden, frame[HEADER_BYTES:end])
        return end


def _ints(rows: int, outputs: int) -> int:
    """Integers of a step's payload."""
    return 2 * rows + outputs + 3
