"""Tasks: from a request to the events of its answer, whatever happens to the lead or the client meanwhile."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from antfarm.bus import Bus, Subscription
from antfarm.bus.subjects import FORAGER_ASSIGN, FORAGER_CANCEL, TASK_EVENTS
from antfarm.colony.events import Route
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import (
    ChatMessage,
    Failure,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskEvent,
    TaskFinished,
    TaskOutput,
    TaskTokens,
    Wanted,
)
from antfarm.types import Sampling

log = logging.getLogger(__name__)

SILENCE_S = 60.0  # that a lead with tasks may say nothing
QUIET_S = 180.0  # that a task may give nothing while its lead works on others: far more than a chunk takes
SLOWEST_PREFILL_S = 0.5  # more silence for each prompt token that a lead may be reading
ANSWER_S = 5.0  # that a silent lead has to answer a cancel
BUFFER = 4096  # events that a client may leave unread
DRAIN_S = 30.0  # that a replica's tasks have to finish before it is stopped
CANCEL_AGAIN_S = 5.0  # after which a cancelled task that still gives tokens is cancelled again
CANCELLED = 1024  # such tasks that are remembered


@dataclass(frozen=True)
class TaskRequest:
    """What a client asks of a model: exactly one of `messages`, `text` and `tokens` is set."""

    model: str
    sampling: Sampling
    messages: tuple[ChatMessage, ...] | None = None
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    wanted: Wanted = field(default_factory=Wanted)
    deadline: float | None = None  # seconds for the whole task; None sets no bound


@dataclass(eq=False)
class _Task:
    """One task underway: what has arrived for its client, and how far its answer is."""

    id: str
    lead: _Lead
    heard: float  # when it was last heard of
    inbox: asyncio.Queue[TaskEvent] = field(default_factory=asyncio.Queue)
    tokens: int = 0  # of the answer, so far
    unread: int = 0  # prompt tokens that the lead has yet to read
    sealed: bool = False  # its last event is in the inbox
    running: bool = True  # the lead still works on it, as far as we know

    @property
    def silent_at(self) -> float:
        """When silence becomes a failure: its lead's, or its own unless its prompt waits to be read."""
        silent = self.lead.silent_at
        return silent if self.unread else min(silent, self.heard + QUIET_S)

    def receive(self, event: TaskEvent) -> None:
        """Check that nothing was lost or doubled, and keep for the client."""
        if isinstance(event, TaskFinished):
            self.running = False
            if event.finish == "cancelled":  # a silent lead was asked, and it answers
                self.end(_forgotten(self.lead.route))
        if self.sealed:
            return
        if isinstance(event, TaskAccepted):
            self.unread = event.prompt_tokens
        elif isinstance(event, TaskOutput):
            self.unread = 0
        elif event.index != self.tokens and not (isinstance(event, TaskFinished) and event.failure):
            self.end(_gap(self.tokens, event.index))
            return
        elif isinstance(event, TaskTokens):
            self.tokens += event.count
            self.unread = 0
        if self.inbox.qsize() >= BUFFER:
            self.end(_broken(f"its client left {BUFFER} events unread"))
            return
        self.sealed = isinstance(event, TaskFinished)
        self.inbox.put_nowait(event)

    def end(self, failure: Failure) -> None:
        """End it from this side."""
        if not self.sealed:
            self.sealed = True
            self.inbox.put_nowait(TaskFinished(self.id, self.tokens, "error", failure=failure))


@dataclass(eq=False)
class _Lead:
    """One replica's lead: the tasks that it has, and when it was last heard of."""

    route: Route
    heard: float
    tasks: set[_Task] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def silent_at(self) -> float:
        """When its silence becomes a failure. A lead says nothing while it reads a chunk of a prompt."""
        unread = sum(task.unread for task in self.tasks)
        return self.heard + SILENCE_S + SLOWEST_PREFILL_S * min(unread, self.route.chunk)


class Tasks:
    """All tasks underway. `route` names the lead for a request, or raises why there is none; `silent` is
    told of a lead that has said nothing for too long: for how many seconds, and the failure."""

    def __init__(
        self,
        bus: Bus,
        route: Callable[[TaskRequest], Route],
        silent: Callable[[Route, float, Failure], None],
    ) -> None:
        self._bus = bus
        self._route = route
        self._silent = silent
        self._tasks: dict[str, _Task] = {}
        self._leads: dict[tuple[str, int], _Lead] = {}
        self._cancels: set[asyncio.Task[None]] = set()
        self._cancelled: dict[str, tuple[Route, float]] = {}  # whither, and when last; the oldest first
        self._reader: asyncio.Task[None] | None = None
        self._ending = False

    async def start(self) -> None:
        """Listen for the leads' events."""
        events = await self._bus.subscribe(TASK_EVENTS)
        self._reader = asyncio.create_task(self._read(events))

    def end(self) -> None:
        """End every task with `colony-down`, and take no more: clients hear of it while the API stands."""
        self._ending = True
        for lead in list(self._leads.values()):
            self.fail(lead.route.replica, lead.route.epoch, _closing())

    async def close(self) -> None:
        """End every task, and listen no more."""
        self.end()
        if self._reader:
            self._reader.cancel()
        await asyncio.gather(*self._cancels, return_exceptions=True)

    async def wait(self) -> None:
        """Until nothing is heard any more; raises what broke the listening."""
        if self._reader:
            await asyncio.shield(self._reader)

    async def run(self, request: TaskRequest) -> AsyncGenerator[TaskEvent, None]:
        """The events of a task, the last of them `TaskFinished`.

        What goes wrong before the first event is raised: `model-unknown`, `model-loading`,
        `shard-missing`, `model-retired`, `context-overflow`, `forager-lost`, ...; later it is the
        `failure` of the `TaskFinished`. Closing the iterator early cancels the task at the lead.
        """
        if self._ending:
            raise _closing().error()
        began = _now()
        task = self._open(self._route(request))
        assigned = asyncio.create_task(self._assign(task, request))
        try:
            await asyncio.shield(assigned)
            event = await self._next(task, began, request.deadline)
            if isinstance(event, TaskFinished) and event.failure:
                raise event.failure.error()
            yield event
            while not isinstance(event, TaskFinished):
                event = await self._next(task, began, request.deadline)
                yield event
        finally:
            self._close(task, assigned)

    def underway(self) -> dict[tuple[str, int], int]:
        """How many tasks each replica has, by its name and epoch."""
        return {key: len(lead.tasks) for key, lead in self._leads.items()}

    def hear_lead(self, replica: str, epoch: int) -> None:
        """A lead has done something, though it may have said nothing of its tasks."""
        if lead := self._leads.get((replica, epoch)):
            lead.heard = _now()

    def fail(self, replica: str, epoch: int, failure: Failure) -> None:
        """End all tasks of a replica that is no more."""
        lead = self._leads.get((replica, epoch))
        for task in lead.tasks if lead else ():
            task.running = False
            task.end(failure)

    async def drain(self, replica: str, epoch: int) -> None:
        """Return when no task runs on the replica: they have `DRAIN_S` to finish, then they are ended."""
        lead = self._leads.get((replica, epoch))
        if lead is None:
            return
        try:
            await asyncio.wait_for(lead.idle.wait(), DRAIN_S)
        except TimeoutError:
            self.fail(replica, epoch, _retired(lead.route.model))

    # ---- one task

    def _open(self, route: Route) -> _Task:
        key = (route.replica, route.epoch)
        lead = self._leads.get(key)
        if lead is None:
            lead = self._leads[key] = _Lead(route, _now())
        if not lead.tasks:
            lead.heard = _now()
        task = _Task(uuid.uuid4().hex, lead, _now())
        lead.tasks.add(task)
        self._tasks[task.id] = task
        return task

    async def _assign(self, task: _Task, request: TaskRequest) -> None:
        route = task.lead.route
        message = TaskAssign(
            task.id,
            route.replica,
            route.epoch,
            request.sampling,
            messages=request.messages,
            text=request.text,
            tokens=request.tokens,
            wanted=request.wanted,
            deadline=request.deadline or 0.0,
        )
        await self._bus.request(FORAGER_ASSIGN.of(route.forager), message)

    async def _next(self, task: _Task, began: float, deadline: float | None) -> TaskEvent:
        """The task's next event; made here when the lead has been silent too long, or time is up."""
        while task.inbox.empty():
            limit = task.silent_at
            if deadline is not None:
                limit = min(limit, began + deadline)
            try:
                async with asyncio.timeout_at(limit):
                    return await task.inbox.get()
            except TimeoutError:
                if deadline is not None and _now() >= began + deadline:
                    task.end(_late(deadline))
                elif _now() >= task.lead.silent_at:
                    return await self._ask(task)
                elif _now() >= task.silent_at:
                    task.end(_quiet(task.lead.route))
        return task.inbox.get_nowait()

    async def _ask(self, task: _Task) -> TaskEvent:
        """The last event of a task of a silent lead. One that lives answers a cancel: then what it said last
        of the task was lost on its way, and no more than the task ends."""
        lead, heard = task.lead, task.lead.heard
        self._cancel(task.id, lead.route)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await task.inbox.get()
        except TimeoutError:
            failure = _forgotten(lead.route)
        if lead.heard == heard and not task.sealed:  # with another of the lead's tasks
            failure = _silent(lead.route)
            self._silent(lead.route, _now() - heard, failure)  # may end all of the lead's tasks
        task.end(failure)
        return task.inbox.get_nowait()

    def _close(self, task: _Task, assigned: asyncio.Task[None]) -> None:
        del self._tasks[task.id]
        lead = task.lead
        lead.tasks.discard(task)
        if not lead.tasks:
            lead.idle.set()
            self._leads.pop((lead.route.replica, lead.route.epoch), None)
        if task.running:
            self._cancel(task.id, lead.route, assigned)

    def _cancel(self, task: str, route: Route, after: asyncio.Task[None] | None = None) -> None:
        self._cancelled.pop(task, None)
        self._cancelled[task] = (route, _now())
        if len(self._cancelled) > CANCELLED:
            del self._cancelled[next(iter(self._cancelled))]
        cancel = asyncio.get_running_loop().create_task(self._send_cancel(task, route, after))
        self._cancels.add(cancel)
        cancel.add_done_callback(self._cancels.discard)

    async def _send_cancel(self, task: str, route: Route, after: asyncio.Task[None] | None) -> None:
        if after:  # a request with its own deadline; a cancel that overtakes its task ends nothing
            await asyncio.wait({after})
            after.exception()  # told to the client, if it is there
        try:
            cancel = TaskCancel(task, route.replica, route.epoch)
            await self._bus.request(FORAGER_CANCEL.of(route.forager), cancel)
        except AntfarmError as error:
            log.warning("task %s was not cancelled at %s: %s", task, route.forager, error)

    async def _read(self, events: Subscription[TaskEvent]) -> None:
        async for event in events:
            task = self._tasks.get(event.task)
            if task:
                task.heard = task.lead.heard = _now()
                task.receive(event)
            else:
                self._heard_late(event)

    def _heard_late(self, event: TaskEvent) -> None:
        """A task goes on though its client has left: a bus that was away may have lost its cancel, or told
        the lead of it first. What the lead says has ended may yet come to it, so no cancel is forgotten."""
        route, sent = self._cancelled.get(event.task, (None, 0.0))
        if route and not isinstance(event, TaskFinished) and _now() >= sent + CANCEL_AGAIN_S:
            self._cancel(event.task, route)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _broken(why: str) -> Failure:
    log.error("a task was ended: %s", why)
    return Failure(Reason.INTERNAL, f"the task was ended: {why}", "send the request again")


def _gap(told: int, index: int) -> Failure:
    if index < told:
        return _broken(f"token {index} of its answer came again, after {told}")
    lost = f"{index - told} tokens of the answer were lost: the bus was away while it came"
    return Failure(Reason.BUS_UNREACHABLE, lost, "send the request again")


def _late(deadline: float) -> Failure:
    return Failure(Reason.TIMEOUT, f"the task took longer than {deadline:g} s", "ask for fewer tokens")


def _silent(route: Route) -> Failure:
    return Failure(
        Reason.TIMEOUT,
        f"the lead of {route.replica} on {route.forager} has said nothing for {SILENCE_S:g} s",
        "`antc ps` shows its state; send the request again",
    )


def _forgotten(route: Route) -> Failure:
    return Failure(
        Reason.TIMEOUT,
        f"what {route.replica} said last of this task was lost on its way",
        "send the request again",
    )


def _quiet(route: Route) -> Failure:
    return Failure(
        Reason.TIMEOUT,
        f"nothing was heard of the task for {QUIET_S:g} s, though the lead of {route.replica} works",
        "send the request again",
    )


def _retired(model: str) -> Failure:
    return Failure(
        Reason.MODEL_RETIRED, f"{model} was replaced while this task ran", "send the request again"
    )


def _closing() -> Failure:
    return Failure(Reason.COLONY_DOWN, "the queen is ending", "send the request again once it is back")
