"""Where the secret may be shown: to a person at a terminal, and to whoever asks for it."""

from __future__ import annotations

from support.antc import FREE_PORTS, Antc
from support.terminal import in_a_terminal

JOIN = "antc forager --join antfarm://127.0.0.1:"


def test_up_prints_the_join_line_on_a_terminal(antc: Antc) -> None:
    shown, code = in_a_terminal(antc.command("up", *FREE_PORTS))
    secret = antc.home.secret_file.read_text().strip()
    line = next(line for line in shown.decode().splitlines() if line.startswith("join "))
    assert code == 0
    assert line.removeprefix("join").strip().startswith(JOIN) and line.endswith(f"/{secret}")
    asked, code = in_a_terminal(antc.command("nodes", "--join"))
    assert code == 0 and asked.decode().strip() == line.removeprefix("join").strip()


def test_up_keeps_the_secret_out_of_a_pipe_but_names_who_tells(antc: Antc) -> None:
    done = antc.run("up", *FREE_PORTS)
    secret = antc.home.secret_file.read_text().strip()
    assert secret not in done.stdout + done.stderr and "`antc nodes --join`" in done.stdout
    assert antc.run("nodes", "--join").stdout.strip().endswith(secret)
