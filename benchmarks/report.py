"""Converts results to JSON, and the JSON to lines for the terminal."""

from statistics import median
from typing import Any

from benchmarks.cells import NOT_RUN, Result, Target, is_rate

#: A cell in the format of the JSON file.
Measured = dict[str, Any]


def as_json(result: Result, load: float, steal: float) -> Measured:
    cell = result.cell
    return {
        "name": cell.name,
        "title": cell.title,
        "load": load,
        "steal": steal,
        "roles": {name: cell.role(name) for name in cell.all},
        "values": result.values,
        "failures": result.failures,
        "targets": [_target(target, result.reached(target)) for target in cell.targets],
    }


def _target(target: Target, reached: float | None) -> dict[str, Any]:
    if reached is None:
        return {"target": str(target), "reached": "", "is_met": None}
    return {"target": str(target), "reached": target.amount(reached), "is_met": target.is_met(reached)}


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
