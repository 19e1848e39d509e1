"""``manage.py run_jobworker``: the worker as a process of its own, or several under a supervisor."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_jobchains.management.worker_options import add_worker_options
from django_jobchains.network import notice_dead_networks
from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.logs import log, logger
from django_jobchains.worker import Worker
from django_jobchains.worker.console import Console
from django_jobchains.worker.health import Health
from django_jobchains.worker.health_port import HealthPort
from django_jobchains.worker.memory import readable, resident_bytes
from django_jobchains.worker.stop_request import StopRequest
from django_jobchains.worker.supervisor import Supervisor
from django_jobchains.worker.tether import Tether

#: The GIL changes hands so often: threads that wait for the database get it back before the handlers' turn is over.
SWITCH_INTERVAL_SECONDS = 0.001

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Command(BaseCommand):
    help = "Runs jobs until SIGTERM or SIGINT: the first lets running handlers end, the second does not wait."

    def add_arguments(self, parser: CommandParser) -> None:
        add_worker_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        tether = Tether.from_environment()
        try:
            if tether is not None:
                self._run_for_supervisor(options, tether)
            elif options["processes"] or options["reload"]:
                self._supervise(options)
            else:
                self._run(options)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error

    def _run(self, options: dict[str, Any]) -> None:
        worker = _worker(options, max_jobs=options["max_jobs"], max_rss=options["max_rss"])
        _check_size(options["max_rss"])
        with self._probed(options, worker.id, worker.health):
            self._work(worker, options)

    def _run_for_supervisor(self, options: dict[str, Any], tether: Tether) -> None:
        """It does not end at its limits: it asks to be replaced."""
        if options["name"]:
            options["name"] = f"{options['name']}-{tether.number}"
        worker = _worker(options)
        tether.hold(worker, lambda: _wish(worker, options["max_jobs"], options["max_rss"]))
        self._work(worker, options)

    def _work(self, worker: Worker, options: dict[str, Any]) -> None:
        notice_dead_networks()
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        if self._owns_process:  # what it has now it has for good: no need to walk through it again and again
            gc.collect()
            gc.freeze()
        self._heed_signals(worker.stop_request)
        _check_database(worker)
        with self._shown(worker.id, options["verbosity"]):
            code = worker.run()
        self._exit(code, is_stuck=worker.is_stuck)

    def _supervise(self, options: dict[str, Any]) -> None:
        worker = self._checked(options)
        supervisor = Supervisor(
            options["processes"] or 1,
            name=worker.name,
            shutdown_seconds=worker.shutdown_seconds,
            burst=options["burst"],
            reload=options["reload"],
        )
        self._heed_signals(supervisor.stop_request)
        with self._probed(options, supervisor.id, supervisor.health), self._shown(supervisor.id, options["verbosity"]):
            code = supervisor.run()
        self._exit(code)

    @property
    def _owns_process(self) -> bool:
        """Whether it is the command of a command line, and no call of a program."""
        return bool(getattr(self, "_called_from_command_line", False))

    def _heed_signals(self, stop_request: StopRequest) -> None:
        """The worker or supervisor handles signals itself while it runs. A signal that arrives before must not be lost,
        and one that arrives after must not kill a process that ends well."""
        if self._owns_process:
            for number in _STOPPING:
                signal.signal(number, stop_request.on_signal)

    def _checked(self, options: dict[str, Any]) -> Worker:
        """The worker that each process will make: what is wrong with it is said once, before any starts."""
        if os.name != "posix":
            raise CommandError("--processes and --reload need a POSIX system. Start several workers instead.")
        if not self._owns_process:
            raise CommandError("--processes and --reload start this command line again: they need one of their own.")
        if options["reload"] and options["burst"]:
            raise CommandError(
                "--reload waits for changes, and --burst for the end of the work: leave out one of them."
            )
        worker = _worker(options)
        _check_size(options["max_rss"])
        _check_database(worker)
        connections.close_all()
        return worker

    @contextmanager
    def _probed(self, options: dict[str, Any], worker: str, health: Callable[[], Health]) -> Iterator[None]:
        if not options["health_port"]:
            yield
            return
        port = HealthPort(options["health_host"], options["health_port"], health, worker=worker)
        port.start()
        try:
            yield
        finally:
            port.close()

    @contextmanager
    def _shown(self, worker: str, verbosity: int) -> Iterator[None]:
        """The terminal in place of the log's last resort, which would say everything twice."""
        console = Console(self.stdout.write, self.style, verbosity, worker)
        add_sink(console)
        if not (has_log := logger.hasHandlers()):
            remove_sink(log)
        try:
            yield
        finally:
            remove_sink(console)
            if not has_log:
                add_sink(log)

    def _exit(self, code: int, *, is_stuck: bool = False) -> None:
        """What does not end must not keep the process: its job is handed back and its writes are fenced."""
        if self._owns_process:
            for number in _STOPPING:
                signal.signal(number, signal.SIG_IGN)  # the interpreter takes other handlers down before it ends
        if is_stuck:
            self.stdout.flush()
            self.stderr.flush()
            os._exit(code)
        if code:
            sys.exit(code)


def _worker(options: dict[str, Any], *, max_jobs: int | None = None, max_rss: int | None = None) -> Worker:
    return Worker(
        slots=options["slots"],
        async_slots=options["async_slots"],
        queues=options["queue"],
        types=options["type"],
        using=options["database"],
        burst=options["burst"],
        max_jobs=max_jobs,
        max_rss=max_rss,
        shutdown_seconds=options["shutdown_timeout"],
        name=options["name"],
    )


def _check_database(worker: Worker) -> None:
    """On a connection that is closed again: this thread works on none."""
    connection = connections[worker.store.using]
    worker.check_database()
    if not connection.in_atomic_block:
        connection.close()


def _check_size(max_rss: int | None) -> None:
    if max_rss and (size := resident_bytes()) >= max_rss:
        raise CommandError(
            f"--max-rss {readable(max_rss)} is less than a worker has before its first job: {readable(size)}."
        )


def _wish(worker: Worker, max_jobs: int | None, max_rss: int | None) -> str:
    """Why it should be replaced. One that did nothing yet has not grown by its jobs."""
    if max_jobs and worker.claimed >= max_jobs:
        return f"{worker.claimed} jobs"
    if max_rss and worker.claimed and (size := resident_bytes()) > max_rss:
        return f"{readable(size)} of memory"
    return ""
