"""Deadlines, ports and the colony's home folder, for which the environment is read when asked, not on import.

Of settings in the environment, only keys of the API are read elsewhere: by the command line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from antfarm.errors import Reason, StateError

API_PORT = 7777
BUS_PORT = 7778

HEARTBEAT_S = 1.0  # between a forager's writes to the registry
LOST_AFTER_S = 4.0  # without one, a forager is lost
REQUEST_S = 5.0  # a control request's answer
LOAD_S = 600.0  # a shard's weights, from spawn to loaded
LINK_S = 20.0  # all peers connected and shaken hands
STEP_S = 30.0  # one receive inside a step
STOP_S = 5.0  # from asking a process to end to killing it


def user_path(text: str | os.PathLike[str]) -> Path:
    """A path as people write it, with `~`. Raises `StateError` `bad-setting` for a `~` that is nobody's."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise StateError(
            Reason.BAD_SETTING,
            f"which folder {text} is can't be told: no such user, or a user without a home",
            hint="write the path without ~; $ANTFARM_HOME or --home names another home than ~/.antfarm",
        ) from error


@dataclass(frozen=True)
class Home:
    """The folder that holds one colony's secret, models, bus data and logs."""

    path: Path
    shared_models: Path | None = None

    @classmethod
    def find(cls, given: str | os.PathLike[str] | None = None) -> Home:
        """The folder given, else `$ANTFARM_HOME`, else `~/.antfarm`. `$ANTFARM_MODELS` moves the models."""
        path = user_path(given or os.environ.get("ANTFARM_HOME") or "~/.antfarm").absolute()
        models = os.environ.get("ANTFARM_MODELS")
        return cls(path, user_path(models).absolute() if models else None)

    def make(self) -> None:
        """Make the folder unless it is there, for its owner alone."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def models(self) -> Path:
        return self.shared_models or self.path / "models"

    @property
    def bus(self) -> Path:
        return self.path / "bus"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def secret_file(self) -> Path:
        return self.path / "secret"

    @property
    def api_key_file(self) -> Path:
        """The API's key, when it asks for one."""
        return self.path / "api-key"

    @property
    def state_file(self) -> Path:
        """What runs here now: addresses and process ids, written by the queen and foragers."""
        return self.path / "colony.json"

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"
