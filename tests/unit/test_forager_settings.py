"""What a forager refuses before it joins, and models that its engine can't run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from support.models import Models

from antfarm.config import Home
from antfarm.engine import ARCHITECTURES
from antfarm.errors import AntfarmError, Reason
from antfarm.forager import ForagerSettings
from antfarm.forager.files import Files
from antfarm.forager.probe import probe
from antfarm.forager.settings import cores
from antfarm.secret import Secret


def settings(folder: Path, **changes: Any) -> ForagerSettings:
    home = Home(folder)
    return ForagerSettings(home, Secret.load_or_create(home.secret_file), "nats://127.0.0.1:1", **changes)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"listen": "8.8.8.8"}, "--listen 8.8.8.8"),
        ({"listen": "no-such-host.invalid"}, "--listen no-such-host.invalid"),
        ({"listen": "a..b"}, "--listen a..b"),
        ({"threads": cores() + 1}, f"--threads {cores() + 1}"),
        ({"threads": -1}, "--threads -1"),
        ({"memory": psutil.virtual_memory().total + (1 << 30)}, "--memory"),
        ({"memory": -1}, "--memory"),
    ],
)
def test_what_this_host_can_not_do_is_refused(tmp_path: Path, changes: dict[str, Any], option: str) -> None:
    with pytest.raises(AntfarmError) as caught:
        settings(tmp_path, **changes).check()
    assert caught.value.reason is Reason.BAD_SETTING
    assert option in caught.value.message


@pytest.mark.parametrize("changes", [{}, {"threads": cores(), "memory": 1 << 20, "listen": "localhost"}])
def test_what_it_can_do_is_taken(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings(tmp_path, **changes).check()


async def test_a_model_that_the_engine_can_not_run_is_refused_when_described(models: Models) -> None:
    found = await probe()
    assert found.architectures == tuple(ARCHITECTURES)
    path = models.path("tiny-llama")
    assert (await Files(path.parent, found.architectures).describe(str(path), lambda *_: None)).layers
    with pytest.raises(AntfarmError) as caught:
        await Files(path.parent, ("qwen2",)).describe(str(path), lambda *_: None)
    assert caught.value.reason is Reason.UNSUPPORTED_ARCHITECTURE
    assert "'llama'" in caught.value.message and "qwen2" in caught.value.hint
