"""Locks on jobs, and the last jobs of chains. A transaction that changes a chain locks its last job first."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django_jobchains.exceptions import ChainNotFound, JobNotFound
from django_jobchains.store.database import Part, ids_json, statement, statements
from django_jobchains.store.errors import retried


class LastJob(NamedTuple):
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
    schedule_name: str | None = None
    scheduled_for: datetime | None = None


class LastJobs(Part):
    @retried
    def read(self, chain_ids: Collection[UUID]) -> dict[UUID, LastJob]:
        """Return the last job of each chain. Chains that do not exist are missing."""
        rows = self.db.fetch(self._read, [ids_json(chain_ids)])
        last_jobs = [
            LastJob._make((self.db.id(chain_id), self.db.id(job_id), *rest, tick and self.db.time(tick)))
            for chain_id, job_id, *rest, tick in rows
        ]
        return {last_job.chain_id: last_job for last_job in last_jobs}

    def of_jobs(self, job_ids: Collection[UUID]) -> dict[UUID, LastJob]:
        """Return the last job of the chain of each of these jobs, by their ids. Later jobs take two more statements."""
        last_jobs = self.read(job_ids)
        if later := [job_id for job_id in job_ids if job_id not in last_jobs]:
            chains = self.chains_of(later)
            others = self.read(chains.values())
            last_jobs |= {job_id: others[chain_id] for job_id, chain_id in chains.items() if chain_id in others}
        return last_jobs

    @retried
    def chains_of(self, job_ids: Collection[UUID]) -> dict[UUID, UUID]:
        """Return the chain of each job; jobs that do not exist are missing."""
        rows = self.db.fetch(self._chains_of, [ids_json(job_ids)])
        return {self.db.id(job_id): self.db.id(chain_id) for job_id, chain_id in rows}

    def lock(self, chain_ids: Collection[UUID], *, shared: bool = False) -> dict[UUID, LastJob]:
        """Lock the last job of each chain, in the order of their ids; chains that do not exist are missing.

        A chain may continue while this waits for its last job. So a second statement checks that the locked jobs are
        still the last ones.
        """
        self.db.write_first()
        parameters = [ids_json(chain_ids)]
        locked: set[UUID] = set()
        while True:
            locked |= self.lock_rows("status", self.any_last_job, parameters, shared=shared).keys()
            last_jobs = self.read(chain_ids)
            if all(last_job.job_id in locked for last_job in last_jobs.values()):
                return last_jobs

    def lock_chain_of(self, job_id: UUID) -> LastJob:
        """Lock and return the last job of the chain that this job belongs to. Raises ``ChainNotFound``."""
        last_jobs = self.lock([job_id]) or self.lock(self.chains_of([job_id]).values())
        for last_job in last_jobs.values():
            return last_job
        raise ChainNotFound(job_id)

    def lock_current(self, ids: Collection[UUID]) -> dict[UUID, str]:
        """Lock the jobs that these ids stand for, in the order of their ids; return the status of each.

        The id of a chain stands for its last job, which a second statement checks as in ``lock``. The id of a later job
        stands for that job. Raises ``JobNotFound``.
        """
        self.db.write_first()
        parameters = [ids_json(ids)]
        locked: dict[UUID, str] = {}
        while True:
            locked |= self.lock_rows("status", self._any_current, parameters)
            rows = self.db.fetch(self._read_current, parameters)
            current = {self.db.id(job_id): self.db.id(chain_id) for job_id, chain_id in rows}
            if locked.keys() >= current.keys():
                break
        known = {*current, *current.values()}
        for id_ in ids:
            if id_ not in known:
                raise JobNotFound(id_)
        return {job_id: locked[job_id] for job_id in current}

    def lock_jobs(self, job_ids: Collection[UUID], *, skips: bool = False) -> dict[UUID, str]:
        """Lock jobs in the order of their ids; return their statuses. ``skips``: jobs locked by others are missing."""
        self.db.write_first()
        return self.lock_rows("status", self.db.any_id, [ids_json(job_ids)], skips=skips)

    def lock_unlocked(self, job_ids: Iterable[UUID]) -> set[UUID]:
        """Lock the given jobs, except those that another transaction has locked."""
        return {self.db.id(id_) for (id_,) in self.db.fetch(self._lock_unlocked, [ids_json(job_ids)])}

    def lock_rows(
        self, column: str, condition: str, parameters: Sequence[Any], *, shared: bool = False, skips: bool = False
    ) -> dict[UUID, Any]:
        """Lock the jobs whose id meets the condition, in the order of their ids; return a column of each.

        At REPEATABLE READ, a transaction that waited for a lock does not notice anything unless the row was written. So
        the rows are written at that level, and in a transaction whose level was lowered to READ COMMITTED. They are not
        locked in shared mode first, because two transactions would deadlock.
        """
        rows = []
        if shared:  # Selects no rows if they have to be written.
            rows = self.db.fetch(self._lock_shared(column, condition), parameters)
        if not rows:
            rows = self.db.fetch(self._lock(column, condition, skips), parameters)
        ids = [self.db.id(id_) for id_, _, _ in rows]
        if rows and rows[0][2]:
            self.db.fetch(self._touch, [ids_json(ids)])
        return {id_: value for id_, (_, value, _) in zip(ids, rows, strict=True)}

    @statement
    def any_last_job(self) -> str:
        """SQL of a condition's right side: equal to the last job of one of the chains in a parameter."""
        return self.db.any_of(f"SELECT {self.db.last_of('d.job_id')} FROM {self.db.rows('job_id uuid')}")

    @statement
    def _any_current(self) -> str:
        """Like ``any_last_job``, but an id that is not a chain's stands for the job with that id."""
        current = f"COALESCE({self.db.last_of('d.job_id')}, d.job_id)"
        return self.db.any_of(f"SELECT {current} FROM {self.db.rows('job_id uuid')}")

    @statement
    def _read_current(self) -> str:
        return f"SELECT job.id, job.chain_id FROM {self.tables.job} AS job WHERE job.id {self._any_current}"

    @statement
    def _chains_of(self) -> str:
        return f"SELECT job.id, job.chain_id FROM {self.tables.job} AS job WHERE job.id {self.db.any_id}"

    @statement
    def _read(self) -> str:
        columns = ", ".join(f"job.{name}" for name in ("chain_id", "id", *LastJob._fields[2:-1]))
        tick = self.db.time_as_text("job.scheduled_for")
        return f"SELECT {columns}, {tick} FROM {self.tables.job} AS job WHERE job.id {self.any_last_job}"

    @statements
    def _lock(self, column: str, condition: str, skips: bool) -> str:
        return f"""
            SELECT job.id, job.{column}, {self.db.writes_locked} FROM {self.tables.job} AS job WHERE job.id {condition}
            ORDER BY job.id {self.db.skip_lock("job") if skips else self.db.wait_lock("job")}
        """

    @statements
    def _lock_shared(self, column: str, condition: str) -> str:
        return f"""
            SELECT job.id, job.{column}, {self.db.writes_locked} FROM {self.tables.job} AS job WHERE job.id {condition}
            AND NOT {self.db.writes_locked} ORDER BY job.id {self.db.shared_lock("job")}
        """

    @statement
    def _lock_unlocked(self) -> str:
        return f"""
            SELECT job.id FROM {self.tables.job} AS job WHERE job.id {self.db.any_id}
            ORDER BY job.id {self.db.skip_lock("job")}
        """

    @statement
    def _touch(self) -> str:
        return f"UPDATE {self.tables.job} SET crashes = crashes WHERE id {self.db.any_id} RETURNING id"
