"""What the colony says when it can't: every sentence in one place."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from antfarm.colony.state import Model, Phase, Replica
from antfarm.errors import AntfarmError, ModelError, PlanError, Reason, RequestError, StateError, cut
from antfarm.messages import Failure, ForagerFacts, LoadModel
from antfarm.types import ModelFacts

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


def introduce(facts: ForagerFacts, live: Sequence[ForagerFacts]) -> str:
    """What the ops log says of a forager that joins those that live."""
    text = (
        f"{facts.host}: {facts.cores} cores, {facts.memory >> 20} MiB for shards, {', '.join(facts.backends)}"
    )
    beside = [one for one in live if one.host == facts.host and one.id != facts.id]
    threads = facts.threads + sum(one.threads for one in beside)
    if beside and threads > facts.cores:
        names = ", ".join(one.id for one in beside)
        text += f"; with {names} it has {threads} threads there: --threads shares the cores out"
    sharing = [one.id for one in live if one.machine == facts.machine and one.id != facts.id]
    if sharing and not facts.memory_told:
        text += f"; it shares that memory with {', '.join(sharing)}: --memory tells it how much it may take"
    return text


def check_load(ask: LoadModel, name: str, model: Model | None, known: Sequence[str], foragers: int) -> None:
    """Raise why a load can't even begin."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            Reason.INVALID_REQUEST,
            f"{cut(name)!r} can't name a model",
            hint="use up to 64 letters, digits, '.', '_', ':' and '-', beginning with a letter or digit",
        )
    if ask.replicas < 1 or (ask.reshard and ask.replicas > 1):
        raise RequestError(
            Reason.INVALID_REQUEST,
            "a new split keeps the number of replicas" if ask.reshard else "a model has at least one replica",
            hint=f"`antc unload {name}`, then `antc load` with --replicas, changes it",
        )
    if ask.reshard and model is None:
        raise unknown(name, known, retired=False)
    for replica in model.replicas() if model else ():
        if replica.phase is Phase.READY and not ask.reshard:
            raise StateError(
                Reason.MODEL_LOADED,
                f"{name} is loaded already",
                hint=f"`antc shard {name} --split N` changes its split, `antc unload {name}` ends it",
            )
        if replica.phase not in (Phase.READY, Phase.ENDED):
            raise not_ready(replica)
    if foragers < ask.replicas:
        there = f"{ask.replicas} replicas need as many foragers; the colony has {foragers}"
        raise PlanError(
            Reason.NO_CAPACITY,
            there if foragers else "no forager is in the colony",
            hint="start one on each host with `antc forager --join`",
            foragers=foragers,
        )


def unknown(name: str, known: Sequence[str], *, retired: bool) -> AntfarmError:
    loaded = f"loaded: {', '.join(known)}" if known else "no model is loaded"
    if retired:
        return StateError(
            Reason.MODEL_RETIRED,
            f"the model {cut(name)!r} was unloaded",
            hint=f"{loaded}; `antc load` loads it again",
        )
    return ModelError(
        Reason.MODEL_UNKNOWN, f"no model {cut(name)!r} is loaded", hint=f"{loaded}; `antc load` loads one"
    )


def never_loaded(name: str) -> AntfarmError:
    """Why a load that failed can't be unloaded; it is forgotten, though."""
    return ModelError(
        Reason.MODEL_UNKNOWN, f"{name} did not load: there is nothing to unload", hint="it is listed no more"
    )


def not_ready(replica: Replica) -> AntfarmError:
    """Why a replica takes no task."""
    failure = replica.failure
    if replica.phase is Phase.ENDED and failure:
        if replica.ready is not None:
            return failure.error()
        error = failure.error()
        error.message = f"{replica.model} did not load: {failure.message}"
        return error
    done = sum(shard.done for shard in replica.shards) / max(1, len(replica.shards))
    return StateError(
        Reason.MODEL_LOADING,
        f"{replica.model} is loading ({replica.phase.value}, {done:.0%} of its weights)",
        hint="try again in a moment; `antc ps` shows how far it is",
    )


def ending(replica: Replica, shard: int | None, cause: Failure) -> Failure:
    """Why a replica is no more: what a request hears from now on, where no other replica serves."""
    if replica.ready is None:
        return cause if shard is None else _naming(replica.title(shard), cause)
    which = replica.title(shard) if shard is not None else "a shard"
    return Failure(
        Reason.SHARD_MISSING,
        f"{replica.name if replica.ask.replicas > 1 else replica.model} misses {which}: {cause.message}",
        f"`antc shard {replica.model}` brings it back on the foragers that are there",
        {"shard": -1 if shard is None else shard, "cause": cause.reason},
    )


def gave_way(replica: Replica) -> Failure:
    """Why a replica is no more that ended for its new split, which then failed."""
    return Failure(
        Reason.SHARD_MISSING,
        f"{replica.name if replica.ask.replicas > 1 else replica.model} gave its memory to a new split",
        f"`antc shard {replica.model}` brings it back on the foragers that are there",
    )


def _naming(title: str, cause: Failure) -> Failure:
    """The cause, which says of which shard it is."""
    if title in cause.message or cause.reason == Reason.FORAGER_LOST:
        return cause
    return msgspec.structs.replace(cause, message=f"{title}: {cause.message}")


def told(replica: Replica, ready: int) -> str:
    """For the ops log, when `ready` replicas of the model serve."""
    assert replica.failure
    if replica.ask.replicas == 1:
        return replica.failure.message
    name = "" if replica.ready is not None else f"{replica.name}: "
    return f"{name}{replica.failure.message}; {ready} of {replica.ask.replicas} replicas serve"


def broken(replica: Replica, shard: int | None, cause: Failure) -> Failure:
    """What the tasks that were running hear."""
    lost = cause.reason == Reason.FORAGER_LOST
    which = replica.title(shard) if shard is not None else "a shard"
    return Failure(
        Reason.FORAGER_LOST if lost else Reason.SHARD_FAILED,
        f"{which} was lost while this task ran: {cause.message}",
        "send the request again once the model is ready",
    )


def retired(model: str) -> Failure:
    return Failure(Reason.MODEL_RETIRED, f"{model} was unloaded or replaced", "send the request again")


def mismatch(replica: Replica, forager: str, found: ModelFacts) -> Failure:
    assert replica.facts
    return Failure(
        Reason.MODEL_MISMATCH,
        f"{forager} holds another file under {replica.ask.model}: fingerprint {found.fingerprint[:12]}, "
        f"elsewhere {replica.facts.fingerprint[:12]}",
        "copy the same file to all hosts, or `antc pull` it again",
    )


def overdue(replica: Replica) -> Failure:
    return Failure(
        Reason.TIMEOUT,
        f"{replica.name} epoch {replica.epoch} is still {replica.phase.value} after its time",
        "see the shards' logs on their hosts",
    )


def vanished(forager: str) -> Failure:
    return Failure(
        Reason.SHARD_FAILED,
        f"{forager} no longer runs it",
        "see that host's logs of the shard and the forager",
    )
