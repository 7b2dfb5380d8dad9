"""How a forager runs."""

from __future__ import annotations

import os
import re
import secrets
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from antfarm.config import Home
from antfarm.errors import AntfarmError, Reason, StateError
from antfarm.link.listener import Listener
from antfarm.secret import Secret

MEMORY_SHARE = 0.8  # of what is free on this host when the forager starts


@dataclass(frozen=True)
class ForagerSettings:
    """0 and empty leave the choice to the forager."""

    home: Home
    secret: Secret
    bus_url: str
    bus_token: str = ""  # of a NATS of your own; empty takes the colony's
    name: str = ""  # unique in the colony; empty takes the host's name and a suffix kept in the home
    memory: int = 0  # bytes for shards; 0: `MEMORY_SHARE` of what is free, shared by the machine's foragers
    threads: int = 0  # of each shard; 0 takes one a core
    listen: str = "127.0.0.1"  # where shards listen for other shards

    def check(self) -> None:
        """Raise `bad-setting`, naming the option, for what this host can't do."""
        try:
            Listener.bind(self.listen).close()
        except (StateError, UnicodeError) as error:
            why = error.message if isinstance(error, StateError) else str(error)
            raise _bad(f"--listen {self.listen}: {why}", "name an address of this host") from None
        most = cores()
        if not 0 <= self.threads <= most:
            raise _bad(
                f"--threads {self.threads}: a shard's threads have {most} cores here",
                f"take 1 to {most}, or leave it out; more threads than cores wait for each other",
            )
        there = psutil.virtual_memory().total
        if not 0 <= self.memory <= there:
            raise _bad(
                f"--memory {self.memory >> 20} MiB: this host has {there >> 20} MiB",
                "leave it out to take what is free",
            )

    def token(self) -> str:
        return self.bus_token or self.secret.bus_token()

    def id(self) -> str:
        """The name given, else this host's with a suffix that the home keeps. Raises `bad-setting`."""
        if not self.name:
            return f"{_host_token()}-{self._suffix()}"
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.name):
            raise _bad(f"{self.name!r} can't name a forager", "use up to 64 letters, digits, '-' and '_'")
        return self.name

    def memory_budget(self) -> int:
        return self.memory or int(psutil.virtual_memory().available * MEMORY_SHARE)

    def shard_threads(self) -> int:
        return self.threads or cores()

    def _suffix(self) -> str:
        file = self.home.path / "forager-id"
        self.home.path.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_text(secrets.token_hex(2))
        return file.read_text().strip()


def _bad(message: str, hint: str) -> AntfarmError:
    return AntfarmError(Reason.BAD_SETTING, message, hint=hint)


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine() -> str:
    """The same for every process that runs in the same memory, in a container or not."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}-{uuid.getnode():x}"


def _host_token() -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname())[:48].strip("-") or "host"
