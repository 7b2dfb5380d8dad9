"""The one module that imports ggml-python: memory, graphs and backends, typed; `ops` has the operations.

A failed assertion in ggml ends the process and can't be caught, so callers check shapes before they
build graphs, and ask `Backend.supports` before they compute them. ggml-python 0.0.45 cuts the pointers
that `ggml_backend_cpu_buffer_type`, `ggml_backend_cpu_buffer_from_ptr` and `ggml_backend_alloc_buffer`
return down to 32 bits; none of these is used.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
from collections.abc import Iterator
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

from antfarm.errors import AntfarmError, Reason

try:
    from ggml import ggml as _c
except (ImportError, OSError, RuntimeError) as error:
    raise AntfarmError(
        Reason.ENGINE_UNAVAILABLE,
        f"ggml-python can't be loaded: {error}",
        hint="run `make setup`, which builds it (needs a C and C++ compiler)",
    ) from error

native = _c  # for `ops`
_madvise = ctypes.CDLL(None).madvise

Tensor = NewType("Tensor", object)  # ggml_tensor *
BufferType = NewType("BufferType", int)  # ggml_backend_buffer_type_t

TYPES: dict[str, int] = {
    _c.ggml_type_name(code).decode().lower(): code
    for code in range(_c.GGML_TYPE_COUNT)
    if _c.ggml_type_size(code)
}  # by GGUF's name in lower case


# ---- ggml's own log lines

_logger = logging.getLogger("antfarm.ggml")
_LEVELS = {_c.GGML_LOG_LEVEL_ERROR: logging.ERROR, _c.GGML_LOG_LEVEL_WARN: logging.WARNING}


@_c.ggml_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _data: int | None) -> None:
    line = text.decode(errors="replace").strip()
    if line.strip("."):  # progress dots are no messages
        _logger.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


_c.ggml_log_set(_log, None)


# ---- memory


class Buffer:
    """Backend memory that holds tensors. `address` is where it starts; on a host backend, in this process."""

    def __init__(self, handle: int, *, usage_weights: bool = False) -> None:
        self._handle: int | None = handle
        if usage_weights:
            _c.ggml_backend_buffer_set_usage(handle, _c.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        self.size: int = _c.ggml_backend_buffer_get_size(handle)
        self.address: int = _c.ggml_backend_buffer_get_base(handle)
        if usage_weights:
            _advise_huge_pages(self.address, self.size)

    def clear(self) -> None:
        _c.ggml_backend_buffer_clear(self._handle, 0)

    def place(self, tensor: Tensor, address: int) -> Tensor:
        """Give a tensor without data its place in this buffer."""
        if _c.ggml_backend_tensor_alloc(self._handle, tensor, address) != _c.GGML_STATUS_SUCCESS:
            raise AntfarmError(Reason.INTERNAL, "ggml could not place a tensor in its buffer")
        return tensor

    def free(self) -> None:
        if self._handle is not None:
            _c.ggml_backend_buffer_free(self._handle)
            self._handle = None


def _advise_huge_pages(address: int, size: int) -> None:
    """Ask the system for large pages: every token reads all weights from end to end, and the processor's
    walks through tables of small pages take some percent of that. It is free to decline."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        length = max(0, address + size - start)
        _madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)


class Context:
    """Headers of tensors, and graphs of some nodes each; the tensors' data lies in buffers."""

    def __init__(self, tensors: int, graphs: int = 0, nodes: int = 0) -> None:
        size = tensors * _c.ggml_tensor_overhead()
        if graphs:
            size += graphs * _c.ggml_graph_overhead_custom(nodes, False)
        self.size: int = size
        self.handle: int | None = _c.ggml_init(
            _c.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True)
        )

    def tensor(self, kind: str, *shape: int) -> Tensor:
        """A new tensor; `shape[0]` is the contiguous side."""
        sides = (ctypes.c_int64 * len(shape))(*shape)
        return Tensor(_c.ggml_new_tensor(self.handle, TYPES[kind], len(shape), sides))

    def allocate(self, kind: BufferType, *, weights: bool = False) -> Buffer:
        """One buffer for all tensors made so far."""
        handle = _c.ggml_backend_alloc_ctx_tensors_from_buft(self.handle, kind)
        if not handle:
            raise AntfarmError(
                Reason.NO_CAPACITY,
                "the backend could not allocate memory for this shard",
                hint="split over more hosts, or choose a shorter context",
            )
        return Buffer(handle, usage_weights=weights)

    def free(self) -> None:
        if self.handle is not None:
            _c.ggml_free(self.handle)
            self.handle = None


def nbytes(tensor: Tensor) -> int:
    return int(_c.ggml_nbytes(tensor))


def row_bytes(kind: str, values: int) -> int:
    return int(_c.ggml_row_size(TYPES[kind], values))


def block_values(kind: str) -> int:
    return int(_c.ggml_blck_size(TYPES[kind]))


def is_weight_type(kind: str) -> bool:
    """Whether ggml can turn values of this type into floats, as every type meant for weights can."""
    code = TYPES.get(kind)
    if code is None:
        return False
    return kind == "f32" or bool(_c.ggml_get_type_traits(code).contents.to_float)


def address(tensor: Tensor) -> int:
    """Where a placed tensor's data is."""
    return int(tensor.contents.data)  # type: ignore[attr-defined]


def write(tensor: Tensor, data: NDArray[Any], offset: int = 0) -> None:
    """Copy a contiguous array into a tensor, repacking it if its buffer does so."""
    if offset + data.nbytes > nbytes(tensor) or not data.flags.c_contiguous:
        raise AntfarmError(Reason.INTERNAL, "a write does not fit its tensor", bytes=data.nbytes)
    _c.ggml_backend_tensor_set(tensor, data.ctypes.data, offset, data.nbytes)


def read(tensor: Tensor, data: NDArray[Any]) -> None:
    """Copy a tensor's first bytes into a contiguous array."""
    if data.nbytes > nbytes(tensor) or not data.flags.c_contiguous:
        raise AntfarmError(Reason.INTERNAL, "a read does not fit its tensor", bytes=data.nbytes)
    _c.ggml_backend_tensor_get(tensor, data.ctypes.data, 0, data.nbytes)


def copy_within(views: Context, tensor: Tensor, values: int, source: int, target: int) -> None:
    """Copy values of a tensor from one byte offset to another; the stretches must not overlap.
    Takes two headers of `views`."""
    ends = [_c.ggml_view_1d(views.handle, tensor, values, offset) for offset in (source, target)]
    for end in ends:
        if _c.ggml_backend_view_init(end) != _c.GGML_STATUS_SUCCESS:
            raise AntfarmError(Reason.INTERNAL, "ggml could not place a view of a tensor")
    _c.ggml_backend_tensor_copy(*ends)


def host_array(address: int, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    """Memory of this process, seen as an array."""
    raw = (ctypes.c_uint8 * (np.dtype(dtype).itemsize * math.prod(shape))).from_address(address)
    array: NDArray[Any] = np.ctypeslib.as_array(raw).view(dtype)
    return array.reshape(shape)


# ---- graphs


class Graph:
    """Nodes in the order they are computed."""

    def __init__(self, context: Context, nodes: int) -> None:
        self.handle = _c.ggml_new_graph_custom(context.handle, nodes, False)

    def add(self, tensor: Tensor) -> None:
        """Compute this tensor, after all that it needs."""
        _c.ggml_build_forward_expand(self.handle, tensor)

    def nodes(self) -> Iterator[Tensor]:
        for i in range(_c.ggml_graph_n_nodes(self.handle)):
            yield Tensor(_c.ggml_graph_node(self.handle, i))


class Allocator:
    """One stretch of memory for the intermediate tensors of graphs that run one after the other."""

    def __init__(self, kind: BufferType) -> None:
        self._handle: int | None = _c.ggml_gallocr_new(kind)

    @property
    def size(self) -> int:
        return int(_c.ggml_gallocr_get_buffer_size(self._handle, 0))

    def reserve(self, graph: Graph) -> None:
        """Make room for this graph without placing it."""
        self._check(_c.ggml_gallocr_reserve(self._handle, graph.handle))

    def allocate(self, graph: Graph) -> None:
        """Place the graph's tensors. Graphs placed before it dangle if `size` changes."""
        self._check(_c.ggml_gallocr_alloc_graph(self._handle, graph.handle))

    def _check(self, done: bool) -> None:
        if not done:
            raise AntfarmError(Reason.NO_CAPACITY, "the backend has no memory for the compute buffers")

    def free(self) -> None:
        if self._handle is not None:
            _c.ggml_gallocr_free(self._handle)
            self._handle = None


def describe(node: Tensor) -> str:
    """A node's operation and first operand's type, for messages."""
    head = node.contents  # type: ignore[attr-defined]
    source = head.src[0]
    kind = _c.ggml_type_name(source.contents.type).decode() if source else "nothing"
    return f"{_c.ggml_op_name(head.op).decode()} over {kind}"


# ---- backends


class _Feature(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))


_get_features = ctypes.CFUNCTYPE(ctypes.POINTER(_Feature), ctypes.c_void_p)
_get_extra_types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)


def devices() -> dict[str, str]:
    """ggml's devices here: name → description. `CPU` is always among them."""
    found = [_c.ggml_backend_dev_get(i) for i in range(_c.ggml_backend_dev_count())]
    return {
        _c.ggml_backend_dev_name(device).decode(): _c.ggml_backend_dev_description(device).decode()
        for device in found
    }


def cpu_features() -> dict[str, str]:
    """What ggml's CPU backend was built with and found: `AVX512` → `1`, `LLAMAFILE` → `1`, ..."""
    registry = _c.ggml_backend_reg_by_name(b"CPU")
    proc = _c.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_get_features")
    found: dict[str, str] = {}
    if proc:
        features = _get_features(proc)(registry)
        i = 0
        while features[i].name:
            found[features[i].name.decode()] = features[i].value.decode()
            i += 1
    return found


def _is_host(kind: BufferType) -> bool:
    """Whether buffers of this type are memory of this process."""
    return bool(_c.ggml_backend_buft_is_host(kind))


def version() -> str:
    return str(_c.GGML_VERSION)


class Backend:
    """One device, with its threads."""

    def __init__(self, name: str, threads: int) -> None:
        """Raises `bad-setting` when there is no device of that name."""
        device = _c.ggml_backend_dev_by_name(name.encode())
        handle = _c.ggml_backend_dev_init(device, None) if device else None
        if not handle:
            raise AntfarmError(
                Reason.BAD_SETTING,
                f"ggml has no usable backend {name!r} here",
                hint=f"take one of: {', '.join(devices())}",
            )
        self._device = device
        self._handle: int | None = handle
        self._pool: int | None = None
        self.buffer_type = BufferType(_c.ggml_backend_get_default_buffer_type(handle))
        self.host = _is_host(self.buffer_type)
        self.threads = threads
        if _c.ggml_backend_dev_type(device) == _c.GGML_BACKEND_DEVICE_TYPE_CPU:
            self._make_pool(threads)

    def _make_pool(self, threads: int) -> None:
        """Threads that live as long as the backend; without a pool each graph would start its own."""
        params = _c.ggml_threadpool_params_default(threads)
        self._pool = _c.ggml_threadpool_new(ctypes.byref(params))
        _c.ggml_backend_cpu_set_n_threads(self._handle, threads)
        _c.ggml_backend_cpu_set_threadpool(self._handle, self._pool)

    def extra_buffer_types(self) -> list[BufferType]:
        """Buffer types that lay weights out for faster kernels, most wanted first."""
        registry = _c.ggml_backend_dev_backend_reg(self._device)
        proc = _c.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        found: list[BufferType] = []
        if proc:
            types = _get_extra_types(proc)(self._device)
            while types and types[len(found)]:
                found.append(BufferType(types[len(found)]))
        return found

    def multiplies(self, kind: str, shape: tuple[int, int], where: BufferType) -> bool:
        """Whether this device can multiply by a weight of this type and shape in such a buffer."""
        context = Context(4)
        weight = context.tensor(kind, *shape)
        product = _c.ggml_mul_mat(context.handle, weight, context.tensor("f32", shape[0], 8))
        empty = _c.ggml_backend_buft_alloc_buffer(where, 0)
        weight.contents.buffer = empty  # type: ignore[attr-defined]
        try:
            return bool(_c.ggml_backend_dev_supports_op(self._device, product))
        finally:
            _c.ggml_backend_buffer_free(empty)
            context.free()

    def supports(self, node: Tensor) -> bool:
        return bool(_c.ggml_backend_dev_supports_op(self._device, node))

    def compute(self, graph: Graph) -> None:
        """Run a placed graph; returns when it is done."""
        status = _c.ggml_backend_graph_compute(self._handle, graph.handle)
        if status != _c.GGML_STATUS_SUCCESS:
            raise AntfarmError(Reason.INTERNAL, f"ggml could not compute a graph: status {status}")

    def work_bytes(self, graph: Graph) -> int:
        """Scratch that the CPU backend will hold to run this graph, beside the allocator's."""
        if self._pool is None:
            return 0
        return int(_c.ggml_graph_plan(graph.handle, self.threads, self._pool).work_size)

    def free(self) -> None:
        if self._handle is not None:
            _c.ggml_backend_free(self._handle)
            self._handle = None
        if self._pool is not None:
            _c.ggml_threadpool_free(self._pool)
            self._pool = None
