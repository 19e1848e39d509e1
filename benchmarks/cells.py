"""A cell: our figure, its floors and its peers, measured in turns and told as median and spread."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

#: What one run measured, by metric ("jobs/s").
Figures = dict[str, float]
Run = Callable[[], Figures]
Role = Literal["ours", "floor", "peer"]


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
    return "/s" in metric


@dataclass(frozen=True)
class Cell:
    """``contestants``: ours first, then the floors; each call is one run. ``prepare`` runs once, before the first.

    ``peers``: other systems that do the same work. ``is_extra``: measured with ``--full`` only, or when it is named.
    ``most_rounds``: of a cell that takes long.
    """

    name: str
    title: str
    contestants: dict[str, Run]
    targets: tuple[Target, ...] = ()
    prepare: Callable[[], object] = lambda: None
    peers: dict[str, Run] = field(default_factory=dict)
    is_extra: bool = False
    most_rounds: int | None = None

    def role(self, contestant: str) -> Role:
        if contestant in self.peers:
            return "peer"
        return "ours" if contestant == "ours" else "floor"


@dataclass
class Result:
    """``values``: by contestant and metric, one for each round. ``failures``: the last error of a peer that broke."""

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
    cell.prepare()
    for number in range(1, rounds + 1):
        for name, run in cell.contestants.items():
            show(f"{cell.name}: round {number} of {rounds}, {name}")
            result.add(name, run())
        for name, run in cell.peers.items():
            show(f"{cell.name}: round {number} of {rounds}, {name}")
            _add_peer(result, name, run)
    return result


def _add_peer(result: Result, name: str, run: Run) -> None:
    """A peer that breaks costs its own row, not the hour of measuring behind it; the row says so."""
    try:
        result.add(name, run())
    except Exception as error:
        result.failures[name] = f"{type(error).__name__}: {error}"
