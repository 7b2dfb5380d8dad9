"""Where a tensor may be cut, by its GGUF name: its half layer, its sides, and which of them ranks share.

The planner weighs tensors by this table and the engine cuts them by it.
"""

from __future__ import annotations

from enum import Enum, auto

from antfarm.types import ModelFacts, Part, Span


class Side(Enum):
    """What a tensor's side counts. Ranks share the first three; the others are whole on every rank."""

    HEADS = auto()  # query heads x head_dim
    KV_HEADS = auto()  # KV heads x head_dim
    FEED_FORWARD = auto()
    EMBEDDING = auto()
    HEAD_DIM = auto()
    VOCABULARY = auto()
    ROPE = auto()  # pairs of rotating dimensions


SHARED = frozenset({Side.HEADS, Side.KV_HEADS, Side.FEED_FORWARD})

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"  # absent in a model whose head is its embedding
HEAD_NORM = "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"

# Sides in ggml's order: a matrix's inputs (columns), then its outputs (rows). A layer's names lack `blk.N.`.
SIDES: dict[str, tuple[Side, ...]] = {
    EMBEDDING: (Side.EMBEDDING, Side.VOCABULARY),
    HEAD: (Side.EMBEDDING, Side.VOCABULARY),
    HEAD_NORM: (Side.EMBEDDING,),
    ROPE_FACTORS: (Side.ROPE,),
    "attn_norm.weight": (Side.EMBEDDING,),
    "attn_q.weight": (Side.EMBEDDING, Side.HEADS),
    "attn_q.bias": (Side.HEADS,),
    "attn_q_norm.weight": (Side.HEAD_DIM,),
    "attn_k.weight": (Side.EMBEDDING, Side.KV_HEADS),
    "attn_k.bias": (Side.KV_HEADS,),
    "attn_k_norm.weight": (Side.HEAD_DIM,),
    "attn_v.weight": (Side.EMBEDDING, Side.KV_HEADS),
    "attn_v.bias": (Side.KV_HEADS,),
    "attn_output.weight": (Side.HEADS, Side.EMBEDDING),
    "attn_output.bias": (Side.EMBEDDING,),
    "ffn_norm.weight": (Side.EMBEDDING,),
    "ffn_gate.weight": (Side.EMBEDDING, Side.FEED_FORWARD),
    "ffn_gate.bias": (Side.FEED_FORWARD,),
    "ffn_up.weight": (Side.EMBEDDING, Side.FEED_FORWARD),
    "ffn_up.bias": (Side.FEED_FORWARD,),
    "ffn_down.weight": (Side.FEED_FORWARD, Side.EMBEDDING),
    "ffn_down.bias": (Side.EMBEDDING,),
}

# Added to a sum over ranks, so only a stage's first rank holds them.
ONCE = frozenset({"attn_output.bias", "ffn_down.bias"})

# Of the whole model, held by the lead alone.
LEAD = frozenset({EMBEDDING, HEAD, HEAD_NORM})


def layer_of(name: str) -> tuple[int | None, str]:
    """`blk.7.attn_q.weight` is (7, `attn_q.weight`); what belongs to no layer is (None, name)."""
    prefix, _, rest = name.partition(".")
    index, _, short = rest.partition(".")
    if prefix == "blk" and index.isdecimal() and short:
        return int(index), short
    return None, name


def half_of(layer: int, name: str) -> int:
    """The half layer that uses a layer's tensor."""
    return 2 * layer + name.startswith("ffn_")


def length(side: Side, facts: ModelFacts) -> int:
    """Values along a side that ranks share, in the whole model."""
    if side is Side.FEED_FORWARD:
        return facts.feed_forward
    heads = facts.heads if side is Side.HEADS else facts.kv_heads
    return heads * facts.head_dim


def held(side: Side, facts: ModelFacts, part: Part) -> Span:
    """The range along a shared side that a part holds."""
    if side is Side.FEED_FORWARD:
        return part.feed_forward
    per_head = length(side, facts) // facts.kv_heads
    return Span(part.kv_heads.lo * per_head, part.kv_heads.hi * per_head)
