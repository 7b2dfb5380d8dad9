"""`antc`: the composition root. Importing it is cheap; commands import what they need when they run."""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """Run one command. Ctrl-C while its modules are being loaded ends it like any program: without a word."""
    loading = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if loading:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked while we replaced ourselves
    from antfarm.cli.app import run

    if loading:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        if loading:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # the way out is as quiet as the way in
