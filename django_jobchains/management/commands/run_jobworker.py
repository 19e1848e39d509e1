"""``manage.py run_jobworker``: a worker process, or several under a supervisor."""

import gc
import os
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connections

from django_jobchains.children.limits import resident_bytes
from django_jobchains.cli.converters import duration, positive, queue, type_name
from django_jobchains.cli.queues import queue_warnings
from django_jobchains.cli.types import type_warnings
from django_jobchains.db.connections import repair_connections
from django_jobchains.db.libpq import add_network_options
from django_jobchains.isolation import parse_size
from django_jobchains.telemetry import add_sink, log, logger, remove_sink
from django_jobchains.telemetry.terminal import TerminalSink, console_level
from django_jobchains.telemetry.tracing import flush
from django_jobchains.worker import Worker
from django_jobchains.worker.health import Health
from django_jobchains.worker.health_server import HealthServer
from django_jobchains.worker.supervised_process import ParentLink
from django_jobchains.worker.supervisor import Supervisor
from django_jobchains.worker.threads import StopRequest
from django_jobchains.worker.worker import WORKER_NAME

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.prometheus import MergedMetrics

#: How long a stopping worker waits for its spans to be exported.
FLUSH_SECONDS = 2.0

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Command(BaseCommand):
    help = "Runs jobs until SIGTERM or SIGINT: the first waits for running handlers, the second does not."

    def add_arguments(self, parser: CommandParser) -> None:
        _add_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        add_network_options()
        link = ParentLink.from_environment()
        try:
            if link is not None:
                self._run_for_supervisor(options, link)
            elif options["processes"] or options["reload"] or len(_databases(options)) > 1:
                self._supervise(options)
            else:
                self._run(options)
        except ImproperlyConfigured as error:
            raise CommandError(str(error).removeprefix("Worker(): ")) from error

    def _run(self, options: dict[str, Any]) -> None:
        limits = {"max_jobs": options["max_jobs"], "max_rss": options["max_rss"]}
        [database] = _databases(options)
        worker = _worker(options, database, **limits, max_active_seconds=options["max_active"])
        _check_size(options["max_rss"])
        with _process_metrics(options) as metrics, self._health_server(options, worker.health, metrics):
            self._warn_of_names(worker, database)
            self._work(worker, options)

    def _run_for_supervisor(self, options: dict[str, Any], link: ParentLink) -> None:
        """Run a worker that asks to be replaced at its limits, instead of exiting."""
        if options["name"]:
            options["name"] = f"{options['name']}-{link.number}"
        databases = _databases(options)
        worker = _worker(options, databases[(link.number - 1) % len(databases)])
        with _process_metrics(options) as metrics:
            link.start(worker, lambda: _replace_reason(worker, options), metrics)
            self._work(worker, options, link.finish)

    def _work(self, worker: Worker, options: dict[str, Any], finish: Callable[[], object] = lambda: None) -> None:
        if self._owns_process:
            # Exclude the objects that exist now from garbage collection, because they live until the end. A collection
            # before that would delay the first claim and free almost nothing.
            gc.freeze()
        self._handle_signals(worker.stop_request)
        _check_database(worker)
        with self._terminal_output(worker.id, options["verbosity"]):
            code = worker.run()
        finish()
        flush(FLUSH_SECONDS)
        self._exit(code, is_stuck=worker.is_stuck)

    def _supervise(self, options: dict[str, Any]) -> None:
        workers = self._checked_workers(options)
        worker = workers[0]
        merged = _merged_metrics(options)
        supervisor = Supervisor(
            _count_of_processes(options),
            name=worker.name,
            shutdown_seconds=worker.shutdown_seconds,
            burst=options["burst"],
            reload=options["reload"],
            **({"on_end": merged.add_ended} if merged else {}),
        )
        reporting: Worker | Supervisor = worker

        def health() -> Health:
            """Return that of a worker that is starting until the supervisor runs."""
            return reporting.health()

        with (
            _process_metrics(options) as own,
            self._health_server(
                options, health, (lambda: merged.text(own(), supervisor.metrics)) if own and merged else None
            ),
            self._terminal_output(supervisor.id, options["verbosity"]),
        ):
            for each in workers:
                _check_database(each)
            self._warn_of_names(worker, *_databases(options))
            connections.close_all()
            self._handle_signals(supervisor.stop_request)
            reporting = supervisor
            code = supervisor.run()
        self._exit(code)

    @property
    def _owns_process(self) -> bool:
        """Return whether the command was started from a command line, not called by a program."""
        return bool(getattr(self, "_called_from_command_line", False))

    def _handle_signals(self, stop_request: StopRequest) -> None:
        """Handle signals from now on.

        A signal that arrives before or after the worker runs is not lost, and does not kill the process.
        """
        if self._owns_process:
            for number in _STOPPING:
                signal.signal(number, stop_request.on_signal)

    def _checked_workers(self, options: dict[str, Any]) -> list[Worker]:
        """Return a worker for each database, as its processes will create it, so that an error is shown once."""
        options_used = "--processes, --reload and several --database"
        if os.name != "posix":
            raise CommandError(f"{options_used} need a POSIX system. Start several workers instead.")
        if not self._owns_process:
            raise CommandError(
                f"{options_used} start the same command line again. Start the command from a command line."
            )
        if options["reload"] and options["burst"]:
            raise CommandError("--reload waits for changes, but --burst ends when nothing is due. Use one of them.")
        count = _count_of_processes(options)
        if options["name"] and len(f"{options['name']}-{count}") > WORKER_NAME.length:
            raise CommandError(
                f"--name is too long: the names of the processes end with -1 to -{count}, and may have up to "
                f"{WORKER_NAME.length} characters. Use a shorter name."
            )
        _check_size(options["max_rss"])
        return [_worker(options, database) for database in _databases(options)]

    def _warn_of_names(self, worker: Worker, *databases: str | None) -> None:
        """Warn of queues and types that may be misspelled, unless a database is unavailable."""
        queues, types = [*(worker.options.queues or ()), *worker.options.queue_slots], worker.options.types
        try:
            warnings = [*queue_warnings(queues, *databases)] if queues else []
            warnings += type_warnings(types, *databases) if types else []
        except Error:
            repair_connections()
            return
        for warning in warnings:
            self.stderr.write(self.style.WARNING(warning))

    @contextmanager
    def _health_server(
        self, options: dict[str, Any], health: Callable[[], Health], metrics: Callable[[], str] | None
    ) -> Iterator[None]:
        if not options["health_port"]:
            yield
            return
        host, port = options["health_host"], options["health_port"]
        server = HealthServer(host, port, health, metrics=metrics)
        server.start()
        try:
            yield
        finally:
            server.close()

    @contextmanager
    def _terminal_output(self, worker: str, verbosity: int) -> Iterator[None]:
        """Show each event on the terminal once. Without logging handlers, Python would also write the log records."""
        terminal = TerminalSink(self.stdout.write, self.style, verbosity, worker, console_level(logger))
        add_sink(terminal)
        if not (has_log := logger.hasHandlers()):
            remove_sink(log)
        try:
            yield
        finally:
            remove_sink(terminal)
            if not has_log:
                add_sink(log)

    def _exit(self, code: int, *, is_stuck: bool = False) -> None:
        """End the process, even if a handler does not end. Its job is returned to the queue, and its writes fail."""
        if self._owns_process:
            for number in _STOPPING:
                signal.signal(number, signal.SIG_IGN)  # the interpreter removes other handlers before it ends
        if is_stuck:
            self.stdout.flush()
            self.stderr.flush()
            os._exit(code)
        if code:
            sys.exit(code)


def _databases(options: dict[str, Any]) -> Sequence[str | None]:
    """Return the databases to serve; None is ``JOBCHAINS["DATABASE"]``."""
    given = options["database"] or [None]
    return [given] if isinstance(given, str) else list(dict.fromkeys(given))  # call_command() may pass a string


def _count_of_processes(options: dict[str, Any]) -> int:
    return (options["processes"] or 1) * len(_databases(options))


def _worker(options: dict[str, Any], database: str | None, **limits: Any) -> Worker:
    return Worker(
        slots=options["slots"],
        async_slots=options["async_slots"],
        queues=options["queue"],
        queue_slots=dict(options["queue_slots"] or ()),
        types=options["type"],
        using=database,
        burst=options["burst"],
        maintenance_only=options["maintenance_only"],
        **limits,
        shutdown_seconds=options["shutdown_timeout"],
        name=options["name"],
    )


@contextmanager
def _process_metrics(options: dict[str, Any]) -> Iterator[Callable[[], str] | None]:
    """Keep the metrics of this process for ``/metrics``. None without a health port or the extra ``prometheus``."""
    if not options["health_port"] or not has_prometheus():
        yield None
        return
    from django_jobchains.telemetry.otel.prometheus import ProcessMetrics

    metrics = ProcessMetrics()
    try:
        yield metrics.text
    finally:
        metrics.close()


def _merged_metrics(options: dict[str, Any]) -> "MergedMetrics | None":
    if not options["health_port"] or not has_prometheus():
        return None
    from django_jobchains.telemetry.otel.prometheus import MergedMetrics

    return MergedMetrics()


def has_prometheus() -> bool:
    """Return whether the extra ``prometheus`` is installed."""
    try:
        import django_jobchains.telemetry.otel.prometheus  # noqa: F401
    except ImportError:
        return False
    return True


def _check_database(worker: Worker) -> None:
    """Check the tables, and close the connection, which this thread does not need again."""
    connection = connections[worker.store.using]
    worker.check_database()
    if not connection.in_atomic_block:
        connection.close()


def _check_size(max_rss: int | None) -> None:
    if max_rss and (size := resident_bytes()) >= max_rss:
        raise CommandError(
            f"--max-rss {megabytes(max_rss)} is less than a worker uses before its first job: {megabytes(size)}."
        )


def _replace_reason(worker: Worker, options: dict[str, Any]) -> str:
    """Return why the worker should be replaced, or "". Before its first job, jobs cannot have made it grow."""
    max_jobs, max_rss, max_active = options["max_jobs"], options["max_rss"], options["max_active"]
    if max_jobs and worker.claimed >= max_jobs:
        return f"{worker.claimed} jobs"
    if max_rss and worker.claimed and (size := resident_bytes()) > max_rss:
        return f"{megabytes(size)} of memory"
    if max_active and worker.active_seconds > max_active:
        return f"active for {worker.active_seconds:.0f} s"
    return ""


_HEALTH_PORT = (
    "answer /live, /ready and, with the extra prometheus, /metrics over HTTP. With --processes, /metrics is empty "
    "until the processes have reported"
)


def _add_options(parser: CommandParser) -> None:
    parser.add_argument("--slots", type=positive, metavar="N", help="attempts that run at once (JOBCHAINS['SLOTS'])")
    parser.add_argument(
        "--async-slots", type=positive, metavar="N", help="the same for async handlers (JOBCHAINS['ASYNC_SLOTS'])"
    )
    parser.add_argument(
        "--queue", type=queue, action="append", metavar="QUEUE", help="queue to serve; repeatable (default: all)"
    )
    parser.add_argument(
        "--queue-slots",
        action="append",
        type=_queue_slots,
        metavar="QUEUE=N",
        help="use at most N slots of this worker for jobs of a queue; repeatable",
    )
    parser.add_argument(
        "--type",
        type=type_name,
        action="append",
        metavar="PATTERN",
        help="types to run: shop.*; repeatable (default: all)",
    )
    parser.add_argument(
        "--database",
        action="append",
        metavar="ALIAS",
        help="database alias of the job tables (JOBCHAINS['DATABASE']); repeatable: each has its own processes",
    )
    parser.add_argument("--burst", action="store_true", help="exit when nothing is due")
    parser.add_argument("--max-jobs", type=positive, metavar="N", help="exit, or be replaced, after N jobs")
    parser.add_argument(
        "--max-rss", type=_size, metavar="SIZE", help="exit, or be replaced, above this memory: 500M, 2G"
    )
    parser.add_argument(
        "--max-active",
        type=duration,
        metavar="DURATION",
        help="exit, or be replaced, after this time",
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=duration,
        metavar="DURATION",
        help="how long to wait for running handlers (JOBCHAINS['SHUTDOWN_SECONDS'])",
    )
    parser.add_argument(
        "--maintenance-only", action="store_true", help="run no jobs: take back those of dead workers, and prune"
    )
    parser.add_argument("--name", metavar="NAME", help="worker name instead of the host's name")
    parser.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help="run N worker processes for each database, and restart those that exit",
    )
    parser.add_argument("--reload", action="store_true", help="restart when a Python file changes; for development")
    parser.add_argument("--health-port", type=_port, metavar="PORT", help=_HEALTH_PORT)
    parser.add_argument(
        "--health-host", default="127.0.0.1", metavar="ADDRESS", help="for --health-port (default: 127.0.0.1)"
    )


def _queue_slots(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not (name and number.isdecimal() and int(number)):
        raise ArgumentTypeError(f"{text!r} must be the name of a queue and a number of slots, as in mail=2")
    return name, int(number)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} must be a port, 1 to 65535")
    return int(text)


def _size(text: str) -> int:
    """Return bytes. A number without a unit is more likely a mistake."""
    size = parse_size(text)
    if not size or text.isdecimal():
        raise ArgumentTypeError(f"{text!r} must be a whole number with K, M or G, as in 500M")
    return size


def megabytes(size: int) -> str:
    return f"{size / 1024**2:.0f}M"
