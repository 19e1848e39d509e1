"""``top``: shows workers, queues and running jobs, live with rich, or as a sequence of snapshots."""

import io
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from django.core.management.base import OutputWrapper
from django.db import Error as DatabaseError
from django.db import connections

from django_jobchains.chains import Job
from django_jobchains.cli import converters
from django_jobchains.cli.screen import Column, Screen, counted, database_message
from django_jobchains.cli.status import (
    Section,
    failing_section,
    pools_section,
    queues_section,
    records_section,
    throughput_json,
    throughput_line,
    workers_section,
)
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.declare.labels import label_of
from django_jobchains.declare.registry import get_registry
from django_jobchains.monitoring import Overview, RecordFacts, Throughput, overview, record_overview, throughput
from django_jobchains.monitoring.facts import label_inputs, longest_running
from django_jobchains.text.humanize import number, span

#: How many running jobs are shown, beginning with the longest running.
MAX_SHOWN = 20


@dataclass(frozen=True)
class Snapshot:
    overview: Overview
    throughput: Throughput
    #: Jobs, and for how many seconds they have been running.
    running: list[tuple[Job, float]]
    records: tuple[RecordFacts, ...]
    #: The stored inputs of the running jobs by their ids, for their labels.
    inputs: dict[UUID, str | None]


class TopCommand(Subcommand):
    name = "top"
    help = "shows workers, queues and running jobs, live; Ctrl-C exits"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--interval", type=converters.duration, default=1.0, metavar="DURATION", help="between two updates (1 s)"
        )
        parser.add_argument("--once", action="store_true", help="show one snapshot")
        parser.add_argument("--plain", action="store_true", help="print one snapshot after another, without rich")

    def run(self, call: Invocation) -> None:
        try:
            if call["once"]:
                _show(snapshot(call.using), call.screen)
            elif call.screen.is_json or call["plain"] or not call.screen.out.isatty() or not _has_rich():
                _show_snapshots(call)
            else:
                _show_live(call)
        except KeyboardInterrupt:
            call.screen.out.write("")


def snapshot(using: str) -> Snapshot:
    running = longest_running(Job.objects.using(using).defer("input", "output"), MAX_SHOWN)
    inputs = label_inputs([job for job, _ in running], using)
    return Snapshot(overview(using), throughput(using), running, record_overview(using), inputs)


def _show(found: Snapshot, screen: Screen) -> None:
    if screen.is_json:
        running = [_job_json(*pair) for pair in found.running]
        attempts = throughput_json(found.throughput)
        records = [asdict(kind) for kind in found.records]
        screen.json(
            {"overview": asdict(found.overview), "throughput": attempts, "running": running, "records": records}
        )
        return
    alive, due = counted(len(found.overview.alive), "worker"), counted(found.overview.due, "job")
    slots = f"{found.overview.busy_slots:,} of {counted(found.overview.slots, 'slot')} busy"
    screen.heading(f"{alive} · {slots} · {due} due · {time.strftime('%H:%M:%S')}")
    screen.line(throughput_line(found.throughput))
    for section in _sections(found):
        if section.rows:
            screen.line()
            screen.line(section.title)
            screen.table(section.columns, section.rows, "  ")


def _job_json(job: Job, seconds: float) -> dict[str, Any]:
    return {"id": job.id, "chain": job.chain_id, "type": job.type_name, "queue": job.queue, "attempt": job.attempt,
            "worker": job.leased_by, "running_seconds": seconds}  # fmt: skip


def _label(job: Job, found: Snapshot) -> str:
    return label_of(get_registry().find(job.type_name), found.inputs.get(job.id))


def _sections(found: Snapshot) -> Iterator[Section]:
    yield workers_section(found.overview)
    yield pools_section(found.overview)
    yield queues_section(found.overview)
    yield records_section(found.overview, found.records)
    columns = (
        Column("TYPE", lambda row: row[0].type_name, min_width=10),
        Column("LABEL", lambda row: _label(row[0], found), min_width=8, is_optional=True),
        Column("RUNNING", lambda row: span(row[1]), is_number=True),
        Column("ATTEMPT", lambda row: number(row[0].attempt), is_number=True),
        Column("WORKER", lambda row: row[0].leased_by or "", min_width=8),
        Column("JOB", lambda row: str(row[0].id), is_optional=True),
    )
    yield Section("Running", columns, found.running)
    yield failing_section(found.overview)


def _snapshots(call: Invocation) -> Iterator[Snapshot | str]:
    """Yield snapshots forever, or a text while the database is unavailable."""
    while True:
        try:
            yield snapshot(call.using)
        except DatabaseError as error:
            connections[call.using].close()
            yield f"{database_message(error)} Trying again."


def _show_snapshots(call: Invocation) -> None:
    for found in _snapshots(call):
        if isinstance(found, str):
            call.screen.errors.write(found)
        else:
            _show(found, call.screen)
            call.screen.line()
        call.screen.out.flush()
        time.sleep(call["interval"])


def _has_rich() -> bool:
    try:
        import rich.live  # noqa: F401
    except ImportError:
        return False
    return True


def _show_live(call: Invocation) -> None:
    """Use the alternate screen of the terminal, so that its contents are restored afterwards."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=sys.stdout)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for found in _snapshots(call):
            written = io.StringIO()
            screen = call.screen.on(OutputWrapper(written), console.width)  # the window may have another size by now
            if isinstance(found, str):
                screen.line(found, "error")
            else:
                _show(found, screen)
            live.update(Text.from_ansi(written.getvalue(), no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(call["interval"])
