"""Writes to jobs whose row someone else has locked, kept in a table of their own until the row is free.

A user's transaction that locks a running job's row, or a handler inside ``complete()``, may take minutes. Waiting for
it would hold up every other job of the same statement. See docs/decisions/0031-deferred-writes.md.
"""

import json
from collections.abc import Collection, Sequence
from uuid import UUID

from django_jobchains.store.dialect import Dialect, ids_json
from django_jobchains.store.rows import AttemptKey, HeldLease

#: The attempt ``d`` still has its job. The status is not compared bare: PostgreSQL would find the rows by the partial
#: index of running jobs, and read all of its dead entries, instead of by their ids.
FENCE = "job.id = d.job_id AND job.lease_number = d.n AND job.status || '' = 'running'"


class DeferredWrites(Dialect):
    def _defer_renewals(self, leases: Sequence[HeldLease]) -> None:
        """Prolongs leases without writing to their jobs; those that are lost stay so."""
        rows = [{"job_id": lease.id.hex, "n": lease.lease_number, "s": lease.seconds} for lease in leases]
        self._fetch(
            f"INSERT INTO {self.deferred_write} (job_id, kind, lease_number, leased_until) "
            f"SELECT job.id, 'lease', d.n, {self._after('clock.now', 'd.s')} FROM {self.job} AS job "
            f"JOIN {self._rows('job_id uuid, n int, s float')} ON {FENCE} CROSS JOIN {self.clock} "
            f"WHERE true {self._by_ids} ON CONFLICT (job_id, kind) DO UPDATE "
            "SET lease_number = excluded.lease_number, leased_until = excluded.leased_until RETURNING job_id",
            [json.dumps(rows), *self._by_ids_params(rows)],
        )

    def _defer_cancelling(self, chain_ids: Collection[UUID]) -> None:
        """Asks for chains to be cancelled without writing to their jobs."""
        self._fetch(
            f"INSERT INTO {self.deferred_write} (job_id, kind, lease_number) "
            f"SELECT d.job_id, 'cancel', 0 FROM {self._rows('job_id uuid')} WHERE true "
            "ON CONFLICT (job_id, kind) DO UPDATE SET lease_number = 0 RETURNING job_id",
            [ids_json(chain_ids)],
        )

    def _defer_outcomes(self, outcomes: Sequence[tuple[AttemptKey, str]]) -> None:
        """``outcomes``: of each attempt a JSON text. Those that lost their lease are left out."""
        rows = [{"job_id": job_id.hex, "n": number, "outcome": outcome} for (job_id, number), outcome in outcomes]
        self._fetch(
            f"INSERT INTO {self.deferred_write} (job_id, kind, lease_number, outcome) "
            f"SELECT job.id, 'outcome', d.n, d.outcome{self.json_cast} FROM {self.job} AS job "
            f"JOIN {self._rows('job_id uuid, n int, outcome text')} ON {FENCE} WHERE true {self._by_ids} "
            "ON CONFLICT (job_id, kind) DO UPDATE "
            "SET lease_number = excluded.lease_number, outcome = excluded.outcome RETURNING job_id",
            [json.dumps(rows), *self._by_ids_params(rows)],
        )

    def _deferred(self, kind: str, limit: int) -> list[tuple[AttemptKey, str | None]]:
        """What waits to be applied, and for outcomes, what they are, as JSON texts."""
        rows = self._fetch(
            f"SELECT job_id, lease_number, {self._json_text('outcome')} FROM {self.deferred_write} "
            "WHERE kind = %s ORDER BY job_id LIMIT %s",
            [kind, limit],
        )
        return [((self._id(job_id), number), outcome) for job_id, number, outcome in rows]

    def _forget_deferred(self, kind: str, keys: Collection[AttemptKey]) -> None:
        rows = [{"job_id": job_id.hex, "n": number} for job_id, number in keys]
        self._execute(
            f"DELETE FROM {self.deferred_write} WHERE kind = %s AND EXISTS (SELECT 1 FROM "
            f"{self._rows('job_id uuid, n int')} WHERE d.job_id = {self.deferred_write}.job_id "
            f"AND d.n = {self.deferred_write}.lease_number)",
            [kind, json.dumps(rows)],
        )

    def _forget_ended_renewals(self) -> None:
        self._execute(f"DELETE FROM {self.deferred_write} WHERE kind = 'lease' AND leased_until < {self.now}", [])

    @property
    def _is_kept(self) -> str:
        """SQL of whether a job whose lease has run out is still its attempt's."""
        return (
            f"EXISTS (SELECT 1 FROM {self.deferred_write} AS later WHERE later.job_id = job.id "
            f"AND later.lease_number = job.lease_number "
            f"AND (later.kind = 'outcome' OR later.kind = 'lease' AND later.leased_until >= {self.now}))"
        )
