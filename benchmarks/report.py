"""The results on the terminal, and as JSON."""

from statistics import median
from typing import Any

from benchmarks.cells import Result


def table(result: Result) -> str:
    """Median, spread and, for a floor, how much of it we reach; lower is better for times."""
    lines = []
    for metric in result.values["ours"]:
        for name, values in result.values.items():
            if metric in values:
                label = metric if name == "ours" else ""
                lines.append(
                    f"  {label:<12} {name:<20} {_spread(values[metric])}  {_share(result, name, metric)}".rstrip()
                )
    lines += [f"  {name} failed: {error}" for name, error in result.failures.items()]
    lines += [f"  target: {target}: {_WORDS[result.is_met(target)]}" for target in result.cell.targets]
    return "\n".join(lines)


_WORDS = {True: "met", False: "MISSED", None: "not compared"}


def _spread(values: list[float]) -> str:
    low, middle, high = min(values), median(values), max(values)
    return f"{_number(middle):>10}  ({_number(low)} - {_number(high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def _share(result: Result, floor: str, metric: str) -> str:
    ours, theirs = result.median("ours", metric), result.median(floor, metric)
    if floor == "ours" or not ours or not theirs:
        return ""
    return f"ours: {ours / theirs:.0%}" if metric.endswith("/s") else f"ours: {ours / theirs:.1f} times"


def as_json(result: Result, load: float, steal: float) -> dict[str, Any]:
    return {
        "name": result.cell.name,
        "title": result.cell.title,
        "load": load,
        "steal": steal,
        "values": result.values,
        "roles": {name: result.cell.role(name) for name in (*result.cell.contestants, *result.cell.peers)},
        "failures": result.failures,
        "targets": {str(target): result.is_met(target) for target in result.cell.targets},
    }
