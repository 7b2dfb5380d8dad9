"""The line that joins another host: written for a person, read back, and kept out of process lists."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from typing import NoReturn

from antfarm.client import state
from antfarm.client.control import no_queen
from antfarm.client.launch import API_KEY_VARIABLE
from antfarm.client.wire import checked
from antfarm.config import Home
from antfarm.errors import Reason, RequestError, StateError
from antfarm.secret import Secret, write_private

SCHEME = "antfarm://"


@dataclass(frozen=True)
class Invitation:
    """`antfarm://host:port[/SECRET]`; without the secret, the home must hold it."""

    address: str  # host:port of the bus
    secret: Secret | None

    @classmethod
    def parse(cls, text: str) -> Invitation:
        """Raises `RequestError` `bad-setting`; the message never repeats the secret."""
        body = text.strip().removeprefix("antc forager --join ").removeprefix(SCHEME)
        address, _, secret = body.partition("/")
        host, _, port = address.rpartition(":")
        valid = host and port.isdecimal() and 0 < int(port) < 1 << 16
        if not text.strip().startswith((SCHEME, "antc ")) or not valid or any(map(str.isspace, body)):
            raise RequestError(
                Reason.BAD_SETTING,
                "--join takes antfarm://HOST:PORT/SECRET",
                hint="copy the whole line that `antc nodes --join` prints on the queen's host",
            )
        return cls(address, Secret(secret) if secret else None)

    @property
    def bus(self) -> str:
        return f"nats://{self.address}"

    def without_secret(self) -> str:
        return SCHEME + self.address


def join_line(home: Home) -> str:
    """What to type on another host. Raises `colony-down` when no queen runs in this home."""
    queen = state.read(home).queen()
    if queen is None:
        raise no_queen(home)
    secret = Secret.load_or_create(home.secret_file).reveal()
    return f"antc forager --join {SCHEME}{queen.join}/{secret}"


def settle_key(home: Home, key: str, *, drop: bool) -> None:
    """Move an API key from the arguments or the environment into the home; does not return then.

    `drop` forgets the one that is there.
    """
    if drop:
        if key:
            raise RequestError(
                Reason.BAD_SETTING,
                "an API key and --no-api-key exclude each other",
                hint=f"leave one out; the key may come from ${API_KEY_VARIABLE}",
            )
        home.api_key_file.unlink(missing_ok=True)
    if key:
        write_private(home.api_key_file, checked(key))
        start_again(replaced(sys.argv[1:], "--api-key", None))


def take_invitation(home: Home, text: str) -> Invitation:
    """Read `--join`'s value, or stdin for "-", and keep its secret in the home.

    A secret on the command line is moved into the home and the process replaced by one without it.
    """
    invitation = Invitation.parse(sys.stdin.readline() if text == "-" else text)
    if invitation.secret is None:
        return invitation
    if state.read(home).queen() is not None:
        raise StateError(
            Reason.COLONY_EXISTS,
            f"{home.path} is the home of a colony that runs here; its secret must stay",
            hint="join from another folder: antc --home DIR forager --join ...",
        )
    invitation.secret.save(home.secret_file)
    if text != "-":
        start_again(replaced(sys.argv[1:], "--join", invitation.without_secret()))
    return invitation


def start_again(arguments: list[str]) -> NoReturn:
    """Become the same command with other arguments and no API key in the environment.

    The system shows a process's first arguments and environment for as long as it runs; replacing
    the process is the one way to be rid of them.
    """
    environment = {k: v for k, v in os.environ.items() if k != API_KEY_VARIABLE}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C waits until it can be handled
    os.execve(sys.executable, [sys.executable, "-m", "antfarm", *arguments], environment)


def replaced(arguments: list[str], option: str, value: str | None) -> list[str]:
    """`arguments` with another value for `option`, or without it when `value` is None."""
    out: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == option:
            next(words, None)
        elif not word.startswith(f"{option}="):
            out.append(word)
            continue
        out += [] if value is None else [option, value]
    return out
