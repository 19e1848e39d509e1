"""Other systems beside ours: contestants of the cells that have the same name as a subject."""

from collections.abc import Callable

from benchmarks.cells import Figures

#: Cells that take peers.
SUBJECTS = ("enqueue", "enqueue-many", "drain", "wake-up", "chain-latency")

#: By peer: its version, and how it is run.
SETTINGS: dict[str, str] = {}


def contestants(subject: str, *, is_quick: bool) -> dict[str, Callable[[], Figures]]:
    """By peer, one run with the metrics of our own cell; only peers whose environment is installed."""
    return {}
