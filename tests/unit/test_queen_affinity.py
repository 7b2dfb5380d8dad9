"""Beginnings of conversations, and where they went."""

from __future__ import annotations

from antfarm.messages import ChatMessage, Wanted
from antfarm.queen.affinity import CHARS, TOKENS, Affinity
from antfarm.queen.tasks import TaskRequest
from antfarm.types import Sampling

FIRST, SECOND = ("m-1", 1), ("m-2", 1)
LONG = "Why do ants walk in a line? " * 20


def chat(*contents: str, model: str = "m", wanted: Wanted | None = None) -> TaskRequest:
    """A system message, then turns of user and assistant."""
    roles = ("system", *("user", "assistant") * len(contents))
    messages = tuple(map(ChatMessage, roles, contents))
    return TaskRequest(model, Sampling(), messages=messages, wanted=wanted or Wanted())


def test_a_next_turn_is_known_and_another_conversation_is_not() -> None:
    affinity = Affinity()
    affinity.remember(chat("Be kind.", LONG), FIRST)
    affinity.remember(chat("Be kind.", LONG + "?"), SECOND)
    assert affinity.recall(chat("Be kind.", LONG, "They smell.", "What?")) == FIRST
    assert affinity.recall(chat("Be kind.", LONG + "?", "They smell.", "What?")) == SECOND
    assert affinity.recall(chat("Be rude.", LONG)) is None
    assert affinity.recall(chat("Be kind.", LONG, model="n")) is None
    affinity.remember(chat("Be kind.", LONG, "They smell.", "What?"), SECOND)
    assert affinity.recall(chat("Be kind.", LONG)) == SECOND, "the last one has most of it"


def test_texts_and_tokens_are_known_by_how_they_begin() -> None:
    affinity = Affinity()
    text, tokens = "x" * CHARS, tuple(range(TOKENS))
    affinity.remember(TaskRequest("m", Sampling(), text=text), FIRST)
    affinity.remember(TaskRequest("m", Sampling(), tokens=tokens), SECOND)
    assert affinity.recall(TaskRequest("m", Sampling(), text=text + "more")) == FIRST
    assert affinity.recall(TaskRequest("m", Sampling(), tokens=(*tokens, 5))) == SECOND
    assert affinity.recall(TaskRequest("m", Sampling(), text="y" + text)) is None


def test_what_is_short_or_keeps_no_rows_goes_anywhere() -> None:
    affinity = Affinity()
    short = (
        chat("Be kind.", "Hi"),
        TaskRequest("m", Sampling(), tokens=(1, 2)),
        chat("x", LONG, wanted=Wanted("vector")),
    )
    for request in short:
        affinity.remember(request, FIRST)
        assert affinity.recall(request) is None
    assert affinity.recall(chat("x", LONG)) is None


def test_only_so_many_are_remembered() -> None:
    affinity = Affinity(kept=2)
    for name in ("a", "b"):
        affinity.remember(chat(name, LONG), FIRST)
    affinity.remember(chat("a", LONG), SECOND)
    affinity.remember(chat("c", LONG), FIRST)
    found = [affinity.recall(chat(name, LONG)) for name in ("a", "b", "c")]
    assert found == [SECOND, None, FIRST]
