"""The last jobs of chains. Whoever lets a chain go on, or end, has its last job locked: so chains are locked."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django_jobchains.store.dialect import Dialect, ids_json
from django_jobchains.store.errors import retried


class Tail(NamedTuple):
    """The last job of a chain."""

    chain_id: UUID
    job_id: UUID
    chain_index: int
    chain_type_name: str
    type_name: str
    queue: str
    priority: int
    deduplication_key: str | None
    status: str
    lease_number: int
    context: str | None


class Tails(Dialect):
    def lock_tails(self, chain_ids: Collection[UUID], *, shared: bool = False) -> dict[UUID, Tail]:
        """Locks the last job of each chain, in the order of their ids; chains that do not exist are missing.

        A chain may go on while its last job is waited for. So it is looked again, in a statement of its own, whether
        the locked ones are still the last.
        """
        self._write_first()
        parameters = [ids_json(chain_ids)]
        last = self._any(f"SELECT {self._last_of('d.job_id')} FROM {self._rows('job_id uuid')}")
        locked: set[UUID] = set()
        while True:
            locked |= self._lock_rows("status", last, parameters, shared=shared).keys()
            tails = self.tails(chain_ids)
            if all(tail.job_id in locked for tail in tails.values()):
                return tails

    @retried
    def tails(self, chain_ids: Collection[UUID]) -> dict[UUID, Tail]:
        """The last jobs as they are now."""
        last = self._any(f"SELECT {self._last_of('d.job_id')} FROM {self._rows('job_id uuid')}")
        columns = ", ".join(f"job.{name}" for name in ("chain_id", "id", *Tail._fields[2:]))
        rows = self._fetch(f"SELECT {columns} FROM {self.job} AS job WHERE job.id {last}", [ids_json(chain_ids)])
        tails = [Tail(self._id(chain_id), self._id(job_id), *rest) for chain_id, job_id, *rest in rows]
        return {tail.chain_id: tail for tail in tails}

    def _lock_jobs(self, job_ids: Collection[UUID]) -> dict[UUID, str]:
        """Locks jobs in the order of their ids; their statuses."""
        self._write_first()
        return self._lock_rows("status", self._any(self._ids_sql), [ids_json(job_ids)])

    def _lock_unlocked(self, job_ids: Iterable[UUID]) -> set[UUID]:
        """Locks those of these jobs that no one else has locked."""
        rows = self._fetch(
            f"SELECT job.id FROM {self.job} AS job WHERE job.id {self._any(self._ids_sql)} "
            f"ORDER BY job.id {self._locked('job')}",
            [ids_json(job_ids)],
        )
        return {self._id(id_) for (id_,) in rows}

    def _lock_rows(
        self, column: str, condition: str, parameters: Sequence[Any], *, shared: bool = False
    ) -> dict[UUID, Any]:
        """Locks the jobs whose id meets the condition, in the order of their ids; a column of each.

        At REPEATABLE READ whoever waited for a lock goes on as if nothing had happened, unless the row was written. So
        it is written there, and not locked shared first, which would make two transactions wait for each other.
        """
        rows = []
        if shared:  # selects no rows at REPEATABLE READ
            condition_below = f"{condition} AND {self._isolation} <> 'repeatable read'"
            rows = self._select_locked(column, condition_below, parameters, self._shared("job"))
        if not rows:
            rows = self._select_locked(column, condition, parameters, self._held("job"))
        ids = [self._id(id_) for id_, _, _ in rows]
        if rows and rows[0][2] == "repeatable read":
            touch = f"UPDATE {self.job} SET crashes = crashes WHERE id {self._any(self._ids_sql)} RETURNING id"
            self._fetch(touch, [ids_json(ids)])
        return {id_: value for id_, (_, value, _) in zip(ids, rows, strict=True)}

    def _select_locked(
        self, column: str, condition: str, parameters: Sequence[Any], lock: str
    ) -> list[tuple[Any, ...]]:
        """Rows of the id, a column, and the isolation level of the transaction."""
        return self._fetch(
            f"SELECT job.id, job.{column}, {self._isolation} FROM {self.job} AS job WHERE job.id {condition} "
            f"ORDER BY job.id {lock}",
            parameters,
        )
