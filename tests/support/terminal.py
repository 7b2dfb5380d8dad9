"""Running a command on a terminal of its own and typing what a person would."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

WAIT_S = 100.0

TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def in_a_terminal(command: list[str], *turns: tuple[bytes, bytes]) -> tuple[bytes, int]:
    """Run to the end; of each turn, type the keys when its pattern is shown, after what the last turn saw.

    Returns all output and the exit code.
    """
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *command],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"},
    )
    os.close(its)
    shown, seen, waiting, deadline = b"", 0, list(turns), time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if waiting and (found := re.search(waiting[0][0], shown[seen:], re.DOTALL)):
            seen += found.end()
            os.write(ours, waiting.pop(0)[1])
        if select.select([ours], [], [], 0.1)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # Linux's way to say that the other end is closed
                break
    os.close(ours)
    assert not waiting, f"{waiting[0][0]!r} was not shown: {shown[seen:]!r}"
    return shown, process.wait(30)
