"""What the wire makes of numbers, in one step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antfarm.link.numbers import decode, encode, encoded_bytes
from antfarm.types import WireFormat


def rounded(form: WireFormat, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """`values` as the other end of a link gets them."""
    data = np.empty(encoded_bytes(form, values.size), np.uint8)
    encode(form, values, data)
    out = np.empty(values.shape, np.float32)
    decode(form, data, out)
    return out
