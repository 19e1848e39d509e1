"""The page of results: all figures, preceded by the figures in which others are faster."""

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


def test_rates_and_times_in_which_others_are_faster_are_listed() -> None:
    text = written(
        measured(ours=fixed(rate=500), peers={"fast": fixed(rate=1_000), "slow": fixed(rate=100)}),
        measured(name="wake-up", ours=fixed(time=3), peers={"fast": fixed(time=1), "slow": fixed(time=9)}),
    )
    lost = section(text, "Where others are faster")
    assert "| [drain](#drain) | jobs/s | fast | 1,000 | 500 | 50% |" in lost
    assert "| [wake-up](#wake-up) | p50 ms | fast | 1 | 3 | 33% |" in lost
    assert "slow" not in lost


def test_a_difference_within_the_noise_is_not_listed() -> None:
    text = written(measured(ours=fixed(rate=900), peers={"other": fixed(rate=1_000)}))
    assert "Peers that were faster: none." in section(text, "Where others are faster")


def test_a_missed_target_is_listed_with_the_reached_value() -> None:
    missed = Target("jobs/s", at_least=0.4, of_floor="loop")
    text = written(measured(missed, ours=fixed(rate=390), loop=fixed(rate=1_000)))
    assert "| [drain](#drain) | jobs/s at least 40% of loop | 39% of loop |" in section(text, "Where others are faster")
    assert "| 39% of loop | MISSED |" in section(text, "Targets")


def test_losses_are_sorted_and_exclude_cpu_time() -> None:
    cell = measured(ours=fixed(rate=1, cpu=9), near=fixed(rate=2, cpu=1), far=fixed(rate=4, cpu=1))
    assert [(loss.other, loss.share) for loss in losses([cell], "floor")] == [("far", 0.25), ("near", 0.5)]


def test_a_quick_run_is_marked() -> None:
    cell = measured(ours=fixed(rate=1))
    assert "A quick run" in written(cell, is_quick=True)
    assert "A quick run" not in written(cell)


def test_a_failed_peer_is_on_the_page_and_on_the_terminal() -> None:
    def broken() -> Figures:
        raise OSError("no | server")

    cell = measured(ours=fixed(rate=1), peers={"broken": broken})
    assert "broken failed: OSError: no \\| server" in written(cell)
    assert "broken failed: OSError: no | server" in table(cell)


def test_a_way_that_was_not_run_is_on_the_page_and_on_the_terminal() -> None:
    def not_run() -> Figures:
        raise NotRun("no redis-server")

    cell = as_json(measure(Cell("herd", "jobs", {"ours": fixed(rate=1)}, ways={"Redis": not_run}), 1, print), 0.5, 0)
    assert "Redis: NOT RUN: no redis-server" in written(cell)
    assert "Redis: NOT RUN: no redis-server" in table(cell)


def test_another_way_that_is_better_is_not_a_loss() -> None:
    cell = Cell("herd", "jobs", {"ours": fixed(rate=1)}, ways={"Redis": fixed(rate=9)})
    text = written(as_json(measure(cell, 1, print), 0.5, 0))
    assert "| Redis (way) | 9 · ours: 11% |" in text
    assert "Redis" not in section(text, "Where others are faster")
