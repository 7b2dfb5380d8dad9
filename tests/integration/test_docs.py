"""The README's commands, run as they stand there, on a small model and free ports."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from support.antc import FREE_PORTS, Antc
from support.models import Models

ROOT = Path(__file__).parents[2]


def commands_that_run(text: str) -> list[list[str]]:
    """The lines of the blocks that are marked `<!-- runs -->`, as arguments of `antc`."""
    blocks = re.findall(r"^<!-- runs -->\n```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    assert all(line[0] == "antc" for line in lines)
    return [line[1:] for line in lines]


def test_the_commands_of_the_readme_run(tmp_path: Path, models: Models) -> None:
    small = str(models.path("tiny-llama"))
    commands = commands_that_run((ROOT / "README.md").read_text())
    assert [words[0] for words in commands][:2] == ["up", "ask"] and commands[-1] == ["down"]
    antc = Antc(tmp_path / "home")
    try:
        for words in commands:
            words = [small if word == "smollm2" else word for word in words]
            done = antc.run(*words, *(FREE_PORTS if words[0] == "up" else ()))
            assert done.stdout.strip()
    finally:
        assert not antc.close()
