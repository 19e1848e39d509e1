"""``health``: whether somebody should be woken up; for cron, monitoring and container probes."""

import signal
import threading
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from django_jobchains.console import arguments
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.console.words import age, counted, number, said_by_database
from django_jobchains.overview import COUNT_TO, Overview, QueueFacts, overview


class Problem(NamedTuple):
    """``code`` is for programs, and stays."""

    code: str
    text: str


class Health(Subcommand):
    name = "health"
    help = "exits with 0 when all is well and with 1 when not"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--max-age", type=arguments.seconds, metavar="SECONDS|5m", help="the oldest due job waits no longer"
        )
        parser.add_argument("--max-backlog", type=arguments.whole, metavar="N", help="no more jobs are due")
        parser.add_argument(
            "--min-workers", type=arguments.whole, metavar="N", default=1, help="so many workers are alive (1)"
        )
        parser.add_argument(
            "--queue", action="append", type=arguments.queue, metavar="NAME", help="look at this queue; repeat it (all)"
        )
        parser.add_argument(
            "--timeout", type=arguments.seconds, metavar="SECONDS", default=10.0, help="for the database to answer (10)"
        )

    def run(self, call: Call) -> None:
        found: Overview | None = None
        try:
            with _deadline(call["timeout"]):
                found = overview(call.using, count_to=max(COUNT_TO, (call["max_backlog"] or 0) + 1))
            problems = list(_problems(found, call))
        except DatabaseError as error:
            problems = [Problem("database", said_by_database(error))]
        except TimeoutError as error:
            problems = [Problem("database", f"The database did not answer: {error}.")]
        _tell(found, problems, call)
        if problems:
            raise CommandError(f"not healthy: {counted(len(problems), 'problem')}")


def _tell(found: Overview | None, problems: Sequence[Problem], call: Call) -> None:
    screen = call.screen
    if screen.is_json:
        screen.json({"healthy": not problems, "problems": [part._asdict() for part in problems], **_facts(found, call)})
        return
    for problem in problems:
        screen.line(problem.text, screen.style.ERROR)
    if found and not problems:
        facts = _facts(found, call)
        due, workers = counted(facts["backlog"], "job"), counted(facts["workers"], "worker")
        screen.line(f"Healthy: {workers}, {due} due.", screen.style.SUCCESS)


def _facts(found: Overview | None, call: Call) -> dict[str, Any]:
    queues = _queues(found, call) if found else []
    return {
        "workers": sum(not worker.is_stale for worker in found.workers) if found else None,
        "backlog": sum(queue.due for queue in queues) if found else None,
        "oldest_due_age_seconds": max((queue.oldest_due_age_seconds or 0 for queue in queues), default=0)
        if found
        else None,
        "paused": [queue.name for queue in found.queues if queue.is_paused] if found else None,
    }


def _queues(found: Overview, call: Call) -> list[QueueFacts]:
    """Those that are looked at. What waits in a paused queue is meant to."""
    return [queue for queue in found.queues if not queue.is_paused and queue.name in (call["queue"] or [queue.name])]


def _problems(found: Overview, call: Call) -> Iterator[Problem]:
    facts = _facts(found, call)
    if facts["workers"] < call["min_workers"]:
        needed, alive = counted(call["min_workers"], "worker"), facts["workers"]
        yield Problem("workers", f"{alive} of {needed} alive: start manage.py run_jobworker.")
    if call["max_age"] is not None and facts["oldest_due_age_seconds"] > call["max_age"]:
        oldest, most = age(facts["oldest_due_age_seconds"]), age(call["max_age"])
        yield Problem("age", f"The oldest due job waits for {oldest}, more than {most}.")
    if call["max_backlog"] is not None and facts["backlog"] > call["max_backlog"]:
        yield Problem("backlog", f"{counted(facts['backlog'], 'job')} due, more than {number(call['max_backlog'])}.")


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Ends the wait for a database that does not answer. By a signal, which only a main thread has."""
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return

    def too_late(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"no answer in {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
