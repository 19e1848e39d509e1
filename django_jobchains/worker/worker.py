"""The worker as a whole: what it works for, and when it starts and stops."""

import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Container, Iterator
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase

from django.core.exceptions import ImproperlyConfigured
from django.db import Error

from django_jobchains.conf import get_settings
from django_jobchains.database_setup import setup_problem
from django_jobchains.hygiene import tidy
from django_jobchains.ids import new_id
from django_jobchains.middleware import Middleware
from django_jobchains.middleware.required import required_kinds
from django_jobchains.policies import AttemptPolicy, Backoff, Lease, Policy, resolve
from django_jobchains.processors import Registry
from django_jobchains.schedules import seconds_of
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import WorkerStarted, WorkerStopped, WorkerStopping
from django_jobchains.worker.health import Health
from django_jobchains.worker.memory import resident_bytes
from django_jobchains.worker.options import (
    NAME_LENGTH,
    checked_count,
    checked_flag,
    checked_name,
    checked_policy,
    checked_queues,
    checked_registry,
    checked_seconds,
    checked_store,
    checked_types,
)
from django_jobchains.worker.parts import Parts, Scope
from django_jobchains.worker.shutdown import Shutdown
from django_jobchains.worker.stop_request import StopRequest

#: Between looks of the waiting main thread at signals and at what ended.
LOOK_SECONDS = 0.1
#: Between looks whether copies of a signal may still arrive.
COPIES_LOOK_SECONDS = 0.02


class Worker:
    """Runs jobs of the registered types in ``slots`` threads, ``async_slots`` of async ones at once on an event loop.

    ``queues``: the queues served, None is every queue. ``types``: names or patterns ("shop.*"), None is every type with
    a processor. A string is one name. ``burst``: end when nothing is due. ``max_jobs``: end after so many jobs.
    ``max_rss``: ``run`` ends when the process has more bytes of memory and what runs has ended. Durations are
    timedeltas or seconds, and come from ``JOBCHAINS`` unless given. ``required_middleware``: classes or dotted paths,
    besides those that ``JOBCHAINS`` requires. Raises ``ImproperlyConfigured`` for an argument that cannot be used, when
    no registered type matches, and when the slice of one that does lacks required middleware.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        async_slots: int | None = None,
        queues: Collection[str] | str | None = None,
        types: Collection[str] | str | None = None,
        using: str | None = None,
        name: str | None = None,
        registry: Registry | None = None,
        backoff: Backoff | None = None,
        lease: Lease | timedelta | float | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | float | None = None,
        poll_seconds: timedelta | float | None = None,
        shutdown_seconds: timedelta | float | None = None,
        burst: bool = False,
        max_jobs: int | None = None,
        max_rss: int | None = None,
        required_middleware: Collection[type[Middleware] | str] = (),
    ) -> None:
        settings = get_settings()
        self.slot_count = settings.SLOTS if slots is None else checked_count("slots", slots)
        self.async_slot_count = (
            settings.ASYNC_SLOTS if async_slots is None else checked_count("async_slots", async_slots)
        )
        if max_jobs is not None:
            checked_count("max_jobs", max_jobs)
        #: Unique for each start, so that a restarted worker is never taken for the one that died.
        self.name = (checked_name(name) or socket.gethostname())[:NAME_LENGTH]
        self.id = f"{self.name}:{os.getpid()}:{str(new_id())[-12:]}"
        self.queues = checked_queues(queues)
        self.shutdown_seconds = (
            settings.SHUTDOWN_SECONDS
            if shutdown_seconds is None
            else checked_seconds("shutdown_seconds", shutdown_seconds, least=0)
        )
        self.burst = checked_flag("burst", burst)
        self._max_rss = None if max_rss is None else checked_count("max_rss", max_rss)
        self._retires = False
        self.failed = False
        registry = checked_registry(registry)
        own_policy = checked_policy(backoff, lease, max_attempts, timeout)
        self.policies = _policies(registry, checked_types(types), own_policy)
        _check_middleware(registry, self.policies, required_middleware)
        self.store = checked_store(using)
        self.stop_request = StopRequest()
        self._stopped = threading.Event()
        self.parts = Parts(
            Scope(
                worker=self.id,
                store=self.store,
                registry=registry,
                policies=self.policies,
                queues=self.queues,
                slots=self.slot_count,
                async_slots=self.async_slot_count,
                poll_seconds=(
                    settings.POLL_SECONDS if poll_seconds is None else checked_seconds("poll_seconds", poll_seconds)
                ),
                max_jobs=max_jobs,
            ),
            is_eager=lambda: self.burst or max_jobs is not None or self._retires,
            give_up=self._give_up,
        )

    # Running

    def run(self) -> int:
        """Runs until a signal, or until burst or max_jobs are through; returns the exit code (1: a part gave up).

        On the main thread, SIGTERM and SIGINT stop it: the first lets running handlers end, the second does not wait.
        Signals that arrive at the same time are one signal.
        """
        with self._handled_signals():
            try:
                self.start()
                while not self._is_over():
                    self._stopped.wait(LOOK_SECONDS)
                    self._retire_if_too_large()
                self._await_copies()
            finally:
                self.stop()
        return int(self.failed)

    def run_until_idle(self, timeout: timedelta | float = 60) -> None:
        """Runs what is due, and what becomes due at once by it; ``timeout`` is a timedelta or seconds.

        Raises ``TimeoutError``, ``ImproperlyConfigured`` when tables are missing, and ``RuntimeError`` when a part of
        the worker failed too often.
        """
        deadline = time.monotonic() + seconds_of(timeout, "timeout")
        self.burst = True
        try:
            self.start()
            while not self._is_over() and time.monotonic() < deadline:
                self.parts.loop.idle.wait(0.01)
            is_over = self._is_over()
        finally:
            self.stop()
        if self.failed:
            self.check_database()
            raise RuntimeError("The worker gave up. The log of 'django_jobchains' has the error.")
        if not is_over:
            raise TimeoutError(f"There was still work after {timeout} seconds.")

    def check_database(self) -> None:
        """Raise ``ImproperlyConfigured`` if tables are missing.

        An unavailable database is not an error, because the worker waits for it.
        """
        try:
            problem = setup_problem(self.store.using)
        except Error:
            tidy()
            return
        if problem:
            raise ImproperlyConfigured(problem)

    def start(self) -> None:
        """Starts the threads and returns."""
        self.store.prepare_for_workers()
        async_slots = self.parts.async_slots.count if self.parts.async_slots else 0
        types = tuple(sorted(self.policies))
        report(WorkerStarted(self.id, self.slot_count, async_slots, types, self.queues, self.store.using))
        self.parts.start()

    def stop(self, timeout: timedelta | float | None = None) -> int:
        """Claims no more, lets handlers end for ``timeout``, then aborts them and hands their jobs back.

        ``timeout`` is a timedelta or seconds. Returns how many attempts had not ended. May be called once; ends within
        the timeout and a second or two.
        """
        seconds = self.shutdown_seconds if timeout is None else seconds_of(timeout, "timeout")
        self.parts.checkup.leaves("stopping")
        report(WorkerStopping(self.id, self.running))
        self.parts.say_that_it_stops()
        abandoned = Shutdown(self.parts, self.store, is_hurried=lambda: self.stop_request.is_urgent).run(seconds)
        report(WorkerStopped(self.id, abandoned))
        self._stopped.set()
        return abandoned

    def request_stop(self) -> None:
        """From any thread: ``run`` stops the worker, as the first SIGTERM does."""
        self.stop_request.make()

    def retire(self) -> None:
        """From any thread: claims no more; ``run`` ends when what runs has ended, however long that takes."""
        if not self._retires:
            self._retires = True
            self.parts.checkup.leaves("retiring")
            self.parts.say_that_it_stops()
            self.parts.loop.retire()

    @property
    def claimed(self) -> int:
        """Jobs so far."""
        return self.parts.loop.claimed

    @property
    def has_begun(self) -> bool:
        """Whether it started, and reached the database."""
        return self.parts.checkup.has_begun

    def health(self) -> Health:
        """From any thread, at any time; asks no database."""
        return self.parts.checkup.health()

    def _retire_if_too_large(self) -> None:
        if self._max_rss and resident_bytes() > self._max_rss:
            self.retire()

    @property
    def running(self) -> int:
        """Attempts that run, those that do not stop among them."""
        return self.parts.running

    @property
    def is_stuck(self) -> bool:
        """Whether, after ``stop``, a handler or a database that does not answer still holds one of its threads."""
        return self.parts.is_stuck

    # Signals and ends

    def _is_over(self) -> bool:
        if self.stop_request.is_made or self.failed or self.parts.loop.spent.is_set():
            return True
        return self.burst and self.parts.loop.idle.is_set()

    def _give_up(self) -> None:
        self.failed = True

    def _await_copies(self) -> None:
        """Wait, without claiming, until another signal is a second one. "Stopping" is logged after that."""
        while self.running and self.stop_request.expects_copies and not self.stop_request.has_supervisor:
            self.retire()
            self._stopped.wait(COPIES_LOOK_SECONDS)

    @contextmanager
    def _handled_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handler = self.stop_request.on_signal
        before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler_before in before.items():
                signal.signal(number, handler_before)


def _policies(registry: Registry, types: Collection[str] | None, own: Policy) -> dict[str, AttemptPolicy]:
    """The policy of each type served: processor, slice, worker, settings, library."""
    registry.check()
    policies = {
        processor.job_type.name: resolve(*processor.policies, own)
        for processor in registry.processors()
        if types is None or any(fnmatchcase(processor.job_type.name, pattern) for pattern in types)
    }
    if not policies:
        known = ", ".join(sorted(processor.job_type.name for processor in registry.processors())) or "none"
        wanted = ", ".join(types or ["all"])
        raise ImproperlyConfigured(f"No processor to work for (types: {wanted}). Registered: {known}.")
    return policies


def _check_middleware(registry: Registry, types: Container[str], required: Collection[type[Middleware] | str]) -> None:
    if lacks := registry.lacking(required_kinds(required), types):
        raise ImproperlyConfigured(f"Required middleware is missing: {lacks}. Add it: Processors(middleware=[…]).")
