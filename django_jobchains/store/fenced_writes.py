"""The UPDATE that ends attempts. It writes only to attempts that still hold their job, by their lease number."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django_jobchains.store.blockers import Blockers
from django_jobchains.store.database import Database, Part, rows_json, statements
from django_jobchains.store.deferred_writes import FENCE
from django_jobchains.store.on_failure import FailureChains
from django_jobchains.store.rows import AttemptKey, Effects, OpenTransaction


class Written(NamedTuple):
    """The current state of a job whose attempt was ended."""

    key: AttemptKey
    chain_id: UUID
    type_name: str
    status: str
    crashes: int
    #: Whether it was asked to stop. Read only on request, for jobs that continue.
    is_cancelled: bool
    #: False if nobody waited for its chain when the statement began.
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
