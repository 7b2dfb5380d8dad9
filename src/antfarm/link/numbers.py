"""Number formats of activations on a link, encoded from and into preallocated buffers.

    f32   4 bytes a value, exact
    f16   2 bytes a value; magnitudes beyond 65504 become infinities, NaN stays NaN
    q8    blocks of 32 values: one f16 scale and 32 signed bytes, 34 bytes a block. An error is at most
          half a scale (plus 4e-6 where the scale is subnormal). A block with a NaN, an infinity or a
          magnitude beyond 8.3e6 comes out non-finite in all its places, so that poison is never hidden.

q8 stores all scales first and all bytes after them: two contiguous planes, which numpy handles in whole.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antfarm.types import WireFormat

BLOCK = 32
_LIMIT = np.float32(127)


def encoded_bytes(form: WireFormat, values: int) -> int:
    """Bytes that `values` numbers take. q8 wants whole blocks."""
    if form is WireFormat.F32:
        return 4 * values
    if form is WireFormat.F16:
        return 2 * values
    if values % BLOCK:
        raise ValueError(f"q8 holds whole blocks of {BLOCK} values, not {values}")
    return values // BLOCK * (2 + BLOCK)


def encode(form: WireFormat, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Write `values` (any shape) into `out` (u8 [encoded_bytes], 4-byte aligned)."""
    flat = values.reshape(-1)
    if form is WireFormat.F32:
        out.view(np.float32)[:] = flat
        return
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if form is WireFormat.F16:
            out.view(np.float16)[:] = flat
        else:
            _encode_q8(flat.reshape(-1, BLOCK), out)


def decode(form: WireFormat, data: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """Fill `out` (f32, C-contiguous, any shape) from `data` (u8 [encoded_bytes])."""
    flat = out.reshape(-1)
    if form is WireFormat.F32:
        flat[:] = data.view(np.float32)
    elif form is WireFormat.F16:
        flat[:] = data.view(np.float16)
    else:
        scales, quants = _planes(data, flat.size // BLOCK)
        with np.errstate(invalid="ignore"):
            np.multiply(quants, scales.astype(np.float32)[:, None], out=flat.reshape(-1, BLOCK))


def _encode_q8(blocks: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    scales, quants = _planes(out, len(blocks))
    scales[:] = np.abs(blocks).max(axis=1) / _LIMIT
    scaled = blocks / scales.astype(np.float32)[:, None]
    np.rint(scaled, out=scaled)
    # fmin and fmax put a number in NaN's place: the cast stays defined, and the scale carries the poison.
    np.fmax(np.fmin(scaled, _LIMIT, out=scaled), -_LIMIT, out=scaled)
    quants[:] = scaled


def _planes(data: NDArray[np.uint8], blocks: int) -> tuple[NDArray[np.float16], NDArray[np.int8]]:
    """The scales [blocks] and the quantized values [blocks, 32] inside an encoded buffer."""
    return data[: 2 * blocks].view(np.float16), data[2 * blocks :].view(np.int8).reshape(blocks, BLOCK)
