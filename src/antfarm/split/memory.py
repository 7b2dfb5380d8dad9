"""Planned bytes of a shard, before anything is loaded.

Weights and KV cache follow from the tensors and are exact but for alignment. Compute buffers and the process
itself are estimates on the safe side, measured as their constants say.
"""

from __future__ import annotations

from itertools import accumulate

from antfarm import cuts
from antfarm.cuts import Side
from antfarm.types import Memory, ModelFacts, Part, RunOptions, Span

MIB = 1 << 20

# Resident memory of a shard process with the interpreter, numpy, ggml and our own modules, nothing loaded:
# 42 to 47 MiB on Linux x86-64 (Python 3.11, numpy 2, ggml-python 0.0.45).
_PROCESS = 48 * MIB
# A lead's tokenizer, and its vocabulary as grammars see it: 42 MiB for SmolLM2's 49152 tokens, 123 MiB
# for Qwen2's 151936; for Llama 3's 128256 it is 120 MiB, 15 more than this says.
_VOCABULARY_PER_TOKEN = 860
# The library for grammars, and some in use.
_GRAMMARS = 5 * MIB
# The engine keeps the graphs of 16 step shapes; a half layer takes 20160 bytes in each.
_GRAPHS_PER_HALF = 16 * 20160
# ggml's thread pool and plans, Python's objects for graphs, what allocators round up to. With it the resident
# memory of shards measured 0.88 to 1.00 of the plan, its peak while loading included.
_COMPUTE_BASE = 4 * MIB
_ALIGNMENT = 32  # of tensors in a ggml buffer

KV_BYTES = {"f16": (2, 1), "f32": (4, 1), "q8_0": (34, 32)}  # bytes per values


class Footprint:
    """What a model's layers and vocabulary take, summed up once so that many plans can be weighed."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
        self.everywhere = 0  # bytes that every shard holds
        self.lead = 0  # bytes that the lead holds beyond its layers
        whole, once, heads, columns = ([0] * (2 * facts.layers) for _ in range(4))
        for tensor in facts.tensors:
            size = tensor.bytes + _ALIGNMENT
            layer, name = cuts.layer_of(tensor.name)
            sides = cuts.SIDES.get(name, ())
            if layer is None:
                self.lead += size if name in cuts.LEAD else 0
                self.everywhere += 0 if name in cuts.LEAD else size
                continue
            if layer >= facts.layers:
                continue
            half = cuts.half_of(layer, name)
            if Side.FEED_FORWARD in sides:
                columns[half] += size
            elif Side.HEADS in sides or Side.KV_HEADS in sides:
                heads[half] += size
            elif name in cuts.ONCE:
                once[half] += size
            else:
                whole[half] += size
        self.half_bytes = [sum(each) for each in zip(whole, once, heads, columns, strict=True)]
        self._whole, self._once, self._heads, self._columns = (
            [0, *accumulate(each)] for each in (whole, once, heads, columns)
        )

    @property
    def head(self) -> int:
        """Bytes that the output head reads for a token: its own, or the embedding's where they are one."""
        sizes = {tensor.name: tensor.bytes for tensor in self.facts.tensors}
        return sizes.get(cuts.HEAD, sizes.get(cuts.EMBEDDING, 0))

    def weights(self, part: Part) -> int:
        def total(sums: list[int]) -> int:
            return sums[part.halves.hi] - sums[part.halves.lo]

        heads = -(-total(self._heads) * len(part.kv_heads) // self.facts.kv_heads)
        columns = -(-total(self._columns) * len(part.feed_forward) // self.facts.feed_forward)
        first = total(self._once) if part.rank == 0 else 0
        return (
            total(self._whole) + first + heads + columns + self.everywhere + (self.lead if part.lead else 0)
        )

    def memory(self, part: Part, options: RunOptions) -> Memory:
        """Planned bytes of one shard; context and slots must have been decided."""
        return Memory(
            weights=self.weights(part),
            kv_cache=kv_bytes(self.facts, part.attention, len(part.kv_heads), options),
            compute=_compute(self.facts, part, options),
            runtime=_PROCESS
            + (_VOCABULARY_PER_TOKEN * self.facts.vocabulary + _GRAMMARS if part.lead else 0),
        )


def kv_bytes(facts: ModelFacts, layers: Span, heads: int, options: RunOptions) -> int:
    """Keys and values of all slots."""
    size, values = KV_BYTES[options.kv_type]
    return 2 * len(layers) * options.slots * options.context * heads * facts.head_dim * size // values


def _compute(facts: ModelFacts, part: Part, options: RunOptions) -> int:
    """Graph buffers for the largest step, its inputs (mask, hidden rows), logits, and the links' buffers."""
    rows = max(min(options.chunk, options.context), options.slots)
    heads = facts.heads // facts.kv_heads * len(part.kv_heads) * facts.head_dim
    live = 3 * facts.embedding + max(3 * len(part.feed_forward), 3 * heads)  # values of a row alive at once
    exchanged = (2 + part.ranks + 1) * facts.embedding if part.ranks > 1 else 0
    steps = 3 * facts.embedding  # to send, to receive, decoded
    per_row = 4 * (live + exchanged + steps) + 2 * options.context
    logits = 4 * options.slots * (facts.vocabulary + facts.embedding) if part.lead else 0
    return _COMPUTE_BASE + _GRAPHS_PER_HALF * len(part.halves) + rows * per_row + logits
