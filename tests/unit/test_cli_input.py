"""What people type: join lines, sizes, lists, and the commands themselves against the README."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from antfarm.cli.app import app
from antfarm.cli.doctor import examine
from antfarm.cli.joining import Invitation, replaced
from antfarm.cli.options import parse_numbers, parse_shares, parse_size, parse_wire
from antfarm.cli.output import size
from antfarm.client.answers import api_key
from antfarm.config import Home
from antfarm.errors import AntfarmError, Reason
from antfarm.types import WireFormat

ROOT = Path(__file__).parents[2]
SECRET = "x9-a-secret-of-24-chars"


def test_an_invitation_is_read_as_printed_or_as_its_url() -> None:
    for text in (
        f"antfarm://10.0.0.5:7778/{SECRET}",
        f"antc forager --join antfarm://10.0.0.5:7778/{SECRET}\n",
    ):
        invitation = Invitation.parse(text)
        assert invitation.secret is not None and invitation.secret.reveal() == SECRET
        assert (invitation.bus, invitation.without_secret()) == (
            "nats://10.0.0.5:7778",
            "antfarm://10.0.0.5:7778",
        )
    assert Invitation.parse("antfarm://queen.local:1").secret is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        SECRET,
        f"http://h:1/{SECRET}",
        f"antfarm://h/{SECRET}",
        f"antfarm://:1/{SECRET}",
        f"antfarm://h:port/{SECRET}",
        f"antfarm://h:99999/{SECRET}",
        f"antfarm://h:0/{SECRET}",
        f"antfarm://h:1/{SECRET} x",
    ],
)
def test_a_wrong_invitation_is_refused_without_repeating_the_secret(text: str) -> None:
    with pytest.raises(AntfarmError) as refused:
        Invitation.parse(text)
    assert refused.value.reason is Reason.BAD_SETTING
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "value", "expected"),
    [
        (["forager", "--join", "a", "--name", "b"], "c", ["forager", "--join", "c", "--name", "b"]),
        (["forager", "--join=a", "--name", "b"], "c", ["forager", "--join", "c", "--name", "b"]),
        (["queen", "--join", "a"], None, ["queen"]),
        (["queen", "--joint", "a"], None, ["queen", "--joint", "a"]),
    ],
)
def test_arguments_are_replaced_whole(given: list[str], value: str | None, expected: list[str]) -> None:
    assert replaced(given, "--join", value) == expected


def test_sizes() -> None:
    sizes = {"400MiB": 400 << 20, "400M": 400 << 20, "1.5g": 3 << 29, "2 GB": 2 << 30, "77": 77, "": 0}
    assert {text: parse_size(text) for text in sizes} == sizes
    for wrong in ("much", "-1M", "1X", "MiB", "nan", "inf"):
        with pytest.raises(typer.BadParameter):
            parse_size(wrong)
    assert [size(n) for n in (5, 2048, 592 << 20, 3 << 30)] == ["5 B", "2.0 KiB", "592 MiB", "3.0 GiB"]


def test_lists_and_names() -> None:
    assert parse_numbers("0, 1") == (0, 1)
    assert parse_shares("2,1") == (2.0, 1.0)
    assert parse_wire("q8") is WireFormat.Q8
    for parse, wrong in (
        (parse_numbers, "0-1"),
        (parse_shares, "2,0"),
        (parse_shares, "a"),
        (parse_shares, "inf"),
        (parse_wire, "f64"),
    ):
        with pytest.raises(typer.BadParameter):
            parse(wrong)


# ---- the commands as a whole


def commands() -> dict[str, set[str]]:
    """Each command with its options, a group's as "bench split"."""
    found: dict[str, set[str]] = {}

    def walk(command: object, path: str) -> None:
        below = getattr(command, "commands", None)
        if below:
            for name, child in below.items():
                walk(child, f"{path} {name}".strip())
        else:
            found[path] = {o for p in command.params for o in p.opts if o.startswith("--")}  # type: ignore[attr-defined]

    walk(typer.main.get_command(app), "")
    return found


def test_the_readme_names_every_command_and_no_other() -> None:
    table = set(re.findall(r"^\| `antc ([a-z ]+?)(?: [A-Z].*?)?` \|", (ROOT / "README.md").read_text(), re.M))
    assert table == set(commands())


def test_every_option_in_the_docs_exists() -> None:
    options = {"--home", "--help", "--version"}.union(*commands().values())
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for line in path.read_text().splitlines():
            if "antc " in line:
                unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)) - options
                assert not unknown, f"{path.name}: {line}"


def test_help_is_written_for_people() -> None:
    for name in commands():
        shown = CliRunner().invoke(app, [*name.split(), "--help"]).stdout
        assert not re.findall(r"<[a-z ]+>|[<>]=|\{", shown), shown


def test_usage_names_the_command_however_it_was_started(tmp_path: Path) -> None:
    assert antc(tmp_path, "fly").stderr.startswith("Usage: antc ")


def computed() -> float:
    """Seconds of a core that our children have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    program = """
import atexit, sys
from antfarm.cli import main
sys.argv = ["antc", "--help"]
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
"""
    took = []
    for _ in range(5):
        began = computed()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        took.append(computed() - began)
    assert "Commands:" in done.stdout
    heavy = {"numpy", "ggml", "rich", "httpx", "fastapi", "nats", "asyncio", "tokenizers"}
    assert not heavy & set(done.stderr.split())
    assert min(took) < 0.3, took  # of a core, which is the time it takes where nothing else wants that core


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["fly"], 2, "No such command"),
        (["up", "--foragers", "none"], 2, "--foragers"),
        (["up", "--foragers", "0"], 2, "0 is not from 1 to 64"),
        (["load", "m", "--slots", "-1"], 2, "-1 is not at least 0"),
        (["load", "m", "--prefill-share", "0"], 2, "0.0 is not above 0 and at most 1"),
        (["up", "--queue", "-1"], 2, "-1 is not at least 0"),
        (["pull", "ftp://host/m.gguf"], 1, "antc: model-unknown: models are not fetched by ftp://"),
        (["load", "m", "--shares", "0"], 2, "--shares"),
        (["ps"], 1, "antc: colony-down: no colony runs"),
        (["ask", "hello"], 1, "antc: colony-down: no colony runs"),
        (["forager", "--join", "nonsense"], 1, "antc: bad-setting: --join takes"),
        (["forager"], 1, "antc: colony-down: no colony runs"),
        (["pull", "no-such-model"], 1, "antc: model-unknown"),
        (["load", "~nobody-of-this-name/m.gguf"], 1, "antc: bad-setting: which folder ~nobody-of-this-name"),
        (["ask", " "], 1, "antc: invalid-request: the question is empty"),
        (["ask", "-"], 1, "antc: invalid-request: the question is empty"),
        (["ask", "caf\udce9"], 1, "antc: invalid-request: a user message is not UTF-8"),
        (["bench", "serve", "--url", "http://h:77777"], 1, "antc: bad-setting: 'http://h:77777' is not"),
        (["bench", "serve", "--url", "h:80/v1"], 1, "antc: bad-setting: 'h:80' is not"),
        (["bench", "split", "--hosts", "9999"], 1, "antc: bad-setting: 9999 hosts need a core each"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    done = antc(tmp_path, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def antc(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "antfarm", "--home", str(home), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("key", [" ", "a\nkey", "schlüssel"])
def test_a_key_that_no_client_could_send_is_refused(tmp_path: Path, key: str) -> None:
    """It must not be taken for no key, which would open the API to everyone."""
    refused = antc(tmp_path, "queen", "--api-port", "0", "--bus-port", "0", "--api-key", key)
    assert refused.returncode == 1 and refused.stderr.startswith("antc: bad-setting: the API key")
    home = Home(tmp_path)
    assert not home.api_key_file.exists()
    home.api_key_file.write_text(key)
    with pytest.raises(AntfarmError, match="the API key"):
        api_key(home)


def test_the_home_may_be_named_after_the_command(tmp_path: Path) -> None:
    for words in (["ps", "--home", str(tmp_path / "b")], ["unload", f"--home={tmp_path / 'b'}", "m"]):
        assert f"no colony runs in {tmp_path / 'b'}\n" in antc(tmp_path / "a", *words).stderr


def test_a_user_without_a_home_can_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTFARM_HOME", "~nobody-of-this-name/home")
    assert f"no colony runs in {tmp_path}\n" in antc(tmp_path, "ps").stderr
    unnamed = subprocess.run([sys.executable, "-m", "antfarm", "ps"], capture_output=True, text=True)
    assert unnamed.returncode == 1 and unnamed.stderr.startswith("antc: bad-setting: which folder")


def test_an_unforeseen_error_is_one_line_and_its_traceback_a_file(tmp_path: Path) -> None:
    program = "from antfarm.client import state; from antfarm.cli import main; state.read = None; main()"
    words = ("--home", str(tmp_path), "ps")
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    log = tmp_path / "logs/antc-error.log"
    assert done.returncode == 1
    assert done.stderr.startswith("antc: internal: TypeError") and str(log) in done.stderr
    assert "Traceback" in log.read_text() and "Traceback" not in done.stderr


def test_doctor_finds_a_home_that_can_not_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "home"):
        homes = [found for found in examine(Home(path)) if found.check == "home"]
        assert [(one.verdict, one.text) for one in homes] == [("wrong", f"{file} is not a directory")]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    wrong = [found for found in examine(Home(tmp_path)) if found.verdict == "wrong"]
    assert [found.check for found in wrong] == ["disk"]


def test_doctor_goes_on_where_it_may_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, locked = os.stat, tmp_path / "locked"
    locked.mkdir()

    def guarded(path: Any, **how: Any) -> os.stat_result:
        if locked in Path(os.fsdecode(path)).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", guarded)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != locked)
    found = {one.check: one for one in examine(Home(locked / "home"))}
    assert (found["home"].verdict, found["home"].text) == ("wrong", f"{locked} is not writable")
    assert {"disk", "ports", "colony"} <= set(found)


def test_doctor_finds_a_secret_that_others_can_read(tmp_path: Path) -> None:
    assert antc(tmp_path, "doctor").returncode == 0
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    done = antc(tmp_path, "doctor", "--json")
    (wrong,) = [found for found in json.loads(done.stdout) if found["verdict"] == "wrong"]
    assert done.returncode == 1
    assert wrong["advice"].startswith(f"chmod 600 {secret}")
