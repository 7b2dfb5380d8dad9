"""The lead's part: tokens to hidden rows, and hidden rows to logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antfarm.cuts import EMBEDDING, HEAD, HEAD_NORM
from antfarm.engine import ggml, ops
from antfarm.engine.hyper import Hyper
from antfarm.engine.regions import Region, Regions
from antfarm.engine.step import Limits
from antfarm.engine.weights import Weights
from antfarm.engine.workspace import Workspace
from antfarm.errors import AntfarmError, Reason

_NODES = 16  # tensors and graph nodes, at most


class Vocabulary:
    """Embedding and output head, with one small graph for each number of rows."""

    def __init__(
        self,
        hyper: Hyper,
        weights: Weights,
        limits: Limits,
        *,
        hidden: Region,
        backend: ggml.Backend,
        workspace: Workspace,
    ) -> None:
        self._hyper, self._weights, self._limits = hyper, weights, limits
        self._backend, self._workspace = backend, workspace
        self._hidden = hidden
        self._regions = Regions(backend, 3)
        self._tokens = self._regions.add("i32", limits.rows)
        self._outputs = self._regions.add("f32", limits.slots * hyper.facts.embedding)
        self._logits = self._regions.add("f32", limits.slots * hyper.facts.vocabulary)
        self._regions.allocate()
        self._contexts: list[ggml.Context] = []
        self._embeddings: dict[int, ggml.Graph] = {}
        self._heads: dict[int, ggml.Graph] = {}

    def reserve(self) -> None:
        """Make the workspace large enough for every call."""
        self._workspace.reserve(self._build_embedding(self._limits.rows))
        self._workspace.reserve(self._build_head(self._limits.slots))

    @property
    def bytes(self) -> int:
        return self._regions.bytes

    def embed(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """[rows] → [rows, embedding]: a view that the next step overwrites."""
        rows, facts = len(tokens), self._hyper.facts
        if not 0 < rows <= self._limits.rows or tokens.min() < 0 or tokens.max() >= facts.vocabulary:
            raise AntfarmError(
                Reason.INTERNAL, f"{rows} tokens can't be embedded at once, or are none of this vocabulary"
            )
        if rows not in self._embeddings:
            self._embeddings[rows] = self._build_embedding(rows)
            self._workspace.place(self._embeddings[rows])
        self._tokens.array[:rows] = tokens
        self._tokens.push(rows)
        self._backend.compute(self._embeddings[rows])
        self._hidden.pull(rows * facts.embedding)
        return self._hidden.rows(rows, facts.embedding)

    def logits(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, embedding] → [n, vocabulary], for at most as many rows as slots: a view that the next
        call overwrites."""
        count, facts = len(rows), self._hyper.facts
        if rows.shape != (count, facts.embedding) or not 0 < count <= self._limits.slots:
            raise AntfarmError(
                Reason.INTERNAL, f"no logits of rows {rows.shape}; this lead has {self._limits.slots} slots"
            )
        if count not in self._heads:
            self._heads[count] = self._build_head(count)
            self._workspace.place(self._heads[count])
        self._outputs.rows(count, facts.embedding)[:] = rows
        self._outputs.push(rows.size)
        self._backend.compute(self._heads[count])
        self._logits.pull(count * facts.vocabulary)
        return self._logits.rows(count, facts.vocabulary)

    def normalized(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, embedding] → [n, embedding] after the output norm, as the head gets them."""
        scale = np.empty(self._hyper.facts.embedding, np.float32)
        ggml.read(self._weights[HEAD_NORM], scale)
        mean = np.mean(np.square(rows), axis=1, keepdims=True)
        normal: NDArray[np.float32] = rows / np.sqrt(mean + np.float32(self._hyper.eps)) * scale
        return normal

    def _build_embedding(self, rows: int) -> ggml.Graph:
        context, graph = self._graph()
        tokens = self._tokens.view(context, rows)
        graph.add(self._hidden.receive(ops.get_rows(context, self._weights[EMBEDDING], tokens)))
        return graph

    def _build_head(self, rows: int) -> ggml.Graph:
        context, graph = self._graph()
        x = self._outputs.view(context, self._hyper.facts.embedding, rows)
        x = ops.mul(context, ops.rms_norm(context, x, self._hyper.eps), self._weights[HEAD_NORM])
        head = self._weights.get(HEAD, self._weights[EMBEDDING])
        graph.add(self._logits.receive(ops.mul_mat(context, head, x)))
        return graph

    def _graph(self) -> tuple[ggml.Context, ggml.Graph]:
        context = ggml.Context(_NODES, 1, _NODES)
        self._contexts.append(context)
        return context, ggml.Graph(context, _NODES)

    def free(self) -> None:
        for context in self._contexts:
            context.free()
        self._regions.free()
