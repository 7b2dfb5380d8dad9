"""One GGUF file, memory-mapped: facts for planning, and raw rows for loading."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antfarm.errors import ModelError, Reason, cut
from antfarm.model.header import Header, Metadata, parse
from antfarm.types import ModelFacts, Span, TensorFact

_REQUIRED = object()

# Far beyond any model there is; they keep a planner from working for ever on what a header claims.
_MOST = {
    "block_count": 1 << 9,
    "attention.head_count": 1 << 12,
    "attention.head_count_kv": 1 << 12,
    "context_length": (1 << 31) - 1,
}
_MOST_ELSE = 1 << 20


class GgufFile:
    """An open GGUF file. Arrays that `read` returned stay valid after `close`."""

    def __init__(self, path: Path, mapping: mmap.mmap, header: Header) -> None:
        self.path = path
        self._map = mapping
        self._header = header

    @classmethod
    def open(cls, path: Path | str) -> GgufFile:
        """Map the file and check that it is whole.

        Raises `model-unknown` (no such file), `not-a-gguf`, `model-truncated` with `expected` and
        `actual` bytes, `unsupported-file` (big endian, cut into parts) and `unsupported-tensor-type`.
        """
        path = Path(path)
        mapping = _map(path)
        try:
            return cls(path, mapping, parse(mapping))
        except ModelError as error:
            mapping.close()
            named = ModelError(error.reason, f"{path}: {error.message}", hint=error.hint)
            named.numbers = error.numbers
            raise named from None

    def close(self) -> None:
        """Let go of the file; the mapping itself ends with the last array that `read` returned."""
        self.__dict__.pop("_map", None)
        self.__dict__.pop("_header", None)

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def metadata(self) -> Metadata:
        return self._header.metadata

    @cached_property
    def tensors(self) -> Mapping[str, TensorFact]:
        return MappingProxyType(self._header.tensors)

    @cached_property
    def arch(self) -> str:
        """The architecture's GGUF name. Raises `unsupported-architecture` when the file has none."""
        value = self.metadata.typed("general.architecture", str, "")
        if not value:
            raise self._unsupported("names no architecture")
        return value

    def hparam(self, key: str, default: Any = _REQUIRED) -> Any:
        """`{arch}.{key}` of the metadata. Raises `unsupported-architecture` when it is missing and
        has no default."""
        value = self.metadata.get(f"{self.arch}.{key}", default)
        if value is _REQUIRED:
            raise self._unsupported(f"lacks {self.arch}.{key}")
        return value

    @cached_property
    def facts(self) -> ModelFacts:
        """What planning needs. Raises `unsupported-architecture` when the header does not say it,
        or says it differently for each layer."""
        embedding, heads = self._number("embedding_length"), self._number("attention.head_count")
        head_dim = self._number("attention.key_length", embedding // heads)
        if self._number("attention.value_length", head_dim) != head_dim:
            raise self._unsupported("has keys and values of different width")
        head = self.tensors.get("token_embd.weight")
        if head is None or len(head.shape) != 2:
            raise self._unsupported("has no token_embd.weight: it is a vocabulary, not a model")
        return ModelFacts(
            name=self.metadata.typed("general.name", str, "") or self.path.stem,
            architecture=self.arch,
            layers=self._number("block_count"),
            embedding=embedding,
            feed_forward=self._number("feed_forward_length"),
            heads=heads,
            kv_heads=self._number("attention.head_count_kv", heads),
            head_dim=head_dim,
            vocabulary=head.shape[1],
            context=self._number("context_length"),
            bytes=len(self._map),
            fingerprint=hashlib.sha256(self._map[: self._header.size]).hexdigest(),
            tensors=tuple(self.tensors.values()),
        )

    def read(self, name: str, rows: Span | None = None, cols: Span | None = None) -> NDArray[np.uint8]:
        """Raw bytes `[rows, row bytes]` of a slice of a tensor; dimensions beyond the first count as rows.

        `cols` is in values and must lie on block boundaries. A read-only view: pages are read when
        touched. Raises KeyError for an unknown tensor and ValueError for a slice outside of it.
        """
        fact = self.tensors[name]
        height, width = prod(fact.shape[1:]), fact.shape[0]
        rows, cols = rows or Span(0, height), cols or Span(0, width)
        if not (0 <= rows.lo <= rows.hi <= height and 0 <= cols.lo <= cols.hi <= width):
            raise ValueError(f"{name} is {height} x {width}; rows {rows} x columns {cols} are not in it")
        if cols.lo % fact.block or cols.hi % fact.block:
            raise ValueError(f"columns {cols} of {name} cut a block of {fact.block} values")
        raw = np.frombuffer(self._map, np.uint8, fact.bytes, self._header.offsets[name])
        row_bytes = fact.bytes // height
        block_bytes = row_bytes * fact.block // width
        first, last = cols.lo // fact.block * block_bytes, cols.hi // fact.block * block_bytes
        return raw.reshape(height, row_bytes)[rows.lo : rows.hi, first:last]

    def release(self, name: str) -> None:
        """Drop a tensor's pages from resident memory; reading it again reads the file again."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = self._header.offsets[name]
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, page, start + self.tensors[name].bytes - page)

    def _number(self, key: str, default: Any = _REQUIRED) -> int:
        """A positive whole number within reason, given once or alike for every layer."""
        value = self.hparam(key, default)
        if isinstance(value, np.ndarray):
            distinct = np.unique(value)
            if len(distinct) != 1:
                raise self._unsupported(f"has a {key} that differs between layers")
            value = distinct[0].item()
        if type(value) is not int or not 0 < value <= _MOST.get(key, _MOST_ELSE):
            raise self._unsupported(f"has the {key} {cut(repr(value))}")
        return value

    def _unsupported(self, what: str) -> ModelError:
        return ModelError(
            Reason.UNSUPPORTED_ARCHITECTURE, f"{self.path}: the model {what}", hint="take another model file"
        )


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # what mmap says of an empty file
        raise ModelError(
            Reason.MODEL_TRUNCATED,
            f"{path}: the file is empty",
            hint="fetch the model file again",
            expected=24,
            actual=0,
        ) from None
    except OSError as error:
        raise ModelError(
            Reason.MODEL_UNKNOWN, f"{path} cannot be opened: {error.strerror}", hint="check the path"
        ) from None
