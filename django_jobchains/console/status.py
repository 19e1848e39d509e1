"""``status``: workers, queues, what is under way, what was done, what fails."""

from dataclasses import asdict

from django_jobchains.console import facts
from django_jobchains.console.screen import Screen
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.console.words import age, counted
from django_jobchains.overview import Overview, overview
from django_jobchains.throughput import Throughput, throughput

#: A transaction that is open for so long keeps dead rows in the indexes, and slows every claim down.
LONG_TRANSACTION_SECONDS = 300


class Status(Subcommand):
    name = "status"
    help = "shows workers, queues with their backlog, and the types that fail"

    def run(self, call: Call) -> None:
        found, lately = overview(call.using), throughput(call.using)
        if call.screen.is_json:
            more = {"due": found.due, "throughput": facts.done_json(lately), "warnings": warnings(found)}
            call.screen.json({**asdict(found), **more})
        else:
            show(found, lately, call.screen)


def show(found: Overview, lately: Throughput, screen: Screen) -> None:
    sections = (
        ("Workers", facts.WORKERS, facts.worker_rows(found.workers, screen), "No worker runs: manage.py run_jobworker"),
        ("Queues", facts.QUEUES, facts.queue_rows(found, screen), "No job waits or runs."),
        ("Types", facts.TYPES, facts.type_rows(found, screen), ""),
        ("Failed in the last day", facts.FAILING, facts.failing_rows(found.failing), ""),
    )
    for place, (title, columns, rows, otherwise) in enumerate(sections):
        if rows or otherwise:
            screen.line() if place else None
            screen.heading(title)
            screen.table(columns, rows, "  ") if rows else screen.line(otherwise, begin="  ")
    screen.line()
    screen.line(facts.done(lately))
    for place, warning in enumerate(warnings(found)):
        screen.line() if not place else None
        screen.line(warning, screen.style.WARNING, begin="! ")


def warnings(found: Overview) -> list[str]:
    """What somebody should look at, in words."""
    told = [f"Worker {worker.id} has not been heard of for {age(worker.heartbeat_age_seconds)}."
            for worker in found.workers if worker.is_stale]  # fmt: skip
    told += [f"Worker {worker.id} has {counted(worker.stuck, 'slot')} held by handlers that do not stop."
             for worker in found.workers if worker.stuck]  # fmt: skip
    told += [f"No worker runs {kind.name!r}: {counted(kind.due, 'job')} due."
             for kind in found.types if kind.due and not kind.workers and found.workers]  # fmt: skip
    if not found.is_complete:
        told.append("There are more queues and types than are shown.")
    open_for = found.database.oldest_transaction_seconds or 0
    if open_for > LONG_TRANSACTION_SECONDS:
        told.append(f"A database transaction is open for {age(open_for)}: it slows every claim down.")
    return told
