"""Which splits a model's shape allows: the units it can be cut into, and how shards make stages and ranks."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm

from antfarm import cuts
from antfarm.cuts import Side
from antfarm.errors import PlanError, Reason, RequestError
from antfarm.split.request import MODES, SplitRequest
from antfarm.types import ModelFacts, SplitMode

_COLUMNS = 32  # feed-forward columns that stay together where no quantization block asks for more


@dataclass(frozen=True)
class Units:
    """What ranks share, in pieces that no quantization block crosses."""

    kv_heads: int  # KV heads that stay together
    feed_forward: int  # columns that stay together
    max_ranks: int
    why: str  # at most so many

    @classmethod
    def of(cls, facts: ModelFacts) -> Units:
        """A tensor cut across its columns must be cut at whole blocks: `attn_output` and `ffn_down`."""
        blocks = {Side.HEADS: 1, Side.FEED_FORWARD: _COLUMNS}
        for tensor in facts.tensors:
            side = cuts.SIDES.get(cuts.layer_of(tensor.name)[1], (None,))[0]
            if side in blocks and len(tensor.shape) > 1:
                blocks[side] = lcm(blocks[side], tensor.block)
        columns = facts.heads // facts.kv_heads * facts.head_dim  # of attn_output for each KV head
        together = blocks[Side.HEADS] // gcd(blocks[Side.HEADS], columns)
        by_heads = -(-facts.kv_heads // together)
        by_columns = -(-facts.feed_forward // blocks[Side.FEED_FORWARD])
        if by_columns < by_heads:
            why = f"{facts.feed_forward} feed-forward columns in blocks of {blocks[Side.FEED_FORWARD]}"
        elif together > 1:
            why = (
                f"{facts.kv_heads} KV heads of which {together} share a block of {blocks[Side.HEADS]} columns"
            )
        else:
            why = f"{facts.kv_heads} KV heads"
        return cls(together, blocks[Side.FEED_FORWARD], min(by_heads, by_columns), why)


@dataclass(frozen=True)
class Layout:
    """A split's form: how many ranks each stage has."""

    mode: SplitMode
    ranks: tuple[int, ...]


def layouts(facts: ModelFacts, request: SplitRequest, shards: int) -> list[Layout]:
    """The forms that answer a request, the preferred one first.

    Raises PlanError `split-impossible`, RequestError `invalid-request` for a mode that there isn't.
    """
    if request.mode not in MODES:
        text = f"there is no split mode {request.mode!r}"
        raise RequestError(Reason.INVALID_REQUEST, text, hint=f"take one of: {', '.join(MODES)}")
    mode = "hybrid" if request.mode == "auto" and request.stages else request.mode
    tensor = Layout(SplitMode.TENSOR, (shards,))
    pipeline = Layout(SplitMode.PIPELINE, (1,) * shards)
    if mode == "hybrid":
        return [_checked(facts, Layout(SplitMode.HYBRID, _even(facts, request, shards)))]
    if mode == "auto":
        can_tensor = shards <= Units.of(facts).max_ranks
        can_pipeline = shards <= facts.layers
        if can_tensor:
            return [tensor, pipeline] if can_pipeline and shards > 1 else [tensor]
        return [_checked(facts, pipeline)]
    return [_checked(facts, tensor if mode == "tensor" else pipeline)]


def _even(facts: ModelFacts, request: SplitRequest, shards: int) -> tuple[int, ...]:
    """Ranks of each stage of a hybrid, as even as can be, the larger stages first."""
    stages = request.stages or max(2, -(-shards // Units.of(facts).max_ranks))
    if not 1 <= stages <= shards:
        raise _impossible(facts, f"{stages} stages for {shards} shards")
    size, larger = divmod(shards, stages)
    return tuple(size + (stage < larger) for stage in range(stages))


def _checked(facts: ModelFacts, layout: Layout) -> Layout:
    if len(layout.ranks) > facts.layers:
        raise _impossible(facts, f"{len(layout.ranks)} stages")
    if max(layout.ranks) > Units.of(facts).max_ranks:
        raise _impossible(facts, f"{max(layout.ranks)} tensor ranks")
    return layout


def _impossible(facts: ModelFacts, what: str) -> PlanError:
    units = Units.of(facts)
    return PlanError(
        Reason.SPLIT_IMPOSSIBLE,
        f"{facts.name} can't be split into {what}",
        hint=f"{units.why}: at most {units.max_ranks} tensor ranks; pipeline up to {facts.layers} stages",
        max_ranks=units.max_ranks,
        max_stages=facts.layers,
    )
