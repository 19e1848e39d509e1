"""Reports the figures on the terminal and as a page of the documentation."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from benchmarks.admin.visiting import MAX_MILLISECONDS, Visited
from benchmarks.markdown import table

INTRODUCTION = f"""\
# The admin at ten million jobs

This page shows the response times of the admin with ten million jobs. `python -m benchmarks.admin` writes it from the
figures of one run.

Django's test client requests each page in one process. The figures include middleware, session, permissions and
templates, but not the network. *p50* and *p95* are milliseconds over {{times}} requests. *CPU* is the CPU time of
Python and of the database's process, which hardly depends on other work of the machine. *first* is the first request,
which may read from the disk. *statements* are all SQL statements of a request, including the statements for the
session and the user. The limit is a p95 of {MAX_MILLISECONDS:.0f} ms."""

REPEATING = """\
## How to repeat the measurement

    python -m benchmarks.admin fill --jobs {jobs}
    python -m benchmarks.admin measure --json .cache/admin.json --page docs/explanation/admin-at-scale.md
    python -m benchmarks.admin drop

`BENCH_DATABASE_URL` names the server. For ten million jobs, `fill` takes some minutes and 8 GB. For a first test, use
a hundredth of the jobs, which takes seconds."""

HEADER = ("", "p50 ms", "p95 ms", "CPU p95 ms", "first ms", "statements")


def line(visit: Visited) -> str:
    """Return the line of a visit for the terminal."""
    if visit.failure:
        return f"  {visit.name:<70} FAILED  {visit.failure}"
    mark = "" if visit.is_fast else "  SLOW"
    return (
        f"  {visit.name:<70} p50 {visit.p50:6.0f}  p95 {visit.p95:6.0f}  CPU {visit.cpu_p95:6.0f}  "
        f"first {visit.first:6.0f}  {visit.statements:3} statements{mark}"
    )


def page(run: dict[str, Any]) -> str:
    visits = [Visited(**values) for values in run["visits"]]
    parts = [INTRODUCTION.format(times=run["how"]["times"]), "## Measured on", table(("", ""), _facts(run))]
    parts += ["## Table sizes", table(("", "rows"), _rows(run)), "## Pages over the limit", _slow(visits)]
    for group, members in groupby(visits, key=lambda visit: visit.group):
        parts += [f"## {group}", table(HEADER, map(_row, members))]
    parts.append(REPEATING.format(jobs=run["how"]["jobs"]))
    return "\n\n".join(parts) + "\n"


def _facts(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    server = {f"PostgreSQL: {name}": value for name, value in run["server"].items()}
    loads = [visit["load"] for visit in run["visits"]]
    yield from {**run["how"], **run["machine"], **server}.items()
    yield "load of the machine during the run", f"{min(loads):.1f} to {max(loads):.1f}"


def _rows(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, count in run["rows"].items():
        yield name, f"{count:,}"


def _slow(visits: Iterable[Visited]) -> str:
    slow = [visit for visit in visits if not visit.is_fast]
    return table(("page", *HEADER), ((visit.group, *_row(visit)) for visit in slow)) if slow else "None."


def _row(visit: Visited) -> Sequence[str]:
    if visit.failure:
        return visit.name, visit.failure, "", "", "", ""
    figures = (visit.p50, visit.p95, visit.cpu_p95, visit.first)
    return visit.name, *(f"{figure:,.0f}" for figure in figures), str(visit.statements)
