"""Task events into OpenAI's bodies, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from support.scripted import logprob, said

from antfarm.errors import AntfarmError, Reason
from antfarm.messages import TaskAccepted, TaskEvent, TaskFinished, TaskTokens
from antfarm.queen.api.chat import ChatForm
from antfarm.queen.api.completions import TextForm
from antfarm.queen.api.errors import STATUS, error_body, status_of
from antfarm.queen.api.running import merged
from antfarm.queen.api.tally import Format, Head, Tally, chunks, usage

HEAD = Head(id="x-1", created=1, model="tiny", fingerprint="fp")
HELD_BACK = [  # "ST" may begin a stop string, so its text comes with the next token
    TaskTokens(task="t", index=0, count=1, text="", logprobs=(logprob("ST"),)),
    TaskTokens(task="t", index=1, count=1, text="STY", logprobs=(logprob("Y"),)),
    TaskTokens(task="t", index=2, count=1, text=""),
    TaskFinished(task="t", index=3, finish="length"),
]


def bodies(form: Format, events: list[Any]) -> list[dict[str, Any]]:
    tally = Tally(0)
    return [chunk.model_dump(exclude_unset=True) for event in events for chunk in chunks(form, tally, event)]


def test_tokens_whose_text_is_held_back_still_report_their_probability() -> None:
    found = bodies(ChatForm(HEAD, logprobs=True, counts=False), HELD_BACK)
    for body in found:
        ChatCompletionChunk.model_validate(body, strict=True, extra="forbid")
    choices = [body["choices"][0] for body in found]
    assert [choice["delta"] for choice in choices] == [{"content": ""}, {"content": "STY"}, {}]
    assert [choice["logprobs"]["content"][0]["token"] for choice in choices[:2]] == ["ST", "Y"]
    assert choices[2]["finish_reason"] == "length"


def test_offsets_count_tokens_not_the_text_that_lags_behind() -> None:
    found = bodies(TextForm(HEAD, logprobs=True, counts=False), HELD_BACK)
    for body in found:
        Completion.model_validate(body | {"choices": []}, strict=True, extra="forbid")
    choices = [body["choices"][0] for body in found]
    assert [choice["text"] for choice in choices] == ["", "STY", ""]
    assert [choice["logprobs"]["text_offset"] for choice in choices[:2]] == [[0], [2]]


@pytest.mark.parametrize("form", [ChatForm, TextForm])
def test_counts_are_null_until_the_last_chunk(form: Any) -> None:
    asked = form(HEAD, logprobs=False, counts=True)
    found = bodies(asked, said("a"))
    assert all(body["usage"] is None for body in found)
    tally = Tally(0)
    for event in said("a", "b"):
        tally.add(event)  # type: ignore[arg-type]
    last = asked.usage([tally]).model_dump(exclude_unset=True)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert last["timings"]["prompt_tokens_per_second"] == 14.0


def test_answers_to_one_prompt_count_it_once() -> None:
    tallies = [Tally(0, 0, 7, 2), Tally(1, 0, 7, 3), Tally(2, 1, 5, 1)]
    counts = usage(tallies)
    assert (counts.prompt_tokens, counts.completion_tokens) == (12, 6)


@pytest.mark.parametrize(("finish", "reason"), [("cancelled", Reason.CANCELLED), ("error", Reason.INTERNAL)])
def test_an_answer_cut_short_is_never_passed_off_as_whole(finish: Any, reason: Reason) -> None:
    with pytest.raises(AntfarmError) as raised:
        Tally(0).add(TaskFinished(task="t", index=1, finish=finish))
    assert raised.value.reason is reason


def test_statuses_say_whose_fault_it_is() -> None:
    ours = {Reason.INTERNAL, Reason.BAD_SETTING, Reason.ENGINE_UNAVAILABLE}
    assert {status_of(AntfarmError(reason, "")) for reason in ours} == {500}
    assert all(400 <= status < 600 for status in STATUS.values())
    assert error_body(AntfarmError(Reason.CONTEXT_OVERFLOW, "a", hint="b")).error.message == "a (b)"


async def test_merged_tasks_do_not_wait_for_each_other_and_end_together() -> None:
    closed = []

    async def source(name: str, count: int) -> AsyncGenerator[TaskEvent, None]:
        try:
            for index in range(count):
                yield TaskAccepted(task=name, prompt_tokens=index)
            await asyncio.Event().wait()
        finally:
            closed.append(name)

    seen = []
    async with aclosing(merged([source("silent", 0), source("a", 3), source("b", 2)])) as events:
        async for index, _ in events:
            seen.append(index)
            if len(seen) == 5:
                break
    assert sorted(seen) == [1, 1, 1, 2, 2]
    assert sorted(closed) == ["a", "b", "silent"]
