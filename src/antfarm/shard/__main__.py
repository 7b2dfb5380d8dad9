"""`python -m antfarm.shard`: started by a forager, spoken to over stdin and stdout."""

import contextlib
import os
import signal
import sys


def main() -> int:
    # A terminal's Ctrl-C reaches every process of its group. The forager decides when its shards end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "SCHED_OTHER"):  # a forager gives way to shards, and its children inherit that
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    from antfarm.shard.process import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
