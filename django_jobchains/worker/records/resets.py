"""Takes back records whose worker sends no heartbeats, and cancels those that someone has flagged in the database."""

from collections.abc import Sequence
from dataclasses import dataclass

from django_jobchains.policies import default_backoff
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import RecordCanceled, RecordReset
from django_jobchains.worker.maintenance.reaper import REAP_LIMIT
from django_jobchains.worker.records.failures import RecordFailures
from django_jobchains.worker.records.leases import RecordLeases
from django_jobchains.worker.threads import LOCK_SECONDS


@dataclass(eq=False)
class RecordResetter:
    """A periodic task like the reaper of jobs, for every registered model."""

    store: Store
    leases: RecordLeases
    kinds: Sequence[RecordType]
    worker: str
    seconds: float

    def __post_init__(self) -> None:
        self._failures = RecordFailures("Records of %r could not be reset or canceled: %s", self.store)

    def step(self) -> bool:
        """Return whether there may be more."""
        has_more: list[bool] = []
        self._failures.each(self.kinds, lambda kind: has_more.append(self._reset(kind)))
        return any(has_more)

    def _reset(self, kind: RecordType) -> bool:
        table, backoff = kind.table(self.store.using), default_backoff()
        with self.store.db.waits_at_most(LOCK_SECONDS):
            stalled = self.store.record_operations.reset(
                table,
                REAP_LIMIT,
                stalled_seconds=kind.stalled_seconds,
                max_resets=kind.max_resets,
                backoff=backoff,
                message=kind.reset_failure_message,
                held=self.leases.ids(kind),
            )
            canceled = self.store.record_operations.cancel_flagged(table, REAP_LIMIT)
        for record in stalled:
            report(RecordReset(self.worker, str(record.id), kind.name, record.state, record.resets))
        for id_ in canceled:
            report(RecordCanceled(self.worker, str(id_), kind.name))
        return REAP_LIMIT in (len(stalled), len(canceled))
