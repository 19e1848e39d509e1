"""Repairs blocked jobs whose blockers have all ended, and deletes unused deduplication keys."""

from uuid import UUID

from django_jobchains.notifications.wakeups import announced
from django_jobchains.telemetry import measured, report
from django_jobchains.telemetry.events import BlockedJobsSwept
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.heartbeat import Heartbeat
from django_jobchains.worker.maintenance import PeriodicTask
from django_jobchains.worker.threads import LOCK_SECONDS

#: The limit of blocked jobs read in one transaction.
SWEEP_LIMIT = 1_000
#: The limit of rows of unused deduplication keys deleted in one statement.
FORGET_LIMIT = 10_000


class Unblocker(PeriodicTask):
    """A periodic task that frees jobs that should not be blocked, and reports their number. There should be none.

    It also deletes the rows of deduplication keys that are no longer in use. All workers would find the same rows, so
    only the worker that started first does this.
    """

    def __init__(self, context: WorkerContext, heartbeat: Heartbeat) -> None:
        self._store = context.store
        self._heartbeat = heartbeat
        self._worker = context.worker
        self._after: UUID | None = None
        self.seconds: float = context.settings.SWEEP_SECONDS

    def step(self) -> bool:
        """Sweep a batch, and return whether there are more jobs to read."""
        if not self._heartbeat.is_first:
            self._after = None
            return False
        waits = self._store.db.waits_at_most(LOCK_SECONDS)
        with announced(self._store) as effects, waits, measured("sweep", self._worker):
            freed, self._after = self._store.blockers.sweep(SWEEP_LIMIT, self._after, effects)
        report(BlockedJobsSwept(self._worker, len(freed), tuple(freed)))
        forgotten = self._store.keys.forget(FORGET_LIMIT)
        return self._after is not None or forgotten == FORGET_LIMIT
