"""Stop strings: whatever the division into pushes, the text before the first complete one and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antfarm.shard.stops import StopStrings

words = st.text("abc", min_size=1, max_size=5)


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What is released after each piece (and at the end), and whether a stop string was met."""
    cutter, out = StopStrings(stops), []
    for piece in pieces:
        released, stopped = cutter.push(piece)
        out.append(released)
        if stopped:
            return out, True
    return [*out, cutter.flush()], False


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """Character by character: the first moment at which the text so far ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(st.lists(words, max_size=4), st.lists(st.text("abcd", max_size=4), max_size=8))
def test_the_text_is_cut_before_the_stop_string_that_is_complete_first(
    stops: list[str], pieces: list[str]
) -> None:
    out, stopped = run(stops, pieces)
    assert ("".join(out), stopped) == expected(stops, "".join(pieces))


@given(st.lists(words, min_size=1, max_size=4), st.lists(st.text("abcd", max_size=4), max_size=8))
def test_nothing_is_held_that_cannot_begin_a_stop_string(stops: list[str], pieces: list[str]) -> None:
    cutter, fed, released = StopStrings(stops), "", ""
    for piece in pieces:
        text, stopped = cutter.push(piece)
        fed, released = fed + piece, released + text
        if stopped:
            break
        assert released + cutter.held == fed
        assert not cutter.held or any(stop.startswith(cutter.held) and stop != cutter.held for stop in stops)


def test_text_is_held_only_while_it_may_become_a_stop_string() -> None:
    assert run(["\n\nUser:"], ["Hi", " there\n", "\nUs", "ed", "!"])[0] == [
        "Hi",
        " there",
        "",
        "\n\nUsed",
        "!",
        "",
    ]
    assert run(["\n\nUser:"], ["Hi\n", "\nUser", ": me"]) == (["Hi", "", ""], True)


def test_without_stop_strings_text_passes_through() -> None:
    assert run([], ["any", "", "thing"]) == (["any", "", "thing", ""], False)


def test_a_thousand_stop_strings_cost_little() -> None:
    stops = [f"stop number {i} of many" for i in range(1000)]
    out, stopped = run(stops, ["stop number 9", "99 of ", "many more"])
    assert ("".join(out), stopped) == ("", True)
