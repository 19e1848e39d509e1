"""Cells: the order of measurements, and comparisons with targets."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.cells import Cell, Figures, NotRun, Result, Run, Target, is_rate, measure


def fixed(rate: float) -> Run:
    return lambda: {"jobs/s": rate}


def silent(text: str) -> None:
    pass


def result(target: Target, **rates: float) -> Result:
    cell = Cell("drain", "", {name: fixed(rate) for name, rate in rates.items()}, (target,))
    return measure(cell, 1, silent)


def reached(target: Target, **rates: float) -> tuple[float | None, bool | None]:
    value = result(target, **rates).reached(target)
    return value, None if value is None else target.is_met(value)


def test_ours_floors_and_peers_alternate() -> None:
    order: list[str] = []

    def noted(name: str) -> Run:
        def run() -> Figures:
            order.append(name)
            return {"jobs/s": 1.0}

        return run

    cell = Cell(
        "drain",
        "",
        {name: noted(name) for name in ("ours", "loop")},
        peers={"other": noted("other")},
        prepare=lambda: order.append("prepare"),
    )
    values = measure(cell, 2, silent).values
    assert order == ["prepare", "ours", "loop", "other", "ours", "loop", "other"]
    assert values["other"]["jobs/s"] == [1.0, 1.0]
    assert [cell.role(name) for name in values] == ["ours", "floor", "peer"]


def test_the_rounds_of_a_slow_cell_are_limited() -> None:
    def rounds_of(most: int | None) -> int:
        cell = Cell("bloat", "", {"ours": fixed(1)}, max_rounds=most)
        return len(measure(cell, 3, silent).values["ours"]["jobs/s"])

    assert [rounds_of(most) for most in (None, 5, 1)] == [3, 3, 1]


def test_a_failed_peer_is_omitted_with_its_reason() -> None:
    def broken() -> Figures:
        raise OSError("no server")

    cell = Cell("drain", "", {"ours": fixed(5)}, peers={"broken": broken, "other": fixed(3)})
    found = measure(cell, 1, silent)
    assert set(found.values) == {"ours", "other"}
    assert found.failures == {"broken": "OSError: no server"}


def test_a_failed_floor_ends_the_run() -> None:
    def broken() -> Figures:
        raise OSError("no server")

    with pytest.raises(OSError, match="no server"):
        measure(Cell("drain", "", {"ours": fixed(5), "loop": broken}), 1, silent)


def not_run() -> Figures:
    raise NotRun("no server")


def test_a_floor_or_way_that_cannot_run_is_omitted_with_its_reason() -> None:
    cell = Cell("notifying", "", {"ours": fixed(5), "loop": not_run}, ways={"by Redis": not_run, "by NATS": fixed(3)})
    found = measure(cell, 1, silent)
    assert found.failures == {"loop": "NOT RUN: no server", "by Redis": "NOT RUN: no server"}
    assert set(found.values) == {"ours", "by NATS"}
    assert cell.role("by NATS") == "way"


def test_a_cell_cannot_be_measured_without_ours() -> None:
    with pytest.raises(NotRun):
        measure(Cell("notifying", "", {"ours": not_run}), 1, silent)


def test_the_servers_of_a_cell_run_during_all_of_its_rounds() -> None:
    order: list[str] = []

    @contextmanager
    def servers() -> Iterator[None]:
        order.append("start")
        yield
        order.append("end")

    def run() -> Figures:
        order.append("run")
        return {"jobs/s": 1.0}

    measure(Cell("notifying", "", {"ours": run}, prepare=lambda: order.append("prepare"), within=servers), 2, silent)
    assert order == ["start", "prepare", "run", "run", "end"]


def test_a_time_per_step_is_not_a_rate() -> None:
    rates = ("jobs/s", "jobs/s, 2 at once", "pruned/s of pruning time")
    assert [is_rate(metric) for metric in (*rates, "CPU µs/step", "p50 ms")] == [True, True, True, False, False]


def test_a_target_compares_medians_with_a_limit() -> None:
    assert reached(Target("jobs/s", at_least=6_000), ours=5_999) == (5_999, False)
    assert reached(Target("jobs/s", at_least=6_000), ours=6_000) == (6_000, True)
    assert reached(Target("jobs/s", at_most=80), ours=81) == (81, False)
    assert reached(Target("jobs/s", at_most=80), ours=80) == (80, True)


def test_a_target_may_be_relative_to_a_floor_or_a_peer() -> None:
    target = Target("jobs/s", at_least=0.4, of_floor="loop")
    assert reached(target, ours=400, loop=1_000) == (0.4, True)
    assert reached(target, ours=390, loop=1_000) == (0.39, False)
    assert (str(target), target.amount(0.39)) == ("jobs/s at least 40% of loop", "39% of loop")
    assert str(Target("p50 ms", at_most=2, of_floor="bare")) == "p50 ms at most 2 times bare"


def test_a_target_without_the_figure_it_compares_with_is_neither_met_nor_missed() -> None:
    assert reached(Target("jobs/s", at_least=2, of_floor="pgqueuer"), ours=400) == (None, None)
    assert reached(Target("jobs/s", at_most=0), ours=0) == (0, True)
