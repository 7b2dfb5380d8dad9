"""The queen as a daemon: her sockets, her API, and what she tells the person who started her."""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

from antfarm.cli.addresses import is_wildcard, reachable
from antfarm.cli.joining import join_line
from antfarm.cli.output import note
from antfarm.cli.serve import Daemon, until_stopped
from antfarm.client.answers import api_key
from antfarm.client.control import bus_token
from antfarm.client.launch import QueenOptions
from antfarm.client.state import Process
from antfarm.queen.api.app import create_app
from antfarm.queen.api.server import ApiServer, bind, exposed
from antfarm.queen.service import Queen
from antfarm.queen.settings import QueenSettings
from antfarm.secret import Secret


async def serve_queen(daemon: Daemon, options: QueenOptions) -> None:
    """Run until stopped, or until she can't go on. The API's port is taken before anything else starts."""
    home = daemon.home
    key = api_key(home) or None
    sock = bind(options.listen, options.api_port)
    try:
        queen = await Queen.start(_settings(daemon, options))
    except BaseException:
        sock.close()
        raise
    try:
        api = await ApiServer.start(create_app(queen, api_key=key), sock)
        try:
            daemon.ready(_entry(queen, api, options))
            _introduce(daemon, api, options, key)
            await until_stopped(daemon, queen.wait(), api.wait())
        finally:
            queen.tasks.end()  # while their clients can be told
            await api.stop()
    finally:
        await queen.close()


def _settings(daemon: Daemon, options: QueenOptions) -> QueenSettings:
    home = daemon.home
    return QueenSettings(
        home,
        Secret.load_or_create(home.secret_file),
        bus_url=options.bus,
        bus_token=bus_token(home, options.token_file),
        bus_host=options.listen,
        bus_port=options.bus_port,
    )


def _entry(queen: Queen, api: ApiServer, options: QueenOptions) -> Process:
    """What this home's other processes need to know, and what other hosts do."""
    bus = urlsplit(queen.bus_url)
    host, port = bus.hostname or "", bus.port or 4222
    return Process(
        "queen",
        "",
        api=api.url,
        bus=f"nats://127.0.0.1:{port}" if is_wildcard(host) else queen.bus_url,
        bus_token=options.token_file,
        join=f"{reachable(host)}:{port}",
    )


def _introduce(daemon: Daemon, api: ApiServer, options: QueenOptions, key: str | None) -> None:
    note(f"API       {api.url}/v1")
    if key is not None:
        note(f"key       the one in {daemon.home.api_key_file}; `antc queen --no-api-key` drops it")
    if exposed(options.listen, key):
        note("          anyone who reaches this host can use it; set a key with $ANTFARM_API_KEY")
    # The line holds the secret, and what isn't a terminal may be a log.
    line = join_line(daemon.home) if sys.stderr.isatty() else "`antc nodes --join` prints the line"
    note(f"join      {line}")
    note("stop      Ctrl-C, or `antc down`")
