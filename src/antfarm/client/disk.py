"""Files of this host: how ours are made, how a model's is named, and what the system refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from antfarm.config import Home, user_path
from antfarm.errors import Reason, StateError

FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
ELSEWHERE = "change that, or name another home with --home or $ANTFARM_HOME"


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that is made is its owner's alone."""
    return os.open(path, flags, 0o600)


def absolute_ref(model: str) -> str:
    """A model's file that is here by its absolute path, since daemons run elsewhere; another reference as
    it is."""
    path = user_path(model)
    return str(path.absolute()) if path.is_file() else model


@contextmanager
def usable(home: Home) -> Iterator[None]:
    """Work on the files of a home: raises `StateError` `bad-setting` where the system refuses them."""
    try:
        yield
    except OSError as error:
        refusal = _refusal(home, error)
        if refusal is None:
            raise
        raise refusal from error


def _refusal(home: Home, error: OSError) -> StateError | None:
    """None for what is not about files."""
    if error.errno in FULL:
        return StateError(
            Reason.BAD_SETTING,
            f"the disk is full: {error.filename or home.path} can't be written",
            hint="free some space; `antc doctor` shows how much there is",
        )
    if error.filename is None:
        return None
    if error.errno in (errno.ENOTDIR, errno.EEXIST) and not home.path.is_dir():
        return StateError(Reason.BAD_SETTING, f"the home {home.path} is not a directory", hint=ELSEWHERE)
    if error.errno in FORBIDDEN:
        return StateError(
            Reason.BAD_SETTING,
            f"this user may not use {error.filename}: {error.strerror}",
            hint=ELSEWHERE,
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return StateError(
            Reason.BAD_SETTING, f"{error.filename} can't be used: {error.strerror}", hint="check that path"
        )
    return None
