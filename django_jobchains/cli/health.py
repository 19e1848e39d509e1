"""``health``: exits with 1 if something needs attention, for cron, monitoring and container probes."""

import signal
import threading
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, NoReturn

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from django_jobchains.cli import converters
from django_jobchains.cli.screen import counted, database_message
from django_jobchains.cli.status import text_of
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.models import Schedule
from django_jobchains.monitoring import QueueFacts, RecordFacts, overview, record_overview
from django_jobchains.monitoring.facts import COUNT_TO, troubled_schedules
from django_jobchains.monitoring.problems import (
    Problem,
    find_problems,
    problem_of_records,
    problems_of_schedules,
    summarized,
)
from django_jobchains.text.humanize import age, number

#: The number of problems of each kind that are listed.
MAX_LISTED = 10
#: A stable code, for programs, and a sentence.
CodeAndText = tuple[str, str]


class Found(NamedTuple):
    """What is checked: live workers, the jobs and records of queues that are not paused, and schedules.

    ``schedules``: the failing or orphaned schedules. Without workers and for single queues, they are not checked.
    ``alerts``: the problems that ``status`` and the dashboard show, if they were asked for.
    """

    workers: int
    paused: list[str]
    queues: list[QueueFacts]
    records: list[RecordFacts]
    schedules: list[Schedule]
    alerts: list[Problem]

    @property
    def due(self) -> str:
        jobs = counted(sum(queue.due for queue in self.queues), "job")
        return f"{jobs} and {counted(sum(kind.due for kind in self.records), 'record')}" if self.records else jobs

    @property
    def backlog(self) -> int:
        return sum(queue.due for queue in self.queues) + sum(kind.due for kind in self.records)

    @property
    def oldest_due(self) -> dict[str, float]:
        """The age of the oldest due job and of the oldest due record of each record worker, by what they are."""
        jobs = max((queue.oldest_due_age_seconds or 0.0 for queue in self.queues), default=0.0)
        return {"job": jobs, **{f"record of {kind.name!r}": kind.oldest_seconds for kind in self.records}}


class HealthCommand(Subcommand):
    name = "health"
    help = "exits with code 0 if everything is fine, and with 1 if not"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--max-age",
            type=converters.duration,
            metavar="DURATION",
            help="how long the oldest due job or record may wait, such as 5m",
        )
        parser.add_argument(
            "--max-backlog", type=converters.non_negative, metavar="N", help="how many jobs and records may be due"
        )
        parser.add_argument(
            "--min-workers", type=converters.non_negative, metavar="N", default=1, help="how many must be alive (1)"
        )
        parser.add_argument(
            "--queue",
            action="append",
            type=converters.queue,
            metavar="QUEUE",
            help="check this one; may be repeated (all)",
        )
        parser.add_argument(
            "--alerts", action="store_true", help="check everything that status and the dashboard warn of"
        )
        parser.add_argument(
            "--timeout",
            type=converters.duration,
            metavar="DURATION",
            default=10.0,
            help="to wait for the database (10 s)",
        )

    def run(self, call: Invocation) -> None:
        found: Found | None = None
        try:
            with _deadline(call["timeout"]):
                found = _found(call)
            problems = list(_problems(found, call))
        except DatabaseError as error:
            problems = [("database", database_message(error))]
        except TimeoutError as error:
            problems = [("database", f"The database did not answer: {error}.")]
        _report(found, problems, call)
        if problems:
            raise CommandError(f"Not healthy: {counted(len(problems), 'problem')}.")


def _found(call: Invocation) -> Found:
    """Return what is to be checked. Jobs and records in a paused queue wait on purpose."""
    count_to = max(COUNT_TO, (call["max_backlog"] or 0) + 1)
    found, records = overview(call.using, count_to=count_to), record_overview(call.using, count_to=count_to)
    paused = [queue.name for queue in found.queues if queue.is_paused]

    def is_checked(queue: str) -> bool:
        return queue not in paused and queue in (call["queue"] or [queue])

    workers = sum(not (worker.is_stale or worker.is_maintenance_only) for worker in found.workers)
    is_scheduling = workers and not call["queue"]
    schedules = troubled_schedules(Schedule.objects.using(call.using)) if is_scheduling else []
    return Found(
        workers,
        paused,
        [queue for queue in found.queues if is_checked(queue.name)],
        [kind for kind in records if is_checked(kind.queue)],
        schedules,
        find_problems(found, records, schedules=schedules) if call["alerts"] else [],
    )


def _report(found: Found | None, problems: Sequence[CodeAndText], call: Invocation) -> None:
    screen = call.screen
    if screen.is_json:
        screen.json(
            {
                "healthy": not problems,
                "workers": found and found.workers,
                "backlog": found and found.backlog,
                "oldest_due_age_seconds": found and max(found.oldest_due.values()),
                "paused": found and found.paused,
            },
            problems=[{"code": code, "text": text} for code, text in problems],
        )
        return
    for _, text in problems:
        screen.sentence(text, "error")
    if found and not problems:
        screen.line(f"Healthy: {counted(found.workers, 'worker')}, {found.due} due.", "success")


def _problems(found: Found, call: Invocation) -> Iterator[CodeAndText]:
    if found.workers < call["min_workers"]:
        needed = counted(call["min_workers"], "worker")
        yield ("workers", f"{found.workers} of {needed} alive. Start manage.py run_jobworker.")
    for what, seconds in found.oldest_due.items():
        if call["max_age"] is not None and seconds > call["max_age"]:
            text = f"The oldest due {what} has been waiting for {age(seconds)}, more than {age(call['max_age'])}."
            yield ("age", text)
    if call["max_backlog"] is not None and found.backlog > call["max_backlog"]:
        yield ("backlog", f"{found.due} due, more than {number(call['max_backlog'])}.")
    if call["alerts"]:
        yield from (("alert", text_of(alert)) for alert in summarized(found.alerts, MAX_LISTED))
        return
    for kind in found.records:
        if problem := problem_of_records(kind):
            yield ("records", text_of(problem))
    # Code without a schedule orphans it, and a probe must not end processes because of that.
    failing = (problem for problem in problems_of_schedules(found.schedules) if problem.kind.is_error)
    for problem in summarized(failing, MAX_LISTED):
        yield ("schedules", text_of(problem))


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` when the database does not answer in time.

    Works in the main thread only, and not on Windows, which has no ``SIGALRM``.
    """
    if not (seconds and hasattr(signal, "SIGALRM")) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"no answer in {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
