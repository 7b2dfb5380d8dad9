"""Which tensors a shard holds, and which rows and columns of each.

An architecture declares each tensor by the sides it joins. From that follow the shape that the file
must have and the cut: sides that ranks share are cut, the others are whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from antfarm.engine.hyper import Hyper
from antfarm.errors import ModelError, Reason
from antfarm.model.gguf import GgufFile
from antfarm.types import Part, Span, TensorFact


class Side(Enum):
    """What a tensor's side counts. Ranks share the first three."""

    HEADS = auto()  # query heads x head_dim
    KV_HEADS = auto()  # KV heads x head_dim
    FEED_FORWARD = auto()
    EMBEDDING = auto()
    HEAD_DIM = auto()
    VOCABULARY = auto()
    ROPE = auto()  # pairs of rotating dimensions


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor by its GGUF name, for a layer's without `blk.N.`. `sides` are in ggml's order: a
    matrix's inputs, then its outputs."""

    name: str
    sides: tuple[Side, ...]
    optional: bool = False
    once: bool = False  # added to a sum over ranks, so held by the first alone
    looked_up: bool = False  # rows are taken out by index, so it stays in the file's own layout


@dataclass(frozen=True, slots=True)
class Slice:
    """What to hold of one tensor of the file: `rows` and `cols` of it, in values."""

    fact: TensorFact
    rows: Span
    cols: Span
    looked_up: bool

    @property
    def matrix(self) -> bool:
        return len(self.fact.shape) > 1

    @property
    def shape(self) -> tuple[int, ...]:
        """As ggml has it: `shape[0]` is the contiguous side."""
        return (len(self.cols), len(self.rows)) if self.matrix else (len(self.cols),)


EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
HEAD_NORM = "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"

_VOCABULARY = (
    Wanted(EMBEDDING, (Side.EMBEDDING, Side.VOCABULARY), looked_up=True),
    Wanted(HEAD_NORM, (Side.EMBEDDING,)),
    Wanted(HEAD, (Side.EMBEDDING, Side.VOCABULARY), optional=True),  # absent: the embedding, held once
)
_SHARED = (Wanted(ROPE_FACTORS, (Side.ROPE,), optional=True),)


def slices(file: GgufFile, hyper: Hyper, layer: Sequence[Wanted], part: Part) -> list[Slice]:
    """Everything that this part holds, of layers that are declared by `layer`.

    Raises `unsupported-architecture` for a tensor that is missing, unknown, or of another shape than
    declared, and `split-impossible` where a cut would go through a quantization block.
    """
    _refuse_strangers(file, {each.name for each in layer})
    named = [(each.name, each) for each in (*_SHARED, *(_VOCABULARY if part.lead else ()))]
    for index in part.layers.range():
        named += [(f"blk.{index}.{each.name}", each) for each in layer]
    return list(_present(file, named, _spans(hyper, part), first=part.rank == 0))


def _present(
    file: GgufFile, named: list[tuple[str, Wanted]], spans: dict[Side, tuple[int, Span]], *, first: bool
) -> Iterator[Slice]:
    for name, wanted in named:
        fact = file.tensors.get(name)
        if fact is None:
            if not wanted.optional:
                raise _unsupported(file, f"lacks {name}")
            continue
        shape = tuple(spans[side][0] for side in wanted.sides)
        if fact.shape != shape:
            raise _unsupported(file, f"has {name} of shape {fact.shape} and not {shape}")
        if first or not wanted.once:
            held = [spans[side][1] for side in wanted.sides]
            _check_blocks(fact, held[0])
            yield Slice(fact, held[1] if len(held) > 1 else Span(0, 1), held[0], wanted.looked_up)


def _spans(hyper: Hyper, part: Part) -> dict[Side, tuple[int, Span]]:
    """Of each side: its length in the file, and the range that this part holds."""
    facts = hyper.facts
    group = hyper.group * facts.head_dim
    kv = part.kv_heads
    whole = {
        Side.EMBEDDING: facts.embedding,
        Side.HEAD_DIM: facts.head_dim,
        Side.VOCABULARY: facts.vocabulary,
        Side.ROPE: hyper.rope.dims // 2,
    }
    return {
        Side.HEADS: (facts.heads * facts.head_dim, Span(kv.lo * group, kv.hi * group)),
        Side.KV_HEADS: (
            facts.kv_heads * facts.head_dim,
            Span(kv.lo * facts.head_dim, kv.hi * facts.head_dim),
        ),
        Side.FEED_FORWARD: (facts.feed_forward, part.feed_forward),
        **{side: (size, Span(0, size)) for side, size in whole.items()},
    }


def _check_blocks(fact: TensorFact, cols: Span) -> None:
    if cols.lo % fact.block or cols.hi % fact.block:
        raise ModelError(
            Reason.SPLIT_IMPOSSIBLE,
            f"columns {cols.lo} to {cols.hi} of {fact.name} cut a {fact.type} block of {fact.block} values",
            hint="cut at whole blocks, or split as a pipeline",
        )


def _refuse_strangers(file: GgufFile, layer: set[str]) -> None:
    """A tensor that no graph uses means a model that would run and be wrong."""
    shared = {each.name for each in (*_SHARED, *_VOCABULARY)}
    for name in file.tensors:
        prefix, _, rest = name.partition(".")
        if name not in shared and not (prefix == "blk" and rest.partition(".")[2] in layer):
            raise _unsupported(file, f"holds {name}, which no graph here uses")


def _unsupported(file: GgufFile, what: str) -> ModelError:
    return ModelError(
        Reason.UNSUPPORTED_ARCHITECTURE,
        f"{file.path.name} {what}; it is not the {file.arch} model that is supported here",
        hint="convert the model again, or take another one",
    )
