"""The colony's figures in a terminal: looked for, drawn, kept fresh."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from antfarm.cli.figures import Figures, figures
from antfarm.cli.output import WIDE, size
from antfarm.client.control import Control
from antfarm.messages import ColonyStats

REFRESH_S = 1.0
RATES = 5  # looks that rates are taken over: shards report once a second, not at the same moment as others
MEDIANS = 60  # looks that medians are taken over
ONCE_S = 2.0  # between two looks, when there are no more


async def look(control: Control) -> Figures:
    """What two looks show."""
    before = await control.stats()
    await asyncio.sleep(ONCE_S)
    return figures(before, await control.stats(), before)


async def watch(control: Control) -> None:
    """Show it until q is pressed."""
    looks: deque[ColonyStats] = deque(maxlen=MEDIANS)
    leave = asyncio.Event()
    with _keys(leave), Live(screen=True, auto_refresh=False) as live:
        while not leave.is_set():
            looks.append(await control.stats())
            before = looks[max(0, len(looks) - 1 - RATES)]
            live.update(Whole(draw(figures(before, looks[-1], looks[0]))), refresh=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(leave.wait(), REFRESH_S)


@contextlib.contextmanager
def _keys(leave: asyncio.Event) -> Iterator[None]:
    """Inside, the key q sets `leave`; where keys can't be read one by one, only Ctrl-C leaves."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    stdin, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def pressed() -> None:
        typed = os.read(stdin, 64)
        if not typed or b"q" in typed.lower():
            leave.set()

    saved = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)
    loop.add_reader(stdin, pressed)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, saved)


@dataclass
class Whole:
    """Columns in their full width: what a narrow terminal has no room for is cut off at its right edge."""

    drawn: Group

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.drawn, options.update_width(WIDE))


def draw(seen: Figures) -> Group:
    """Two tables: models, shards."""
    plural = "" if seen.foragers == 1 else "s"
    head = Text(f"{seen.foragers} forager{plural}; rates over {seen.seconds:.0f} s", style="dim")
    return Group(head, Text(), _models(seen), Text(), _shards(seen))


def _models(seen: Figures) -> Table:
    return _table(
        "MODEL STATE REPLICAS RUNNING QUEUED TOKENS/S PROMPT/S CACHED TTFT TOKEN BATCH",
        [
            (
                one.model,
                one.state,
                f"{one.ready}/{one.replicas}",
                str(one.running),
                str(one.queued),
                f"{one.tokens_per_second:.1f}",
                f"{one.prompt_tokens_per_second:.1f}",
                _share(one.cached),
                _time(one.first_token),
                _time(one.next_token),
                "-" if one.batch is None else f"{one.batch:.1f}",
            )
            for one in seen.models
        ],
        text=2,
    )


def _shards(seen: Figures) -> Table:
    return _table(
        "REPLICA SHARD FORAGER STATE STEPS/S COMPUTE WAIT BUSY SENT/S RECEIVED/S KV RESIDENT",
        [
            (
                one.replica,
                str(one.shard),
                one.forager,
                one.state,
                f"{one.steps_per_second:.1f}",
                _time(one.compute),
                _time(one.wait),
                _share(_part(one.compute, one.wait)),
                size(one.sent_per_second),
                size(one.received_per_second),
                _share(one.kv),
                size(one.resident),
            )
            for one in seen.shards
        ],
        text=4,
    )


def _table(columns: str, rows: Iterable[Sequence[str]], *, text: int) -> Table:
    """The first `text` columns are words, the others numbers."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns.split()):
        grid.add_column(column, justify="left" if index < text else "right")
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def _part(one: float | None, other: float | None) -> float | None:
    if one is None or other is None or not one + other:
        return None
    return one / (one + other)


def _share(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
