"""Writes the results as a Markdown page of the documentation."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.cells import is_rate
from benchmarks.markdown import line, table
from benchmarks.report import VERDICTS, Measured, failure, limit, metrics, middle, number, share

#: A smaller difference between two medians is not evidence.
NOISE = 0.12
#: A cell below this share of a floor is listed as slower.
FAR_FROM_FLOOR = 0.5
#: The table of a cell with more metrics has a row for each metric.
FEW = 4

#: The cells of the table at the top of the page, with the work in words that need no explanation.
HEADLINES = {
    "drain": "Jobs whose handler returns a value, one worker process",
    "chains": "Steps of chains, one worker process",
    "effect-insert": "Jobs that write one row in `complete()`",
    "records": "Records whose handler returns",
    "wake-up": "From the commit until an idle worker starts the job, median",
    "chain-latency": "A chain of five steps from end to end, median",
    "enqueue": "Enqueue one job in each transaction",
    "enqueue-many": "Enqueue 1,000 jobs in each call",
    "sqlite-drain": "SQLite: jobs whose handler returns a value",
}

RELY = """\
The systems were measured in turns, and each figure is the median of the rounds. Compare ratios rather than rates,
because ratios depend less on the machine. A difference of less than 12 % is not evidence.
[Performance](performance.md) explains the figures. `make bench` writes this page."""

EXPLANATION = """\
A *floor* does the same work with bare statements. A *peer* is another system that does the same work in a separate
environment. The ratio compares django_jobchains with the floor: for a rate, more is better, and for a time, less is
better. The *limit* is the resource that limits the figure. It follows from the CPU time that a job takes in the client
(a worker or an enqueuing process) and in the server, compared with the total time of a job. "–" means that this was
not measured. Each cell was measured in a new process."""

CELLS = """\
"ours" is django_jobchains. The lowest and the highest figure of the rounds are in brackets. Some cells also compare
"ours" with another configuration (a *way*), such as another notifier."""

PEERS = """\
Each peer runs in a separate environment and database, with handlers that do nothing. django_jobchains has the same
[guarantees](guarantees.md) in every cell: a job runs at least once, and again if its lease of 60 s (default) is not
renewed; its writes in `complete()` are committed exactly once; every write of an attempt checks its lease number; and
completed jobs stay for 30 days (default)."""

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
    parts = ["# Benchmarks", *([QUICK] if run["how"]["is_quick"] else []), _introduction(run), _headlines(cells)]
    parts += [_summary(run), RELY, "## Where others are faster", *_losses(cells)]
    parts += ["## What limits each figure", EXPLANATION, _rows(run), "## Targets", _targets(cells)]
    parts += ["## Measured on", _machine(run), "## All cells", CELLS]
    for cell in cells:
        parts += [f"### {cell['name']}", f"{_sentence(cell['title'])} Load average {cell['load']:.1f}.", _cell(cell)]
        parts += [failure(name, line(error)) for name, error in cell["failures"].items()]
    header = ("peer", "version", "settings", "guarantees")
    rows = [(name, *(peer[column] for column in header[1:])) for name, peer in run["peers"].items()]
    parts += ["## Peers", PEERS, table(header, rows)] if rows else []
    return "\n\n".join(parts) + "\n"


# The first screen


def _introduction(run: dict[str, Any]) -> str:
    server = run["machine"].get("PostgreSQL", {}).get("server")
    machine = f"one machine with {run['machine']['CPUs']} CPUs" + (f" and PostgreSQL {server}" if server else "")
    return (
        "The rates and times of django_jobchains, compared with bare statements that do the same work, and with the\n"
        f"fastest other system. All were measured on {machine}, on {run['how']['date']}."
    )


def _headlines(cells: Iterable[Measured]) -> str:
    rows = []
    for cell in (cell for cell in cells if cell["name"] in HEADLINES and cell["row"]):
        metric = cell["row"]["metric"]
        floor, peer = _floor_and_peer(cell, metric)
        others = [_with_unit(cell, name, metric) if name else "–" for name in (floor, peer)]
        others[1] += f" ({peer})" if peer else ""
        rows.append(
            (f"[{HEADLINES[cell['name']]}](#{cell['name']})", f"**{_with_unit(cell, 'ours', metric)}**", *others)
        )
    return table(("", "django_jobchains", "bare statements", "fastest other system"), rows)


def _summary(run: dict[str, Any]) -> str:
    verdicts = [each["is_met"] for cell in run["cells"] for each in cell["targets"] if each["is_met"] is not None]
    met = f"{sum(verdicts)} of {len(verdicts)} [targets](#targets) are met."
    if not run["peers"]:
        return met
    others = "Other systems are faster in [some cells](#where-others-are-faster), and differ in"
    return f"{met} {others}\n[what they guarantee](#peers)."


def _machine(run: dict[str, Any]) -> str:
    own = {name: value for name, value in run["machine"].items() if name != "PostgreSQL"}
    server = {f"PostgreSQL: {name}": value for name, value in run["machine"].get("PostgreSQL", {}).items()}
    how = {name: run["how"][name] for name in ("date", "rounds")}
    return table(("", ""), {**how, **own, **server}.items())


def _targets(cells: Iterable[Measured]) -> str:
    """Return all targets, those that are missed first."""
    targets = [(cell, each) for cell in cells for each in cell["targets"]]
    targets.sort(key=lambda target: target[1]["is_met"] is not False)
    rows = [(_link(cell["name"]), each["target"], each["reached"], VERDICTS[each["is_met"]]) for cell, each in targets]
    return table(("cell", "target", "ours", ""), rows)


# What limits each figure


def _rows(run: dict[str, Any]) -> str:
    cpus = int(run["machine"]["CPUs"])
    rows = [_row(cell, cpus) for cell in run["cells"] if cell["row"]]
    return table(("", "floor", "best peer", "django_jobchains", "compared with the floor", "limit"), rows)


def _row(cell: Measured, cpus: int) -> Sequence[str]:
    metric = cell["row"]["metric"]
    floor, peer = _floor_and_peer(cell, metric)
    figures = [f"{_with_unit(cell, name, metric)} ({name})" if name else "–" for name in (floor, peer)]
    title = f"[{cell['row']['title']}](#{cell['name']})"
    return title, *figures, f"**{_with_unit(cell, 'ours', metric)}**", _ratio(cell, floor, metric), limit(cell, cpus)


def _floor_and_peer(cell: Measured, metric: str) -> tuple[str, str]:
    """Return the names of the first floor and of the best peer, or ""."""
    best = max if is_rate(metric) else min
    measured = [name for name in cell["values"] if middle(cell, name, metric) is not None]
    peers = [name for name in measured if cell["roles"][name] == "peer"]
    peer = best(peers, key=lambda name: middle(cell, name, metric) or 0, default="")
    return next((name for name in measured if cell["roles"][name] == "floor"), ""), peer


def _with_unit(cell: Measured, name: str, metric: str) -> str:
    """Return a figure as the tables of rows show it; titles of rows name the other units."""
    unit = "/s" if is_rate(metric) else " ms" if metric.endswith(" ms") else ""
    return f"{number(middle(cell, name, metric) or 0)}{unit}"


def _ratio(cell: Measured, floor: str, metric: str) -> str:
    """Return our share of the floor, and the targets that are missed."""
    ours, theirs = middle(cell, "ours", metric), middle(cell, floor, metric)
    if not ours or not theirs:
        return ""
    ratio = f"{ours / theirs:.0%}" if is_rate(metric) else f"{ours / theirs:.3g} ×"
    missed = [each for each in cell["targets"] if each["is_met"] is False and each["metric"] == metric]
    targets = [each["target"].removeprefix(f"{metric} ").removesuffix(f" of {floor}") for each in missed]
    return f"{ratio} (missed: {', '.join(targets)})" if targets else ratio


# Where others are faster


def _losses(cells: Sequence[Measured]) -> Iterator[str]:
    header = ("cell", "metric", "other", "theirs", "ours", "ratio")
    peers = [loss for loss in losses(cells, "peer") if loss.share < 1 - NOISE]
    yield _section("Cells in which another system (a *peer*) was faster", header, map(_loss, peers))
    floors = [loss for loss in losses(cells, "floor") if loss.share < FAR_FROM_FLOOR]
    title = f"Cells in which django_jobchains reaches less than {FAR_FROM_FLOOR:.0%} of bare statements (a *floor*)"
    yield _section(title, header, map(_loss, floors))
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
    return f"{title}:\n\n{table(header, lines)}" if lines else f"{title}: none."


def _loss(loss: Loss) -> Sequence[str]:
    figures = number(loss.theirs), number(loss.ours), f"{loss.share:.0%}"
    return _link(loss.cell), loss.metric, loss.other, *figures


# One cell


def _cell(cell: Measured) -> str:
    names, columns = list(cell["values"]), metrics(cell)
    if len(columns) <= FEW:
        rows = [[_who(cell, name), *(_figure(cell, name, metric) for metric in columns)] for name in names]
        return table(("", *columns), rows)
    rows = [[metric, *(_figure(cell, name, metric) for name in names)] for metric in columns]
    return table(("", *(_who(cell, name) for name in names)), rows)


def _who(cell: Measured, name: str) -> str:
    return f"**{name}**" if name == "ours" else f"{name} ({cell['roles'][name]})"


def _figure(cell: Measured, name: str, metric: str) -> str:
    values = cell["values"][name].get(metric)
    if not values:
        return "–"
    spread = f" ({number(min(values))}–{number(max(values))})" if len(values) > 1 else ""
    ratio = share(cell, name, metric)
    return f"{number(median(values))}{spread}" + (f" · {ratio}" if ratio else "")


def _link(name: str) -> str:
    return f"[{name}](#{name})"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
