"""What commands print and keep, whatever the terminal is like."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from antfarm.cli.benching import publish
from antfarm.cli.figures import Figures, ModelFigures
from antfarm.cli.live import Whole, draw
from antfarm.cli.output import table


def test_no_cell_loses_its_end_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    table(("A", "B"), [("a" * 30, "b" * 30)])
    assert f"{'a' * 30}  {'b' * 30}" in capsys.readouterr().out


def test_a_narrow_terminal_shows_whole_columns_of_top() -> None:
    one = ModelFigures("m", "ready", 1, 1, 0, 0, 0.0, 0.0, None, None, None, None)
    drawn = Whole(draw(Figures(1.0, 2, (one,), ())))
    lines = ["".join(part.text for part in line) for line in Console(width=32).render_lines(drawn)]
    assert "MODEL  STATE  REPLICAS  RUNNING " in lines
    assert "m      ready       1/1        0 " in lines


def test_results_are_kept_under_the_name_that_was_given(tmp_path: Path) -> None:
    for given, kept in (("v0.3", "v0.3"), ("sub/v0.4.json", "sub/v0.4"), ("v0.5.md", "v0.5")):
        publish({"a": 1}, "# page", tmp_path / given, as_json=False)
        assert json.loads((tmp_path / f"{kept}.json").read_text()) == {"a": 1}
        assert (tmp_path / f"{kept}.md").read_text() == "# page"


def test_a_result_that_can_not_be_kept_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        publish({"a": 1}, "# page", tmp_path / "file" / "out", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": 1}
