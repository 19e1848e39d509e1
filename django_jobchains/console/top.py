"""``top``: a live screen of workers, queues and what runs; with rich, or as snapshots one after the other."""

import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import Error as DatabaseError
from django.db import connections
from django.db.models.functions import Now

from django_jobchains.chains import Job
from django_jobchains.console import arguments, facts
from django_jobchains.console.screen import Screen
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.console.tables import Column, table
from django_jobchains.console.words import counted, number, said_by_database, span
from django_jobchains.overview import Overview, overview
from django_jobchains.throughput import Throughput, throughput

#: Running jobs that are looked at, and that are shown: those that run for longest.
MOST_RUNNING = 1_000
MOST_SHOWN = 20
#: Of a panel, on both sides.
FRAME = 4

RUNNING = (
    Column("TYPE", least=10),
    Column("RUNS FOR", is_number=True),
    Column("ATTEMPT", is_number=True),
    Column("WORKER", least=8),
    Column("JOB", is_optional=True),
)


@dataclass(frozen=True)
class Snapshot:
    overview: Overview
    throughput: Throughput
    #: Jobs, and for how many seconds they run.
    running: list[tuple[Job, float]]


class Top(Subcommand):
    name = "top"
    help = "shows workers, queues and running jobs, live; Ctrl-C ends it"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--interval", type=arguments.seconds, default=1.0, metavar="SECONDS", help="(1)")
        parser.add_argument("--once", action="store_true", help="one snapshot")
        parser.add_argument("--plain", action="store_true", help="snapshots one after the other, without rich")

    def run(self, call: Call) -> None:
        try:
            if call["once"]:
                _tell(snapshot(call.using), call)
            elif call.screen.is_json or call["plain"] or not call.screen.out.isatty() or not _has_rich():
                _one_after_the_other(call)
            else:
                _live(call)
        except KeyboardInterrupt:
            call.screen.out.write("")


def snapshot(using: str) -> Snapshot:
    jobs = Job.objects.using(using).with_status("running").defer("input", "output").annotate(now=Now())
    rows: Any = jobs.order_by("leased_until")[:MOST_RUNNING]  # the order of their index
    running = [(job, (job.now - job.last_attempt_at).total_seconds()) for job in rows if job.last_attempt_at]
    return Snapshot(overview(using), throughput(using), sorted(running, key=lambda pair: -pair[1])[:MOST_SHOWN])


def running_rows(running: list[tuple[Job, float]]) -> facts.Rows:
    return [
        [job.type_name, span(seconds), number(job.attempt), job.leased_by or "", str(job.id)]
        for job, seconds in running
    ]


def _tell(found: Snapshot, call: Call) -> None:
    screen = call.screen
    if screen.is_json:
        running = [_job_json(*pair) for pair in found.running]
        done = facts.done_json(found.throughput)
        screen.json({"overview": found.overview.as_json(), "throughput": done, "running": running})
        return
    screen.heading(f"{_title(found.overview)} · {time.strftime('%H:%M:%S')}")
    screen.line(facts.done(found.throughput))
    for title, columns, rows in _sections(found, screen):
        screen.line()
        screen.line(title)
        screen.table(columns, rows, "  ")


def _job_json(job: Job, seconds: float) -> dict[str, Any]:
    return {"id": job.id, "chain": job.chain_id, "type": job.type_name, "queue": job.queue, "attempt": job.attempt,
            "worker": job.leased_by, "running_seconds": seconds}  # fmt: skip


def _title(found: Overview) -> str:
    alive = [worker for worker in found.workers if not worker.is_stale]
    busy, slots = sum(worker.busy for worker in alive), sum(worker.slots for worker in alive)
    return (
        f"{counted(len(alive), 'worker')} · {busy:,} of {counted(slots, 'slot')} busy · {counted(found.due, 'job')} due"
    )


def _sections(found: Snapshot, screen: Screen) -> Iterator[tuple[str, tuple[Column, ...], facts.Rows]]:
    """Those with anything in them."""
    for title, columns, rows in (
        ("Workers", facts.WORKERS, facts.worker_rows(found.overview.workers, screen)),
        ("Queues", facts.QUEUES, facts.queue_rows(found.overview, screen)),
        ("Running", RUNNING, running_rows(found.running)),
        ("Failed in the last day", facts.FAILING, facts.failing_rows(found.overview.failing)),
    ):
        if rows:
            yield title, columns, rows


def _one_after_the_other(call: Call) -> None:
    for found in _snapshots(call):
        if isinstance(found, str):
            call.screen.errors.write(found)
        else:
            _tell(found, call)
            call.screen.line()
        call.screen.out.flush()
        time.sleep(call["interval"])


def _snapshots(call: Call) -> Iterator[Snapshot | str]:
    """For ever; a text while the database is away."""
    while True:
        try:
            yield snapshot(call.using)
        except DatabaseError as error:
            connections[call.using].close()
            yield f"{said_by_database(error)} Trying again."


def _has_rich() -> bool:
    try:
        import rich.live  # noqa: F401
    except ImportError:
        return False
    return True


def _live(call: Call) -> None:
    """On the terminal's other screen: what stood there before is there again afterwards."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for found in _snapshots(call):
            live.update(_rendered(found, call.screen, console.width), refresh=True)
            time.sleep(call["interval"])


def _rendered(found: Snapshot | str, screen: Screen, width: int) -> Any:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    if isinstance(found, str):
        return Panel(Text(found), title="jobchains", border_style="red")
    parts: list[Any] = [Text(f"{_title(found.overview)} · {time.strftime('%H:%M:%S')}", style="bold", no_wrap=True)]
    parts.append(Text(facts.done(found.throughput), no_wrap=True))
    for title, columns, rows in _sections(found, screen):
        lines = "\n".join(table(columns, rows, width - FRAME, screen.bold))
        text = Text.from_ansi(lines, no_wrap=True, overflow="ellipsis")
        parts.append(Panel(text, title=title, title_align="left", border_style="dim"))
    return Group(*parts)
