"""The header of a GGUF file: metadata and the tensor index, without their data.

Pure over a readable buffer. Large arrays are walked to find their end and decoded only when asked,
every count is bounded, and nothing is allocated in proportion to a number that the file merely claims.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little endian, versions 2 and 3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from antfarm.errors import ModelError, Reason
from antfarm.types import TensorFact

T = TypeVar("T")
Buffer = Any  # bytes or mmap: indexable, sliceable to bytes, with the buffer protocol

DEFAULT_ALIGNMENT = 32

_MAX_PAIRS = 1 << 16
_MAX_TENSORS = 1 << 20
_MAX_ITEMS = 1 << 24  # of one array: a hundred times the largest vocabulary
_MAX_NAME = 1 << 16  # bytes of a key or a tensor's name
_MAX_DIMS = 4

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_DTYPES = {code: np.dtype(text) for code, text in _SCALARS.items()}

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Metadata(Mapping[str, Any]):
    """GGUF key-value pairs. Scalars and strings as Python values, numeric arrays as numpy arrays,
    string arrays as lists; an array is decoded each time it is asked for."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._values: dict[str, _Value] = {}

    def __getitem__(self, key: str) -> Any:
        return self._values[key].decode(self._buffer)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def typed(self, key: str, kind: type[T], default: T) -> T:
        """The value if it is of that Python type (list for texts, ndarray for numbers), else the default:
        what a file says in another type is as good as not said."""
        value = self.get(key)
        return value if isinstance(value, kind) else default

    def add(self, key: str, value: _Value) -> None:
        """For the parser; a repeated key means a corrupt file."""
        if key in self._values:
            _corrupt(f"the key {key!r} appears twice")
        self._values[key] = value


@dataclass(frozen=True, slots=True)
class _Value:
    """Where a value's bytes are. `count` is None for a scalar."""

    kind: int
    at: int
    count: int | None

    def decode(self, buffer: Buffer) -> Any:
        if self.kind == _STRING:
            texts = _strings(buffer, self.at, 1 if self.count is None else self.count)
            return texts[0] if self.count is None else texts
        dtype = _DTYPES[self.kind]
        items = 1 if self.count is None else self.count
        raw = bytes(buffer[self.at : self.at + items * dtype.itemsize])
        array: NDArray[Any] = np.frombuffer(raw, dtype)
        return array[0].item() if self.count is None else array


def _strings(buffer: Buffer, at: int, count: int) -> list[str]:
    out = []
    length = _U64.unpack_from
    for _ in range(count):
        start = at + 8
        at = start + length(buffer, at)[0]
        out.append(buffer[start:at].decode("utf-8", "replace"))
    return out


@dataclass(frozen=True)
class Header:
    """What stands before the tensors' data. `offsets` are absolute positions in the file."""

    version: int
    metadata: Metadata
    tensors: dict[str, TensorFact]
    offsets: dict[str, int]
    size: int  # bytes through the tensor index, where `fingerprint` ends


def parse(buffer: Buffer) -> Header:
    """Read the header of a whole GGUF file.

    Raises `not-a-gguf`, `unsupported-file`, `unsupported-tensor-type`, and `model-truncated` when
    the header or a tensor's data would end after the file does.
    """
    cursor = _Cursor(buffer)
    version = _magic(cursor)
    tensor_count = cursor.count(_MAX_TENSORS, "tensors")
    pair_count = cursor.count(_MAX_PAIRS, "metadata pairs")
    metadata = Metadata(buffer)
    for _ in range(pair_count):
        metadata.add(cursor.name(), cursor.value())
    _refuse_split(metadata)
    index = [_tensor(cursor) for _ in range(tensor_count)]
    return _with_data(cursor, version, metadata, index)


def _magic(cursor: _Cursor) -> int:
    magic = bytes(cursor.buffer[:4])
    if not b"GGUF".startswith(magic) or (magic != b"GGUF" and cursor.size > len(magic)):
        raise ModelError(
            Reason.NOT_A_GGUF, f"the file starts with {magic!r}, not with b'GGUF'", hint="take a GGUF file"
        )
    cursor.take(4)
    version = cursor.u32()
    if version in (2, 3):
        return version
    if version in (2 << 24, 3 << 24):
        raise ModelError(
            Reason.UNSUPPORTED_FILE, "the GGUF file is big endian", hint="convert it to little endian"
        )
    raise ModelError(
        Reason.UNSUPPORTED_FILE,
        f"GGUF version {version} is not supported; 2 and 3 are",
        hint="convert the model again with a current converter",
    )


def _refuse_split(metadata: Metadata) -> None:
    parts = metadata.typed("split.count", int, 1)
    if parts > 1:
        raise ModelError(
            Reason.UNSUPPORTED_FILE,
            f"the model is cut into {parts} GGUF files",
            hint="merge them into one file first (llama-gguf-split --merge)",
            parts=parts,
        )


def _tensor(cursor: _Cursor) -> tuple[TensorFact, int]:
    name = cursor.name()
    dims = cursor.u32()
    if not 1 <= dims <= _MAX_DIMS:
        _corrupt(f"tensor {name!r} has {dims} dimensions")
    shape = tuple(cursor.u64() for _ in range(dims))
    kind = cursor.u32()
    try:
        quantization = GGMLQuantizationType(kind)
    except ValueError:
        raise ModelError(
            Reason.UNSUPPORTED_TENSOR_TYPE,
            f"tensor {name!r} has the unknown ggml type {kind}",
            hint="update antfarm, or quantize the model to another type",
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    if not all(0 < side < 1 << 48 for side in shape) or shape[0] % block:
        _corrupt(f"tensor {name!r} of type {quantization.name} has the shape {shape}")
    fact = TensorFact(name, quantization.name.lower(), shape, prod(shape) // block * block_bytes, block)
    return fact, cursor.u64()


def _with_data(
    cursor: _Cursor, version: int, metadata: Metadata, index: list[tuple[TensorFact, int]]
) -> Header:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 30 or alignment & (alignment - 1):
        _corrupt(f"the alignment is {alignment!r}")
    base = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorFact] = {}
    offsets: dict[str, int] = {}
    for fact, offset in index:
        if fact.name in tensors:
            _corrupt(f"tensor {fact.name!r} appears twice")
        if offset % alignment:
            _corrupt(f"tensor {fact.name!r} is not aligned to {alignment} bytes")
        tensors[fact.name] = fact
        offsets[fact.name] = base + offset
    end = max((offsets[name] + fact.bytes for name, fact in tensors.items()), default=cursor.at)
    if end > cursor.size:
        _truncated(end, cursor.size, "its tensors end")
    return Header(version, metadata, tensors, offsets, cursor.at)


class _Cursor:
    """Reads forward, and never past the end."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.at = 0

    def take(self, length: int) -> int:
        """Step over `length` bytes and return where they start."""
        start = self.at
        if start + length > self.size:
            _truncated(start + length, self.size, "its header goes on")
        self.at = start + length
        return start

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.buffer, self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self.buffer, self.take(8))[0]
        return value

    def count(self, limit: int, what: str) -> int:
        value = self.u64()
        if value > limit:
            _corrupt(f"it claims {value} {what}")
        return value

    def name(self) -> str:
        length = self.count(_MAX_NAME, "bytes in a name")
        start = self.take(length)
        return bytes(self.buffer[start : self.at]).decode("utf-8", "replace")

    def value(self) -> _Value:
        kind = self.u32()
        if kind == _ARRAY:
            return self._array()
        if kind == _STRING:
            at = self.at
            self.take(self.u64())
            return _Value(kind, at, None)
        return _Value(kind, self.take(_itemsize(kind)), None)

    def _array(self) -> _Value:
        kind = self.u32()
        count = self.count(_MAX_ITEMS, "items in an array")
        if kind == _STRING:
            at = self.at
            self._skip_strings(count)
            return _Value(kind, at, count)
        return _Value(kind, self.take(count * _itemsize(kind)), count)

    def _skip_strings(self, count: int) -> None:
        """Step over length-prefixed strings. A hot loop: vocabularies hold 300,000 of them."""
        length, buffer, at = _U64.unpack_from, self.buffer, self.at
        last = self.size - 8
        for _ in range(count):
            if at > last:
                _truncated(at + 8, self.size, "its header goes on")
            at += 8 + length(buffer, at)[0]
        self.at = at
        self.take(0)


def _itemsize(kind: int) -> int:
    if kind not in _DTYPES:
        _corrupt(f"it has a metadata value of the unknown type {kind}")
    return _DTYPES[kind].itemsize


def _corrupt(what: str) -> NoReturn:
    raise ModelError(
        Reason.NOT_A_GGUF, f"the GGUF header is corrupt: {what}", hint="fetch the model file again"
    )


def _truncated(expected: int, actual: int, what: str) -> NoReturn:
    raise ModelError(
        Reason.MODEL_TRUNCATED,
        f"the file has {actual} bytes, but {what} at byte {expected} or later",
        hint="fetch the model file again",
        expected=expected,
        actual=actual,
    )
