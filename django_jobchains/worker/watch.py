"""Watches over this worker's own attempts. It touches no database, so a dead network cannot hold it up."""

import threading
import time
from collections.abc import Callable, Sequence

from django_jobchains.attempts import Outcome
from django_jobchains.exceptions import HandlerStuck
from django_jobchains.leases import HeldLeases
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptStuck, LeaseLost
from django_jobchains.worker.event_loop import AsyncSlots
from django_jobchains.worker.lanes import AnyAttempt, Place
from django_jobchains.worker.threads import waiting


class Watch:
    """Aborts attempts whose lease could not be renewed, and those that take too long; writes off what does not stop."""

    def __init__(
        self,
        leases: HeldLeases,
        places: Sequence[Place],
        *,
        worker: str,
        seconds: float,
        stuck_seconds: float,
        on_outcome: Callable[[Outcome], None],
        give_up: Callable[[], None],
    ) -> None:
        self._leases = leases
        self._places = places
        self._worker = worker
        self._seconds = seconds
        self._stuck_seconds = stuck_seconds
        self._on_outcome = on_outcome
        self._give_up = give_up
        self.pause = threading.Event()

    def step(self) -> None:
        for job_id in self._leases.abort_overdue():
            report(LeaseLost(self._worker, job_id, "error"))
        for place in self._places:
            for attempt in place.attempts():
                self._look(place, attempt)
            if isinstance(place, AsyncSlots):
                place.check_lag()
        with waiting():
            self.pause.wait(self._seconds)

    def _look(self, place: Place, attempt: AnyAttempt) -> None:
        now = time.monotonic()
        if now >= attempt.expires_at:
            attempt.signal.abort("timed_out")
        since = attempt.signal.aborted_at
        if since is None or attempt.is_disowned or attempt.signal.reason == "worker_stopping":
            return
        if now - since >= self._stuck_seconds:
            self._write_off(place, attempt)

    def _write_off(self, place: Place, attempt: AnyAttempt) -> None:
        """The handler keeps its thread, for it cannot be killed; the job and the slot are freed from it.

        While it holds its job's row locked, in a transaction of its own, the job is still its.
        """
        reason, stack = attempt.signal.reason or "error", place.stack_of(attempt)
        outcomes = attempt.disown(HandlerStuck(reason, self._stuck_seconds), stack)
        if place.write_off(attempt):
            job = attempt.jobs[0]
            report(AttemptStuck(self._worker, job.id, job.type_name, reason, place.stuck, stack))
        for outcome in outcomes:
            self._on_outcome(outcome)
        if place.is_hopeless:
            self._give_up()
