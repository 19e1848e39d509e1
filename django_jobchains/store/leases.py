"""Who holds a job: the lease number that fences every write of an attempt, and how long the lease lasts."""

import json
from collections.abc import Sequence

from django_jobchains.store.deferred_writes import FENCE, DeferredWrites
from django_jobchains.store.dialect import ids_json
from django_jobchains.store.errors import retried_at_read_committed
from django_jobchains.store.rows import HeldLease, OpenTransaction, Renewal


class Leases(DeferredWrites):
    @retried_at_read_committed
    def renew(self, leases: Sequence[HeldLease], transaction: OpenTransaction | None = None) -> Renewal:
        """Prolongs leases; returns which are lost, and which attempts were asked to stop.

        A lease whose job someone else has locked is prolonged without writing to that job. ``transaction``: the
        caller's, in which it has locked all of the jobs; raises ``TransactionEnded`` when it was ended since.
        """
        inside, inside_params = self._inside(transaction)
        rows = [{"job_id": lease.id.hex, "n": lease.lease_number, "s": lease.seconds} for lease in leases]
        columns = "job_id uuid, n int, s float"
        renewed = self._fetch(
            f"UPDATE {self.job} AS job SET leased_until = {self._after('clock.now', 'd.s')} "
            f"FROM {self._rows(columns)} CROSS JOIN {self.clock} WHERE {FENCE} {self._by_unlocked_ids} "
            f"{inside} RETURNING id, lease_number, {self._is_cancelled}",
            [json.dumps(rows), *self._by_ids_params(rows), *inside_params],
        )
        if len(renewed) < len(leases):
            self._check_transaction(transaction)
        missing = {lease.key: lease for lease in leases}
        for id_, number, _ in renewed:
            missing.pop((self._id(id_), number), None)
        cancelled = {(self._id(id_), number) for id_, number, is_cancelled in renewed if is_cancelled}
        found = self.check(list(missing.values()))
        if locked := [lease for key, lease in missing.items() if key not in found.lost]:
            self._defer_renewals(locked)
        return Renewal(found.lost, found.cancelled | cancelled)

    @retried_at_read_committed
    def check(self, leases: Sequence[HeldLease]) -> Renewal:
        """As ``renew``, without prolonging."""
        if not leases:
            return Renewal({}, set())
        sql = (
            f"SELECT id, status, lease_number, {self._is_cancelled} FROM {self.job} WHERE id {self._any(self._ids_sql)}"
        )
        rows = self._fetch(sql, [ids_json(lease.id for lease in leases)])
        found = {self._id(id_): (status, number) for id_, status, number, _ in rows}
        reasons = {lease.key: lost_reason(found.get(lease.id), lease.lease_number) for lease in leases}
        cancelled = {(self._id(id_), number) for id_, _, number, is_cancelled in rows if is_cancelled}
        held = {key for key, reason in reasons.items() if reason is None}
        return Renewal({key: reason for key, reason in reasons.items() if reason}, cancelled & held)


def lost_reason(found: tuple[str, int] | None, lease_number: int) -> str | None:
    """The abort reason of an attempt whose job has this status and lease number now; None while it holds its lease."""
    if found is None:
        return "not_found"
    status, number = found
    if number == lease_number and status == "running":
        return None
    if status in ("completed", "cancelled"):
        return "already_completed" if status == "completed" else "cancelled"
    return "taken_by_another_worker"
