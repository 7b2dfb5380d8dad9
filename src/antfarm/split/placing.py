"""Which hosts, shards, slots and context: the first plan that fits, or a refusal with its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace as replaced

import msgspec

from antfarm.errors import PlanError, Reason
from antfarm.split import settings
from antfarm.split.layout import Layout, Units, layouts
from antfarm.split.memory import MIB, Footprint
from antfarm.split.planner import Planner
from antfarm.split.request import HostShare, Placement, SplitRequest
from antfarm.types import DEFAULT_SLOTS, ModelFacts, Plan, RunOptions, default_context

MIN_CONTEXT = 512  # tokens a slot keeps when the context is chosen by the memory there is
_CONTEXT_STEP = 256
_BOUNDLESS = 1 << 62  # bytes


def plan(
    facts: ModelFacts, hosts: Sequence[HostShare], request: SplitRequest, options: RunOptions
) -> Placement:
    """A plan for exactly these hosts, shard i on `hosts[i]`.

    Slots of 0 become as many as fit, up to the default. A context of 0 becomes the default one, or where not
    even one slot of that fits, the longest that does, down to `MIN_CONTEXT`. Raises `PlanError`:
    `split-impossible` with what would work, `no-capacity` with the bytes needed and there.
    """
    if request.shards not in (0, len(hosts)):
        raise ValueError(f"{len(hosts)} hosts for a split of {request.shards}")
    search = _Search(facts, request, options)
    for shortened in (False, True):
        if placement := search.on(hosts, shortened=shortened):
            return placement
    raise search.refusal(hosts)


def place(
    facts: ModelFacts, hosts: Sequence[HostShare], request: SplitRequest, options: RunOptions
) -> Placement:
    """Choose among `hosts`, one shard each: `request.shards` of them, or as few as the model fits on.

    Hosts that run fewer shards come first, then the faster ones; where those lack memory, the ones that have
    most of it. Fewer hosts come before more slots, but a whole context on more hosts before a shortened one
    on fewer. Raises as `plan` does.
    """
    search = _Search(facts, request, options)
    if request.least > len(hosts):
        raise _too_few_hosts(request.least, hosts)
    counts = [request.shards] if request.shards else search.counts(len(hosts))
    for shortened in (False, True):
        for count in counts:
            for chosen in _candidates(hosts, count):
                if placement := search.on(chosen, shortened=shortened):
                    return placement
    raise search.refusal(next(_candidates(hosts, counts[-1], memory_first=True)))


def fewest(
    facts: ModelFacts, hosts: Sequence[HostShare], request: SplitRequest, options: RunOptions
) -> Placement:
    """`place` on the smallest number of hosts that fits, whatever `request.shards` says."""
    return place(facts, hosts, replaced(request, shards=0), options)


def _candidates(
    hosts: Sequence[HostShare], count: int, *, memory_first: bool = False
) -> Iterator[list[HostShare]]:
    """Hosts for so many shards, the lead's first: by idleness and speed, then by memory."""
    by_speed = sorted(hosts, key=lambda host: (host.shards, -host.weight, -host.memory, host.name))
    by_memory = sorted(hosts, key=lambda host: (-host.memory, -host.weight, host.name))
    if not memory_first:
        yield by_speed[:count]
    yield by_memory[:count]


class _Search:
    """One request, tried on hosts."""

    def __init__(self, facts: ModelFacts, request: SplitRequest, options: RunOptions) -> None:
        settings.check(facts, options)
        self._facts = facts
        self._footprint = Footprint(facts)
        self._request = request
        self._options = options
        self._context = options.context or default_context(facts.context)
        self._slots = [options.slots] if options.slots else list(range(DEFAULT_SLOTS, 0, -1))

    def counts(self, most: int) -> list[int]:
        """Numbers of shards that this request allows, ascending. Raises `split-impossible` if none."""
        least = self._request.least
        most = len(self._request.shares) or most
        allowed = [count for count in range(least, most + 1) if self._layouts(count, strict=False)]
        if not allowed:
            self._layouts(least, strict=True)
        return allowed or [least]

    def on(self, hosts: Sequence[HostShare], *, shortened: bool) -> Placement | None:
        """A plan for exactly these hosts: with the whole context and as many slots as fit, or `shortened`:
        the fewest slots, and of the shorter contexts the longest that fits."""
        hosts = self._weighed(hosts)
        forms = self._layouts(len(hosts), strict=True)
        if not shortened:
            tries = (self._at(hosts, forms, self._context, slots) for slots in self._slots)
            return next(filter(None, tries), None)
        if self._options.context:
            return None
        low, high = MIN_CONTEXT // _CONTEXT_STEP, (self._context - 1) // _CONTEXT_STEP
        found = None
        while low <= high:
            middle = (low + high) // 2
            if fitting := self._at(hosts, forms, middle * _CONTEXT_STEP, self._slots[-1]):
                found, low = fitting, middle + 1
            else:
                high = middle - 1
        return found

    def refusal(self, hosts: Sequence[HostShare]) -> PlanError:
        """Why these hosts do not do, with numbers, and what would."""
        context = self._context if self._options.context else min(self._context, MIN_CONTEXT)
        plan = self._boundless(len(hosts), context)
        needs = [memory.total for memory in plan.memory]
        pairs = [
            f"{_mib(need)} of {host.name}'s {_mib(host.memory)}"
            for need, host in zip(needs, hosts, strict=True)
        ]
        form = "unsplit" if len(hosts) == 1 else f"as a {plan.mode} split of {len(hosts)}"
        slots = self._slots[-1]
        size = f"a context of {context}" if slots == 1 else f"{slots} contexts of {context}"
        return PlanError(
            Reason.NO_CAPACITY,
            f"{self._facts.name} {form} with {size} needs {', '.join(pairs)}",
            hint=self._what_would_work(len(hosts), max(host.memory for host in hosts), context),
            needed=sum(needs),
            available=sum(host.memory for host in hosts),
            shards=len(hosts),
            context=context,
            slots=slots,
        )

    def _what_would_work(self, shards: int, memory: int, context: int) -> str:
        most = max(self._facts.layers, Units.of(self._facts).max_ranks)
        enough = -(-sum(self._footprint.half_bytes) // memory) if memory else most + 1
        for count in range(max(shards + 1, enough), most + 1):
            forms = self._layouts(count, strict=False)
            if forms and (fits := self._at([HostShare("", memory)] * count, forms, context, self._slots[-1])):
                largest = max(need.total for need in fits.plan.memory)
                return f"split={count} would need at most {_mib(largest)} on each of {count} hosts"
        return "give the foragers more memory, or take a smaller model, quantization or context"

    def _boundless(self, shards: int, context: int) -> Plan:
        """The even plan that memory would not stop."""
        hosts = [HostShare("", _BOUNDLESS) for _ in range(shards)]
        placement = self._at(hosts, self._layouts(shards, strict=True), context, self._slots[-1])
        assert placement is not None, "only memory makes a checked layout fail"
        return placement.plan

    def _at(
        self, hosts: Sequence[HostShare], forms: Sequence[Layout], context: int, slots: int
    ) -> Placement | None:
        options = msgspec.structs.replace(self._options, context=context, slots=slots)
        planner = Planner(self._footprint, options)
        for form in forms:
            if plan := planner.plan(form, hosts):
                return Placement(tuple(host.name for host in hosts), plan, options)
        return None

    def _layouts(self, shards: int, *, strict: bool) -> list[Layout]:
        try:
            return layouts(self._facts, self._request, shards)
        except PlanError:
            if strict:
                raise
            return []

    def _weighed(self, hosts: Sequence[HostShare]) -> list[HostShare]:
        """The hosts with the weights that the request asks for."""
        shares = self._request.shares or tuple(host.weight for host in hosts)
        if len(shares) != len(hosts) or min(shares) <= 0:
            text = f"shares {list(shares)} for {len(hosts)} shards"
            raise PlanError(Reason.SPLIT_IMPOSSIBLE, text, hint="give one positive share for each shard")
        return [replaced(host, weight=share) for host, share in zip(hosts, shares, strict=True)]


def _too_few_hosts(count: int, hosts: Sequence[HostShare]) -> PlanError:
    return PlanError(
        Reason.NO_CAPACITY,
        f"split={count} needs {count} foragers; the colony has {len(hosts)}",
        hint="start more foragers, or ask for fewer shards",
        needed_foragers=count,
        foragers=len(hosts),
    )


def _mib(size: int) -> str:
    return f"{-(-size // MIB)} MiB"
