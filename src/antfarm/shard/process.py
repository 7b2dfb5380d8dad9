"""A shard's life: listen, load, link, serve. Whatever goes wrong ends it with one `ShardFailed`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import psutil

from antfarm.config import LINK_S, LOAD_S
from antfarm.engine import Engine
from antfarm.errors import AntfarmError, LinkError, ModelError, Reason, StateError
from antfarm.link.listener import Listener
from antfarm.link.mesh import Mesh, MeshSpec
from antfarm.messages import (
    Failure,
    Peer,
    ReplicaProved,
    ShardFailed,
    ShardLink,
    ShardLinked,
    ShardListening,
    ShardLoaded,
    ShardProgress,
    ShardSpec,
    TaskAssign,
    TaskFinished,
)
from antfarm.model.gguf import GgufFile
from antfarm.secret import Secret
from antfarm.shard.follower import follow
from antfarm.shard.meter import Meter, telling
from antfarm.shard.pipeline import Pipeline
from antfarm.shard.stdio import Stdio
from antfarm.types import default_context

if TYPE_CHECKING:  # followers import no tokenizer
    from antfarm.shard.intake import Intake

PROGRESS_S = 0.1  # between two ShardProgress events
SWITCH_S = 0.0005  # that a thread which prepares a prompt may keep the one that computes waiting

log = logging.getLogger(__name__)


def run() -> int:
    """Serve one shard until the forager ends it; returns the exit code of a shard that failed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stdio = Stdio.claim()
    spec = stdio.read()
    if spec is None:
        return 0
    if not isinstance(spec, ShardSpec):
        log.error("the first line on stdin is %s instead of a shard-spec", type(spec).__name__)
        return 2
    shard = Shard(spec, stdio)
    stdio.listen(shard.fail)
    try:
        shard.serve()
    except AntfarmError as error:
        shard.fail(error)
    except Exception as error:
        log.exception("shard %d broke", spec.load.shard)
        shard.fail(AntfarmError(Reason.INTERNAL, f"{type(error).__name__}: {error}"))
    return 1


class Shard:
    """One shard process; `spec` is the first line that its forager wrote."""

    def __init__(self, spec: ShardSpec, stdio: Stdio) -> None:
        self._spec = spec
        self._stdio = stdio
        self._id = (spec.load.replica, spec.load.epoch, spec.load.shard)
        self._part = spec.load.plan.parts[spec.load.shard]
        self._options = spec.load.options
        self._peers: tuple[Peer, ...] = ()

    def serve(self) -> None:
        """From listening to the last step. Returns when the links were stopped."""
        spec = self._spec
        listener = Listener.bind(spec.address)
        self._stdio.emit(ShardListening(*self._id, spec.address, listener.port, os.getpid()))
        began = time.monotonic()
        with GgufFile.open(spec.path) as file:
            self._check(file)
            facts, options = file.facts, self._spec.load.options
            width, context = facts.embedding, options.context or default_context(facts.context)
            intake = self._intake(file, context) if self._part.lead else None
            self._options = msgspec.structs.replace(
                options, context=context, slots=options.slots or 1, chunk=min(options.chunk, context)
            )
            runtime = psutil.Process().memory_info().rss
            engine = Engine.load(
                file,
                self._part,
                self._options,
                threads=spec.threads,
                progress=self._progress(),
            )
        with contextlib.closing(engine):
            memory = msgspec.structs.replace(engine.memory, runtime=runtime)
            self._stdio.emit(ShardLoaded(*self._id, memory, time.monotonic() - began))
            self._peers = self._await_link().peers
            with Mesh.connect(listener, self._mesh_spec(width), self._peers) as mesh:
                self._stdio.emit(ShardLinked(*self._id))
                counted = Meter(engine, mesh, ranks=self._part.ranks)
                if intake:
                    self._lead(Pipeline(engine, mesh, counted), counted, intake)
                else:
                    with telling(lambda: counted.stats(*self._id, None), self._stdio.emit):
                        follow(counted, mesh)

    def fail(self, error: AntfarmError) -> None:
        """Tell the forager why this shard ends."""
        log.error("shard %d failed: %s", self._spec.load.shard, error)
        lost = None
        if isinstance(error, LinkError):
            lost = next((peer.shard for peer in self._peers if peer.name == error.peer), None)
        with contextlib.suppress(OSError):  # nobody listens any more
            self._stdio.emit(ShardFailed(*self._id, Failure.of(error), lost))

    def _check(self, file: GgufFile) -> None:
        found, wanted = file.facts.fingerprint, self._spec.load.fingerprint
        if found != wanted:
            raise ModelError(
                Reason.MODEL_MISMATCH,
                f"{self._spec.path} is another model than the one that was planned: "
                f"fingerprint {found[:12]}, expected {wanted[:12]}",
                hint="copy the same file to all hosts, or pull it again",
            )

    def _intake(self, file: GgufFile, context: int) -> Intake:
        from antfarm.shard.intake import Intake

        return Intake.from_gguf(file, context)

    def _progress(self) -> Callable[[int, int], None]:
        told = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal told
            if done == total or time.monotonic() - told >= PROGRESS_S:
                told = time.monotonic()
                self._stdio.emit(ShardProgress(*self._id, done, total))

        return progress

    def _await_link(self) -> ShardLink:
        """The command to link; it comes when all shards have loaded."""
        deadline = time.monotonic() + LOAD_S + LINK_S
        while (left := deadline - time.monotonic()) > 0:
            command = self._stdio.get(left)
            if isinstance(command, ShardLink):
                return command
            if isinstance(command, TaskAssign):
                error = StateError(Reason.MODEL_LOADING, "the model is loading", hint="try again later")
                self._stdio.emit(TaskFinished(command.task, 0, "error", failure=Failure.of(error)))
        raise AntfarmError(
            Reason.TIMEOUT,
            f"not told to link within {LOAD_S + LINK_S:g} s of being loaded",
            hint="another shard may have failed to load; `antc ops` says which",
        )

    def _mesh_spec(self, width: int) -> MeshSpec:
        load = self._spec.load
        return MeshSpec(
            load.replica,
            load.epoch,
            load.fingerprint,
            load.plan,
            load.shard,
            self._options,
            width,
            Secret(self._spec.secret),
        )

    def _lead(self, pipeline: Pipeline, counted: Meter, intake: Intake) -> None:
        from antfarm.shard.lead import Lead

        sys.setswitchinterval(SWITCH_S)
        stages = len(self._spec.load.plan.stages())
        lead = Lead(pipeline, self._options, stages, intake.start(self._stdio.post), self._stdio.emit)
        began = time.monotonic()
        lead.prove(intake.tokenizer.bos or 0)
        self._stdio.emit(ReplicaProved(*self._id[:2], time.monotonic() - began))
        with telling(lambda: counted.stats(*self._id, lead.stats()), self._stdio.emit):
            lead.serve(self._stdio.get)
