"""Writes to jobs whose row someone else has locked, kept in a table of their own until the row is free.

A user's transaction that locks a running job's row, or a handler inside ``complete()``, may take minutes. Waiting for
it would hold up every other job of the same statement. Rows are only added and deleted, and those that someone else is
deleting are skipped, so that nothing here waits for a lock. See docs/decisions/0031-deferred-writes.md.
"""

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from django_jobchains.store.dialect import Dialect, ids_json
from django_jobchains.store.errors import retried
from django_jobchains.store.rows import AttemptKey, HeldLease

#: The attempt ``d`` still has its job. The status is not compared bare: PostgreSQL would find the rows by the partial
#: index of running jobs, and read all of its dead entries, instead of by their ids.
FENCE = "job.id = d.job_id AND job.lease_number = d.n AND job.status || '' = 'running'"


class DeferredRow(NamedTuple):
    """An outcome to write, or a chain to cancel: then ``job_id`` is the chain's id, and ``outcome`` None."""

    id: int
    kind: str
    job_id: UUID
    lease_number: int
    #: A JSON text.
    outcome: str | None


class DeferredWrites(Dialect):
    def _defer_renewals(self, leases: Sequence[HeldLease]) -> None:
        """Prolongs leases without writing to their jobs; those that are lost stay so."""
        rows = [{"job_id": lease.id.hex, "n": lease.lease_number, "s": lease.seconds} for lease in leases]
        self._fetch(
            f"INSERT INTO {self.deferred_write} (job_id, kind, lease_number, leased_until) "
            f"SELECT job.id, 'lease', d.n, {self._after('clock.now', 'd.s')} FROM {self.job} AS job "
            f"JOIN {self._rows('job_id uuid, n int, s float')} ON {FENCE} CROSS JOIN {self.clock} "
            f"WHERE true {self._by_ids} RETURNING id",
            [json.dumps(rows), *self._by_ids_params(rows)],
        )

    def _defer_cancelling(self, chain_ids: Collection[UUID]) -> None:
        """Asks for chains to be cancelled without writing to their jobs."""
        self._fetch(
            f"INSERT INTO {self.deferred_write} (job_id, kind, lease_number) "
            f"SELECT d.job_id, 'cancel', 0 FROM {self._rows('job_id uuid')} WHERE true RETURNING id",
            [ids_json(chain_ids)],
        )

    def _defer_outcomes(self, outcomes: Sequence[tuple[AttemptKey, str]]) -> None:
        """``outcomes``: of each attempt a JSON text. Those that lost their lease are left out."""
        rows = [{"job_id": job_id.hex, "n": number, "outcome": outcome} for (job_id, number), outcome in outcomes]
        self._fetch(
            f"INSERT INTO {self.deferred_write} (job_id, kind, lease_number, outcome) "
            f"SELECT job.id, 'outcome', d.n, d.outcome{self.json_cast} FROM {self.job} AS job "
            f"JOIN {self._rows('job_id uuid, n int, outcome text')} ON {FENCE} WHERE true {self._by_ids} RETURNING id",
            [json.dumps(rows), *self._by_ids_params(rows)],
        )

    @retried
    def _to_apply(self, after: int, limit: int) -> list[int]:
        rows = self._fetch(
            f"SELECT id FROM {self.deferred_write} WHERE kind <> 'lease' AND id > %s ORDER BY id LIMIT %s",
            [after, limit],
        )
        return [id_ for (id_,) in rows]

    def _lock_deferred(self, id: int) -> DeferredRow | None:
        """None if it is gone, or someone else is applying or deleting it."""
        rows = self._fetch(
            f"SELECT later.id, later.kind, later.job_id, later.lease_number, {self._json_text('later.outcome')} "
            f"FROM {self.deferred_write} AS later WHERE later.id = %s {self._locked('later')}",
            [id],
        )
        return next((DeferredRow(id_, kind, self._id(job_id), *rest) for id_, kind, job_id, *rest in rows), None)

    def _forget_deferred(self, id: int) -> None:
        self._execute(f"DELETE FROM {self.deferred_write} WHERE id = %s", [id])

    def _forget_cancelling(self, chain_ids: Collection[UUID]) -> None:
        self._execute(
            f"DELETE FROM {self.deferred_write} WHERE kind = 'cancel' AND job_id {self._any(self._ids_sql)}",
            [ids_json(chain_ids)],
        )

    @retried
    def _forget_ended_renewals(self, limit: int) -> None:
        ended = (
            f"SELECT later.id FROM {self.deferred_write} AS later WHERE later.kind = 'lease' "
            f"AND later.leased_until < {self.now} ORDER BY later.id LIMIT %s {self._locked('later')}"
        )
        self._execute(f"DELETE FROM {self.deferred_write} WHERE id {self._any(ended)}", [limit])

    @property
    def _is_kept(self) -> str:
        """SQL of whether a job whose lease has run out is still its attempt's."""
        return (
            f"EXISTS (SELECT 1 FROM {self.deferred_write} AS later WHERE later.job_id = job.id "
            f"AND later.lease_number = job.lease_number "
            f"AND (later.kind = 'outcome' OR later.kind = 'lease' AND later.leased_until >= {self.now}))"
        )
