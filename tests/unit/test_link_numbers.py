"""Number formats: exact, or within their stated error; poison shows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.rounding import rounded

from antfarm.link.numbers import BLOCK, encoded_bytes
from antfarm.types import WireFormat

finite = st.floats(-8e6, 8e6, width=32)
rows = arrays(np.float32, st.tuples(st.integers(1, 3), st.sampled_from([32, 96])), elements=finite)


def test_bytes() -> None:
    assert [encoded_bytes(form, 64) for form in WireFormat] == [256, 128, 68]
    with pytest.raises(ValueError, match="whole blocks"):
        encoded_bytes(WireFormat.Q8, 40)


@given(arrays(np.float32, (2, 32), elements=st.floats(width=32, allow_nan=True)))
def test_f32_is_bit_exact(values: np.ndarray) -> None:
    assert rounded(WireFormat.F32, values).tobytes() == values.tobytes()


@given(arrays(np.float32, (2, 32), elements=st.floats(-65504, 65504, width=32)))
def test_f16_is_numpys_rounding(values: np.ndarray) -> None:
    assert np.array_equal(rounded(WireFormat.F16, values), values.astype(np.float16).astype(np.float32))


@given(rows)
def test_q8_error_is_half_a_scale(values: np.ndarray) -> None:
    blocks = values.reshape(-1, BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    bound = scale / 2 * (1 + 2e-3) + 127 * scale * 1e-6 + 4e-6  # the scale itself is rounded to f16
    assert (np.abs(rounded(WireFormat.Q8, values).reshape(-1, BLOCK) - blocks) <= bound).all()


@given(rows)
def test_rounding_twice_changes_little(values: np.ndarray) -> None:
    once = rounded(WireFormat.Q8, values)
    assert np.allclose(rounded(WireFormat.Q8, once), once, rtol=2e-3, atol=np.abs(once).max() / 127 + 1e-5)


@pytest.mark.parametrize("form", WireFormat)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poison_is_never_hidden(form: WireFormat, poison: float) -> None:
    values = np.ones((2, 64), np.float32)
    values[1, 5] = poison
    out = rounded(form, values)
    assert not np.isfinite(out[1, 5])
    assert np.array_equal(out[0], values[0]) or form is WireFormat.Q8
    assert np.isfinite(out[0]).all() and np.isfinite(out[1, 32:]).all()
    if form is WireFormat.Q8:
        assert not np.isfinite(out[1, :32]).any()


def test_what_a_format_can_not_hold_becomes_infinite() -> None:
    values = np.full((1, 32), 1e9, np.float32)
    assert np.isinf(rounded(WireFormat.F16, values)).all()
    assert not np.isfinite(rounded(WireFormat.Q8, values)).any()


@pytest.mark.parametrize("form", WireFormat)
def test_zeros_stay_zeros(form: WireFormat) -> None:
    assert not rounded(form, np.zeros((2, 32), np.float32)).any()
