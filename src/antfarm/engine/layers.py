"""This shard's layers as static graphs: built once for each shape of a step, and kept.

Unsplit and pipeline shards run all their layers in one graph. A rank of a tensor split runs one graph
per half layer; between them the caller sums the ranks' partial results, and the next graph starts by
adding that sum to the hidden rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch
from antfarm.engine import ggml, ops
from antfarm.engine.arch.architecture import Architecture, Half
from antfarm.engine.builder import Builder
from antfarm.engine.hyper import Hyper
from antfarm.engine.kv import KvCache
from antfarm.engine.regions import Regions
from antfarm.engine.step import REGIONS, Limits, StepInputs, StepShape, largest, shape_of
from antfarm.engine.weights import Weights
from antfarm.engine.workspace import Workspace
from antfarm.errors import AntfarmError, Reason
from antfarm.types import Part

Rows = NDArray[np.float32]
Reduce = Callable[[Rows, Rows], None]

KEPT_STEPS = 16
_NODES = 48  # tensors and graph nodes of a half layer, at most


@dataclass(frozen=True, slots=True)
class Model:
    """What the graphs of one shard are made of."""

    part: Part
    hyper: Hyper
    architecture: Architecture
    weights: Weights
    cache: KvCache


@dataclass(frozen=True, slots=True)
class _Step:
    """The graphs of one shape, and its rows in the regions."""

    context: ggml.Context
    graphs: list[ggml.Graph]
    hidden: Rows
    partial: Rows
    total: Rows


class Layers:
    """Runs steps over hidden rows that it changes in place."""

    def __init__(self, model: Model, limits: Limits, backend: ggml.Backend, workspace: Workspace) -> None:
        """Allocates the inputs; `reserve` comes before the first step."""
        self._model, self._limits, self._backend, self._workspace = model, limits, backend, workspace
        self._split = model.part.ranks > 1
        self._width = model.hyper.facts.embedding
        self._steps: OrderedDict[StepShape, _Step] = OrderedDict()
        self._regions = Regions(backend, REGIONS + 3)
        self.hidden = self._regions.add("f32", limits.rows * self._width)
        self._inputs = StepInputs(self._regions, limits)
        exchanged = limits.rows * self._width if self._split else 1
        self._partial = self._regions.add("f32", exchanged)
        self._total = self._regions.add("f32", exchanged)
        self._regions.allocate()
        self._headers = 0

    def reserve(self) -> None:
        """Make the workspace large enough for every step."""
        for shape in largest(self._limits):
            step = self._build(shape)
            try:
                for graph in step.graphs:
                    self._workspace.reserve(graph)
            finally:
                step.context.free()
            self._headers = max(self._headers, step.context.size)

    @property
    def bytes(self) -> int:
        """Of inputs and kept graphs; the workspace counts itself."""
        return self._regions.bytes + KEPT_STEPS * self._headers

    def run(self, batch: Batch, rows: Rows, reduce: Reduce | None) -> Rows:
        """The hidden rows [rows, embedding] after this shard's layers: a view that the next step
        overwrites. `rows` may be that view itself."""
        shape = shape_of(batch, self._limits)
        self._check(rows, shape, reduce)
        step = self._step(shape)
        if batch.copy:
            self._model.cache.copy(batch.copy)
        self._inputs.fill(batch, shape)
        step.hidden[:] = rows
        self.hidden.push(rows.size)
        for graph in step.graphs:
            self._backend.compute(graph)
            if reduce is not None:
                self._partial.pull(rows.size)
                reduce(step.partial, step.total)
                self._total.push(rows.size)
        self.hidden.pull(rows.size)
        if reduce is not None:
            np.add(step.hidden, step.total, out=step.hidden)
        return step.hidden

    def _check(self, rows: Rows, shape: StepShape, reduce: Reduce | None) -> None:
        if rows.shape != (shape.rows, self._width):
            raise AntfarmError(
                Reason.INTERNAL,
                f"hidden rows of shape {rows.shape} do not fit a step of {shape.rows} x {self._width}",
            )
        if (reduce is not None) != self._split:
            raise AntfarmError(Reason.INTERNAL, "ranks of a tensor split exchange sums; others do not")

    def _step(self, shape: StepShape) -> _Step:
        step = self._steps.get(shape)
        if step is not None:
            self._steps.move_to_end(shape)
            return step
        if len(self._steps) == KEPT_STEPS:
            self._steps.popitem(last=False)[1].context.free()
        step = self._steps[shape] = self._build(shape)
        for graph in step.graphs:
            self._workspace.place(graph)
        return step

    def _build(self, shape: StepShape) -> _Step:
        halves = list(self._halves())
        graphs = len(halves) if self._split else 1
        tensors = _NODES * max(1, len(halves))
        nodes = tensors // graphs
        context = ggml.Context(tensors, graphs, nodes)
        builders = [
            Builder(
                context,
                ggml.Graph(context, nodes),
                self._model.hyper,
                self._model.weights,
                self._model.cache,
                self._inputs,
                shape,
            )
            for _ in range(graphs)
        ]
        if self._split:
            self._build_split(builders, halves)
        else:
            self._build_whole(builders[0], halves)
        sides = (shape.rows, self._width)
        exchanged = sides if self._split else (0, self._width)
        return _Step(
            context,
            [builder.graph for builder in builders],
            self.hidden.rows(*sides),
            self._partial.rows(*exchanged),
            self._total.rows(*exchanged),
        )

    def _build_whole(self, b: Builder, halves: list[tuple[int, Half]]) -> None:
        h = self.hidden.view(b.context, self._width, b.shape.rows)
        for layer, half in halves:
            h = ops.add_into(b.context, h, half(b, layer, h))
        b.graph.add(h)

    def _build_split(self, builders: list[Builder], halves: list[tuple[int, Half]]) -> None:
        for b, (layer, half) in zip(builders, halves, strict=True):
            h = self.hidden.view(b.context, self._width, b.shape.rows)
            if b is not builders[0]:
                h = ops.add_into(b.context, h, self._total.view(b.context, self._width, b.shape.rows))
            b.graph.add(self._partial.receive(half(b, layer, h)))

    def _halves(self) -> Iterator[tuple[int, Half]]:
        architecture = self._model.architecture
        for half in self._model.part.halves.range():
            yield half // 2, architecture.feed_forward if half % 2 else architecture.attention

    def free(self) -> None:
        for step in self._steps.values():
            step.context.free()
        self._steps.clear()
        self._regions.free()
