"""What set-up says on a machine that lacks something. It must be said before anything is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "dirname", "cat", "cksum", "env", "rm")
OLD_PYTHON = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.9.1' && exit 0\nexit 1\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout, and beside it a PATH with the barest tools."""
    (tmp_path / "repo/scripts").mkdir(parents=True)
    for name in ("scripts/setup", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "repo" / name)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    return tmp_path


def set_up(machine: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", machine / "repo/scripts/setup"],
        env={"PATH": str(machine / "bin")},
        capture_output=True,
        text=True,
    )


def program(machine: Path, name: str, text: str) -> None:
    path = machine / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def test_an_old_python_is_named_with_the_commands_that_help(machine: Path) -> None:
    program(machine, "python3", OLD_PYTHON)
    done = set_up(machine)
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed (found: Python 3.9.1)" in done.stderr
    assert "apt-get install" in done.stderr and "dnf install" in done.stderr and "brew install" in done.stderr
    assert not (machine / "repo/.venv").exists()


def test_a_missing_compiler_is_named_with_the_commands_that_help(machine: Path) -> None:
    program(machine, "python3", "#!/bin/sh\nexit 0\n")
    done = set_up(machine)
    assert done.returncode == 1
    assert "a C and C++ compiler is needed" in done.stderr
    assert "apt-get install build-essential" in done.stderr and "xcode-select --install" in done.stderr
    assert not (machine / "repo/.venv").exists()


def test_a_python_without_venv_is_named(machine: Path) -> None:
    program(machine, "python3", '#!/bin/sh\n[ "$1" = -c ] && exit 0\nexit 1\n')
    for compiler in ("cc", "c++"):
        program(machine, compiler, "#!/bin/sh\nexit 0\n")
    done = set_up(machine)
    assert done.returncode == 1
    assert "can't make virtual environments" in done.stderr and "python3-venv" in done.stderr
    assert not (machine / "repo/.venv").exists()
