"""Answers: what is sent of the sampled tokens, and when."""

from __future__ import annotations

import codecs

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models import Models

from antfarm.messages import TaskTokens
from antfarm.model.gguf import GgufFile
from antfarm.model.tokenizer import Tokenizer
from antfarm.shard.answer import Answer
from antfarm.types import Sampling

LIMIT = 1000


@pytest.fixture(scope="module")
def tokenizer(models: Models) -> Tokenizer:
    with GgufFile.open(models.path("tiny-llama")) as file:
        return Tokenizer.from_gguf(file)


def row(tokenizer: Tokenizer) -> np.ndarray:
    return np.linspace(-3, 3, tokenizer.size, dtype=np.float32)


def answer(
    tokenizer: Tokenizer, sampling: Sampling, tokens: list[int], limit: int = LIMIT
) -> tuple[Answer, list[TaskTokens]]:
    """Push tokens until the answer ends; returns it with its events."""
    made, events = Answer("task", sampling, tokenizer, limit), []
    for token in tokens:
        if event := made.push(token, row(tokenizer)):
            events.append(event)
        if made.finish:
            break
    return made, events


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token for each byte."""
    ids = {tokenizer.token_bytes(i): i for i in range(tokenizer.size)}
    return [ids[bytes([byte])] for byte in text.encode()]


def text_of(events: list[TaskTokens]) -> str:
    return "".join(event.text for event in events)


def test_each_token_is_sent_at_once_when_nothing_must_wait(tokenizer: Tokenizer) -> None:
    _, events = answer(tokenizer, Sampling(), letters(tokenizer, "abc"))
    assert [(event.index, event.count, event.text) for event in events] == [
        (0, 1, "a"),
        (1, 1, "b"),
        (2, 1, "c"),
    ]


def test_half_a_character_is_counted_and_not_sent(tokenizer: Tokenizer) -> None:
    _, events = answer(tokenizer, Sampling(), letters(tokenizer, "a😀"))
    assert [(event.count, event.text) for event in events] == [(1, "a"), (1, ""), (1, ""), (1, ""), (1, "😀")]


def test_an_end_token_is_counted_and_has_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos is not None
    made, events = answer(tokenizer, Sampling(logprobs=1), [*letters(tokenizer, "hi"), tokenizer.eos])
    assert (made.finish, made.count, text_of(events)) == ("stop", 3, "hi")
    assert events[-1] == TaskTokens("task", 2, 1, "", ())


def test_an_end_token_is_passed_over_when_asked(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos is not None
    tokens = [*letters(tokenizer, "a"), tokenizer.eos, *letters(tokenizer, "b")]
    made, events = answer(tokenizer, Sampling(ignore_eos=True), tokens)
    assert (made.finish, made.count, text_of(events)) == (None, 3, "ab")


def test_a_last_token_ends_the_answer_with_what_was_held(tokenizer: Tokenizer) -> None:
    made = Answer("task", Sampling(stop=("xyz",)), tokenizer, LIMIT)
    x, y = letters(tokenizer, "xy")
    assert made.push(x, row(tokenizer)) is None
    event = made.push(y, row(tokenizer), last=True)
    assert event
    assert (event.text, event.count, made.finish) == ("xy", 2, "stop")


def test_the_limit_ends_the_answer_with_what_was_held(tokenizer: Tokenizer) -> None:
    made, events = answer(tokenizer, Sampling(stop=("xyz",)), letters(tokenizer, "axy"), limit=3)
    assert (made.finish, text_of(events)) == ("length", "axy")
    assert [(event.index, event.count) for event in events] == [(0, 1), (1, 2)]


def test_an_unfinished_character_at_the_limit_is_replaced(tokenizer: Tokenizer) -> None:
    tokens = letters(tokenizer, "é")[:1]
    made, events = answer(tokenizer, Sampling(), tokens, limit=1)
    assert (made.finish, text_of(events)) == ("length", "\ufffd")


def test_log_probabilities_go_out_with_their_tokens_and_not_for_a_stop_string(tokenizer: Tokenizer) -> None:
    made, events = answer(tokenizer, Sampling(stop=("END",), logprobs=2), letters(tokenizer, "aEbEND"))
    assert (made.finish, text_of(events), made.count) == ("stop", "aEb", 6)
    records = [record for event in events for record in event.logprobs]
    assert [record.text for record in records] == ["a", "E", "b"]
    assert all(len(record.top) == 2 and record.top[0].logprob >= record.top[1].logprob for record in records)
    assert [event.count for event in events] == [1, 2, 3]
    assert records[0].bytes == (97,)


def test_a_cut_answer_gives_what_it_held(tokenizer: Tokenizer) -> None:
    made, events = answer(tokenizer, Sampling(stop=("END",)), letters(tokenizer, "aEN"))
    assert text_of(events) == "a"
    assert made.cut() == TaskTokens("task", 1, 2, "EN", ())
    assert Answer("task", Sampling(), tokenizer, LIMIT).cut() is None


def test_without_logprobs_none_are_made(tokenizer: Tokenizer) -> None:
    _, events = answer(tokenizer, Sampling(), letters(tokenizer, "ab"))
    assert not any(event.logprobs for event in events)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.lists(st.integers(0, 511), max_size=30),
    stops=st.lists(st.text("abe é", min_size=1, max_size=4), max_size=3),
    limit=st.integers(1, 30),
    ignore_eos=st.booleans(),
)
def test_whatever_is_sampled_every_token_is_counted_once_and_no_stop_string_gets_out(
    tokenizer: Tokenizer, tokens: list[int], stops: list[str], limit: int, ignore_eos: bool
) -> None:
    sampling = Sampling(stop=tuple(stops), ignore_eos=ignore_eos, logprobs=0)
    made, events = answer(tokenizer, sampling, tokens, limit)
    cut = not made.finish
    if cut and (event := made.cut()):
        events.append(event)
    used = tokens[: made.count]
    assert [event.index for event in events] == [sum(e.count for e in events[:i]) for i in range(len(events))]
    assert sum(event.count for event in events) == made.count
    assert all(event.count > 0 for event in events)
    ended = bool(used) and used[-1] in tokenizer.eog and not ignore_eos
    raw = b"".join(tokenizer.token_bytes(token) for token in used if not tokenizer.hidden(token))
    # a cut answer leaves out the character that it was in the middle of
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(raw, final=not cut)
    sent = text_of(events)
    cuts = [whole.find(stop) for stop in stops if stop in whole]
    assert whole.startswith(sent)
    assert not any(stop in sent for stop in stops)
    assert sent == whole if not cuts else sent in [whole[:at] for at in cuts]
    if not cuts:
        assert sum(len(event.logprobs) for event in events) == made.count - ended
