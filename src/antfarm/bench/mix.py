"""What a load is made of: lengths, words and impatience, all decided by a seed and a number. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

TOKENS = range(32, 224)  # ids of ordinary tokens in every vocabulary that is known to us
STAY_S = 2.0  # the longest that a client waits who is going to leave
# Of one token each, in most vocabularies.
WORDS = [
    "time", "way", "year", "work", "day", "thing", "man", "world", "life", "hand", "part", "child", "eye",
    "place", "week", "case", "point", "home", "water", "room", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "word", "issue", "side", "kind", "head", "house", "friend", "hour",
    "game", "line", "end", "law", "car", "city", "name", "team", "minute", "idea", "body", "back", "parent",
    "face", "level", "office", "door", "health", "person", "art", "war", "history", "party", "result",
    "change", "morning", "reason", "research", "girl", "moment", "air", "teacher", "force",
]  # fmt: skip


class Spread(NamedTuple):
    """Lengths are drawn evenly from `lo` to `hi`, both included."""

    lo: int
    hi: int

    def __str__(self) -> str:
        return str(self.lo) if self.lo == self.hi else f"{self.lo} to {self.hi}"


@dataclass(frozen=True)
class Mix:
    """`cancel` is the share of requests that the client leaves early. `turns` of a conversation; 0 asks
    for plain completions of token ids, which makes prompts exactly as long as asked for."""

    prompt: Spread
    answer: Spread
    cancel: float = 0.0
    turns: int = 0
    seed: int = 0


class Stay(NamedTuple):
    """A client leaves at whichever comes first."""

    pieces: int
    seconds: float


@dataclass(frozen=True)
class Work:
    """One request: lengths in tokens, and when the client leaves if it does."""

    number: int
    prompt: int
    answer: int
    stay: Stay | None


def work(mix: Mix, number: int) -> Work:
    """The `number`-th request of a mix, always the same."""
    random = Random(f"{mix.seed} work {number}")
    prompt, answer = random.randint(*mix.prompt), random.randint(*mix.answer)
    leaves = random.random() < mix.cancel
    stay = Stay(random.randint(1, max(1, answer - 1)), random.uniform(0, STAY_S)) if leaves else None
    return Work(number, prompt, answer, stay)


def token_ids(seed: int, number: int, count: int) -> list[int]:
    """A prompt that shares no beginning with another, so that no cache makes it shorter."""
    return Random(f"{seed} tokens {number}").choices(TOKENS, k=count)


def words(seed: int, number: int, count: int) -> str:
    return " ".join(Random(f"{seed} words {number}").choices(WORDS, k=count))
