"""Answers held to a grammar: before a token is sampled, all that the grammar does not allow is masked.

On `llguidance`. A grammar compiles in a millisecond or two, a hostile one within its limits in some tens or
hundreds. A mask takes 0.01 to 0.1 ms on most steps, up to 0.8 ms inside a long pattern that counts, and up to
0.1 ms more to apply to 150,000 logits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from antfarm.errors import AntfarmError, Reason, RequestError, cut
from antfarm.model.schema import in_plain_words, refused
from antfarm.model.tokenizer import Tokenizer
from antfarm.model.toolform import field_of

Row = NDArray[np.float32]

_LIMITS = LLParserLimits(max_items_in_row=10_000, verbose_errors=False)
_NO_TEXT = "no text satisfies the schema"
# Where in the grammar, why, and then an extract of the grammar.
_COMPLAINT = re.compile(r"at (\d+)\(\d+\): failed to compile JSON schema: (.*?)(?:\n +\d+ \| .*)?", re.DOTALL)


class Grammars:
    """Compiles grammars for one vocabulary.

    To be made before anyone waits for an answer: it takes 0.5 s for 150,000 tokens, and no other thread
    runs meanwhile.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        wrapper = TokenizerWrapper(_Vocabulary(tokenizer))
        self._tokenizer = LLTokenizer(wrapper, eos_token=sorted(tokenizer.eog) or None)

    def compile(self, grammar: str, param: str) -> Constraint:
        """Raises `invalid-request`, naming the schema's field or else `param`, for a grammar that is none,
        that needs what the compiler does not support, or that no text satisfies."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        constraint = Constraint(matcher, self._tokenizer.vocab_size)
        if matcher.is_error():
            raise _refusal(matcher.get_error(), grammar, param)
        if not constraint.allowed().any():
            raise refused(param, _NO_TEXT)
        return constraint


@contextmanager
def _contained() -> Iterator[None]:
    """A panic of a library in Rust is no `Exception`, and would end the process; it must end one answer."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"the grammar's library failed: {error}") from error


class Constraint:
    """One answer's way through its grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._size = vocabulary
        self._bits = allocate_token_bitmask(1, vocabulary)

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next [vocabulary]; none once the matcher has failed."""
        fill_next_token_bitmask(self._matcher, self._bits)
        if self._matcher.is_error():
            return np.zeros(self._size, np.bool_)
        bits = np.unpackbits(self._bits[0].view(np.uint8), count=self._size, bitorder="little")
        return bits.view(np.bool_)

    @_contained()
    def mask(self, row: Row) -> Row:
        """The logits `row` [V] with all that may not come next at minus infinity, V at least the vocabulary.

        Raises `invalid-request` when the grammar turns out to be too complex on the way.
        """
        allowed = self.allowed()
        if not allowed.any():
            raise self._stuck()
        out = np.full_like(row, -np.inf)
        np.copyto(out[: self._size], row[: self._size], where=allowed)
        return out

    @_contained()
    def accept(self, token: int) -> bool:
        """Go on by a token that `mask` allowed. Whether the answer is complete and nothing may follow.

        Raises as `mask`."""
        if not self._matcher.consume_token(token):
            raise self._stuck()
        return bool(self._matcher.is_stopped())

    def _stuck(self) -> AntfarmError:
        why = self._matcher.get_error().partition("<state>")[0].strip()
        return AntfarmError(
            Reason.INVALID_REQUEST,
            f"the answer can't be held to its schema any further: {cut(why, 300) or _NO_TEXT}",
            hint="simplify the JSON schema",
        )


class _Vocabulary:
    """What `LLTokenizer` asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = range(tokenizer.size)
        self.eos_token_id = min(tokenizer.eog, default=0) if tokenizer.eos is None else tokenizer.eos
        self.bos_token_id = tokenizer.bos
        self.tokens = [tokenizer.token_bytes(token) for token in ids]
        self.special_token_ids = [token for token in ids if tokenizer.hidden(token)]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode_within(text.decode())


def _refusal(complaint: str, grammar: str, param: str) -> RequestError:
    match = _COMPLAINT.fullmatch(complaint)
    if not match:
        return refused(param, in_plain_words(complaint))
    rule = grammar.splitlines()[int(match[1]) - 1].partition(":")[0]
    return refused(field_of(rule), in_plain_words(match[2]))
