"""Cells: our figure, its floors and its peers, measured in turns and reported as median and spread."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

#: The values that one run measured, by metric ("jobs/s").
Figures = dict[str, float]
Run = Callable[[], Figures]
Role = Literal["ours", "floor", "peer", "way"]


#: The prefix of the reason why a contestant was skipped.
NOT_RUN = "NOT RUN"


class NoServer(Exception):
    """There is no PostgreSQL server, or its figures would be meaningless."""


class NotRun(Exception):
    """A server or a driver is missing. The contestant is skipped, and the reason is reported."""


@dataclass(frozen=True)
class Target:
    """A bound for ``metric``: an absolute value, or with ``of_floor`` a share of that floor's or peer's value."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    of_floor: str = ""

    def __str__(self) -> str:
        word, bound = ("at most", self.at_most) if self.at_least is None else ("at least", self.at_least)
        return f"{self.metric} {word} {self.amount(bound or 0)}"

    def amount(self, value: float) -> str:
        """Return the value as text, absolute or relative to the floor."""
        if not self.of_floor:
            return f"{value:,.0f}"
        return f"{value:.0%} of {self.of_floor}" if value <= 1 else f"{value:.3g} times {self.of_floor}"

    def is_met(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is None or value <= self.at_most


def is_rate(metric: str) -> bool:
    """Return whether more is better, as for jobs a second. For every other metric, less is better."""
    return re.search(r"/s\b", metric) is not None


@dataclass(frozen=True)
class Row:
    """The row of a cell in the page's table of limits.

    - ``title``: the work, in a few words.
    - ``metric``: the figure that is compared.
    - ``processes``: the number of client processes, whose CPU time the figures add up.
    - ``idle_limit``: what the work waits for while no CPU is busy.
    """

    title: str
    metric: str = "jobs/s"
    processes: int = 1
    idle_limit: str = "commits"


@dataclass(frozen=True)
class Cell:
    """One benchmark and its contestants.

    - ``contestants``: ours first, then the floors. Each call is one run.
    - ``prepare`` runs once, before the first run.
    - ``peers``: other systems that do the same work.
    - ``ways``: django_jobchains in another configuration.
    - ``is_extra``: measured only with ``--full``, or when it is named.
    - ``max_rounds`` limits the rounds of a cell that takes long.
    - ``within``: a context around all runs, for servers.
    - ``row``: its row in the page's table of limits, if it has one.
    """

    name: str
    title: str
    contestants: dict[str, Run]
    targets: tuple[Target, ...] = ()
    prepare: Callable[[], object] = lambda: None
    peers: dict[str, Run] = field(default_factory=dict)
    ways: dict[str, Run] = field(default_factory=dict)
    is_extra: bool = False
    max_rounds: int | None = None
    within: Callable[[], AbstractContextManager[object]] = nullcontext
    row: Row | None = None

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
    """The measurements of a cell.

    ``values`` has a list by contestant and metric, with one value for each round. ``failures`` has, by contestant, the
    last error, or the reason why it was not run.
    """

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
        """Return the value to compare with the target's bound, or None when the floor is missing."""
        ours = self.median("ours", target.metric)
        if ours is None or not target.of_floor:
            return ours
        floor = self.median(target.of_floor, target.metric)
        return ours / floor if floor else None


def measure(cell: Cell, rounds: int, show: Callable[[str], object]) -> Result:
    """Run all contestants in turns, so that a disturbance of the machine affects all of them."""
    result = Result(cell)
    rounds = min(rounds, cell.max_rounds or rounds)
    with cell.within():
        cell.prepare()
        for number in range(1, rounds + 1):
            for name, run in cell.all.items():
                show(f"{cell.name}: round {number} of {rounds}, {name}")
                _add(result, name, run)
    return result


def _add(result: Result, name: str, run: Run) -> None:
    """Run one contestant and record a failure in its row, so that it does not end a long measurement.

    A failure of ours or of a floor is raised, because nothing can be compared without them.
    """
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
