"""Who holds a job: the lease number that fences every write of an attempt, and how long the lease lasts."""

from collections.abc import Collection, Mapping, Sequence
from logging import getLogger
from typing import NamedTuple, Protocol
from uuid import UUID

from django.db import DatabaseError

from django_jobchains.statuses import LEASE_RAN_OUT
from django_jobchains.store.database import Database, OpenTransaction, Part, ids_json, rows_json, statement, statements
from django_jobchains.store.errors import is_database_away, retried, retried_at_read_committed
from django_jobchains.store.rows import AttemptKey, Effects, HeldLease, ReapedJob, Renewal
from django_jobchains.store.writes import FENCE, DeferredWrites, FencedWrites
from django_jobchains.text.errors import log_text

logger = getLogger("django_jobchains")

_RENEWED = "job_id uuid, n int, s float"
_CRASHED = "job_id uuid, n int, delay_seconds float"
#: SQL of the error of an attempt whose lease expired.
_LOST = f"'{LEASE_RAN_OUT}: worker ' || COALESCE(job.leased_by, '?') || ' died, hung or lost the database.'"


class CrashBackoff(Protocol):
    """The wait after a number of crashes. It is read while jobs are locked, so it must not call user code."""

    def seconds(self, crashes: int, /) -> float: ...


class Leases(Part):
    def __init__(self, db: Database, deferred: DeferredWrites, writes: FencedWrites) -> None:
        super().__init__(db)
        self._deferred = deferred
        self._writes = writes

    @retried_at_read_committed
    def renew(self, leases: Sequence[HeldLease], transaction: OpenTransaction | None = None) -> Renewal:
        """Renew leases; return which leases are lost, and which attempts were asked to stop.

        A lease whose job another transaction has locked is renewed without writing to that job. ``transaction``: the
        caller's transaction, which has locked all of the jobs; raises ``TransactionEnded`` if it has ended since then.
        """
        inside, inside_params = self.db.inside(transaction)
        rows = [(lease.id.hex, lease.lease_number, lease.seconds) for lease in leases]
        ids = self.db.by_ids_params(row[0] for row in rows)
        renewed = self.db.fetch(self._renew(inside), [rows_json(_RENEWED, rows), *ids, *inside_params])
        if len(renewed) < len(leases):
            self.db.check_transaction(transaction)
        missing = {lease.key: lease for lease in leases}
        for id_, number, _ in renewed:
            missing.pop((self.db.id(id_), number), None)
        cancelled = {(self.db.id(id_), number) for id_, number, is_cancelled in renewed if is_cancelled}
        found = self.check(list(missing))
        if locked := [lease for key, lease in missing.items() if key not in found.lost]:
            self._deferred.add_renewals(locked)
        return found._replace(cancelled=found.cancelled | cancelled)

    @retried_at_read_committed
    def check(self, keys: Sequence[AttemptKey]) -> Renewal:
        """Return the same as ``renew``, without renewing."""
        if not keys:
            return Renewal({}, set())
        rows = self.db.fetch(self._check, [ids_json(job_id for job_id, _ in keys)])
        found = {self.db.id(id_): (status, number) for id_, status, number, *_ in rows}
        reasons = {key: lost_reason(found.get(key[0]), key[1]) for key in keys}
        cancelled = {(self.db.id(id_), number) for id_, _, number, is_cancelled, _ in rows if is_cancelled}
        completed = {(self.db.id(id_), number) for id_, _, number, _, completed_by in rows if completed_by}
        held = {key for key, reason in reasons.items() if reason is None}
        lost = {key: reason for key, reason in reasons.items() if reason}
        return Renewal(lost, cancelled & held, completed & lost.keys())

    def reap(
        self,
        limit: int,
        backoff: CrashBackoff,
        max_crashes: int,
        held: Collection[UUID] = (),
        effects: Effects | None = None,
        *,
        backoffs: Mapping[str, CrashBackoff] | None = None,
    ) -> list[ReapedJob]:
        """Take back jobs whose lease expired, oldest first: pending after a backoff, failed after ``max_crashes``.

        ``backoffs``: by job type, instead of ``backoff``. ``held`` are the caller's own jobs, which it ends itself.
        Jobs that are locked, or whose lease or outcome was deferred, are skipped.
        """
        effects = effects or Effects()
        policy = _CrashPolicy(backoff, backoffs or {}, max_crashes)
        try:
            return self._reap(limit, policy, held, effects)
        except Exception as error:
            if self.db.connection.in_atomic_block or is_database_away(error):
                raise
            if isinstance(error, DatabaseError) and self.db.is_conflict(error):
                raise
        # One job, for example with a lock or a time limit, must not prevent the others from being taken back.
        expired = self._read_expired(limit, held)
        return [job for job_id in expired for job in self._reap_one(job_id, policy, effects)]

    @retried
    def expired(self, limit: int, held: Collection[UUID] = ()) -> list[tuple[str, int]]:
        """Return the types and crashes of the jobs that ``reap`` would take back now."""
        rows = self.db.fetch(self._all_expired, [ids_json(held), limit])
        return [(type_name, crashes) for _, type_name, crashes in rows]

    def _reap_one(self, job_id: UUID, policy: "_CrashPolicy", effects: Effects) -> list[ReapedJob]:
        try:
            return self._reap(1, policy, (), effects, only=job_id)
        except Exception as error:
            if is_database_away(error):
                raise
            logger.warning("Job %s cannot be taken back yet: %s", job_id, log_text(error))
            return []

    @retried
    def _read_expired(self, limit: int, held: Collection[UUID]) -> list[UUID]:
        return [self.db.id(id_) for id_, _, _ in self.db.fetch(self._all_expired, [ids_json(held), limit])]

    @retried
    def _reap(
        self,
        limit: int,
        policy: "_CrashPolicy",
        held: Collection[UUID],
        effects: Effects,
        *,
        only: UUID | None = None,
    ) -> list[ReapedJob]:
        ids = [] if only is None else [only.hex]
        with effects.undone_on_error(), self.db.transaction():
            crashed = self.db.fetch(self._record_crashes(only is not None), [ids_json(held), *ids, limit])
            rows = [
                (self.db.id(id_).hex, number, policy.delay_seconds(type_name, crashes + 1))
                for id_, number, _, type_name, crashes, _ in crashed
            ]
            found = {self.db.id(id_): (attempt, queue) for id_, _, attempt, _, _, queue in crashed}
            limits = [policy.max_crashes] * 2
            written = self._writes.update(self._after_crash, _CRASHED, rows, limits, is_locked=True)
            self._writes.follow_up(written, effects)
        reaped = []
        for row in written:
            attempt, queue = found[row.key[0]]
            reaped.append(ReapedJob(row.key[0], row.chain_id, row.type_name, attempt, row.status, row.crashes, queue))
        return reaped

    # Statements, and their assignments

    @statements
    def _renew(self, inside: str) -> str:
        return f"""
            UPDATE {self.tables.job} AS job SET leased_until = {self.db.after("clock.now", "d.s")}
            FROM {self.db.rows(_RENEWED)} CROSS JOIN {self.db.clock} WHERE {FENCE} {self.db.by_unlocked_ids} {inside}
            RETURNING id, lease_number, {self.db.is_cancelled}
        """

    @statement
    def _check(self) -> str:
        return f"""
            SELECT id, status, lease_number, {self.db.is_cancelled}, completed_by FROM {self.tables.job}
            WHERE id {self.db.any_id}
        """

    def _expired(self, condition: str = "", lock: str = "", columns: str = "job.id") -> str:
        return f"""
            SELECT {columns} FROM {self.tables.job} AS job {self.db.by_index("jobchains_leased")}
            WHERE job.status = 'running'
            AND job.leased_until < {self.db.now} AND NOT {self._deferred.is_kept} AND NOT job.id {self.db.any_id}
            {condition} ORDER BY job.leased_until, job.id LIMIT %s {lock}
        """

    @statement
    def _all_expired(self) -> str:
        return self._expired(columns="job.id, job.type_name, job.crashes")

    @statements
    def _record_crashes(self, is_only: bool) -> str:
        only = f"AND job.id = {self.db.id_param}" if is_only else ""
        return f"""
            {self._writes.record_failures("'crash'", _LOST, "''")}
            FROM {self.tables.job} AS job CROSS JOIN {self.db.clock}
            WHERE job.id {self.db.any_of(self._expired(only, self.db.skip_lock("job")))} {self.db.wait_lock("job")}
            RETURNING job_id, lease_number, attempt,
                (SELECT its.type_name FROM {self.tables.job} AS its WHERE its.id = {self.db.returned_job_id}),
                (SELECT its.crashes FROM {self.tables.job} AS its WHERE its.id = {self.db.returned_job_id}),
                (SELECT its.queue FROM {self.tables.job} AS its WHERE its.id = {self.db.returned_job_id})
        """

    @statement
    def _after_crash(self) -> str:
        failed = "job.crashes + 1 >= %s"
        stopped = f"(job.cancel_requested_at IS NOT NULL OR {self.db.is_to_be_cancelled('job.chain_id')})"
        return f"""
            crashes = job.crashes + 1, leased_by = NULL, leased_until = NULL, last_error = {_LOST},
            status = CASE WHEN {stopped} THEN 'cancelled' WHEN {failed} THEN 'failed' ELSE 'pending' END,
            finished_at = CASE WHEN {stopped} OR {failed} THEN clock.now END,
            run_at = {self.db.after("clock.now", "d.delay_seconds")}
        """


class _CrashPolicy(NamedTuple):
    """What happens to a job whose lease expired."""

    backoff: CrashBackoff
    #: By job type, instead of ``backoff``.
    backoffs: Mapping[str, CrashBackoff]
    max_crashes: int

    def delay_seconds(self, type_name: str, crashes: int) -> float:
        return self.backoffs.get(type_name, self.backoff).seconds(crashes)


def lost_reason(found: tuple[str, int] | None, lease_number: int) -> str | None:
    """Return the abort reason of an attempt whose job now has this status and lease number, or None if it is held."""
    if found is None:
        return "not_found"
    status, number = found
    if number == lease_number and status == "running":
        return None
    if status in ("completed", "cancelled"):
        return "already_completed" if status == "completed" else "cancelled"
    return "taken_by_another_worker"
