"""The worker as a whole: its parts, how they start, and how they stop by a deadline."""

import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Container, Iterator
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from logging import getLogger
from types import FrameType

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobchains.announcing import announce
from django_jobchains.batch_attempts import BatchAttempt
from django_jobchains.conf import Settings, get_settings
from django_jobchains.hygiene import close_all
from django_jobchains.ids import new_id
from django_jobchains.leases import HeldLeases
from django_jobchains.middleware import Middleware, required_kinds
from django_jobchains.notifications import Hint, Listener, get_notifier
from django_jobchains.policies import AttemptPolicy, Backoff, Lease, Policy, resolve
from django_jobchains.processors import Registry, get_registry
from django_jobchains.store import Effects, HeldLease, get_store
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import WorkerStarted, WorkerStopped, WorkerStopping
from django_jobchains.worker.completer import Completer
from django_jobchains.worker.event_loop import AsyncSlots
from django_jobchains.worker.health import Checkup, Health
from django_jobchains.worker.lanes import Lane, Place
from django_jobchains.worker.loop import ClaimLoop, leases_of
from django_jobchains.worker.maintenance import LeaseKeeper, Reaper, Rounds, Sweeper
from django_jobchains.worker.memory import resident_bytes
from django_jobchains.worker.presence import Heartbeat
from django_jobchains.worker.queues import ServedQueues
from django_jobchains.worker.slots import Slots
from django_jobchains.worker.threads import OwnedThread
from django_jobchains.worker.wakeups import WakeUp
from django_jobchains.worker.watch import Watch

logger = getLogger("django_jobchains")

NAME_LENGTH = 100
#: Between looks of the waiting main thread at signals and at what ended.
LOOK_SECONDS = 0.1
#: What aborted handlers get beyond the shutdown timeout,
LAST_WORDS_SECONDS = 1.0
#: and each of the steps that may wait for a database that does not answer.
STEP_SECONDS = 0.5


class Worker:
    """Runs jobs of the registered types in ``slots`` threads, ``async_slots`` of async ones at once on an event loop.

    ``queues``: the queues served, None is every queue. ``types``: names or patterns ("shop.*"), None is every type with
    a processor. ``burst``: end when nothing is due. ``max_jobs``: end after so many jobs. ``max_rss``: ``run`` ends
    when the process has more bytes of memory and what runs has ended. Durations are seconds and come from ``JOBCHAINS``
    unless given. ``required_middleware``: classes or dotted paths, besides those that ``JOBCHAINS`` requires. Raises
    ``ImproperlyConfigured`` when no registered type matches, and when the slice of one that does lacks some of that.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        async_slots: int | None = None,
        queues: Collection[str] | None = None,
        types: Collection[str] | None = None,
        using: str | None = None,
        name: str | None = None,
        registry: Registry | None = None,
        backoff: Backoff | None = None,
        lease: Lease | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | float | None = None,
        poll_seconds: float | None = None,
        shutdown_seconds: float | None = None,
        burst: bool = False,
        max_jobs: int | None = None,
        max_rss: int | None = None,
        required_middleware: Collection[type[Middleware] | str] = (),
    ) -> None:
        settings = get_settings()
        self.slot_count = _at_least_one("slots", settings.SLOTS if slots is None else slots)
        self.async_slot_count = _at_least_one(
            "async_slots", settings.ASYNC_SLOTS if async_slots is None else async_slots
        )
        if max_jobs is not None:
            _at_least_one("max_jobs", max_jobs)
        if name is not None and not (0 < len(name) <= NAME_LENGTH and name.isprintable()):
            raise ImproperlyConfigured(f"A worker's name has 1 to {NAME_LENGTH} printable characters, not {name!r}.")
        #: Unique for each start, so that a restarted worker is never taken for the one that died.
        self.name = (name or socket.gethostname())[:NAME_LENGTH]
        self.id = f"{self.name}:{os.getpid()}:{str(new_id())[-12:]}"
        self.queues = None if queues is None else tuple(queues)
        self.shutdown_seconds = settings.SHUTDOWN_SECONDS if shutdown_seconds is None else shutdown_seconds
        self.burst = burst
        self._max_jobs = max_jobs
        self._max_rss = max_rss
        self._retires = False
        self.failed = False
        self.policies = _policies(registry or get_registry(), types, Policy(backoff, lease, max_attempts, timeout))
        _check_middleware(registry or get_registry(), self.policies, required_middleware)
        self.store = get_store(_known_alias(using or settings.DATABASE))
        self._signals = 0
        self._stopped = threading.Event()
        self._build(registry or get_registry(), settings, poll_seconds or settings.POLL_SECONDS)

    def _build(self, registry: Registry, settings: Settings, poll_seconds: float) -> None:
        self.leases = HeldLeases(self.store)
        self._wake = WakeUp(self.policies)
        self._served = ServedQueues(self.store, self.leases, self.queues)
        self.completer = Completer(
            self.store,
            self.leases,
            worker=self.id,
            is_busy=lambda: self.slots.has_waiting,
            on_written=self._on_written,
        )
        self.slots = Slots(
            self.slot_count,
            worker=self.id,
            on_outcome=self.completer.put,
            on_room=self._wake.set,
            on_broken=lambda attempt: self.leases.let_go(attempt.jobs),
            give_up=self._give_up,
            most_stuck=settings.MAX_STUCK_SLOTS,
        )
        self.async_slots = self._event_loop(registry, settings)
        self._places: list[Place] = [self.slots, self.async_slots] if self.async_slots else [self.slots]
        self.loop = self._claim_loop(registry, poll_seconds)
        self._maintenance = self._maintain(settings)
        steps = {"claims": self.loop.step, "completer": self.completer.step}
        steps |= {name: part.step for name, part in self._maintenance.items()}
        self._threads = {
            name: OwnedThread(name, step, worker=self.id, give_up=self._give_up) for name, step in steps.items()
        }
        self._notifier = get_notifier(self.store.using)
        self._listener: Listener | None = None
        self._checkup = Checkup(
            worker=self.id,
            threads=self._threads.values(),
            rounds=self._rounds,
            places=self._places,
            notifier=self._notifier,
            liveness_seconds=settings.LIVENESS_SECONDS,
        )

    def _event_loop(self, registry: Registry, settings: Settings) -> AsyncSlots | None:
        """None without an ``async def`` handler to run."""
        if not any(registry.processor(name).is_async for name in self.policies):
            return None
        return AsyncSlots(
            self.async_slot_count,
            threads=settings.ASYNC_THREADS,
            worker=self.id,
            on_outcome=self.completer.put,
            on_room=self._wake.set,
            on_broken=lambda attempt: self.leases.let_go(attempt.jobs),
            give_up=self._give_up,
            most_stuck=settings.MAX_STUCK_SLOTS,
        )

    def _claim_loop(self, registry: Registry, poll_seconds: float) -> ClaimLoop:
        return ClaimLoop(
            worker=self.id,
            store=self.store,
            registry=registry,
            policies=self.policies,
            queues=self._served,
            leases=self.leases,
            lanes=self._lanes(registry),
            completer=self.completer,
            wake=self._wake,
            poll_seconds=poll_seconds,
            max_jobs=self._max_jobs,
        )

    def _lanes(self, registry: Registry) -> list[Lane]:
        """One for all types whose attempts take one job, one for the async ones, one for each that takes several."""
        leases = {name: policy.lease.seconds for name, policy in self.policies.items()}
        lanes = []
        if self.async_slots:
            on_loop = {name: leases.pop(name) for name in list(leases) if registry.processor(name).is_async}
            lanes.append(Lane(self.async_slots, on_loop, make=self.async_slots.attempt))
        limits = {name: registry.processor(name).batch_limit for name in leases}
        for name, limit in limits.items():
            if limit:
                lanes.append(Lane(self.slots, {name: leases.pop(name)}, limit, BatchAttempt))
        return [Lane(self.slots, leases), *lanes] if leases else lanes

    def _maintain(self, settings: Settings) -> dict[str, Rounds | LeaseKeeper | Watch]:
        shortest = min(policy.lease.seconds for policy in self.policies.values())
        reaper = Reaper(
            self.store,
            self.leases,
            worker=self.id,
            backoff=resolve().backoff,
            max_crashes=settings.MAX_CRASHES,
            seconds=settings.REAP_SECONDS,
            on_reaped=self._wake.set,
        )
        self._keeper = LeaseKeeper(self.leases, self.id, min(shortest / 6, 5))
        sweeper = Sweeper(self.store, worker=self.id, seconds=settings.SWEEP_SECONDS)
        self.heartbeat = self._heartbeat(settings)
        self._rounds = Rounds(self.heartbeat, reaper, sweeper)
        return {
            "reaper": self._rounds,
            "keeper": self._keeper,
            "watch": self._watch(settings, shortest),
        }

    def _heartbeat(self, settings: Settings) -> Heartbeat:
        return Heartbeat(
            self.store,
            worker=self.id,
            slots=lambda: sum(place.count for place in self._places),
            busy=lambda: self.running,
            stuck=lambda: sum(place.stuck for place in self._places),
            queues=self.queues,
            type_names=self.policies,
            seconds=settings.HEARTBEAT_SECONDS,
        )

    def _watch(self, settings: Settings, shortest_lease: float) -> Watch:
        timeouts = [policy.timeout_seconds for policy in self.policies.values() if policy.timeout_seconds]
        return Watch(
            self.leases,
            self._places,
            worker=self.id,
            seconds=min(shortest_lease / 20, *(seconds / 10 for seconds in timeouts), settings.STUCK_SECONDS / 2, 1),
            stuck_seconds=settings.STUCK_SECONDS,
            on_outcome=self.completer.put,
            give_up=self._give_up,
        )

    # Running

    def run(self) -> int:
        """Runs until a signal, or until burst or max_jobs are through; returns the exit code (1: a part gave up).

        On the main thread, SIGTERM and SIGINT stop it: the first lets running handlers end, the second does not wait.
        """
        with self._handled_signals():
            self.start()
            while not self._is_over():
                self._stopped.wait(LOOK_SECONDS)
                self._retire_if_too_large()
            self.stop()
        return int(self.failed)

    def run_until_idle(self, timeout: float = 60) -> None:
        """Runs what is due, and what becomes due at once by it; raises ``TimeoutError``."""
        self.burst = True
        self.start()
        deadline = time.monotonic() + timeout
        while not self._is_over() and time.monotonic() < deadline:
            self.loop.idle.wait(0.01)
        is_over = self._is_over()
        self.stop()
        if not is_over:
            raise TimeoutError(f"There was still work after {timeout} seconds.")

    def start(self) -> None:
        """Starts the threads and returns."""
        self.store.prepare_for_workers()
        report(WorkerStarted(self.id, self.slot_count, tuple(sorted(self.policies)), self.queues, self.store.using))
        for place in self._places:
            place.start()
        for thread in self._threads.values():
            thread.start()
        # Subscribe, then look: the listener's first hint makes the loop look again.
        self._listener = self._notifier.listen(self._on_hint)
        self._checkup.started(self._listener)

    def stop(self, timeout: float | None = None) -> int:
        """Claims no more, lets handlers end for ``timeout`` seconds, then aborts them and hands their jobs back.

        Returns how many attempts had not ended. May be called once; ends within the timeout and a second or two.
        """
        timeout = self.shutdown_seconds if timeout is None else timeout
        self._checkup.leaves("stopping")
        report(WorkerStopping(self.id, self.running))
        self._say_that_it_stops()
        self._stop_claiming()
        self._drain(time.monotonic() + timeout)
        abandoned = self._finish_writing()
        self._close()
        report(WorkerStopped(self.id, abandoned))
        self._stopped.set()
        return abandoned

    def request_stop(self) -> None:
        """From any thread: ``run`` stops the worker, as the first SIGTERM does."""
        self._signals += 1

    def retire(self) -> None:
        """From any thread: claims no more; ``run`` ends when what runs has ended, however long that takes."""
        if not self._retires:
            self._retires = True
            self._checkup.leaves("retiring")
            self._say_that_it_stops()
            self.loop.retire()

    def _say_that_it_stops(self) -> None:
        self.heartbeat.is_stopping = True
        self._rounds.hasten(self.heartbeat)

    @property
    def claimed(self) -> int:
        """Jobs so far."""
        return self.loop.claimed

    @property
    def has_begun(self) -> bool:
        """Whether it started, and reached the database."""
        return self._checkup.has_begun

    def health(self) -> Health:
        """From any thread, at any time; asks no database."""
        return self._checkup.health()

    def _retire_if_too_large(self) -> None:
        if self._max_rss and resident_bytes() > self._max_rss:
            self.retire()

    # Stopping, step by step

    def _stop_claiming(self) -> None:
        self._threads["claims"].stop()
        self.loop.close()
        self._threads["claims"].join(time.monotonic() + STEP_SECONDS)
        for place in self._places:
            self._hand_back(leases_of(place.take_back(waited_seconds=0)))
            place.close()

    def _drain(self, deadline: float) -> None:
        """Waits for running handlers; a second signal, or the deadline, aborts them."""
        while time.monotonic() < deadline and self._signals < 2:
            if not self._join_places(min(time.monotonic() + LOOK_SECONDS, deadline)):
                return
        self.leases.abort_all("worker_stopping")
        if names := self._join_places(time.monotonic() + LAST_WORDS_SECONDS):
            logger.warning("Still running after the shutdown timeout: %s. Raise SHUTDOWN_SECONDS.", ", ".join(names))

    def _join_places(self, deadline: float) -> list[str]:
        return [name for place in self._places for name in place.join(deadline)]

    def _finish_writing(self) -> int:
        """Writes the last outcomes, then hands back the jobs of attempts that did not end."""
        deadline = time.monotonic() + STEP_SECONDS
        while not self.completer.is_through and time.monotonic() < deadline:
            time.sleep(0.005)
        leases = self.leases.held()
        self._hand_back(leases)
        return len(leases)

    def _hand_back(self, leases: list[HeldLease]) -> None:
        """On a thread of its own: a database that does not answer must not hold up the end."""
        if not leases:
            return
        self.leases.let_go(leases)
        thread = threading.Thread(target=self._write_back, args=(leases,), name="jobchains-hand-back", daemon=True)
        thread.start()
        thread.join(STEP_SECONDS)
        if thread.is_alive():
            logger.warning("The database does not answer: jobs are taken back when their leases run out.")

    def _write_back(self, leases: list[HeldLease]) -> None:
        try:
            effects = Effects()
            self.store.hand_back(leases, effects)
            announce(self.store.using, effects)
        except Exception:
            logger.exception("Jobs could not be handed back; they are taken back when their leases run out.")
        finally:
            close_all()

    def _close(self) -> None:
        for thread in self._threads.values():
            thread.stop()
        for part in self._maintenance.values():
            part.pause.set()
        self.completer.wake()
        if self._listener is not None:
            self._listener.close()
        deadline = time.monotonic() + STEP_SECONDS
        for thread in self._threads.values():
            if not thread.join(deadline):
                logger.warning("%s did not end in time.", thread.name)
        self.heartbeat.leave(STEP_SECONDS)

    @property
    def running(self) -> int:
        """Attempts that run, those that do not stop among them."""
        return sum(place.running for place in self._places)

    @property
    def is_stuck(self) -> bool:
        """Whether, after ``stop``, a handler or a database that does not answer still holds one of its threads."""
        if self.async_slots and self.async_slots.is_stuck:
            return True
        return bool(self.running) or any(thread.is_alive for thread in self._threads.values())

    # Signals and ends

    def _on_hint(self, hint: Hint) -> None:
        self._served.on_hint(hint)  # before the loop wakes up by it
        self._wake.on_hint(hint)
        self._keeper.on_hint(hint)

    def _on_written(self, has_due: bool) -> None:
        if has_due or self.burst or self._max_jobs or self._retires or self._served.has_limits:
            self._wake.set()

    def _is_over(self) -> bool:
        if self._signals or self.failed or self.loop.spent.is_set():
            return True
        return self.burst and self.loop.idle.is_set()

    def _give_up(self) -> None:
        self.failed = True

    @contextmanager
    def _handled_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1  # nothing else: a handler may run in the middle of anything


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
        raise ImproperlyConfigured(f"No processor to work for (types: {types or 'all'}). Registered: {known}.")
    return policies


def _check_middleware(registry: Registry, types: Container[str], required: Collection[type[Middleware] | str]) -> None:
    if lacks := registry.lacking(required_kinds(required), types):
        raise ImproperlyConfigured(f"Required middleware is missing: {lacks}. Add it: Processors(middleware=[…]).")


def _known_alias(alias: str) -> str:
    if alias not in connections.settings:
        known = ", ".join(connections.settings)
        raise ImproperlyConfigured(f"There is no database {alias!r} in DATABASES. Known: {known}.")
    return alias


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ImproperlyConfigured(f"{name} must be 1 or more, not {value}.")
    return value
