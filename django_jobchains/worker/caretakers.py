"""The periodic tasks that repair what crashes left behind, and delete old chains."""

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from typing import Any
from uuid import UUID

from django.db import IntegrityError, OperationalError

from django_jobchains.attempts.outcome import backoff_seconds
from django_jobchains.chains.pruning import Rule, Walk, full_ranges
from django_jobchains.declare.policies import Backoff, BackoffFunction, default_backoff, resolve
from django_jobchains.exceptions import ProcessorNotFound, TaskNotImported
from django_jobchains.notifications import job_scheduled, publish_after_commit
from django_jobchains.notifications.wakeups import announced
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store
from django_jobchains.store.leases import CrashBackoff
from django_jobchains.store.record_tables import RecordKey, RecordTable, StalledRecord
from django_jobchains.store.retention import EndedChains
from django_jobchains.telemetry import measured, report
from django_jobchains.telemetry.events import (
    BlockedJobsSwept,
    ChainsPruned,
    JobExpired,
    JobReaped,
    RecordCancelled,
    RecordReset,
)
from django_jobchains.text.errors import log_error, log_text
from django_jobchains.worker.heartbeat import Heartbeat
from django_jobchains.worker.held_leases import locked_seconds
from django_jobchains.worker.maintenance import FailureLog, PeriodicTask, RecordFailures
from django_jobchains.worker.options import WorkerContext, WorkerOptions
from django_jobchains.worker.threads import LOCK_SECONDS

logger = getLogger("django_jobchains")

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
        self._known = known
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
            effects.freed_types.update(job.type_name for job in reaped)
            if reaped:
                effects.freed_queues.update(self._context.queues.limited)
        for job in reaped:
            report(JobReaped(self._context.worker, *job[:-1]))
        if effects.finished_chains and self._context.options.has_tasks:
            self._call_observers(effects.finished_chains)
        if reaped:
            self._context.counter.crashed(reaped)
            self._context.wake.set()
        return len(reaped) == REAP_LIMIT or self._applied is not None

    def _call_observers(self, chain_ids: Collection[UUID]) -> None:
        """Call the observers of tasks that have ended here: after too many crashes, or with a stored outcome."""
        tasks = self._store.task_names.read()
        for job_id, type_name in self._store.jobs.types_of(chain_ids):
            with suppress(ProcessorNotFound, TaskNotImported):
                observer = self._context.options.registry.processor(type_name).observer if type_name in tasks else None
                if observer is not None:
                    self._context.observers.ended_elsewhere(observer, job_id)

    def _without_functions(self, held: Collection[UUID]) -> dict[str, CrashBackoff]:
        """Return the backoffs by job type. Functions are called here, before the jobs are locked.

        A job whose lease expires after this call is retried after the default backoff.
        """
        # The worker's own policy applies only to types that it serves.
        policies = {**self._known, **self._context.options.policies}
        by_type = {name: policy.backoff for name, policy in policies.items()}
        backoffs: dict[str, CrashBackoff] = {name: _plain(backoff) for name, backoff in by_type.items()}
        if all(isinstance(backoff, Backoff) for backoff in (self._backoff, *by_type.values())):
            return backoffs
        waits: dict[str, dict[int, float]] = defaultdict(dict)
        for type_name, crashes in self._store.leases.expired(REAP_LIMIT, held):
            backoff = by_type.get(type_name, self._backoff)
            if not isinstance(backoff, Backoff):
                waits[type_name][crashes + 1] = backoff_seconds(backoff, type_name, crashes + 1, None)
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
    """Return the models whose records are in the worker's database, also models that it does not serve."""
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
        if stalled and (limited := [kind.name for kind in self._kinds if kind.limits]):
            publish_after_commit(self._store.using, set(map(job_scheduled, limited)))
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


#: The limit of blocked jobs read in one transaction.
SWEEP_LIMIT = 1_000
#: The limit of expired jobs cancelled in one transaction.
EXPIRE_LIMIT = 500
#: The limit of rows of unused deduplication keys and rate keys deleted in one statement.
FORGET_LIMIT = 10_000
#: The limit of jobs that get the keys of their limits in one statement.
KEYS_LIMIT = 500


class Unblocker(PeriodicTask):
    """A periodic task that frees jobs that should not be blocked, and reports their number. There should be none.

    It also cancels expired jobs that no worker has claimed, because they are blocked, their queue is paused, or no
    worker serves them, deletes the rows of deduplication keys and rate keys that are no longer in use, and sets the
    keys of limited jobs that have none. All workers would find the same rows, so only the worker that started first
    does this.
    """

    def __init__(self, context: WorkerContext, heartbeat: Heartbeat) -> None:
        self._store = context.store
        self._heartbeat = heartbeat
        self._worker = context.worker
        self._registry = context.options.registry
        #: The parts of this round that have not ended.
        self._parts: list[Callable[[], bool]] = []
        self._after: UUID | None = None
        self._keys_after: UUID | None = None
        #: The expired jobs that could not be cancelled in this round.
        self._failed: dict[UUID, OperationalError] = {}
        self.seconds: float = context.settings.SWEEP_SECONDS

    def step(self) -> bool:
        """Do a batch of each part that has not ended in this round; return whether there is more to do."""
        if not self._heartbeat.is_first:
            self._parts = []
            self._after = self._keys_after = None
            self._failed.clear()
            return False
        # The sweep is the last, because a locked job that waits for a stuck one raises an error.
        parts = self._parts or [self._expire, self._forget, self._set_limit_keys, self._sweep]
        self._parts = [part for part in parts if part()]
        return bool(self._parts)

    def _forget(self) -> bool:
        """Delete unused keys, and return whether there may be more."""
        forgotten = [self._store.keys.forget(FORGET_LIMIT)]
        if any(limit.rate for limit in self._registry.limits().values()):
            forgotten.append(self._store.rates.forget(FORGET_LIMIT))
        return FORGET_LIMIT in forgotten

    def _sweep(self) -> bool:
        """Free blocked jobs, and return whether there are more to read."""
        waits = self._store.db.waits_at_most(LOCK_SECONDS)
        with announced(self._store) as effects, waits, measured("sweep", self._worker):
            freed, self._after = self._store.blockers.sweep(SWEEP_LIMIT, self._after, effects)
        report(BlockedJobsSwept(self._worker, len(freed), tuple(freed)))
        return self._after is not None

    def _expire(self) -> bool:
        """Cancel expired jobs, and return whether there may be more. At the end, log that some could not be."""
        before = len(self._failed)
        with announced(self._store) as effects, self._store.db.waits_at_most(LOCK_SECONDS):
            expired = self._store.chains.expire(EXPIRE_LIMIT, effects, self._failed)
        for job in expired:
            report(JobExpired(self._worker, job.id, job.chain_id, job.type_name))
        if len(expired) == EXPIRE_LIMIT or len(self._failed) > before:
            return True
        if self._failed:
            job_id, error = self._failed.popitem()
            text = "%d expired jobs cannot be cancelled yet, such as job %s: %s"
            logger.warning(text, before, job_id, log_text(error))
            self._failed.clear()
        return False

    def _set_limit_keys(self) -> bool:
        """Set the keys of jobs that were enqueued by code that did not know the limits; return whether there are more.

        Until then, these jobs are not claimed, because they could exceed a limit.
        """
        processors = self._registry.processors()
        limited = {part.job_type.name: (part.job_type, part.limits) for part in processors if part.limits}
        if not limited:
            return False
        keys = {name: (bool(limits.concurrency), bool(limits.rate)) for name, (_, limits) in limited.items()}
        found, self._keys_after = self._store.limits.without_keys(keys, KEYS_LIMIT, self._keys_after)
        rows = []
        failed: dict[str, list[tuple[UUID, Exception]]] = defaultdict(list)
        for job_id, name, stored in found:
            job_type, limits = limited[name]
            try:
                rows.append((job_id, *limits.keys_or_shared(name, job_type.decode_input, stored)))
            except Exception as error:  # The project's code may raise any error. The job waits.
                failed[name].append((job_id, error))
        for name, errors in failed.items():
            job_id, first = errors[0]
            message = "The keys of the limits of %d jobs of %s failed, first of job %s: %s"
            log_error(logger, first, message, len(errors), name, job_id)
        if rows:
            with announced(self._store) as effects:
                effects.add_scheduled(self._store.limits.set_keys(rows))
        return self._keys_after is not None


#: The number of index entries that one statement reads.
MAX_ENTRIES_PER_STEP = 5_000
#: The number of chains that one transaction deletes.
BATCH_SIZE = 500
#: The pause after each step, as a share of the time it took.
REST_SHARE = 0.5
#: The share of their time that all workers together may spend on full rounds.
FULL_ROUNDS_SHARE = 0.01


class Pruner(PeriodicTask):
    """A periodic task. Each round examines the chains that became old since the last one, in small steps.

    Chains that were kept then, and ended or were no longer needed later, are found by a full round over all chains. The
    longer a full round takes, the less often it runs, so kept history has no cost in most rounds. Ids contain the time
    of the host that created them, and only decide which chains are examined. The time of their end, by the database's
    clock, decides which chains are deleted. Chains of types that this project does not declare are not deleted: another
    project may share the database. Workers do not wait for each other: they skip the chains that another one is
    deleting.
    """

    def __init__(
        self,
        store: Store,
        rules: Sequence[Rule],
        *,
        worker: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.rules = rules
        self.worker = worker
        self.seconds = seconds
        self.clock = clock
        #: For each rule, the id up to which chains have been examined. Empty before the first round, which is a full
        #: one.
        self._reached: dict[Rule, UUID] = {}
        self._walks: deque[Walk] = deque()
        #: The last jobs of the chains to delete next.
        self._batches: deque[tuple[EndedChains, Sequence[UUID]]] = deque()
        self._deleted = 0
        self._is_full = False
        self._search_seconds = 0.0
        self._full_at: float | None = None
        #: The pause before the next step of a round.
        self.rest_seconds = 0.0
        self.failures: FailureLog = FailureLog("Pruning by worker %s failed; its jobs still run: %s", self.worker)

    @property
    def first_seconds(self) -> float:
        """Later than other tasks, because a starting worker is busy."""
        return random.uniform(0.5, 1) * self.seconds  # noqa: S311

    def step(self) -> bool:
        """Take a step, and return whether the round continues. An error ends the round; a later one tries again."""
        began = self.clock()
        try:
            continues = self._step()
            self.failures.succeeded()
        except Exception as error:
            continues = False
            self.failures.failed(error)
        self.rest_seconds = (self.clock() - began) * REST_SHARE
        return continues

    def _step(self) -> bool:
        if self._batches:
            self._delete(*self._batches.popleft())
        elif self._walks:
            self._find(self._walks[0])
        else:
            self._begin()
        if self._batches or self._walks:
            return True
        self._end()
        return False

    def _begin(self) -> None:
        now = self.store.stats.time_ago(0)
        if self._full_at is None:
            # If several workers start together, about one of them begins its full round immediately.
            self._full_at = self.clock() + random.random() * (self._workers() - 1) * self.seconds  # noqa: S311
        self._is_full = self.clock() >= self._full_at
        self._search_seconds = 0.0
        for rule in self.rules:
            ended, last = rule.ended(now), rule.last(now)
            ranges = full_ranges(ended, now) if self._is_full else [(self._reached.get(rule, last), last)]
            self._walks.extend(Walk(ended, "status", rule.status, *range_) for range_ in ranges)
            self._reached[rule] = last

    def _find(self, walk: Walk) -> None:
        began = self.clock()
        ids = walk.find(self.store, MAX_ENTRIES_PER_STEP)
        self._search_seconds += self.clock() - began
        self._batches.extend((walk.ended, ids[start : start + BATCH_SIZE]) for start in range(0, len(ids), BATCH_SIZE))
        if walk.is_over:
            self._walks.popleft()

    def _delete(self, ended: EndedChains, ids: Sequence[UUID]) -> None:
        try:
            with self.store.db.waits_at_most(LOCK_SECONDS):
                self._deleted += len(self.store.retention.prune(ids, ended).deleted)
        except IntegrityError as error:
            # A row outside of these tables refers to one of the chains. Halve the batch to delete the other chains.
            if len(ids) > 1:
                half = len(ids) // 2
                self._batches.extendleft([(ended, ids[half:]), (ended, ids[:half])])
            else:
                logger.warning("Job %s and its chain cannot be pruned: %s", ids[0], log_text(error))

    def _end(self) -> None:
        if self._is_full:
            share = self._search_seconds / FULL_ROUNDS_SHARE
            self._full_at = self.clock() + share * self._workers()
            self._is_full = False
        if self._deleted:
            report(ChainsPruned(self.worker, self._deleted))
        self._deleted = 0

    def _workers(self) -> int:
        return max(1, self.store.workers.count())
