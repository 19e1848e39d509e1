"""What every store does, with the SQL they share. A vendor says only what differs.

Each method is one transaction of a constant number of statements, whatever the batch, and joins the caller's if one is
open. Rows travel as one JSON parameter (``_rows``). Every write of an attempt asks for its lease number: a stale
attempt's changes no row. Compared times are the database's.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django_jobchains.store.attempt_counts import AttemptCounts
from django_jobchains.store.counting import Counting
from django_jobchains.store.deferred_outcomes import DeferredOutcomes
from django_jobchains.store.dialect import ids_json
from django_jobchains.store.errors import retried, retried_at_read_committed
from django_jobchains.store.listing import Listing
from django_jobchains.store.notes import Notes
from django_jobchains.store.presence import Presence
from django_jobchains.store.pruning import Pruning
from django_jobchains.store.queue_states import QueueStates
from django_jobchains.store.rows import ClaimedJob, OpenTransaction


class Store(DeferredOutcomes, Pruning, QueueStates, Presence, Counting, AttemptCounts, Listing, Notes):
    @abstractmethod
    def _claim(
        self,
        worker: str,
        limit: int,
        leases: Mapping[str, float],
        queues: Collection[str] | None,
        excluded: Collection[str],
    ) -> list[tuple[Any, ...]]:
        """Claims; returns rows of ``_claimed_columns``."""

    @abstractmethod
    def next_due(
        self, leases: Mapping[str, float], queues: Collection[str] | None = None, excluded: Collection[str] = ()
    ) -> float | None:
        """Seconds until the next of these jobs is due, 0 or less when one is; None when there is none."""

    @abstractmethod
    def lock(self, job_id: UUID, transaction: OpenTransaction | None = None) -> tuple[str, int] | None:
        """Locks a job's row for the caller's transaction: its status and lease number, None when it is gone.

        Fills in ``transaction``, by which ``finish`` and ``renew`` notice when the caller's transaction was ended.
        """

    @abstractmethod
    def prepare_for_workers(self) -> None:
        """Does what the database needs before several threads and processes work on it."""

    def lock_all(
        self, job_ids: Collection[UUID], transaction: OpenTransaction | None = None
    ) -> dict[UUID, tuple[str, int]]:
        """``lock`` of several jobs, in the order of their ids; those that are gone are missing."""
        self._lock_jobs(job_ids)
        rows = self._fetch(
            f"SELECT id, status, lease_number, {self._transaction_id} "
            f"FROM {self.job} WHERE id {self._any(self._ids_sql)}",
            [ids_json(job_ids)],
        )
        for _, _, _, transaction_id in rows[:1]:
            self._mark(transaction, transaction_id)
        return {self._id(id_): (status, number) for id_, status, number, _ in rows}

    def _mark(self, transaction: OpenTransaction | None, id: str) -> None:
        """Fills in the transaction that is open."""
        if transaction is not None:
            transaction.id = id

    @retried
    def look(self, job_id: UUID) -> tuple[str, int] | None:
        """A job's status and lease number, None when it is gone."""
        rows = self._fetch(f"SELECT status, lease_number FROM {self.job} WHERE id = {self._uuid}", [job_id.hex])
        return (rows[0][0], rows[0][1]) if rows else None

    @retried_at_read_committed
    def claim(
        self,
        worker: str,
        limit: int,
        leases: Mapping[str, float],
        queues: Collection[str] | None = None,
        excluded: Collection[str] = (),
    ) -> list[ClaimedJob]:
        """Takes up to ``limit`` due jobs, the most urgent first: higher priority, then due for longer.

        ``leases`` maps the type names to claim to the seconds of their leases; ``queues`` None is every queue, but for
        those in ``excluded``.
        """
        if not leases or limit < 1:
            return []
        jobs = [self._claimed(row) for row in self._claim(worker, limit, leases, queues, excluded)]
        return sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.id))

    @property
    def _claimed_columns(self) -> str:
        """In the order of ``ClaimedJob``."""
        return (
            "id, chain_id, chain_index, chain_type_name, type_name, queue, priority, "
            f"{self._as_text('run_at')}, attempt, lease_number, max_attempts, input, last_error, "
            f"{self._as_text('created_at')}, deduplication_key, context, crashes"
        )

    def _claimed(self, row: tuple[Any, ...]) -> ClaimedJob:
        run_at, created_at = self._time(row[7]), self._time(row[13])
        values = (self._id(row[0]), self._id(row[1]), *row[2:7], run_at, *row[8:13], created_at, *row[14:])
        return ClaimedJob._make(values)
