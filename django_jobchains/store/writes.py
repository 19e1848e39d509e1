"""How attempts write to their jobs: fenced by their lease numbers, or later, if others have locked the jobs.

A user's transaction that locks a running job's row, or a handler inside ``complete()``, may take minutes. Waiting for
it would delay all other jobs of the same statement. So writes to locked rows of jobs and records are kept in a separate
table until these are free. Rows of that table are only added and deleted, and rows that are being deleted are skipped,
so that deferring waits for no lock. See docs/decisions/0031-deferred-writes.md.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django_jobchains.store.blockers import Blockers
from django_jobchains.store.database import Database, OpenTransaction, Part, ids_json, rows_json, statement, statements
from django_jobchains.store.errors import retried
from django_jobchains.store.on_failure import FailureChains
from django_jobchains.store.rows import AttemptKey, Effects, HeldLease

#: The attempt ``d`` still has its job. If the status were compared as a bare column, PostgreSQL would use the partial
#: index of running jobs, with all its dead entries, instead of the ids. It estimates that a CASE is true for half of
#: the rows. With an estimate of one row, it would compare every job with every attempt.
FENCE = "job.id = d.job_id AND job.lease_number = d.n AND CASE job.status WHEN 'running' THEN true ELSE false END"


class Written(NamedTuple):
    """The current state of a job whose attempt was ended."""

    key: AttemptKey
    chain_id: UUID
    type_name: str
    status: str
    crashes: int
    #: Whether it was asked to stop. Read only on request, for jobs that continue.
    is_cancelled: bool
    #: False if no job waited for its chain when the statement began.
    may_be_awaited: bool


class FencedWrites(Part):
    def __init__(self, db: Database, blockers: Blockers, failures: FailureChains) -> None:
        super().__init__(db)
        self._blockers = blockers
        self._failures = failures

    def update(
        self,
        assignments: str,
        columns: str,
        rows: Sequence[tuple[Any, ...]],
        before: Sequence[Any] = (),
        *,
        is_locked: bool = False,
        skips: bool = True,
        transaction: OpenTransaction | None = None,
        reads_cancelled: bool = False,
    ) -> list[Written]:
        """Write rows that begin with a job's id and lease number; return the attempts that still had their jobs.

        ``before``: the parameters of the assignments. ``is_locked``: the transaction has locked all rows. Otherwise it
        skips rows that others have locked if ``skips``, or waits for them. ``transaction``: what ``lock`` recorded;
        nothing is written in any other transaction.
        """
        if not rows:
            return []
        is_single, skips = len(rows) == 1, skips and not is_locked
        inside, inside_params = self.db.inside(transaction)
        sql = self._update(assignments, columns, is_single, is_locked, skips, inside, reads_cancelled)
        params = [*before, *(rows[0] if is_single else [rows_json(columns, rows)])]
        if self.db.by_ids and (skips or not is_single):
            params.append([row[0] for row in rows])
        return [self._written(*row) for row in self.db.fetch(sql, [*params, *inside_params])]

    def follow_up(self, written: Sequence[Written], effects: Effects) -> None:
        """Resolve the jobs that wait for attempts that did not complete, and enqueue the chains of ``on_failure``."""
        self._failures.enqueue([(row.key[0], row.type_name) for row in written if row.status == "failed"], effects)
        self._blockers.resolve([row.chain_id for row in written if row.status in ("failed", "cancelled")], effects)
        effects.add_scheduled(row.type_name for row in written if row.status == "pending")

    def record_failures(self, kind: str, error: str, traceback: str) -> str:
        """SQL of an INSERT of failed attempts, up to its FROM, with these SQL values."""
        return f"""
            INSERT INTO {self.tables.failed_attempt}
                (job_id, attempt, lease_number, kind, error, traceback, worker, started_at, finished_at)
            SELECT job.id, job.attempt, job.lease_number, {kind}, {error}, {traceback},
                COALESCE(job.leased_by, '?'), COALESCE(job.last_attempt_at, clock.now), clock.now
        """

    @statements
    def _update(
        self,
        assignments: str,
        columns: str,
        is_single: bool,
        is_locked: bool,
        skips: bool,
        inside: str,
        reads_cancelled: bool,
    ) -> str:
        # A single row is written out, so that it is planned as one row.
        source = self.db.row(columns) if is_single else self.db.rows(columns)
        condition = self.db.by_unlocked_ids if skips else "" if is_single else self.db.by_ids
        is_cancelled = self.db.is_cancelled if reads_cancelled else "false"
        is_awaited = f"""
            EXISTS (SELECT 1 FROM {self.tables.blocker} AS link WHERE link.blocker_id = chain_id AND link.is_open)
        """
        return f"""
            UPDATE {self.tables.job} AS job SET {assignments} FROM {source} CROSS JOIN {self.db.clock}
            WHERE {FENCE} {condition} {inside}
            RETURNING id, lease_number, NULLIF(chain_id, id), type_name, status, crashes, {is_cancelled},
                {is_awaited if is_locked or self.db.has_one_writer else "true"}
        """

    def _written(self, id: Any, lease_number: int, other_chain_id: Any, *rest: Any) -> Written:
        job_id = self.db.id(id)
        chain_id = job_id if other_chain_id is None else self.db.id(other_chain_id)
        return Written((job_id, lease_number), chain_id, *rest)


class DeferredRow(NamedTuple):
    """An outcome to write, or a chain to cancel: then ``job_id`` is the chain's id, and ``outcome`` None.

    The outcome of a record contains its table, its id and its lease number; ``job_id`` is then None.
    """

    id: int
    job_id: UUID
    lease_number: int
    #: A JSON text.
    outcome: str | None


class DeferredWrites(Part):
    def add_renewals(self, leases: Sequence[HeldLease]) -> None:
        """Renew leases without writing to their jobs. Lost leases stay lost."""
        rows = [{"job_id": lease.id.hex, "n": lease.lease_number, "s": lease.seconds} for lease in leases]
        self.db.fetch(self._add_renewals, [json.dumps(rows), *self.db.by_ids_params(lease.id.hex for lease in leases)])

    def add_cancelling(self, chain_ids: Collection[UUID]) -> None:
        """Request that chains be cancelled, without writing to their jobs."""
        self.db.fetch(self._add_cancelling, [ids_json(chain_ids)])

    def add_outcomes(self, outcomes: Sequence[tuple[AttemptKey, str]]) -> None:
        """Store a JSON text for each attempt, except attempts that lost their lease."""
        rows = [{"job_id": job_id.hex, "n": number, "outcome": outcome} for (job_id, number), outcome in outcomes]
        ids = self.db.by_ids_params(job_id.hex for (job_id, _), _ in outcomes)
        self.db.fetch(self._add_outcomes, [json.dumps(rows), *ids])

    def add_record_ends(self, ends: Sequence[str]) -> None:
        """Store a JSON text for each attempt of a record."""
        self.db.fetch(self._add_record_ends, [json.dumps([{"outcome": end} for end in ends])])

    @retried
    def record_ends(self) -> list[tuple[int, str]]:
        """Return the ids of the ends of records, and their JSON texts."""
        return [(id_, outcome) for id_, outcome in self.db.fetch(self._record_ends, [])]

    @retried
    def to_apply(self, after: int, limit: int) -> list[int]:
        return [id_ for (id_,) in self.db.fetch(self._to_apply, [after, limit])]

    def lock(self, id: int) -> DeferredRow | None:
        """Lock a row. Return None if it does not exist, or if another transaction is applying or deleting it."""
        rows = self.db.fetch(self._lock, [id])
        for id_, job_id, *rest in rows:
            return DeferredRow(id_, job_id and self.db.id(job_id), *rest)
        return None

    def forget(self, id: int) -> None:
        self.db.execute(f"DELETE FROM {self.tables.deferred_write} WHERE id = %s", [id])

    def forget_cancelling(self, chain_ids: Collection[UUID]) -> None:
        self.db.execute(
            f"DELETE FROM {self.tables.deferred_write} WHERE kind = 'cancel' AND job_id {self.db.any_id}",
            [ids_json(chain_ids)],
        )

    @retried
    def forget_ended_renewals(self, limit: int) -> None:
        self.db.execute(self._forget_ended_renewals, [limit])

    @property
    def is_kept(self) -> str:
        """SQL of whether a job whose lease has expired still belongs to its attempt."""
        return f"""
            EXISTS (SELECT 1 FROM {self.tables.deferred_write} AS later WHERE later.job_id = job.id
            AND later.lease_number = job.lease_number
            AND (later.kind = 'outcome' OR later.kind = 'lease' AND later.leased_until >= {self.db.now}))
        """

    @statement
    def _add_renewals(self) -> str:
        return f"""
            INSERT INTO {self.tables.deferred_write} (job_id, kind, lease_number, leased_until)
            SELECT job.id, 'lease', d.n, {self.db.after("clock.now", "d.s")} FROM {self.tables.job} AS job
            JOIN {self.db.rows("job_id uuid, n int, s float")} ON {FENCE} CROSS JOIN {self.db.clock}
            WHERE true {self.db.by_ids} RETURNING id
        """

    @statement
    def _add_cancelling(self) -> str:
        return f"""
            INSERT INTO {self.tables.deferred_write} (job_id, kind, lease_number)
            SELECT d.job_id, 'cancel', 0 FROM {self.db.rows("job_id uuid")} WHERE true RETURNING id
        """

    @statement
    def _add_outcomes(self) -> str:
        return f"""
            INSERT INTO {self.tables.deferred_write} (job_id, kind, lease_number, outcome)
            SELECT job.id, 'outcome', d.n, d.outcome{self.db.json_cast} FROM {self.tables.job} AS job
            JOIN {self.db.rows("job_id uuid, n int, outcome text")} ON {FENCE} WHERE true {self.db.by_ids} RETURNING id
        """

    @statement
    def _add_record_ends(self) -> str:
        return f"""
            INSERT INTO {self.tables.deferred_write} (kind, lease_number, outcome)
            SELECT 'record', 0, d.outcome{self.db.json_cast} FROM {self.db.rows("outcome text")} WHERE true RETURNING id
        """

    @statement
    def _record_ends(self) -> str:
        return f"""
            SELECT later.id, {self.db.json_text("later.outcome")} FROM {self.tables.deferred_write} AS later
            WHERE later.kind = 'record' ORDER BY later.id
        """

    @statement
    def _to_apply(self) -> str:
        return f"""
            SELECT id FROM {self.tables.deferred_write} WHERE kind IN ('outcome', 'cancel') AND id > %s
            ORDER BY id LIMIT %s
        """

    @statement
    def _lock(self) -> str:
        return f"""
            SELECT later.id, later.job_id, later.lease_number, {self.db.json_text("later.outcome")}
            FROM {self.tables.deferred_write} AS later WHERE later.id = %s {self.db.skip_lock("later")}
        """

    @statement
    def _forget_ended_renewals(self) -> str:
        ended = f"""
            SELECT later.id FROM {self.tables.deferred_write} AS later WHERE later.kind = 'lease'
            AND later.leased_until < {self.db.now} ORDER BY later.id LIMIT %s {self.db.skip_lock("later")}
        """
        return f"DELETE FROM {self.tables.deferred_write} WHERE id {self.db.any_of(ended)}"
