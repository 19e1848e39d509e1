"""The worker: its options, and when it starts and stops."""

import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from math import inf

from django.core.exceptions import ImproperlyConfigured
from django.db import Error

from django_jobchains.children.limits import resident_bytes
from django_jobchains.conf import get_settings
from django_jobchains.db.connections import repair_connections
from django_jobchains.db.ids import new_id
from django_jobchains.db.setup import setup_problem
from django_jobchains.declare.policies import Backoff, BackoffFunction, Lease
from django_jobchains.declare.registry import Registry, get_registry
from django_jobchains.isolation import Isolation, Level
from django_jobchains.middleware import Middleware
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import WorkerStarted, WorkerStopped, WorkerStopping
from django_jobchains.telemetry.probes import add_worker, remove_worker
from django_jobchains.values import ANY_DURATION, FLAG, QUEUE, TYPE_NAME, Count, Duration, DurationLike, Name
from django_jobchains.worker.components import Components
from django_jobchains.worker.health import Health
from django_jobchains.worker.options import (
    WorkerOptions,
    check_alias,
    check_maintenance_only,
    check_record_tables,
    checked,
    checked_names,
    checked_policy,
    checked_queue_slots,
    checked_registry,
    checked_store,
    has_task_backends,
    record_isolations,
    records_of,
    served_policies,
    worker_errors,
)
from django_jobchains.worker.shutdown import Shutdown
from django_jobchains.worker.threads import StopRequest, SwitchInterval

WORKER_NAME = Name(100)
#: How often the main thread checks for signals and for the end of the work, and adapts the switch interval.
CHECK_SECONDS = 0.1
#: How often the worker checks whether copies of a signal may still arrive.
CHECK_COPIES_SECONDS = 0.02


class Worker:
    """Runs jobs and records of the registered types.

    Up to ``slots`` attempts run at the same time in threads, and up to ``async_slots`` async handlers on an event loop.

    ``queues``: the queues to serve, None for all queues. ``types``: names or patterns ("shop.*") of the types to run,
    None for all types with a processor. A string is a single name. ``queue_slots``: how many of the slots may run jobs
    of a queue, as in ``{"mail": 2}``. ``burst``: end when nothing is due. ``max_jobs``: end after this number of jobs.
    ``max_rss``: a number of bytes. If the process uses more memory, it claims no more jobs, and ``run`` ends after the
    running attempts. ``max_active_seconds``: end in the same way after this time. ``maintenance_only``: run no
    handlers, and only do the periodic work for all workers, such as taking back jobs of dead workers. Durations are
    timedeltas or numbers of seconds, and default to ``JOBCHAINS``. ``required_middleware``: classes or dotted paths, in
    addition to the classes that ``JOBCHAINS`` requires. Raises ``ImproperlyConfigured`` for an invalid argument, if no
    registered type matches, if the slice of a matching type lacks required middleware, or for an invalid
    ``on_failure``.
    """

    _started_at: float | None = None

    def __init__(
        self,
        *,
        slots: int | None = None,
        async_slots: int | None = None,
        queues: Collection[str] | str | None = None,
        queue_slots: Mapping[str, int] | None = None,
        types: Collection[str] | str | None = None,
        using: str | None = None,
        name: str | None = None,
        registry: Registry | None = None,
        backoff: Backoff | BackoffFunction | None = None,
        lease: Lease | DurationLike | None = None,
        max_attempts: float | None = None,
        timeout: DurationLike | None = None,
        isolation: Isolation | Level | None = None,
        poll_seconds: DurationLike | None = None,
        shutdown_seconds: DurationLike | None = None,
        burst: bool = False,
        max_jobs: int | None = None,
        max_rss: int | None = None,
        max_active_seconds: DurationLike | None = None,
        maintenance_only: bool = False,
        required_middleware: Collection[type[Middleware] | str] = (),
    ) -> None:
        settings = get_settings()
        self.name = checked(WORKER_NAME, "name", name, socket.gethostname()[: WORKER_NAME.length])
        #: Unique, so that a restarted worker is not mistaken for its predecessor.
        self.id = f"{self.name}:{os.getpid()}:{str(new_id())[-12:]}"
        seconds = Duration(least=0)
        self.shutdown_seconds = checked(seconds, "shutdown_seconds", shutdown_seconds, settings.SHUTDOWN_SECONDS)
        with worker_errors():
            self.burst = FLAG.check("burst", burst)
            FLAG.check("maintenance_only", maintenance_only)
        self._max_rss = checked(Count(), "max_rss", max_rss, None)
        self._max_active_seconds = checked(Duration(), "max_active_seconds", max_active_seconds, inf)
        registry = checked_registry(registry)
        served_types, served_queues = checked_names("types", types, TYPE_NAME), checked_names("queues", queues, QUEUE)
        own_slots = checked_queue_slots({} if queue_slots is None else queue_slots)
        own = checked_policy(backoff, lease, max_attempts, timeout, isolation)
        self.store = checked_store(using)
        has_tasks = registry is get_registry() and has_task_backends()
        finds_tasks = has_tasks and not maintenance_only
        policies, records = {}, {}
        if maintenance_only:
            check_maintenance_only(
                slots=slots,
                async_slots=async_slots,
                queues=queues,
                types=types,
                burst=burst,
                max_jobs=max_jobs,
                queue_slots=queue_slots,
            )
            served_queues = ()
        else:
            policies = served_policies(registry, served_types, own, required_middleware, finds_tasks=finds_tasks)
            has_jobs = bool(policies) or finds_tasks
            records = records_of(registry, served_types, served_queues, self.store.using, has_jobs=has_jobs)
        self.options = WorkerOptions(
            worker=self.id,
            name=self.name,
            store=self.store,
            registry=registry,
            policies=policies,
            records=records,
            record_isolations=record_isolations(registry, records, own),
            queues=served_queues,
            queue_slots=own_slots,
            slots=0 if maintenance_only else checked(Count(), "slots", slots, settings.SLOTS),
            async_slots=checked(Count(), "async_slots", async_slots, settings.ASYNC_SLOTS),
            poll_seconds=checked(Duration(), "poll_seconds", poll_seconds, settings.POLL_SECONDS),
            max_jobs=checked(Count(), "max_jobs", max_jobs, None),
            has_tasks=has_tasks,
            finds_tasks=finds_tasks,
            types=served_types,
            own_policy=own,
        )
        self.stop_request, self._failed, self._stopped = StopRequest(), threading.Event(), threading.Event()
        self._stopping = threading.Lock()
        self.components = Components(self.options, give_up=self._failed.set)

    # Running

    def run(self) -> int:
        """Run until a signal or a limit such as ``max_jobs``. Return the exit code, which is 1 after a failure.

        In the main thread, SIGTERM and SIGINT stop the worker. After the first signal, it waits for running handlers;
        after a second one, it does not. Signals that arrive at the same time count as one.
        """
        switch_interval = SwitchInterval()
        with self._handled_signals():
            try:
                self.start()
                while not self._is_over():
                    self._stopped.wait(CHECK_SECONDS)
                    self._retire_at_limits()
                    switch_interval.adapt(self.components.slots.backlog.average_seconds)
                self._await_copies()
            finally:
                self.stop()
                switch_interval.restore()
        return int(self.failed)

    def run_until_idle(self, timeout: DurationLike = 60) -> None:
        """Run all due jobs, including continuations and jobs that they unblock, and return.

        ``timeout`` is a timedelta or a number of seconds. Raises ``TimeoutError``, ``ImproperlyConfigured`` if tables
        are missing, and ``RuntimeError`` if a thread of the worker failed too often.
        """
        deadline = time.monotonic() + ANY_DURATION.check("timeout", timeout)
        self.burst = True
        try:
            self.start()
            while not self._is_over() and time.monotonic() < deadline:
                self.components.claim_loop.idle.wait(0.01)
                self._retire_at_limits()
            is_over = self._is_over()
        finally:
            self.stop()
        if self.failed:
            self.check_database()
            raise RuntimeError("The worker failed. The log of 'django_jobchains' has the error.")
        if not is_over:
            raise TimeoutError(f"There was still work after {timeout} seconds.")

    def check_database(self) -> None:
        """Raise ``ImproperlyConfigured`` if tables are missing or have other columns, or handlers use another alias.

        An unavailable database is not an error, because the worker waits for it.
        """
        try:
            if problem := setup_problem(self.store.using):
                raise ImproperlyConfigured(problem)
            check_record_tables(self.options.records.values(), self.store.using)
        except Error:
            repair_connections()
            return
        check_alias(self.store)

    def start(self) -> None:
        check_alias(self.store)
        self.store.db.prepare_for_workers()
        self.components.context.wake.is_eager |= self.burst
        self._find_tasks()
        options, async_slots = self.options, self.components.async_slots.count if self.components.async_slots else 0
        report(WorkerStarted(self.id, options.slots, async_slots, options.type_names, options.queues, self.store.using))
        self._started_at = time.monotonic()
        if self.burst:
            self._fire_schedules()
        self.components.start()
        add_worker(self.components)

    def _find_tasks(self) -> bool:
        """Find tasks that were enqueued, and return whether any of them is new.

        A worker that ends when nothing is due decides immediately about tasks that cannot be imported.
        """
        if not self.options.finds_tasks:
            return False
        try:
            return self.components.task_finder.find(**({"grace_seconds": 0.0} if self.burst else {}))
        except Error:  # The thread for tasks reports it.
            repair_connections()
            return False

    def _fire_schedules(self) -> None:
        """Fire due schedules, so that a worker that runs until it is idle runs their chains."""
        try:
            self.components.scheduler.fire_all()
        except Error:  # The thread for schedules, or the claim loop, reports it.
            repair_connections()

    def stop(self, timeout: DurationLike | None = None) -> int:
        """Claim no more jobs, wait up to ``timeout`` for handlers, then abort them and return their jobs to the queue.

        ``timeout`` is a timedelta or a number of seconds. Returns how many attempts had not ended. Takes at most a
        second or two longer than the timeout. Can be called from any thread, and ends ``run``. A second call only waits
        for the first, and returns 0.
        """
        seconds = self.shutdown_seconds if timeout is None else ANY_DURATION.check("timeout", timeout)
        with self._stopping:
            if self._stopped.is_set():
                return 0
            self.components.health_monitor.set_state("stopping")
            report(WorkerStopping(self.id, self.running))
            self.components.announce_stop()
            abandoned = Shutdown(self.components, self.store, self.stop_request).run(seconds)
            remove_worker(self.components)
            report(WorkerStopped(self.id, abandoned))
            self._stopped.set()
        return abandoned

    def request_stop(self) -> None:
        """Stop the worker, as after the first SIGTERM. Can be called from any thread."""
        self.stop_request.make()

    def retire(self) -> None:
        """Claim no more jobs, and end ``run`` after all running attempts. Can be called from any thread."""
        if not self.components.claim_loop.retires:
            self.components.health_monitor.set_state("retiring")
            self.components.announce_stop()
            self.components.claim_loop.retire()

    @property
    def active_seconds(self) -> float:
        """The seconds since the worker was started, or 0 before."""
        return 0.0 if self._started_at is None else time.monotonic() - self._started_at

    @property
    def claimed(self) -> int:
        """The number of jobs claimed so far."""
        return self.components.claim_loop.claimed

    @property
    def has_begun(self) -> bool:
        """Whether the worker has started and reached the database."""
        return self.components.health_monitor.has_begun

    @property
    def failed(self) -> bool:
        """Whether the worker stopped because one of its components could not continue."""
        return self._failed.is_set()

    def health(self) -> Health:
        """Return the current health, without a query. Can be called from any thread."""
        return self.components.health_monitor.health()

    @property
    def running(self) -> int:
        """The number of running attempts, including stuck ones."""
        return self.components.running

    @property
    def is_stuck(self) -> bool:
        """Whether a handler or an unresponsive database still occupies a thread after ``stop``."""
        return self.components.is_stuck

    # Signals and ends

    def _is_over(self) -> bool:
        claim_loop = self.components.claim_loop
        if self.stop_request.is_made or self._stopped.is_set() or self.failed or claim_loop.exhausted.is_set():
            return True
        # Again afterwards, because the thread for tasks may have found one in the meantime.
        return self.burst and claim_loop.idle.is_set() and not self._find_tasks() and claim_loop.idle.is_set()

    def _retire_at_limits(self) -> None:
        is_too_large = self._max_rss and resident_bytes() > self._max_rss
        if is_too_large or self.active_seconds >= self._max_active_seconds:
            self.retire()

    def _await_copies(self) -> None:
        """Wait, without claiming, until another signal would not be a copy. Only then is "Stopping" logged."""
        while self.running and self.stop_request.expects_copies and not self.stop_request.has_supervisor:
            self.retire()
            self._stopped.wait(CHECK_COPIES_SECONDS)

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
