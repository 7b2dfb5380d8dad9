"""Frames: what is written is read back, and nothing else is believed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antfarm.batch import Batch, Copy
from antfarm.link.frame import HEADER_BYTES, BadFrame, Codec, Kind, parse
from antfarm.types import WireFormat

CODEC = Codec(epoch=5, format=WireFormat.F32, width=64, max_rows=16)


def step_frame(codec: Codec = CODEC, step: int = 7) -> tuple[np.ndarray, Batch, np.ndarray, int]:
    batch = Batch(np.array([2, 4, 5], np.int32), np.array([9, 0, 3], np.int32), np.array([0, 2], np.int32))
    hidden = np.random.default_rng(1).standard_normal((3, codec.width), np.float32)
    frame = codec.buffer(Kind.STEP)
    return frame, batch, hidden, codec.write_step(frame, step, batch, hidden)


@pytest.mark.parametrize("copy", [None, Copy(3, 2, 70)])
def test_a_copy_survives_the_wire(copy: Copy | None) -> None:
    batch = Batch(np.array([2], np.int32), np.array([70], np.int32), np.array([], np.int32), copy)
    frame = CODEC.buffer(Kind.STEP)
    end = CODEC.write_step(frame, 7, batch, np.ones((1, 64), np.float32))
    header = parse(frame.data)
    CODEC.check(header, Kind.STEP, 7)
    assert CODEC.read_step(frame[HEADER_BYTES:end], header, np.empty((1, 64), np.float32)).copy == copy


@pytest.mark.parametrize("form", WireFormat)
def test_a_step_survives_the_wire(form: WireFormat) -> None:
    codec = Codec(5, form, 64, 16)
    frame, _, hidden, end = step_frame(codec)
    header = parse(frame.data)
    codec.check(header, Kind.STEP, 7)
    assert HEADER_BYTES + header.length == end
    out = np.empty((3, 64), np.float32)
    got = codec.read_step(frame[HEADER_BYTES:end], header, out)
    assert (got.slots.tolist(), got.positions.tolist(), got.outputs.tolist()) == (
        [2, 4, 5],
        [9, 0, 3],
        [0, 2],
    )
    assert np.allclose(out, hidden, atol={"f32": 0, "f16": 2e-3, "q8": 0.03}[form], rtol=0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda f: f.__setitem__(0, 0), "magic"),
        (lambda f: f.__setitem__(4, 9), "version 9"),
        (lambda f: f.__setitem__(5, 3), "kind 3 instead of 1"),
        (lambda f: f.__setitem__(6, 2), "format 2 instead of 1"),
        (lambda f: f.__setitem__(8, 17), "17 rows"),
        (lambda f: f.__setitem__(8, 0), "0 rows"),
        (lambda f: f.__setitem__(12, 4), "4 outputs of 3 rows"),
        (lambda f: f.__setitem__(19, 0xFF), "bytes instead of"),
        (lambda f: f.__setitem__(24, 6), "epoch 6 instead of 5"),
        (lambda f: f.__setitem__(32, 8), "step 8 instead of 7"),
    ],
)
def test_every_field_is_checked(change: object, complaint: str) -> None:
    frame, *_ = step_frame()
    change(frame)  # type: ignore[operator]
    with pytest.raises(BadFrame, match=complaint):
        CODEC.check(parse(frame.data), Kind.STEP, 7)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_headers_never_pass(data: bytes) -> None:
    with pytest.raises(BadFrame):
        CODEC.check(parse(memoryview(data)), Kind.STEP, 7)


@pytest.mark.parametrize(("place", "value"), [(0, -1), (3, -5), (6, 3), (7, -1), (8, -1), (10, -1)])
def test_a_batch_out_of_bounds_is_refused(place: int, value: int) -> None:
    frame, _, _, end = step_frame()
    payload = frame[HEADER_BYTES:end]
    payload[:44].view(np.int32)[place] = value
    with pytest.raises(BadFrame):
        CODEC.read_step(payload, parse(frame.data), np.empty((3, 64), np.float32))


def test_the_largest_frames_fit_their_buffers() -> None:
    rows = np.ones((16, 64), np.float32)
    index = np.arange(16, dtype=np.int32)
    frame = CODEC.buffer(Kind.STEP)
    assert CODEC.write_step(frame, 0, Batch(index, index, index), rows) == len(frame)
    frame = CODEC.buffer(Kind.RESULT)
    assert CODEC.write_result(frame, 0, 16, rows) == len(frame)
