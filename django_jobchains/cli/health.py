"""``health``: exits with 1 if something needs attention, for cron, monitoring and container probes."""

import signal
import threading
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from django_jobchains.cli import converters
from django_jobchains.cli.formatting import counted, database_message
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.overview import COUNT_TO, Overview, QueueFacts, overview
from django_jobchains.text.humanize import age, number


class Problem(NamedTuple):
    """A problem. ``code`` is stable, for programs."""

    code: str
    text: str


class HealthCommand(Subcommand):
    name = "health"
    help = "exits with code 0 if everything is fine, and with 1 if not"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--max-age", type=converters.seconds, metavar="SECONDS|5m", help="how long the oldest due job may wait"
        )
        parser.add_argument("--max-backlog", type=converters.non_negative, metavar="N", help="how many jobs may be due")
        parser.add_argument(
            "--min-workers",
            type=converters.non_negative,
            metavar="N",
            default=1,
            help="how many must be alive (1)",
        )
        parser.add_argument(
            "--queue",
            action="append",
            type=converters.queue,
            metavar="NAME",
            help="check this one; may be repeated (all)",
        )
        parser.add_argument(
            "--timeout",
            type=converters.seconds,
            metavar="SECONDS",
            default=10.0,
            help="to wait for the database (10)",
        )

    def run(self, call: Invocation) -> None:
        found: Overview | None = None
        try:
            with _deadline(call["timeout"]):
                found = overview(call.using, count_to=max(COUNT_TO, (call["max_backlog"] or 0) + 1))
            problems = list(_problems(found, call))
        except DatabaseError as error:
            problems = [Problem("database", database_message(error))]
        except TimeoutError as error:
            problems = [Problem("database", f"The database did not answer: {error}.")]
        _report(found, problems, call)
        if problems:
            raise CommandError(f"not healthy: {counted(len(problems), 'problem')}")


def _report(found: Overview | None, problems: Sequence[Problem], call: Invocation) -> None:
    screen = call.screen
    if screen.is_json:
        screen.json(
            {"healthy": not problems, "problems": [problem._asdict() for problem in problems], **_facts(found, call)}
        )
        return
    for problem in problems:
        screen.line(problem.text, screen.style.ERROR)
    if found and not problems:
        facts = _facts(found, call)
        due, workers = counted(facts["backlog"], "job"), counted(facts["workers"], "worker")
        screen.line(f"Healthy: {workers}, {due} due.", screen.style.SUCCESS)


def _facts(found: Overview | None, call: Invocation) -> dict[str, Any]:
    queues = _queues(found, call) if found else []
    return {
        "workers": sum(not worker.is_stale for worker in found.workers) if found else None,
        "backlog": sum(queue.due for queue in queues) if found else None,
        "oldest_due_age_seconds": max((queue.oldest_due_age_seconds or 0 for queue in queues), default=0)
        if found
        else None,
        "paused": [queue.name for queue in found.queues if queue.is_paused] if found else None,
    }


def _queues(found: Overview, call: Invocation) -> list[QueueFacts]:
    """Return the queues to check. Jobs in a paused queue wait on purpose."""
    return [queue for queue in found.queues if not queue.is_paused and queue.name in (call["queue"] or [queue.name])]


def _problems(found: Overview, call: Invocation) -> Iterator[Problem]:
    facts = _facts(found, call)
    if facts["workers"] < call["min_workers"]:
        needed, alive = counted(call["min_workers"], "worker"), facts["workers"]
        yield Problem("workers", f"{alive} of {needed} alive. Start manage.py run_jobworker.")
    if call["max_age"] is not None and facts["oldest_due_age_seconds"] > call["max_age"]:
        oldest, limit = age(facts["oldest_due_age_seconds"]), age(call["max_age"])
        yield Problem("age", f"The oldest due job has been waiting for {oldest}, more than {limit}.")
    if call["max_backlog"] is not None and facts["backlog"] > call["max_backlog"]:
        yield Problem("backlog", f"{counted(facts['backlog'], 'job')} due, more than {number(call['max_backlog'])}.")


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` when the database does not answer in time. Works in the main thread only."""
    if not seconds or threading.current_thread() is not threading.main_thread():
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
