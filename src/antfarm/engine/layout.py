"""Which tensors a shard holds, and which rows and columns of each.

What a tensor's sides count tells the shape that the file must have, and the cut: sides that ranks share
are cut, the others are whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from antfarm import cuts
from antfarm.cuts import EMBEDDING, HEAD, LEAD, ONCE, ROPE_FACTORS, SHARED, SIDES, Side
from antfarm.engine.hyper import Hyper
from antfarm.errors import ModelError, Reason
from antfarm.model.gguf import GgufFile
from antfarm.types import Part, Span, TensorFact


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """The tensors of a layer by their GGUF names, without `blk.N.`."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """What to hold of one tensor of the file: `rows` and `cols` of it, in values."""

    fact: TensorFact
    rows: Span
    cols: Span

    @property
    def matrix(self) -> bool:
        return len(self.fact.shape) > 1

    @property
    def looked_up(self) -> bool:
        """Whether rows are taken out by index, so that it must stay in the file's own layout."""
        return self.fact.name == EMBEDDING

    @property
    def shape(self) -> tuple[int, ...]:
        """As ggml has it: `shape[0]` is the contiguous side."""
        return (len(self.cols), len(self.rows)) if self.matrix else (len(self.cols),)


def slices(file: GgufFile, hyper: Hyper, layer: LayerTensors, part: Part) -> list[Slice]:
    """Everything that this part holds.

    Raises `unsupported-architecture` for a tensor that is missing, unknown, or of another shape than
    its sides have, and `split-impossible` where a cut would go through a quantization block.
    """
    _refuse_strangers(file, layer)
    return [
        _slice(file, hyper, part, name)
        for name in _names(file, layer, part)
        if part.rank == 0 or cuts.layer_of(name)[1] not in ONCE
    ]


def _names(file: GgufFile, layer: LayerTensors, part: Part) -> Iterator[str]:
    """Of the tensors to hold. A head that is absent is the embedding, which is held once for both."""
    required = list(_of_halves(part.halves, layer.required))
    optional = list(_of_halves(part.halves, layer.optional))
    if part.lead:
        required += LEAD - {HEAD}
        optional.append(HEAD)
    yield from required
    yield from (name for name in (*optional, ROPE_FACTORS) if name in file.tensors)


def _of_halves(halves: Span, names: Iterable[str]) -> Iterator[str]:
    for half in halves.range():
        layer = half // 2
        yield from (f"blk.{layer}.{name}" for name in names if cuts.half_of(layer, name) == half)


def _slice(file: GgufFile, hyper: Hyper, part: Part, name: str) -> Slice:
    fact = file.tensors.get(name)
    if fact is None:
        raise _unsupported(file, f"lacks {name}")
    sides = SIDES[cuts.layer_of(name)[1]]
    shape = tuple(_length(side, hyper) for side in sides)
    if fact.shape != shape:
        raise _unsupported(file, f"has {name} of shape {fact.shape} and not {shape}")
    held = [
        cuts.held(side, hyper.facts, part) if side in SHARED else Span(0, _length(side, hyper))
        for side in sides
    ]
    _check_blocks(fact, held[0])
    return Slice(fact, held[1] if len(held) > 1 else Span(0, 1), held[0])


def _length(side: Side, hyper: Hyper) -> int:
    if side in SHARED:
        return cuts.length(side, hyper.facts)
    return {
        Side.EMBEDDING: hyper.facts.embedding,
        Side.HEAD_DIM: hyper.facts.head_dim,
        Side.VOCABULARY: hyper.facts.vocabulary,
        Side.ROPE: hyper.rope.dims // 2,
    }[side]


def _check_blocks(fact: TensorFact, cols: Span) -> None:
    if cols.lo % fact.block or cols.hi % fact.block:
        raise ModelError(
            Reason.SPLIT_IMPOSSIBLE,
            f"columns {cols.lo} to {cols.hi} of {fact.name} cut a {fact.type} block of {fact.block} values",
            hint="cut at whole blocks, or split as a pipeline",
        )


def _refuse_strangers(file: GgufFile, layer: LayerTensors) -> None:
    """A tensor that no graph uses means a model that would run and be wrong."""
    known, layers = {*layer.required, *layer.optional}, file.facts.layers
    for name in file.tensors:
        index, short = cuts.layer_of(name)
        used = short in LEAD | {ROPE_FACTORS} if index is None else short in known and index < layers
        if not used:
            raise _unsupported(file, f"holds {name}, which no graph here uses")


def _unsupported(file: GgufFile, what: str) -> ModelError:
    return ModelError(
        Reason.UNSUPPORTED_ARCHITECTURE,
        f"{file.path.name} {what}; it is not the {file.arch} model that is supported here",
        hint="convert the model again, or take another one",
    )
