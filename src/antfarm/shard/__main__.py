"""`python -m antfarm.shard`: started by a forager, spoken to over stdin and stdout."""

import signal
import sys


def main() -> int:
    # A terminal's Ctrl-C reaches every process of its group. The forager decides when its shards end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from antfarm.shard.process import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
