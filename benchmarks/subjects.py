"""The modules with cells, in the order of the page."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module

from benchmarks.cells import Cell

SUBJECTS = (
    "draining",
    "draining_records",
    "waking",
    "notifying",
    "enqueueing",
    "observing",
    "notify_cost",
    "joining",
    "memory",
    "starting",
    "scaling",
    "flat",
    "held",
    "bloat",
    "scheduling",
    "limiting",
    "on_sqlite",
    "pools",
    "isolated",
)


@dataclass(frozen=True)
class Amount:
    """How much is measured: the rounds of each cell, less work with ``is_quick``, and the names of the peers."""

    rounds: int
    is_quick: bool
    peers: tuple[str, ...]


def cells(subject: str, amount: Amount) -> Iterator[Cell]:
    from benchmarks import peers

    for cell in import_module(f"benchmarks.{subject}").cells(is_quick=amount.is_quick):
        beside = peers.contestants(cell.name, amount.peers, is_quick=amount.is_quick)
        yield replace(cell, peers={**cell.peers, **beside})
