"""A forager in a process of its own, so that a test can kill it."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import psutil

from antfarm.config import Home
from antfarm.forager import Forager, ForagerSettings
from antfarm.secret import Secret


class ForagerProcess:
    """A running forager process; `start` returns once it has joined."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, home: Path, url: str, name: str, mib: int = 1024) -> ForagerProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, str(home), url, name, str(mib), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line == b"ready\n", line
        return cls(process)

    def shards(self) -> list[psutil.Process]:
        """Its shard processes, but for those that have ended and are not yet waited for."""
        return [p for p in psutil.Process(self.pid).children() if is_shard(p)]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def wait(self) -> int:
        return await asyncio.wait_for(self._process.wait(), 60)

    async def end(self) -> None:
        """Clean up, however the test left it."""
        if self._process.returncode is None:
            self.send(signal.SIGTERM)
            try:
                await self.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
                raise


def is_shard(process: psutil.Process) -> bool:
    """Whether it is a shard that has not ended."""
    try:
        return "antfarm.shard" in process.cmdline()
    except psutil.Error:
        return False


async def main(home: Path, url: str, name: str, mib: int) -> None:
    settings = ForagerSettings(
        Home(home), Secret.load_or_create(Home(home).secret_file), url, name=name, memory=mib << 20, threads=1
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    forager = await Forager.start(settings)
    print("ready", flush=True)
    await stop.wait()
    await forager.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
