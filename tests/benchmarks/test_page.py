"""The page: everything that was measured, and first what we lose."""

from typing import Any

from benchmarks.cells import Cell, Figures, NotRun, Run, Target, measure
from benchmarks.page import losses, page
from benchmarks.report import as_json, table


def fixed(**figures: float) -> Run:
    def run() -> Figures:
        return {_METRICS[name]: value for name, value in figures.items()}

    return run


_METRICS = {"rate": "jobs/s", "time": "p50 ms", "cpu": "CPU µs/job"}


def measured(*targets: Target, name: str = "drain", peers: dict[str, Run] | None = None, **runs: Run) -> dict[str, Any]:
    cell = Cell(name, "jobs that return a value", runs, targets, peers=peers or {})
    return as_json(measure(cell, 1, lambda text: None), 0.5, 0)


def written(*cells: dict[str, Any], is_quick: bool = False) -> str:
    how = {"date": "2026-11-21", "rounds": 1, "is_quick": is_quick}
    machine = {"CPUs": "2", "PostgreSQL": {"fsync": "on"}}
    return page({"machine": machine, "how": how, "peers": {"other": "1.0, polls"}, "cells": cells})


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_page_has_the_machine_and_each_figure_beside_its_ratio() -> None:
    text = written(measured(ours=fixed(rate=500), loop=fixed(rate=1_000)))
    assert "| PostgreSQL: fsync | on |" in text
    assert "| loop (floor) | 1,000 · ours: 50% |" in text
    assert "| other | 1.0, polls |" in text


def test_what_we_lose_is_found_for_rates_and_for_times() -> None:
    text = written(
        measured(ours=fixed(rate=500), peers={"fast": fixed(rate=1_000), "slow": fixed(rate=100)}),
        measured(name="wake-up", ours=fixed(time=3), peers={"fast": fixed(time=1), "slow": fixed(time=9)}),
    )
    lost = section(text, "Cells we lose")
    assert "| [drain](#drain) | jobs/s | fast | 1,000 | 500 | 50% |" in lost
    assert "| [wake-up](#wake-up) | p50 ms | fast | 1 | 3 | 33% |" in lost
    assert "slow" not in lost


def test_a_difference_within_the_noise_is_no_loss() -> None:
    text = written(measured(ours=fixed(rate=900), peers={"other": fixed(rate=1_000)}))
    assert "Peers that were better: none." in section(text, "Cells we lose")


def test_a_missed_target_is_told_with_what_was_reached() -> None:
    missed = Target("jobs/s", at_least=0.4, of_floor="loop")
    text = written(measured(missed, ours=fixed(rate=390), loop=fixed(rate=1_000)))
    assert "| [drain](#drain) | jobs/s at least 40% of loop | 39% of loop |" in section(text, "Cells we lose")
    assert "| 39% of loop | MISSED |" in section(text, "Targets")


def test_losses_are_sorted_and_leave_out_cpu_time() -> None:
    cell = measured(ours=fixed(rate=1, cpu=9), near=fixed(rate=2, cpu=1), far=fixed(rate=4, cpu=1))
    assert [(loss.other, loss.share) for loss in losses([cell], "floor")] == [("far", 0.25), ("near", 0.5)]


def test_a_quick_run_says_that_it_measures_nothing() -> None:
    cell = measured(ours=fixed(rate=1))
    assert "A quick run" in written(cell, is_quick=True)
    assert "A quick run" not in written(cell)


def test_a_peer_that_broke_is_on_the_page_and_on_the_terminal() -> None:
    def broken() -> Figures:
        raise OSError("no | server")

    cell = measured(ours=fixed(rate=1), peers={"broken": broken})
    assert "broken failed: OSError: no \\| server" in written(cell)
    assert "broken failed: OSError: no | server" in table(cell)


def test_what_was_not_run_is_on_the_page_and_on_the_terminal() -> None:
    def not_run() -> Figures:
        raise NotRun("no redis-server")

    cell = as_json(measure(Cell("herd", "jobs", {"ours": fixed(rate=1)}, ways={"Redis": not_run}), 1, print), 0.5, 0)
    assert "Redis: NOT RUN: no redis-server" in written(cell)
    assert "Redis: NOT RUN: no redis-server" in table(cell)


def test_another_way_of_ours_that_is_better_is_no_loss() -> None:
    cell = Cell("herd", "jobs", {"ours": fixed(rate=1)}, ways={"Redis": fixed(rate=9)})
    told = written(as_json(measure(cell, 1, print), 0.5, 0))
    assert "| Redis (way) | 9 · ours: 11% |" in told
    assert "Redis" not in section(told, "Cells we lose")
