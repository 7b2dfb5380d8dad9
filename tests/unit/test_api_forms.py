"""Task events into OpenAI's bodies, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from support.scripted import logprob, said

from antfarm.errors import AntfarmError, Reason
from antfarm.messages import TaskAccepted, TaskEvent, TaskFinished, TaskTokens, Timings
from antfarm.queen.api.chat import ChatForm
from antfarm.queen.api.completions import TextForm
from antfarm.queen.api.errors import STATUS, error_body, status_of
from antfarm.queen.api.running import merged
from antfarm.queen.api.tally import Format, Head, Tally, chunks, timings, usage

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
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert last["timings"]["prompt_tokens_per_second"] == 14.0


def test_answers_to_one_prompt_count_it_once() -> None:
    tallies = [Tally(0, 0, 7, tokens=2), Tally(1, 0, 7, tokens=3), Tally(2, 1, 5, tokens=1)]
    for tally, cached in zip(tallies, (2, 6, 4), strict=True):
        tally.timings = Timings(0.0, 1.0, 1.0, tally.prompt_tokens, tally.tokens, cached_tokens=cached)
    counts = usage(tallies)
    assert (counts.prompt_tokens, counts.completion_tokens) == (12, 6)
    assert counts.prompt_tokens_details.cached_tokens == 6  # the first of two answers had to read 5 of 7


def test_rates_count_the_tokens_that_were_read() -> None:
    tally = Tally(0, timings=Timings(0.0, 0.5, 2.0, prompt_tokens=7, completion_tokens=1, cached_tokens=2))
    found = timings([tally])
    assert found and found.prompt_tokens_per_second == 10.0


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


# ---- tools

CALLS = (
    'Sure.\n<tool_call>\n{"name": "add", "arguments": {"a": [1, 2]}}\n</tool_call>\n'
    '<tool_call>{"name":"go","arguments":{}}'
)


def answering(text: str, size: int = 3, finish: str = "stop") -> list[TaskEvent]:
    """The events of an answer that may call tools."""
    texts = [text[at : at + size] for at in range(0, len(text), size)]
    tokens = [TaskTokens("t", i, 1, piece, (logprob(piece),)) for i, piece in enumerate(texts)]
    end = TaskFinished("t", len(texts), finish)  # type: ignore[arg-type]
    return [TaskAccepted("t", 5, tools="hermes"), *tokens, end]


def test_calls_stream_as_openai_streams_them() -> None:
    found = bodies(ChatForm(HEAD, logprobs=False, counts=False), answering(CALLS))
    for body in found:
        ChatCompletionChunk.model_validate(body, strict=True, extra="forbid")
    choices = [body["choices"][0] for body in found]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Sure."
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    first, *more = [call for call in calls if call["index"] == 0]
    assert set(first) == {"index", "id", "type", "function"}
    assert first["function"] == {"name": "add", "arguments": ""}
    assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in more)
    assert "".join(call["function"]["arguments"] for call in more) == '{"a": [1, 2]}'
    assert len({call["id"] for call in calls if "id" in call}) == 2


def test_calls_in_one_body() -> None:
    tally, form = Tally(0), ChatForm(HEAD, logprobs=True, counts=False)
    for event in answering(CALLS):
        tally.add(event)
    body = form.whole([tally]).model_dump(exclude_unset=True)
    body.pop("timings")
    ChatCompletion.model_validate(body, strict=True, extra="forbid")
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Sure."
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    assert functions == [{"name": "add", "arguments": '{"a": [1, 2]}'}, {"name": "go", "arguments": "{}"}]
    assert len(choice["logprobs"]["content"]) == tally.tokens


def test_tools_that_are_not_called_leave_a_plain_answer() -> None:
    found = bodies(ChatForm(HEAD, logprobs=True, counts=False), answering("Plain <tool"))
    choices = [body["choices"][0] for body in found]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Plain <tool"
    assert choices[-1]["finish_reason"] == "stop"
    said = [
        token["token"] for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]
    ]
    assert "".join(said) == "Plain <tool"


def test_calls_beyond_what_is_wanted_or_cut_short() -> None:
    one = bodies(ChatForm(HEAD, logprobs=False, counts=False, most_calls=1), answering(CALLS))
    assert {c["index"] for b in one for c in b["choices"][0]["delta"].get("tool_calls", ())} == {0}
    cut = bodies(ChatForm(HEAD, logprobs=False, counts=False), answering(CALLS[:50], finish="length"))
    assert cut[-1]["choices"][0]["finish_reason"] == "length"
    assert any(b["choices"][0]["delta"].get("tool_calls") for b in cut)


@pytest.mark.parametrize("length", [1, 9, 15, 40, len(CALLS) - 3])
def test_a_forced_call_that_is_cut_leaves_no_text(length: int) -> None:
    form = ChatForm(HEAD, logprobs=False, counts=False, only_calls=True)
    found = bodies(form, answering(CALLS[:length], finish="length"))
    assert not any(body["choices"][0]["delta"].get("content") for body in found)
    assert found[-1]["choices"][0]["finish_reason"] == "length"
