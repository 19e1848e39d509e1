"""Converts results to JSON, and the JSON to lines for the terminal."""

from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.cells import NOT_RUN, Result, Target, is_rate

#: A cell in the format of the JSON file.
Measured = dict[str, Any]


def as_json(result: Result) -> Measured:
    cell = result.cell
    return {
        "name": cell.name,
        "title": cell.title,
        "roles": {name: cell.role(name) for name in cell.all},
        "values": result.values,
        "failures": result.failures,
        "targets": [_target(target, result.reached(target)) for target in cell.targets],
        "row": asdict(cell.row) if cell.row else None,
    }


def _target(target: Target, reached: float | None) -> dict[str, Any]:
    own = {**asdict(target), "target": str(target)}
    if reached is None:
        return {**own, "reached": "", "is_met": None}
    return {**own, "reached": target.amount(reached), "is_met": target.is_met(reached)}


def table(cell: Measured) -> str:
    """Return median, spread, and our ratio to each floor and peer as lines. For times, less is better."""
    lines = []
    width = max(map(len, metrics(cell)))
    for metric in metrics(cell):
        for name, values in cell["values"].items():
            if metric in values:
                label = metric if name == "ours" else ""
                figures = f"{_spread(values[metric])}  {share(cell, name, metric)}"
                lines.append(f"  {label:<{width}} {name:<20} {figures}".rstrip())
    lines += [f"  {failure(name, error)}" for name, error in cell["failures"].items()]
    lines += [
        f"  target: {each['target']}: {VERDICTS[each['is_met']]}  {each['reached']}".rstrip()
        for each in cell["targets"]
    ]
    return "\n".join(lines)


def failure(name: str, error: str) -> str:
    """Return a line about a contestant that failed or was not run."""
    return f"{name}: {error}" if error.startswith(NOT_RUN) else f"{name} failed: {error}"


#: From this share on, a CPU is what holds the figures.
BUSY = 0.85
VERDICTS = {True: "met", False: "MISSED", None: "not compared"}


def metrics(cell: Measured) -> list[str]:
    return list(cell["values"]["ours"])


def middle(cell: Measured, contestant: str, metric: str) -> float | None:
    values = cell["values"].get(contestant, {}).get(metric)
    return median(values) if values else None


def number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def share(cell: Measured, other: str, metric: str) -> str:
    ours, theirs = middle(cell, "ours", metric), middle(cell, other, metric)
    if other == "ours" or not ours or not theirs:
        return ""
    ratio = ours / theirs
    return f"ours: {ratio:.0%}" if is_rate(metric) and ratio < 2 else f"ours: {ratio:.1f} times"


def _spread(values: list[float]) -> str:
    return f"{number(median(values)):>10}  ({number(min(values))} - {number(max(values))})"


# What limits each figure


def limit(cell: Measured, cpus: int) -> str:
    """Return what holds our figure, from the CPU time that a job takes of the clients and of the server.

    The rest of the time of a job passes while both wait. "–" if no CPU time was measured.
    """
    row = cell["row"]
    client, server = (_microseconds(cell, what) for what in ("CPU", "server CPU"))
    wall = _wall(cell)
    if not client or not wall:
        return "–"
    own, servers = client / wall / row["processes"], (server or 0) / wall
    used = f"client {own:.0%}, server {servers:.0%} of a core" if server is not None else f"client {own:.0%} of a core"
    return f"{_held_by(own, servers, row, cpus)} ({used})"


def _held_by(own: float, servers: float, row: dict[str, Any], cpus: int) -> str:
    if (own * row["processes"] + servers) / cpus > BUSY:
        return "the machine's CPUs"
    shares = {"the client's CPU": own, "the server's CPU": servers, row["idle_limit"]: 1 - own - servers}
    return "the client's CPU" if own > BUSY else max(shares, key=lambda name: shares[name])


def _wall(cell: Measured) -> float:
    """Return the microseconds of a job: those between two ends, or between its enqueueing and its start."""
    for metric in metrics(cell):
        value = middle(cell, "ours", metric) or 0
        if is_rate(metric):
            return 1e6 / value
        if metric == "p50 ms":
            return value * 1_000
    return 0


def _microseconds(cell: Measured, what: str) -> float | None:
    metric = next((metric for metric in metrics(cell) if metric.startswith(f"{what} µs/")), "")
    return middle(cell, "ours", metric)
