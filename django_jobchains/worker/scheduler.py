"""Fires schedules while a worker runs.

Every worker can fire every schedule that its code declares. Of the workers with the same declarations, the one that
started first fires at each tick, and the others look somewhat later and less often: so a fleet makes few queries, and a
dead worker is replaced.
"""

import random
import time
from math import inf

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.exceptions import InvalidSchedule
from django_jobchains.notifications import EVERY, Hint, notify_workers
from django_jobchains.schedules.firing import DeclaredSchedules, fire
from django_jobchains.telemetry import measured
from django_jobchains.worker.heartbeat import Heartbeat
from django_jobchains.worker.maintenance import PeriodicTask
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.threads import LOCK_SECONDS

#: The shortest time between two queries because of hints. On SQLite every commit is such a hint.
HINT_SECONDS = 1.0
#: How long after a tick workers look that are not the first, and the longest time until then.
STANDBY_SECONDS = 0.5
MAX_STANDBY_SECONDS = 30.0
#: The wait if another worker is firing the due schedules.
LOCKED_WAIT_SECONDS = 0.1


class Scheduler(PeriodicTask):
    """A periodic task that sleeps until the next tick, or until a hint that schedules have changed."""

    def __init__(self, context: WorkerContext, heartbeat: Heartbeat) -> None:
        self._context = context
        self._store = context.store
        self._registry = context.options.registry
        self._heartbeat = heartbeat
        try:
            self.declared = DeclaredSchedules(self._registry, self._store)
        except InvalidSchedule as error:
            raise ImproperlyConfigured(f"Worker(): {error}") from error
        heartbeat.schedules = self.declared.digest
        self.seconds: float = context.options.poll_seconds
        #: The digests of the versions whose workers were alive at the last step; None before the first.
        self._live: frozenset[str] | None = None
        #: When schedules are tried again that could not fire here, by their names.
        self._excluded: dict[str, float] = {}
        self._is_hinted = False
        #: Whether the other workers were asked to help with what is due.
        self._has_asked = False
        #: The monotonic times of the last query, and of the next tick.
        self._queried_at = -inf
        self._due_at = inf

    def on_hint(self, hint: Hint) -> float | None:
        """Return how soon to take a step because of a hint, or None if it is not about schedules."""
        if hint.kind != "job_scheduled" or hint.subject != EVERY:
            return None
        self._is_hinted = True
        return max(self._queried_at + HINT_SECONDS - time.monotonic(), 0.0)

    def step(self) -> bool:
        """Fire what is due. Returns True, because there is always a next step, after ``rest_seconds``."""
        if self._is_hinted:
            self._is_hinted = False
            self._excluded.clear()
        self._store_declarations()
        peers = self._heartbeat.peers_of_schedules()
        is_first = self._context.worker not in peers[1:]
        if is_first and time.monotonic() >= self._due_at:
            self.fire()
        seconds = self._seconds_to_next()
        if seconds <= 0:
            self.rest_seconds = 0.0 if self.fire() else LOCKED_WAIT_SECONDS
        else:
            self.rest_seconds = self._rest(seconds, 0 if is_first else len(peers))
        return True

    def fire(self) -> bool:
        """Fire schedules that are due, and return whether there were any."""
        with self._store.db.waits_at_most(LOCK_SECONDS), measured("schedule", self._context.worker):
            fired = fire(self._store, self._registry, self.declared.names, self._current(), worker=self._context.worker)
        now = time.monotonic()
        self._excluded |= {name: now + seconds for name, seconds in fired.failed.items()}
        if fired.is_full and not self._has_asked:
            notify_workers(self._store.using)
        self._has_asked = fired.is_full
        return bool(fired.count)

    def fire_all(self) -> None:
        """Store the declared schedules, and fire all due ones."""
        self._store_declarations()
        while self.fire():
            pass

    def _store_declarations(self) -> None:
        """Store the schedules of the code when the worker starts, because the version that started last decides.

        When the last worker of another version is gone, store those that only it had stored.
        """
        live = self._heartbeat.live_schedules
        if self._live is None:
            self.declared.store()
        elif self._live - live:
            self.declared.store([*live])
        self._live = live

    def _current(self) -> list[str]:
        now = time.monotonic()
        self._excluded = {name: until for name, until in self._excluded.items() if until > now}
        return [*self._excluded]

    def _seconds_to_next(self) -> float:
        self._queried_at = time.monotonic()
        seconds = self._store.schedules.seconds_to_next(self._current())
        self._due_at = inf if seconds is None else self._queried_at + seconds
        return self._due_at - self._queried_at

    def _rest(self, seconds: float, peers: int) -> float:
        """Return how long to sleep, ``seconds`` before the next tick. ``peers``: 0 for the first worker."""
        if peers:
            seconds = max(seconds + STANDBY_SECONDS, min(peers, MAX_STANDBY_SECONDS))
        longest = self.seconds * random.uniform(0.8, 1)  # noqa: S311 - jitter
        if self._is_hinted:
            longest = min(longest, HINT_SECONDS)
        now = time.monotonic()
        return min(seconds, longest, *(until - now for until in self._excluded.values()))
