"""One shard's model in this process. All calls from one thread; the engine knows nothing of peers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch
from antfarm.engine import arch, ggml, hyper, layout
from antfarm.engine.kv import KvCache
from antfarm.engine.layers import Layers, Model, Reduce
from antfarm.engine.step import Limits
from antfarm.engine.vocabulary import Vocabulary
from antfarm.engine.weights import Weights
from antfarm.engine.workspace import Workspace
from antfarm.errors import AntfarmError, Reason
from antfarm.model.gguf import GgufFile
from antfarm.types import Memory, ModelFacts, Part, RunOptions, default_context


class Engine:
    """A part of a model, loaded. Arrays that it returns are views: gone with the next call, and never
    to be touched after `close`."""

    def __init__(
        self, layers: Layers, vocabulary: Vocabulary | None, memory: Memory, held: ExitStack
    ) -> None:
        self._layers, self._vocabulary, self._held = layers, vocabulary, held
        self.memory = memory  # as taken; what the process takes beside the engine is not in it

    @classmethod
    def load(
        cls,
        file: GgufFile,
        part: Part,
        options: RunOptions,
        *,
        threads: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Engine:
        """Read this part of the file into memory. `progress(done, total)` counts bytes of weights.

        Raises ModelError for a model that can't be run here, and `bad-setting`, `split-impossible`,
        `no-capacity`.
        """
        with ExitStack() as held:
            layers, vocabulary, memory = _load(file, part, options, threads, progress, held)
            return cls(layers, vocabulary, memory, held.pop_all())

    def embed(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """The lead's: tokens [rows] to hidden rows [rows, embedding]."""
        return self._lead().embed(tokens)

    def forward(
        self, batch: Batch, rows: NDArray[np.float32], reduce: Reduce | None = None
    ) -> NDArray[np.float32]:
        """Hidden rows [rows, embedding] through this shard's layers, writing the KV cache.

        `reduce(partial, total)` is for tensor splits: called after each half layer, it must fill `total`
        with the sum of `partial` over the ranks of the stage.
        """
        return self._layers.run(batch, rows, reduce)

    def logits(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The lead's: final hidden rows [n, embedding] to logits [n, vocabulary]; n up to the slots."""
        return self._lead().logits(rows)

    def normalized(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The lead's: final hidden rows [n, embedding] after the output norm; any n."""
        return self._lead().normalized(rows)

    def close(self) -> None:
        """Give all memory back. May be called twice."""
        self._held.close()

    def _lead(self) -> Vocabulary:
        if self._vocabulary is None:
            raise AntfarmError(Reason.INTERNAL, "only the lead holds the vocabulary")
        return self._vocabulary


def _load(
    file: GgufFile,
    part: Part,
    options: RunOptions,
    threads: int,
    progress: Callable[[int, int], None],
    held: ExitStack,
) -> tuple[Layers, Vocabulary | None, Memory]:
    """Everything checked and allocated before the first weight is read; `held` frees it again."""
    architecture = arch.find(file.arch)
    limits = _limits(file.facts, options, threads)
    numbers = hyper.read(file, limits.context)
    backend = ggml.Backend(options.backend, threads)
    held.callback(backend.free)
    weights = Weights(layout.slices(file, numbers, architecture.tensors, part), backend)
    held.callback(weights.free)
    cache = KvCache(
        backend,
        part.attention,
        heads=len(part.kv_heads),
        head_dim=file.facts.head_dim,
        context=limits.context,
        slots=limits.slots,
        kind=options.kv_type,
    )
    held.callback(cache.free)
    workspace = Workspace(backend)
    held.callback(workspace.free)
    layers = Layers(Model(part, numbers, architecture, weights, cache), limits, backend, workspace)
    held.callback(layers.free)
    layers.reserve()
    vocabulary = None
    if part.lead:
        vocabulary = Vocabulary(
            numbers, weights, limits, hidden=layers.hidden, backend=backend, workspace=workspace
        )
        held.callback(vocabulary.free)
        vocabulary.reserve()
    weights.load(file, progress)
    compute = workspace.bytes + layers.bytes + (vocabulary.bytes if vocabulary else 0)
    return layers, vocabulary, Memory(weights.bytes, cache.bytes, compute, runtime=0)


def _limits(facts: ModelFacts, options: RunOptions, threads: int) -> Limits:
    context = options.context or default_context(facts.context)
    slots = options.slots or 1
    numbers = {"context": context, "slots": slots, "chunk": options.chunk, "threads": threads}
    for name, value in numbers.items():
        if value < 1:
            raise AntfarmError(Reason.BAD_SETTING, f"{name} is {value}, and must be at least 1")
    return Limits(context, slots, min(options.chunk, context))
