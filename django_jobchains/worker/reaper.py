"""Takes back jobs whose lease has expired, and records whose worker sends no heartbeats.

Records that someone has flagged in the database are cancelled.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django_jobchains.attempts.outcome import backoff_seconds
from django_jobchains.declare.policies import Backoff, BackoffFunction, default_backoff, resolve
from django_jobchains.notifications.wakeups import announced
from django_jobchains.records.declarations import RecordType
from django_jobchains.store.leases import CrashBackoff
from django_jobchains.store.record_tables import RecordKey, RecordTable, StalledRecord
from django_jobchains.telemetry import measured, report
from django_jobchains.telemetry.events import JobReaped, RecordCancelled, RecordReset
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.failure_log import RecordFailures
from django_jobchains.worker.held_leases import locked_seconds
from django_jobchains.worker.maintenance import PeriodicTask
from django_jobchains.worker.options import WorkerOptions
from django_jobchains.worker.threads import LOCK_SECONDS

#: The limit of jobs reaped, and of deferred writes applied, in one transaction.
REAP_LIMIT = 100


class Reaper(PeriodicTask):
    """A periodic task that takes back jobs whose lease has expired, except those that this worker still holds.

    It also applies the writes that workers deferred because of a lock.
    """

    def __init__(self, context: WorkerContext) -> None:
        options = context.options
        processors = options.registry.processors()
        known = {processor.job_type.name: resolve(*processor.policies) for processor in processors}
        self._context = context
        self._store = context.store
        #: By job type. The worker's own policy applies only to types that it serves.
        self._backoffs = {name: policy.backoff for name, policy in {**known, **options.policies}.items()}
        #: For types that this worker does not know.
        self._backoff = resolve().backoff
        self.seconds: float = context.settings.REAP_SECONDS
        #: The last deferred write that was read; None to start again with the first.
        self._applied: int | None = None

    def step(self) -> bool:
        """Reap a batch, and return whether there may be more."""
        held = [job_id for job_id, _ in self._context.leases.held()]
        backoffs = self._without_functions(held)
        waits = self._store.db.waits_at_most(LOCK_SECONDS)
        with announced(self._store) as effects, waits, measured("reap", self._context.worker):
            reaped = self._store.leases.reap(
                REAP_LIMIT, _plain(self._backoff), self._context.settings.MAX_CRASHES, held, effects, backoffs=backoffs
            )
            self._applied = self._store.deferred.apply(REAP_LIMIT, self._applied or 0, effects)
            effects.stopped_jobs.update(job.id for job in reaped)  # Their workers may only be slow.
        for job in reaped:
            report(JobReaped(self._context.worker, *job))
        if reaped:
            self._context.counter.crashed(job.type_name for job in reaped)
            self._context.wake.set()
        return len(reaped) == REAP_LIMIT or self._applied is not None

    def _without_functions(self, held: Collection[UUID]) -> dict[str, CrashBackoff]:
        """Return the backoffs by job type. Functions are called here, before the jobs are locked.

        A job whose lease expires after this call is retried after the default backoff.
        """
        backoffs: dict[str, CrashBackoff] = {name: _plain(backoff) for name, backoff in self._backoffs.items()}
        if all(isinstance(backoff, Backoff) for backoff in (self._backoff, *self._backoffs.values())):
            return backoffs
        waits: dict[str, dict[int, float]] = defaultdict(dict)
        for type_name, crashes in self._store.leases.expired(REAP_LIMIT, held):
            backoff = self._backoffs.get(type_name, self._backoff)
            if not isinstance(backoff, Backoff):
                waits[type_name][crashes + 1] = backoff_seconds(backoff, crashes + 1, None)
        return {**backoffs, **{name: _Waits(seconds) for name, seconds in waits.items()}}


@dataclass(frozen=True)
class _Waits:
    """The waits that a backoff function returned for some numbers of crashes."""

    by_crashes: Mapping[int, float]

    def seconds(self, crashes: int, /) -> float:
        return self.by_crashes.get(crashes, default_backoff().seconds(crashes))


def _plain(backoff: Backoff | BackoffFunction) -> Backoff:
    return backoff if isinstance(backoff, Backoff) else default_backoff()


#: The limit of stalled records that are watched at a time.
SUSPECT_LIMIT = 10 * REAP_LIMIT


class RecordResetter(PeriodicTask):
    """A periodic task like the reaper of jobs, for the table of every registered model."""

    def __init__(self, context: WorkerContext) -> None:
        self.seconds: float = context.settings.REAP_SECONDS
        #: How soon the next step is, if there may be more to reset.
        self.rest_seconds = 0.0
        by_table: dict[str, list[RecordType]] = defaultdict(list)
        for kind in known_kinds(context.options):
            by_table[kind.model._meta.db_table].append(kind)
        self._tables = [_TableResets(context, kinds) for kinds in by_table.values()]
        self._failures = RecordFailures("Records of %r could not be reset or cancelled: %s", context.store)

    def step(self) -> bool:
        """Return whether there may be more."""
        rests: list[float | None] = []
        self._failures.each(self._tables, lambda table: rests.append(table.step()))
        more = [seconds for seconds in rests if seconds is not None]
        self.rest_seconds = min(more, default=0.0)
        return bool(more)


def known_kinds(options: WorkerOptions) -> list[RecordType]:
    """Return the models whose records are in the worker's database, also those that it does not serve."""
    return [kind for kind in options.registry.record_types() if kind.is_in(options.store.using)]


class _TableResets:
    """Resets the records of one table.

    If a model is registered several times, a record does not show which of them handles it. So all of its
    registrations are respected: the longest ``stalled_after``, and the smallest ``max_resets`` with its message.
    """

    def __init__(self, context: WorkerContext, kinds: Sequence[RecordType]) -> None:
        self._store = context.store
        self._held = [context.record_leases[kind.name] for kind in kinds if kind.name in context.record_leases]
        self._kinds = kinds
        self._worker = context.worker
        self._strictest = min(kinds, key=lambda kind: kind.max_resets)
        self._stalled_seconds = max(kind.stalled_seconds for kind in kinds)
        #: A record that was locked is not reset before its worker had the time for two tries to write a heartbeat.
        self._grace_seconds = 2 * max(map(locked_seconds, kinds))
        #: Records that are stalled and not locked, with the monotonic time when they were first found so.
        self._suspects: dict[RecordKey, float] = {}

    @property
    def name(self) -> str:
        return self._strictest.name

    def step(self) -> float | None:
        """Return the seconds until there may be more, None if there is nothing more."""
        table = self._strictest.table(self._store.using)
        with measured("record_reset", self._worker, self.name), self._store.db.waits_at_most(LOCK_SECONDS):
            overdue = self._overdue(table, self._store.deferred.apply_records(table))
            stalled = self._reset(table, overdue[:REAP_LIMIT]) if overdue else []
            cancelled = self._store.record_operations.cancel_flagged(table, REAP_LIMIT)
        for record in stalled:
            report(RecordReset(self._worker, str(record.id), self.name, record.state, record.resets))
        for id_ in cancelled:
            report(RecordCancelled(self._worker, str(id_), self.name))
        if REAP_LIMIT in (len(stalled), len(cancelled)):
            return 0.0
        return self._grace_seconds if len(self._suspects) > len(overdue) else None

    def _overdue(self, table: RecordTable, kept: Sequence[Any]) -> list[RecordKey]:
        """Return the records that have been stalled and not locked for long enough. ``kept``: ids to leave out."""
        held = [*kept, *(id_ for held in self._held for id_, _ in held.held())]
        before, self._suspects = self._suspects, {}  # Forgotten if the table is locked.
        found = self._store.record_operations.stalled(
            table, SUSPECT_LIMIT, stalled_seconds=self._stalled_seconds, held=held
        )
        now = time.monotonic()
        self._suspects = {key: before.get(key, now) for key in found}
        return [key for key, since in self._suspects.items() if now - since >= self._grace_seconds]

    def _reset(self, table: RecordTable, keys: Sequence[RecordKey]) -> list[StalledRecord]:
        return self._store.record_operations.reset(
            table,
            keys,
            stalled_seconds=self._stalled_seconds,
            max_resets=self._strictest.max_resets,
            backoff=default_backoff(),
            message=self._strictest.reset_failure_message,
        )
