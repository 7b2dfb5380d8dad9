"""Tasks against a lead that is played: order, silence, deadlines, slow clients, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from antfarm.bus import Subscription
from antfarm.bus.subject import Subject
from antfarm.bus.subjects import FORAGER_ASSIGN, FORAGER_CANCEL, TASK_EVENTS
from antfarm.colony.events import Drain, Drained, Event, Keep, Route
from antfarm.errors import AntfarmError, BusError, Reason, StateError
from antfarm.messages import (
    Done,
    Failure,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskEvent,
    TaskFinished,
    TaskTokens,
)
from antfarm.queen import tasks as module
from antfarm.queen.performer import Performer
from antfarm.queen.tasks import TaskRequest, Tasks
from antfarm.types import Sampling

ROUTE = Route("m", "m-1", 1, "a", 128)
BROKEN = Failure(Reason.SHARD_FAILED, "shard 0 on a was lost")
REQUEST = TaskRequest("m", Sampling(), text="hello")


class Lead:
    """Takes the place of the bus: keeps what the queen sends; the test says the lead's events."""

    def __init__(self) -> None:
        self.assigned: list[TaskAssign] = []
        self.cancelled: list[TaskCancel] = []
        self.silences: list[tuple[Route, float, Failure]] = []  # that the queen heard of
        self.breaks = False  # the colony's answer to a silence
        self.lives = False  # it answers a cancel
        self.assigns = asyncio.Event()  # at once, unless cleared
        self.assigns.set()
        self.refuses: AntfarmError | None = None
        self.refuses_cancels: AntfarmError | None = None
        self._events: Subscription[TaskEvent] = Subscription("tasks", TASK_EVENTS.decode)

    async def subscribe(self, subject: Subject[Any]) -> Subscription[TaskEvent]:
        assert subject is TASK_EVENTS
        return self._events

    async def request(self, subject: Subject[Any], message: Any) -> Done:
        if self.refuses:
            raise self.refuses
        if isinstance(message, TaskAssign):
            assert subject.name == FORAGER_ASSIGN.of("a").name
            await self.assigns.wait()
            self.assigned.append(message)
        else:
            assert subject.name == FORAGER_CANCEL.of("a").name
            if self.refuses_cancels:
                raise self.refuses_cancels
            self.cancelled.append(message)
            if self.lives:
                await self.say(TaskFinished(message.task, 0, "cancelled"))
        return Done()

    async def say(self, *events: TaskEvent) -> None:
        for event in events:
            await self._events.receive(TASK_EVENTS.encode(event))
        await asyncio.sleep(0)

    async def until_assigned(self) -> str:
        while not self.assigned:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return self.assigned[-1].task


Passes = Callable[[float], Awaitable[None]]


@pytest_asyncio.fixture
async def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Lets so many seconds pass at once, and whatever is due happen."""
    loop = asyncio.get_running_loop()
    clock, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: clock() + ahead)

    async def passes(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds
        for _ in range(20):
            await asyncio.sleep(0)

    return passes


@pytest_asyncio.fixture
async def lead() -> Lead:
    return Lead()


@pytest_asyncio.fixture
async def tasks(lead: Lead) -> AsyncIterator[Tasks]:
    def silent(route: Route, silence: float, failure: Failure) -> None:
        lead.silences.append((route, silence, failure))
        if lead.breaks:
            made.fail(route.replica, route.epoch, BROKEN)

    made = Tasks(lead, lambda request: ROUTE, silent)  # type: ignore[arg-type]
    await made.start()
    yield made
    await made.close()


def collect(tasks: Tasks, request: TaskRequest = REQUEST) -> asyncio.Task[list[TaskEvent]]:
    async def run() -> list[TaskEvent]:
        return [event async for event in tasks.run(request)]

    return asyncio.create_task(run())


async def test_events_come_as_they_were_said(lead: Lead, tasks: Tasks) -> None:
    answer = collect(tasks)
    task = await lead.until_assigned()
    said = [
        TaskAccepted(task, 3),
        TaskTokens(task, 0, 2, "ab"),
        TaskTokens(task, 2, 1, "c"),
        TaskFinished(task, 3, "stop"),
    ]
    await lead.say(*said)
    assert await answer == said
    assert lead.assigned[0].text == "hello"
    assert lead.cancelled == []


async def test_the_end_is_told_and_nothing_new_begins(lead: Lead, tasks: Tasks) -> None:
    begun, waiting = collect(tasks), collect(tasks)
    await lead.until_assigned()
    await lead.say(TaskAccepted(lead.assigned[0].task, 3))
    tasks.end()
    last = (await begun)[-1]
    assert isinstance(last, TaskFinished) and last.failure
    assert last.failure.reason == Reason.COLONY_DOWN
    for refused in (waiting, collect(tasks)):
        with pytest.raises(AntfarmError) as caught:
            await refused
        assert caught.value.reason == Reason.COLONY_DOWN


@pytest.mark.parametrize(("index", "reason"), [(1, Reason.INTERNAL), (3, Reason.BUS_UNREACHABLE)])
async def test_lost_or_doubled_tokens_end_the_task(
    lead: Lead, tasks: Tasks, passes: Passes, index: int, reason: Reason
) -> None:
    answer = collect(tasks)
    task = await lead.until_assigned()
    await lead.say(TaskAccepted(task, 3), TaskTokens(task, 0, 2, "ab"), TaskTokens(task, index, 1, "c"))
    last = (await answer)[-1]
    assert isinstance(last, TaskFinished) and last.failure
    assert (last.failure.reason, last.index) == (reason, 2)
    await passes(0)
    assert lead.cancelled == [TaskCancel(task, "m-1", 1)]


async def test_a_finish_that_counts_wrong_is_a_failure(lead: Lead, tasks: Tasks) -> None:
    answer = collect(tasks)
    task = await lead.until_assigned()
    await lead.say(TaskAccepted(task, 3), TaskTokens(task, 0, 2, "ab"), TaskFinished(task, 5, "stop"))
    last = (await answer)[-1]
    assert isinstance(last, TaskFinished) and last.failure


async def test_a_failure_before_the_first_event_is_raised(lead: Lead, tasks: Tasks) -> None:
    answer = collect(tasks)
    task = await lead.until_assigned()
    overflow = Failure(Reason.CONTEXT_OVERFLOW, "too long", numbers={"tokens": 9})
    await lead.say(TaskFinished(task, 0, "error", failure=overflow))
    with pytest.raises(AntfarmError) as caught:
        await answer
    assert (caught.value.reason, caught.value.numbers) == (Reason.CONTEXT_OVERFLOW, {"tokens": 9})


async def test_a_refused_assignment_is_raised(lead: Lead, tasks: Tasks) -> None:
    lead.refuses = StateError(Reason.SHARD_MISSING, "it is gone")
    with pytest.raises(AntfarmError) as caught:
        await collect(tasks)
    assert caught.value.reason is Reason.SHARD_MISSING


async def test_a_replica_that_ends_fails_its_tasks_and_needs_no_cancel(lead: Lead, tasks: Tasks) -> None:
    answer = collect(tasks)
    task = await lead.until_assigned()
    await lead.say(TaskAccepted(task, 3))
    tasks.fail("m-1", 2, Failure(Reason.INTERNAL, "another epoch"))
    tasks.fail("m-1", 1, Failure(Reason.FORAGER_LOST, "b is lost"))
    last = (await answer)[-1]
    assert isinstance(last, TaskFinished) and last.failure
    assert last.failure.reason == Reason.FORAGER_LOST
    assert lead.cancelled == []


async def test_closing_early_cancels_at_the_lead(lead: Lead, tasks: Tasks, passes: Passes) -> None:
    async with aclosing(tasks.run(REQUEST)) as events:
        first = asyncio.ensure_future(anext(events))
        task = await lead.until_assigned()
        await lead.say(TaskAccepted(task, 1))
        await first
    await passes(0)
    assert lead.cancelled == [TaskCancel(task, "m-1", 1)]
    await lead.say(TaskTokens(task, 0, 1, "late"))  # nobody waits for it any more


async def test_a_cancel_does_not_overtake_what_it_cancels(lead: Lead, tasks: Tasks, passes: Passes) -> None:
    lead.assigns.clear()
    answer = collect(tasks)
    await passes(0)
    answer.cancel()
    await passes(0)
    assert not lead.assigned and not lead.cancelled
    lead.assigns.set()
    await passes(0)
    assert [cancel.task for cancel in lead.cancelled] == [await lead.until_assigned()]


async def test_a_task_that_came_after_its_cancel_is_cancelled_again(
    lead: Lead, tasks: Tasks, passes: Passes
) -> None:
    answer = collect(tasks)
    task = await lead.until_assigned()
    answer.cancel()
    await passes(0)
    await lead.say(TaskFinished(task, 0, "cancelled"))  # it was not there yet
    await passes(module.CANCEL_AGAIN_S)
    await lead.say(TaskAccepted(task, 3), TaskTokens(task, 0, 1, "a"))
    await passes(0)
    assert [cancel.task for cancel in lead.cancelled] == [task, task]


async def test_a_task_has_its_deadline(lead: Lead, tasks: Tasks, passes: Passes) -> None:
    request = TaskRequest("m", Sampling(), text="hello", deadline=40)
    answer = collect(tasks, request)
    await lead.say(TaskAccepted(await lead.until_assigned(), 1))
    await passes(41)
    last = (await answer)[-1]
    assert isinstance(last, TaskFinished) and last.failure
    assert last.failure.reason == Reason.TIMEOUT


async def test_a_silent_lead_fails_its_tasks_but_a_busy_one_does_not(
    lead: Lead, tasks: Tasks, passes: Passes
) -> None:
    first = collect(tasks)
    running = await lead.until_assigned()
    queued = collect(tasks)
    await asyncio.sleep(0)
    for index in range(6):  # the lead works on one task while the other waits its turn
        await lead.say(TaskTokens(running, index, 1, "x"))
        await passes(module.SILENCE_S / 4)
    assert not queued.done()
    await lead.say(TaskFinished(running, 6, "stop"))
    assert len(await first) == 7
    await silence(passes)
    with pytest.raises(AntfarmError) as caught:
        await asyncio.wait_for(queued, 5)
    assert caught.value.reason is Reason.TIMEOUT


async def silence(passes: Passes) -> None:
    """As long as a lead may say nothing while it reads, and may then leave a cancel unanswered."""
    await passes(module.SILENCE_S + module.SLOWEST_PREFILL_S * ROUTE.chunk + 1)
    await passes(module.ANSWER_S + 1)


@pytest.mark.parametrize("breaks", [True, False])
async def test_a_silent_lead_is_told_once_if_that_ends_its_tasks(
    lead: Lead, tasks: Tasks, passes: Passes, breaks: bool
) -> None:
    lead.breaks = breaks
    answers = [collect(tasks) for _ in range(3)]
    await passes(0)
    await silence(passes)
    ended = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 5)
    reasons = [error.reason for error in ended if isinstance(error, AntfarmError)]
    assert reasons == [Reason.SHARD_FAILED if breaks else Reason.TIMEOUT] * 3
    assert len(lead.silences) == (1 if breaks else 3)
    route, silent, failure = lead.silences[0]
    assert (route, failure.reason) == (ROUTE, Reason.TIMEOUT) and silent >= module.SILENCE_S


async def test_a_silent_lead_that_answers_has_lost_a_task_and_is_not_lost(
    lead: Lead, tasks: Tasks, passes: Passes
) -> None:
    lead.lives = True
    answer = collect(tasks)
    task = await lead.until_assigned()
    await lead.say(TaskAccepted(task, 0), TaskTokens(task, 0, 2, "ab"))
    await passes(module.SILENCE_S + 1)
    *_, last = await asyncio.wait_for(answer, 5)
    assert isinstance(last, TaskFinished) and last.failure
    assert (last.failure.reason, last.index) == (Reason.TIMEOUT, 2)
    assert "was lost on its way" in last.failure.message
    await passes(0)
    assert lead.cancelled == [TaskCancel(task, "m-1", 1)], "and not again once it has ended"
    assert lead.silences == []


async def test_a_lead_that_reads_a_long_prompt_is_heard_chunk_by_chunk(
    lead: Lead, tasks: Tasks, passes: Passes
) -> None:
    answer = collect(tasks)
    await lead.say(TaskAccepted(await lead.until_assigned(), 1_000_000))
    for _ in range(10):
        await passes(module.SILENCE_S / 2)
        tasks.hear_lead("m-1", 1)
    assert not answer.done()
    await silence(passes)
    *_, last = await asyncio.wait_for(answer, 5)
    assert isinstance(last, TaskFinished) and last.failure and len(lead.silences) == 1


@pytest.mark.parametrize("begun", [0, 1])
async def test_a_task_whose_end_was_lost_does_not_wait_for_ever_on_a_busy_lead(
    lead: Lead, tasks: Tasks, passes: Passes, begun: int
) -> None:
    lost = collect(tasks)
    await lead.until_assigned()
    waiting, busy = collect(tasks), collect(tasks)
    while len(lead.assigned) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    one, two, three = [each.task for each in lead.assigned]
    if begun:
        await lead.say(TaskAccepted(one, 3), TaskTokens(one, 0, 1, "x"))
    await lead.say(TaskAccepted(two, 3), TaskAccepted(three, 3))
    for index in range(10):
        await lead.say(TaskTokens(three, index, 1, "x"))
        await passes(module.QUIET_S / 4)
    assert lost.done() and not waiting.done() and not busy.done()
    await lead.say(TaskFinished(two, 0, "stop"), TaskFinished(three, 10, "stop"))
    assert len(await waiting) == 2 and len(await busy) == 12
    assert lead.cancelled == [TaskCancel(one, "m-1", 1)]
    assert lead.silences == [], "the lead works"
    if begun:
        last = lost.result()[-1]
        assert isinstance(last, TaskFinished) and last.failure and last.failure.reason == Reason.TIMEOUT
    else:
        assert isinstance(lost.exception(), AntfarmError)


async def test_a_cancel_that_was_lost_is_sent_again(lead: Lead, tasks: Tasks, passes: Passes) -> None:
    lead.refuses_cancels = BusError(Reason.BUS_UNREACHABLE, "the bus is away")
    async with aclosing(tasks.run(REQUEST)) as events:
        first = asyncio.ensure_future(anext(events))
        task = await lead.until_assigned()
        await lead.say(TaskAccepted(task, 1))
        await first
    await passes(0)
    lead.refuses_cancels = None
    await lead.say(TaskTokens(task, 0, 1, "x"), TaskTokens("never-heard-of", 0, 1, "x"))
    await passes(0)
    assert lead.cancelled == [], "what was on its way is no sign that it was lost"
    await passes(module.CANCEL_AGAIN_S + 1)
    await lead.say(TaskTokens(task, 1, 1, "x"), TaskTokens(task, 2, 1, "x"))
    await passes(0)
    assert lead.cancelled == [TaskCancel(task, "m-1", 1)]
    await passes(module.CANCEL_AGAIN_S + 1)
    await lead.say(TaskFinished(task, 3, "cancelled"))
    await passes(0)
    assert len(lead.cancelled) == 1


async def test_a_listener_that_breaks_is_told(
    lead: Lead, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(event: TaskEvent) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(tasks, "_heard_late", breaks)
    waiting = asyncio.create_task(tasks.wait())
    await lead.say(TaskTokens("late", 0, 1, "x"))
    with pytest.raises(KeyError):
        await asyncio.wait_for(waiting, 5)


async def test_a_client_that_does_not_read_is_bounded(
    lead: Lead, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUFFER", 10)
    async with aclosing(tasks.run(REQUEST)) as events:
        first = asyncio.ensure_future(anext(events))
        task = await lead.until_assigned()
        await lead.say(TaskAccepted(task, 1))
        await first
        await lead.say(*(TaskTokens(task, index, 1, "x") for index in range(50)))
        rest = [event async for event in events]
    assert len(rest) == 11
    assert isinstance(rest[-1], TaskFinished) and rest[-1].failure


async def test_draining_waits_for_tasks_within_a_bound(
    lead: Lead, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tasks.drain("m-1", 1)  # nothing runs
    answer = collect(tasks)
    task = await lead.until_assigned()
    draining = asyncio.create_task(tasks.drain("m-1", 1))
    await asyncio.sleep(0.01)
    assert not draining.done()
    await lead.say(TaskFinished(task, 0, "stop"))
    await answer
    await draining

    monkeypatch.setattr(module, "DRAIN_S", 0.05)
    answer = collect(tasks)
    await asyncio.sleep(0)
    await tasks.drain("m-1", 1)
    with pytest.raises(AntfarmError) as caught:
        await answer
    assert caught.value.reason is Reason.MODEL_RETIRED


async def test_a_replica_that_is_kept_is_drained_no_more(
    lead: Lead, tasks: Tasks, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[Event] = []
    performer = Performer(lead, lead, tasks, happened.append)  # type: ignore[arg-type]
    monkeypatch.setattr(lead, "connected", False, raising=False)
    answer = collect(tasks)
    task = await lead.until_assigned()
    performer.begin(Drain("m-1", 1))
    await passes(0)
    assert performer.begin(Keep("m-1", 1)) is None
    await passes(module.DRAIN_S + 1)
    await lead.say(TaskAccepted(task, 3), TaskFinished(task, 0, "stop"))
    assert len(await answer) == 2
    assert happened == []
    performer.begin(Drain("m-1", 1))
    await passes(0)
    assert happened == [Drained("m-1", 1)]
    await performer.close()
