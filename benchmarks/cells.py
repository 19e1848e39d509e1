"""A cell: our figure, its floors and its peers, measured in turns and told as median and spread."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

#: What one run measured, by metric ("jobs/s").
Figures = dict[str, float]
Run = Callable[[], Figures]
Role = Literal["ours", "floor", "peer", "way"]


#: How the reason of a contestant that was left out begins.
NOT_RUN = "NOT RUN"


class NotRun(Exception):
    """A server or a driver is not there: its contestant is left out, and the reason told."""


@dataclass(frozen=True)
class Target:
    """``metric`` is at least (or at most) so much; with ``of_floor``: so much of that floor's, or of that peer's."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    of_floor: str = ""

    def __str__(self) -> str:
        word, bound = ("at most", self.at_most) if self.at_least is None else ("at least", self.at_least)
        return f"{self.metric} {word} {self.amount(bound or 0)}"

    def amount(self, value: float) -> str:
        """In words: of the metric, or of the floor's."""
        if not self.of_floor:
            return f"{value:,.0f}"
        return f"{value:.0%} of {self.of_floor}" if value <= 1 else f"{value:.3g} times {self.of_floor}"

    def is_met(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is None or value <= self.at_most


def is_rate(metric: str) -> bool:
    """More is better: jobs a second. Of everything else, less is."""
    return re.search(r"/s\b", metric) is not None


@dataclass(frozen=True)
class Cell:
    """``contestants``: ours first, then the floors; each call is one run. ``prepare`` runs once, before the first.

    ``peers``: other systems that do the same work. ``ways``: ours, done otherwise. ``is_extra``: measured with
    ``--full`` only, or when it is named. ``most_rounds``: of a cell that takes long. ``within``: entered before the
    first run and left after the last, for servers.
    """

    name: str
    title: str
    contestants: dict[str, Run]
    targets: tuple[Target, ...] = ()
    prepare: Callable[[], object] = lambda: None
    peers: dict[str, Run] = field(default_factory=dict)
    ways: dict[str, Run] = field(default_factory=dict)
    is_extra: bool = False
    most_rounds: int | None = None
    within: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def all(self) -> dict[str, Run]:
        return {**self.contestants, **self.ways, **self.peers}

    def role(self, contestant: str) -> Role:
        if contestant in self.peers:
            return "peer"
        if contestant in self.ways:
            return "way"
        return "ours" if contestant == "ours" else "floor"


@dataclass
class Result:
    """``values``: by contestant and metric, one for each round. ``failures``: by contestant, the last error of one
    that broke, or why it was not run."""

    cell: Cell
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, contestant: str, figures: Figures) -> None:
        for metric, value in figures.items():
            self.values.setdefault(contestant, {}).setdefault(metric, []).append(value)

    def median(self, contestant: str, metric: str) -> float | None:
        values = self.values.get(contestant, {}).get(metric)
        return median(values) if values else None

    def reached(self, target: Target) -> float | None:
        """What to compare with the target's bound; None when there is no floor to compare with."""
        ours = self.median("ours", target.metric)
        if ours is None or not target.of_floor:
            return ours
        floor = self.median(target.of_floor, target.metric)
        return ours / floor if floor else None


def measure(cell: Cell, rounds: int, show: Callable[[str], object]) -> Result:
    """Ours, floor, peer; ours, floor, peer: what disturbs the machine disturbs all of them."""
    result = Result(cell)
    rounds = min(rounds, cell.most_rounds or rounds)
    with cell.within():
        cell.prepare()
        for number in range(1, rounds + 1):
            for name, run in cell.all.items():
                show(f"{cell.name}: round {number} of {rounds}, {name}")
                _add(result, name, run)
    return result


def _add(result: Result, name: str, run: Run) -> None:
    """What breaks costs its own row, not the hour of measuring behind it, and the row says so; but nothing can be
    compared without ours and the floors."""
    try:
        result.add(name, run())
    except NotRun as reason:
        if name == "ours":
            raise
        result.failures[name] = f"{NOT_RUN}: {reason}"
    except Exception as error:
        if name in result.cell.contestants:
            raise
        result.failures[name] = f"{type(error).__name__}: {error}"
