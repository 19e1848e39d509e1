"""``manage.py run_jobworker``: the worker as a process of its own."""

import math
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.logs import log, logger
from django_jobchains.worker import Worker
from django_jobchains.worker.console import Console

#: The GIL changes hands so often: threads that wait for the database get it back before the handlers' turn is over.
SWITCH_INTERVAL_SECONDS = 0.001


class Command(BaseCommand):
    help = "Runs jobs until SIGTERM or SIGINT: the first lets running handlers end, the second does not wait."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--slots", type=_positive, help="attempts that run at once (JOBCHAINS['SLOTS'])")
        parser.add_argument(
            "--async-slots",
            type=_positive,
            help="those of async handlers, on one event loop (JOBCHAINS['ASYNC_SLOTS'])",
        )
        parser.add_argument("--queue", action="append", metavar="NAME", help="a queue to serve; repeat it (all)")
        parser.add_argument("--type", action="append", metavar="PATTERN", help="types to run: shop.*; repeat it (all)")
        parser.add_argument("--database", metavar="ALIAS", help="alias of the job tables (JOBCHAINS['DATABASE'])")
        parser.add_argument("--burst", action="store_true", help="end when nothing is due")
        parser.add_argument("--max-jobs", type=_positive, metavar="N", help="end after N jobs")
        parser.add_argument(
            "--shutdown-timeout",
            type=_seconds,
            metavar="SECONDS",
            help="for running handlers (JOBCHAINS['SHUTDOWN_SECONDS'])",
        )
        parser.add_argument("--name", help="shown in place of the host's name")

    def handle(self, *args: Any, **options: Any) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        try:
            worker = Worker(
                slots=options["slots"],
                async_slots=options["async_slots"],
                queues=options["queue"],
                types=options["type"],
                using=options["database"],
                burst=options["burst"],
                max_jobs=options["max_jobs"],
                shutdown_seconds=options["shutdown_timeout"],
                name=options["name"],
            )
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        with self._shown(Console(self.stdout.write, self.style, options["verbosity"], worker.id)):
            code = worker.run()
        self._exit(code, is_stuck=worker.is_stuck)

    @contextmanager
    def _shown(self, console: Console) -> Iterator[None]:
        """The terminal in place of the log's last resort, which would say everything twice."""
        add_sink(console)
        if not (has_log := logger.hasHandlers()):
            remove_sink(log)
        try:
            yield
        finally:
            remove_sink(console)
            if not has_log:
                add_sink(log)

    def _exit(self, code: int, *, is_stuck: bool) -> None:
        """What does not end must not keep the process: its job is handed back and its writes are fenced."""
        if is_stuck:
            self.stdout.flush()
            self.stderr.flush()
            os._exit(code)
        if code:
            sys.exit(code)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < math.inf:
        raise ArgumentTypeError(f"{text!r} must be seconds, 0 or more")
    return seconds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} must be a whole number from 1")
    return int(text)
