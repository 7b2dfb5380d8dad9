"""Pages say what was measured; a soak that found something says so."""

from __future__ import annotations

from array import array

import msgspec

from antfarm.bench.batch import BatchResult, Figure
from antfarm.bench.colony import Split, Subject, splits
from antfarm.bench.mix import Spread
from antfarm.bench.report import batch_page, serve_page, soak_page
from antfarm.bench.residents import Resident
from antfarm.bench.serve import ServeResult
from antfarm.bench.soak import (
    Check,
    SoakBench,
    SoakResult,
    all_alive,
    memory_flat,
    no_errors,
    no_slot_lost,
)
from antfarm.bench.stats import Traffic, summary
from antfarm.bench.stream import Trace

MIB = 2**20


def traffic(*, failed: bool = False) -> Traffic:
    good = Trace(prompt=10, sent=1.0, ended=3.0, pieces=array("d", [1.5, 2.0, 3.0]), outcome="answered")
    bad = Trace(sent=1.0, ended=1.1, outcome="failed", error="429 queue-full", message="try later")
    return summary([good, bad] if failed else [good], turns=1)


def soaked(*checks: Check) -> SoakResult:
    sizes = (Resident("queen", 50 * MIB, 51 * MIB),)
    return SoakResult("1", "box", "tiny", 60, 16, 0.2, checks, {"unsplit": traffic()}, sizes)


def test_a_load_as_a_page_and_as_json() -> None:
    result = ServeResult(
        version="1",
        machine="box",
        url="http://h:1/v1",
        model="m",
        streams=8,
        prompt=str(Spread(64, 256)),
        answer=str(Spread(32, 32)),
        cancel=0.25,
        turns=0,
        seed=3,
        ignores_eos=True,
        counted=False,
        interrupted=False,
        traffic=traffic(failed=True),
    )
    page = serve_page(result)
    assert "# m at http://h:1/v1, 8 streams" in page
    assert "| 2 | 1 | 0 | 0 | 1 |" in page
    assert "| answers | 3 | 1.5 |" in page and "| prompts | 10 | 5.0 |" in page
    assert "| time to first token | 500.0 | 500.0 | 500.0 | 500.0 |" in page
    assert "| between tokens | 750.0 | 975.0 | 995.0 | 1000.0 |" in page
    assert "| 429 queue-full | 1 | try later |" in page
    assert "prompts of 64 to 256 tokens, answers of 32 to their full length" in page
    assert "25% of them left early" in page and "one for each piece of text" in page
    assert msgspec.json.decode(msgspec.json.encode(result), type=ServeResult) == result


def test_scenarios_as_a_page() -> None:
    figures = (
        Figure("streams", "pipeline 2 to unsplit, 8 streams", "x", 1.834, (1.9, 1.834, 1.7)),
        Figure("chat", "first turn, prompt", "tokens", 1003.0, (1003.0,)),
    )
    page = batch_page(BatchResult("1", "box", "llama-1b q4_0", 8, 16, 64, 4, 2000, 1000, figures))
    assert "| streams | pipeline 2 to unsplit, 8 streams | 1.83 x | 1.90, 1.83, 1.70 |" in page
    assert "| chat | first turn, prompt | 1003 tokens | 1003 |" in page
    assert "Medians of 3 rounds" in page and "a prompt of 2000 tokens while 4 streams decode" in page


def test_a_soak_passes_only_when_every_check_does() -> None:
    good, bad = Check("a", True, "fine"), Check("b", False, "broken")
    assert soaked(good).passed and ": passed" in soak_page(soaked(good))
    assert not soaked(good, bad).passed
    page = soak_page(soaked(good, bad))
    assert ": FAILED" in page and "| b | NO | broken |" in page and "| queen | 50.0 | 51.0 | +2.0% |" in page


def test_what_a_soak_checks() -> None:
    assert no_errors({"unsplit": traffic()}).passed
    failed = no_errors({"unsplit": traffic(failed=True)})
    assert not failed.passed and "1 x unsplit: 429 queue-full" in failed.found
    assert not no_errors({"unsplit": summary([])}).passed, "nothing answered is nothing proved"

    bench = SoakBench(Subject(), Spread(1, 2), Spread(1, 2), slots=4)
    assert no_slot_lost(bench, {"unsplit": 4, "tensor 2": 4}).passed
    assert not no_slot_lost(bench, {"unsplit": 4, "tensor 2": 3}).passed

    assert all_alive([]).passed and not all_alive(["host-1"]).passed

    flat, grown = Resident("a", 100 * MIB, 101 * MIB), Resident("b", 100 * MIB, 103 * MIB)
    assert memory_flat([flat], 0.02).passed and not memory_flat([], 0.02).passed
    assert memory_flat([flat, grown], 0.02) == Check("memory flat within 2% after warm-up", False, "b +3.0%")


def test_splits_of_a_number_of_hosts() -> None:
    assert splits(1) == (Split("unsplit", "auto", 1),)
    assert [(s.name, s.served, s.mode, s.shards) for s in splits(3)[1:]] == [
        ("tensor 3", "tensor-3", "tensor", 3),
        ("pipeline 3", "pipeline-3", "pipeline", 3),
    ]
