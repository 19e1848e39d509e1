"""Writes the results as a Markdown page of the documentation."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.cells import is_rate
from benchmarks.report import VERDICTS, Measured, failure, metrics, middle, number, share

#: A smaller difference between two medians is not evidence.
NOISE = 0.12
#: A cell below this share of a floor is listed as slower.
FAR_FROM_FLOOR = 0.5
#: The table of a cell with more metrics has a row for each metric.
FEW = 4

INTRODUCTION = """\
# Benchmarks

`make bench` writes this page from the figures of one run. To change it, change `benchmarks/`. See
[performance](performance.md) for what the figures mean and where the time goes.

Each cell compares django_jobchains ("ours") with a *floor*, which does the same work with bare statements, and with
*peers*, other systems that do the same work in separate environments. Some cells also compare it with other *ways* of
configuring it, such as another notifier. All of them take turns. A figure is the median of the rounds, with the lowest
and the highest in brackets. Rely on the ratios rather than the rates, because they depend less on the machine.
Differences under 12 % are not evidence."""

QUICK = "**A quick run: it checks that everything works, and its figures mean nothing.**"


class Loss(NamedTuple):
    """A metric of a cell in which another contestant was better."""

    cell: str
    metric: str
    other: str
    ours: float
    theirs: float

    @property
    def share(self) -> float:
        """Our performance divided by theirs: 1 when equal, less when we are slower, for rates and times alike."""
        return self.ours / self.theirs if is_rate(self.metric) else self.theirs / self.ours


def page(run: dict[str, Any]) -> str:
    cells: list[Measured] = run["cells"]
    parts = [INTRODUCTION, *([QUICK] if run["how"]["is_quick"] else []), "## Measured on", _machine(run)]
    parts += ["## Targets", _targets(cells), "## Where others are faster", *_losses(cells), "## All cells"]
    for cell in cells:
        parts += [f"### {cell['name']}", f"{_sentence(cell['title'])} Load {cell['load']:.1f}.", _cell(cell)]
        parts += [failure(name, _line(error)) for name, error in cell["failures"].items()]
    if run.get("peers"):
        parts += ["## How the peers are run", _table(("peer", "settings"), run["peers"].items())]
    return "\n\n".join(parts) + "\n"


def _machine(run: dict[str, Any]) -> str:
    own = {name: value for name, value in run["machine"].items() if name != "PostgreSQL"}
    server = {f"PostgreSQL: {name}": value for name, value in run["machine"].get("PostgreSQL", {}).items()}
    how = {name: run["how"][name] for name in ("date", "rounds")}
    return _table(("", ""), {**how, **own, **server}.items())


def _targets(cells: Iterable[Measured]) -> str:
    rows = [
        (_link(cell["name"]), each["target"], each["reached"], VERDICTS[each["is_met"]])
        for cell in cells
        for each in cell["targets"]
    ]
    return _table(("cell", "target", "ours", ""), rows)


# Where others are faster


def _losses(cells: Sequence[Measured]) -> Iterator[str]:
    missed = [(cell, each) for cell in cells for each in cell["targets"] if each["is_met"] is False]
    rows = [(_link(cell["name"]), each["target"], each["reached"]) for cell, each in missed]
    yield _section("Missed targets", ("cell", "target", "ours"), rows)
    header = ("cell", "metric", "other", "theirs", "ours", "ratio")
    peers = [loss for loss in losses(cells, "peer") if loss.share < 1 - NOISE]
    yield _section("Peers that were faster", header, map(_loss, peers))
    floors = [loss for loss in losses(cells, "floor") if loss.share < FAR_FROM_FLOOR]
    yield _section(f"Less than {FAR_FROM_FLOOR:.0%} of a floor", header, map(_loss, floors))
    if not any(role == "peer" for cell in cells for role in cell["roles"].values()):
        yield "No peer was measured in this run."


def losses(cells: Iterable[Measured], role: str) -> list[Loss]:
    """Return where contestants of this role were better, worst first. CPU and memory are only in the tables."""
    found = [
        Loss(cell["name"], metric, other, ours, theirs)
        for cell in cells
        for metric in metrics(cell)
        if is_rate(metric) or metric.endswith("ms")
        for other in cell["values"]
        if cell["roles"][other] == role
        if (ours := middle(cell, "ours", metric)) and (theirs := middle(cell, other, metric))
    ]
    return sorted((loss for loss in found if loss.share < 1), key=lambda loss: loss.share)


def _section(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = list(rows)
    return f"{title}:\n\n{_table(header, lines)}" if lines else f"{title}: none."


def _loss(loss: Loss) -> Sequence[str]:
    figures = number(loss.theirs), number(loss.ours), f"{loss.share:.0%}"
    return _link(loss.cell), loss.metric, loss.other, *figures


# One cell


def _cell(cell: Measured) -> str:
    names, columns = list(cell["values"]), metrics(cell)
    if len(columns) <= FEW:
        rows = [[_who(cell, name), *(_figure(cell, name, metric) for metric in columns)] for name in names]
        return _table(("", *columns), rows)
    rows = [[metric, *(_figure(cell, name, metric) for name in names)] for metric in columns]
    return _table(("", *(_who(cell, name) for name in names)), rows)


def _who(cell: Measured, name: str) -> str:
    return f"**{name}**" if name == "ours" else f"{name} ({cell['roles'][name]})"


def _figure(cell: Measured, name: str, metric: str) -> str:
    values = cell["values"][name].get(metric)
    if not values:
        return "–"
    spread = f" ({number(min(values))}–{number(max(values))})" if len(values) > 1 else ""
    ratio = share(cell, name, metric)
    return f"{number(median(values))}{spread}" + (f" · {ratio}" if ratio else "")


# Markdown


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_line(str(value)) for value in line)} |" for line in lines)


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _link(name: str) -> str:
    return f"[{name}](#{name})"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
