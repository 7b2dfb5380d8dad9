"""Random models that look like real ones to every GGUF runtime, for tests and benchmarks.

Weights are random and scaled so that hidden rows stay near unit size and logits differ; a matrix is put
together from a pool of quantized blocks, which writes gigabytes in seconds and still makes each row
different. The vocabulary is a true byte-level BPE: any text can be encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, PoolingType, TokenType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from antfarm.model.bytelevel import BYTE_TO_CHAR
from antfarm.model.template import CHATML

_POOL = 4096  # blocks
_GROUP = 32  # values in a "block" of the types that have none
_CHUNK = 1 << 24  # bytes gathered at a time

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MERGES = (
    "Ġ t", "h e", "Ġt he", "i n", "e r", "a n", "o n", "Ġ a", "r e", "Ġ w", "o u", "Ġ s",
    "an d", "Ġa n", "in g", "Ġ o", "Ġ c", "e n", "Ġ b", "Ġo f",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """What a synthetic model looks like. `head_dim` 0 takes embedding / heads."""

    architecture: str  # llama | qwen2 | qwen3
    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_dim: int = 0
    context: int = 512
    tied: bool = False  # the output head is the token embedding
    biases: bool = False  # of llama's attention; qwen2 always has those of Q, K and V
    rope_factors: bool = False  # rope_freqs.weight, as Llama 3.1 and later have
    rope_base: float = 10000.0
    rope_scaling: tuple[str, float] | None = None  # ("linear" or "yarn", factor)
    pooling: PoolingType | None = None  # of the rows of an embedding

    @property
    def key_width(self) -> int:
        return self.head_dim or self.embedding // self.heads


SHAPES = {
    "llama-1b": Shape("llama", 16, 2048, 8192, 32, 8, 32000, context=4096),
    "tiny-llama": Shape("llama", 5, 96, 224, 6, 3, 512, head_dim=32),
    "tiny-llama-rich": Shape(
        "llama", 4, 128, 256, 8, 4, 512, head_dim=32, tied=True, biases=True, rope_factors=True
    ),
    "tiny-llama-wide": Shape("llama", 4, 256, 1024, 8, 4, 512, head_dim=64),  # for blocks of 256
    "tiny-qwen2": Shape("qwen2", 4, 96, 160, 6, 3, 512, tied=True, rope_base=1e6),
    "tiny-qwen3": Shape("qwen3", 6, 96, 192, 6, 3, 512, head_dim=32, rope_base=1e6),
}

# Where each type without a quantizer in gguf keeps its f16 scale; for types with a minimum as well, where
# that is and how many times the scale it must be for a mean of zero over random quants.
_SCALES: dict[str, tuple[int, int | None, float]] = {
    "q2_k": (80, 82, 1.5),
    "q3_k": (108, None, 0),
    "q4_k": (0, 2, 7.5),
    "q5_k": (0, 2, 15.5),
    "q6_k": (208, None, 0),
    "iq2_xxs": (0, None, 0),
    "iq2_xs": (0, None, 0),
    "iq2_s": (0, None, 0),
    "iq3_xxs": (0, None, 0),
    "iq3_s": (0, None, 0),
    "iq1_s": (0, None, 0),
    "iq4_nl": (0, None, 0),
    "iq4_xs": (0, None, 0),
}
_QUANTIZED = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4")
QUANTS = (*_QUANTIZED, *_SCALES)


def write(path: Path | str, shape: Shape, quant: str, seed: int = 0) -> None:
    """Write a model whose matrices are all of type `quant` (norms and biases are f32).

    The same arguments write the same bytes. Raises ValueError for a quantization that is not in
    `QUANTS` and for a shape whose rows are not whole blocks of it.
    """
    if quant not in QUANTS:
        raise ValueError(f"no quantization {quant!r}; there are {', '.join(QUANTS)}")
    weights = _Weights(quant, np.random.default_rng(seed))
    tensors = list(_tensors(shape, weights))
    writer = GGUFWriter(str(path), shape.architecture)
    try:
        _write_hparams(writer, shape)
        _write_vocabulary(writer, shape.vocabulary)
        for tensor in tensors:
            dtype = np.dtype(np.float32 if tensor.raw is None else np.uint8)
            writer.add_tensor_info(tensor.name, tensor.shape, dtype, tensor.bytes, tensor.raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(tensor.make())
    finally:
        writer.close()


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor to be written; `make` draws its data, so that only one is held at a time."""

    name: str
    shape: tuple[int, ...]  # in bytes along the last side when `raw` is set
    bytes: int
    make: Callable[[], NDArray[Any]]
    raw: GGMLQuantizationType | None = None  # None: f32


class _Weights:
    """Draws random tensors of one quantization."""

    def __init__(self, quant: str, random: np.random.Generator) -> None:
        self._quant = quant
        self._type = GGMLQuantizationType[quant.upper()]
        self._random = random
        block, block_bytes = GGML_QUANT_SIZES[self._type]
        groups = _GROUP if block == 1 else 1
        self._group, self._group_bytes = block * groups, block_bytes * groups
        self._pools: dict[float, NDArray[np.uint8]] = {}

    def matrix(self, name: str, rows: int, cols: int, gain: float = 1.0) -> _Tensor:
        """`[rows, cols]` with a deviation of gain / sqrt(cols): unit rows in, rows of size `gain` out."""
        if cols % self._group:
            raise ValueError(
                f"{name} has rows of {cols}: not whole blocks of {self._group} for {self._quant}"
            )
        row_bytes = cols // self._group * self._group_bytes
        deviation = gain / cols**0.5
        return _Tensor(
            name,
            (rows, row_bytes),
            rows * row_bytes,
            lambda: self._gather(rows, cols // self._group, deviation),
            self._type,
        )

    def vector(self, name: str, size: int, mean: float = 0.0, deviation: float = 0.2) -> _Tensor:
        """f32 values around `mean`."""
        return _Tensor(
            name,
            (size,),
            size * 4,
            lambda: (mean + deviation * self._random.standard_normal(size)).astype(np.float32),
        )

    def factors(self, name: str, size: int) -> _Tensor:
        """RoPE frequency factors: 1 for the fastest dimensions, 8 for the slowest."""
        return _Tensor(name, (size,), size * 4, lambda: np.linspace(1, 8, size, dtype=np.float32))

    def _gather(self, rows: int, groups: int, deviation: float) -> NDArray[np.uint8]:
        pool = self._pool(deviation)
        out = np.empty((rows, groups, self._group_bytes), np.uint8)
        step = max(1, _CHUNK // (groups * self._group_bytes))
        for lo in range(0, rows, step):
            part = out[lo : lo + step]
            chosen = self._random.integers(0, _POOL, part.shape[:2], dtype=np.uint16)
            np.take(pool, chosen, axis=0, out=part, mode="clip")
        return out.reshape(rows, -1)

    def _pool(self, deviation: float) -> NDArray[np.uint8]:
        if deviation not in self._pools:
            draw = self._draw_blocks if self._quant in _SCALES else self._quantize_blocks
            self._pools[deviation] = draw(deviation)
        return self._pools[deviation]

    def _quantize_blocks(self, deviation: float) -> NDArray[np.uint8]:
        values = self._random.standard_normal((_POOL, self._group), dtype=np.float32) * np.float32(deviation)
        raw: NDArray[np.uint8] = quantize(values, self._type).view(np.uint8)
        return raw

    def _draw_blocks(self, deviation: float) -> NDArray[np.uint8]:
        """Random bits are valid quants of these types; only the scales must be made sane."""
        scale_at, minimum_at, ratio = _SCALES[self._quant]
        raw = self._random.integers(0, 256, (_POOL, self._group_bytes), dtype=np.uint8)

        def set_scale(scale: float) -> None:
            raw[:, scale_at : scale_at + 2] = np.array([scale], np.float16).view(np.uint8)
            if minimum_at is not None:
                raw[:, minimum_at : minimum_at + 2] = np.array([scale * ratio], np.float16).view(np.uint8)

        set_scale(1.0)
        set_scale(deviation / float(np.std(dequantize(raw, self._type))))
        return raw


def _tensors(shape: Shape, weights: _Weights) -> Iterator[_Tensor]:
    embedding = shape.embedding
    yield weights.matrix("token_embd.weight", shape.vocabulary, embedding, gain=2 if shape.tied else 8)
    if not shape.tied:
        yield weights.matrix("output.weight", shape.vocabulary, embedding, gain=2)
    yield weights.vector("output_norm.weight", embedding, mean=1)
    if shape.rope_factors:
        yield weights.factors("rope_freqs.weight", shape.key_width // 2)
    for layer in range(shape.layers):
        yield from _attention(shape, weights, f"blk.{layer}.")
        yield from _feed_forward(shape, weights, f"blk.{layer}.")


def _attention(shape: Shape, weights: _Weights, prefix: str) -> Iterator[_Tensor]:
    embedding, width = shape.embedding, shape.key_width
    outputs = {"q": shape.heads * width, "k": shape.kv_heads * width, "v": shape.kv_heads * width}
    yield weights.vector(f"{prefix}attn_norm.weight", embedding, mean=1)
    for letter, rows in outputs.items():
        yield weights.matrix(f"{prefix}attn_{letter}.weight", rows, embedding)
        if shape.biases or shape.architecture == "qwen2":
            yield weights.vector(f"{prefix}attn_{letter}.bias", rows)
    yield weights.matrix(f"{prefix}attn_output.weight", embedding, outputs["q"], gain=2)
    if shape.biases:
        yield weights.vector(f"{prefix}attn_output.bias", embedding)
    if shape.architecture == "qwen3":
        yield weights.vector(f"{prefix}attn_q_norm.weight", width, mean=1)
        yield weights.vector(f"{prefix}attn_k_norm.weight", width, mean=1)


def _feed_forward(shape: Shape, weights: _Weights, prefix: str) -> Iterator[_Tensor]:
    embedding, inner = shape.embedding, shape.feed_forward
    yield weights.vector(f"{prefix}ffn_norm.weight", embedding, mean=1)
    yield weights.matrix(f"{prefix}ffn_gate.weight", inner, embedding)
    yield weights.matrix(f"{prefix}ffn_up.weight", inner, embedding)
    yield weights.matrix(f"{prefix}ffn_down.weight", embedding, inner, gain=3)


def _write_hparams(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"synthetic {shape.architecture}")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.key_width)
    writer.add_value_length(shape.key_width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.key_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocabulary)
    if shape.pooling is not None:
        writer.add_pooling_type(shape.pooling)
    if shape.rope_scaling:
        kind, factor = shape.rope_scaling
        writer.add_string(f"{shape.architecture}.rope.scaling.type", kind)
        writer.add_rope_scaling_factor(factor)
        writer.add_rope_scaling_orig_ctx_len(int(shape.context / factor))


def _write_vocabulary(writer: GGUFWriter, size: int) -> None:
    """Bytes, merges, special tokens, then fillers that no text encodes to."""
    tokens = [*BYTE_TO_CHAR, *(merge.replace(" ", "") for merge in _MERGES)]
    special = range(len(tokens), len(tokens) + len(SPECIAL))
    tokens += SPECIAL
    if size < len(tokens):
        raise ValueError(f"a vocabulary of {size} is too small; it takes {len(tokens)}")
    tokens += [f"[{index}]" for index in range(len(tokens), size)]
    kinds = [TokenType.CONTROL if index in special else TokenType.NORMAL for index in range(size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(list(_MERGES))
    writer.add_bos_token_id(special[0])
    writer.add_eos_token_id(special[2])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)
