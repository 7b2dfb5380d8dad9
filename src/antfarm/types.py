"""The nouns that more than one room speaks of: a model's facts, a split plan, a sampler's settings.

Plain frozen values with no behaviour beyond arithmetic on themselves, so that they can travel
in messages and be compared in tests.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

DEFAULT_CONTEXT = 4096  # tokens per slot unless asked otherwise
DEFAULT_SLOTS = 4  # unless asked otherwise, or memory allows fewer


def default_context(trained: int) -> int:
    """Tokens per slot where none are asked for: what the model was trained for, within bounds."""
    return min(trained, DEFAULT_CONTEXT)


class SplitMode(StrEnum):
    """How a model is cut. `HYBRID` is a pipeline whose stages are tensor-split."""

    TENSOR = "tensor"
    PIPELINE = "pipeline"
    HYBRID = "hybrid"


class WireFormat(StrEnum):
    """Number format of activations on a link: exact, half, or blocks of 32 int8 with one f16 scale."""

    F32 = "f32"
    F16 = "f16"
    Q8 = "q8"


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A half-open range `[lo, hi)`."""

    lo: int
    hi: int

    def __len__(self) -> int:
        return self.hi - self.lo

    def range(self) -> range:
        return range(self.lo, self.hi)


class TensorFact(msgspec.Struct, frozen=True):
    """One tensor of a GGUF file. `shape` is ggml's order: `shape[0]` is the contiguous (input) side."""

    name: str
    type: str  # ggml's name in lower case: "f32", "q4_0", "q4_k"
    shape: tuple[int, ...]
    bytes: int
    block: int  # values per quantization block along shape[0]; 1 for f32/f16/bf16


class ModelFacts(msgspec.Struct, frozen=True):
    """What planning needs to know of a model; read from the GGUF header alone."""

    name: str
    architecture: str
    layers: int
    embedding: int  # width of a hidden row
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int  # the length it was trained for
    bytes: int  # of the whole file
    fingerprint: str  # sha256 of the header, hex: two hosts hold the same model when these agree
    tensors: tuple[TensorFact, ...]


class Part(msgspec.Struct, frozen=True):
    """One shard's share of the model: which half layers, which KV-head groups, which feed-forward columns.

    A stage begins and ends at any half layer, since hidden rows are all that passes from one to the next:
    half 2 x layer is the layer's attention, half 2 x layer + 1 its feed-forward.
    """

    shard: int  # index in the whole plan; shard 0 is the lead
    stage: int
    rank: int  # within the stage
    ranks: int  # of the stage
    halves: Span
    kv_heads: Span
    feed_forward: Span

    @property
    def lead(self) -> bool:
        return self.shard == 0

    @property
    def attention(self) -> Span:
        """The layers whose attention it holds, and with it their KV cache."""
        return Span(-(-self.halves.lo // 2), -(-self.halves.hi // 2))


class Memory(msgspec.Struct, frozen=True):
    """Planned bytes of one shard."""

    weights: int
    kv_cache: int
    compute: int  # graph buffers and input tensors
    runtime: int  # the interpreter, libraries, the tokenizer of a lead

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.compute + self.runtime


class Plan(msgspec.Struct, frozen=True):
    """A split: parts in shard order, with the memory each needs. Stages are runs of equal `stage`."""

    mode: SplitMode
    parts: tuple[Part, ...]
    memory: tuple[Memory, ...]

    def stages(self) -> list[list[Part]]:
        """The parts, grouped by stage in order."""
        out: list[list[Part]] = []
        for part in self.parts:
            if part.stage == len(out):
                out.append([])
            out[part.stage].append(part)
        return out


class RunOptions(msgspec.Struct, frozen=True):
    """How a model is run; the same for all its shards."""

    context: int = 0  # tokens per slot; 0 takes `default_context` of the model
    slots: int = 0  # sequences whose KV rows are held at once; 0 takes up to DEFAULT_SLOTS, as memory allows
    chunk: int = 128  # prompt tokens per prefill step, at most
    prefill_share: float = 0.5  # of the time, for prompts while others are being answered; above 0, below 1
    queue: int = 256  # tasks that may wait for a slot
    wire: WireFormat = WireFormat.F32
    kv_type: str = "f16"
    backend: str = "CPU"  # a ggml backend device by name


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is chosen. Names and meanings follow OpenAI and llama.cpp."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None  # None runs to the context's end
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # how many alternatives to report with each token; None reports none
    ignore_eos: bool = False
    logit_bias: dict[int, float] = {}  # added to the logits of these token ids
