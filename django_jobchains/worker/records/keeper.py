"""Writes the heartbeats of a worker's records, and finds those that it no longer holds."""

import threading
import time

from django_jobchains.notifications import EVERY, Hint
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptAbandoned
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.lease_keeper import MIN_CHECK_SECONDS
from django_jobchains.worker.records.leases import LostRecord
from django_jobchains.worker.threads import waiting

#: The longest time between two checks of what is due, because records may have been dequeued in between.
MAX_PAUSE_SECONDS = 0.5


class RecordKeeper:
    """The step of a thread, like the lease keeper's: one statement per model, and an immediate check after a hint."""

    def __init__(self, context: WorkerContext) -> None:
        self._leases = context.record_leases
        self._worker = context.worker
        self._must_check = threading.Event()
        self._checked_at = 0.0
        self.pause = threading.Event()

    def on_hint(self, hint: Hint) -> None:
        if hint.kind == "ownership_lost" and hint.subject == EVERY and len(self._leases):
            self._must_check.set()
            self.pause.set()

    def step(self) -> None:
        self._leases.connect()
        self._leases.beat_due(self._report)
        seconds = min(self._leases.seconds_to_next(), MAX_PAUSE_SECONDS, self._check_after_hint())
        with waiting():
            self.pause.wait(seconds)
        self.pause.clear()

    def _check_after_hint(self) -> float:
        """Check the records after a hint, unless just done. Returns the seconds until the next step."""
        if not self._must_check.is_set():
            return MAX_PAUSE_SECONDS
        if (left := self._checked_at + MIN_CHECK_SECONDS - time.monotonic()) > 0:
            return left
        self._must_check.clear()
        self._checked_at = time.monotonic()
        self._leases.check(self._report)
        return MAX_PAUSE_SECONDS

    def _report(self, lost: list[LostRecord]) -> None:
        report_lost(self._worker, lost)


def report_lost(worker: str, lost: list[LostRecord]) -> None:
    for record in lost:
        report(AttemptAbandoned(worker, str(record.id), record.reason, record.kind.name, kind="record"))
