"""Old chains go, in batches: those that ended before some time, and that no job outside still needs.

They are found by walking an index in the order of the chains' ids, a bounded number of rows at a time, and deleted in a
transaction that waits for nobody: what somebody has locked is left alone.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django_jobchains.store.dialect import ids_json
from django_jobchains.store.errors import retried
from django_jobchains.store.interventions import Interventions

#: SQL of whether a job is the last of its chain, word for word as the index has it (see ``chain_view``).
_IS_LAST = "(NOT (status = 'completed') OR output IS NOT NULL)"
#: Columns of the row ``d`` that ``Ended`` is asked with.
_ENDED = "before timestamptz, types jsonb"


@dataclass(frozen=True)
class Ended:
    """Chains that ended in one of these statuses at some time, or before it; ``types`` None: of any type."""

    statuses: tuple[str, ...]
    before: datetime
    types: tuple[str, ...] | None = None
    #: Also those with a deduplication key.
    keyed: bool = True


class Place(NamedTuple):
    """Where a walk along an index is: behind this step of this chain."""

    chain_id: UUID
    chain_index: int = -1


@dataclass(frozen=True)
class Ends:
    """What a walk found: the last jobs of chains that ended, the first chain it looked at, and where to go on.

    ``next`` is None at its end.
    """

    job_ids: Sequence[UUID]
    first: UUID | None
    next: Place | None


class Pruned(NamedTuple):
    """Chains that were deleted, and those that a job outside needs."""

    deleted: set[UUID]
    kept: set[UUID]


class Pruning(Interventions):
    @retried
    def time_ago(self, seconds: float) -> datetime:
        """The database's time, so many seconds ago."""
        time = self._as_text(self._after("clock.now", str(-seconds)))
        ((text,),) = self._fetch(f"SELECT {time} FROM {self.clock}", [])
        return self._time(text)

    @retried
    def find_ended(self, column: str, value: str, place: Place, last: UUID, limit: int, ended: Ended) -> Ends:
        """Looks at the next ``limit`` jobs with this status or chain type, up to the chain ``last``."""
        is_last = "AND " + _IS_LAST if column == "chain_type_name" else ""
        # Of those that stay only the first and the last are sent: they tell where it is.
        rows = self._fetch(
            "SELECT id, chain_id, chain_index, has_ended, n FROM ("
            f"SELECT job.id, job.chain_id, job.chain_index, {self._has_ended(ended)} AS has_ended, "
            "row_number() OVER (ORDER BY job.chain_id, job.chain_index) AS n FROM ("
            "SELECT id, chain_id, chain_index, chain_type_name, deduplication_key, status, output, finished_at "
            f"FROM {self.job} WHERE {column} = %s {is_last} AND (chain_id, chain_index) > ({self._uuid}, %s) "
            f"AND chain_id <= {self._uuid} ORDER BY chain_id, chain_index LIMIT %s) AS job "
            f"CROSS JOIN {self._row(_ENDED)}) AS seen WHERE has_ended OR n = 1 OR n = %s ORDER BY n",
            [value, place.chain_id.hex, place.chain_index, last.hex, limit, *self._ended_values(ended), limit],
        )
        found = [self._id(job_id) for job_id, _, _, has_ended, _ in rows if has_ended]
        places = [Place(self._id(chain_id), index) for _, chain_id, index, _, _ in rows]
        has_more = bool(rows) and rows[-1][4] == limit
        return Ends(found, places[0].chain_id if places else None, places[-1] if has_more else None)

    @retried
    def prune(self, job_ids: Collection[UUID], ended: Ended, *, is_dry_run: bool = False) -> Pruned:
        """Deletes the chains with these last jobs that have still ended, and that no job of another chain needs."""
        is_alone = not self.connection.in_atomic_block
        with self.transaction():
            if is_alone:
                self._read_committed()
            if not is_dry_run:
                self._write_first()
            chain_ids = self._ended_chains(job_ids, ended, "" if is_dry_run else self._locked("job"))
            kept = self._needed(chain_ids)
            deleted = chain_ids - kept
            if deleted and not is_dry_run:
                self._erase(ids_json(deleted))
        return Pruned(deleted, kept)

    def _ended_chains(self, job_ids: Collection[UUID], ended: Ended, lock: str) -> set[UUID]:
        rows = self._fetch(
            f"SELECT job.id, job.chain_id FROM {self._row(_ENDED)} CROSS JOIN {self.job} AS job "
            f"WHERE job.id {self._any(self._ids_sql)} AND {self._has_ended(ended)} ORDER BY job.id {lock}",
            [*self._ended_values(ended), ids_json(job_ids)],
        )
        return {self._id(chain_id) for _, chain_id in rows}

    def _has_ended(self, ended: Ended) -> str:
        """SQL of whether a job's chain ended so, by the time in a row ``d``; the status is not compared bare."""
        statuses = ", ".join(f"'{status}'" for status in ended.statuses)
        is_last = "(job.status || '' <> 'completed' OR job.output IS NOT NULL)"
        is_of_type = "" if ended.types is None else f"AND {self._is_listed('job.chain_type_name', 'd.types')}"
        is_free = "" if ended.keyed else "AND job.deduplication_key IS NULL"
        return (
            f"(job.status || '' IN ({statuses}) AND {is_last} AND job.finished_at <= d.before {is_of_type} {is_free})"
        )

    def _ended_values(self, ended: Ended) -> list[str]:
        return [self._time_text(ended.before), json.dumps(ended.types)]

    def _needed(self, chain_ids: Collection[UUID]) -> set[UUID]:
        """Those that a job needs which stays: one of another chain, or of one of these that is needed itself."""
        rows = self._fetch(
            f"SELECT DISTINCT link.blocker_id, job.chain_id FROM {self.blocker} AS link "
            f"JOIN {self.job} AS job ON job.id = link.job_id "
            f"WHERE link.blocker_id {self._any(self._ids_sql)} AND job.status || '' <> 'completed'",
            [ids_json(chain_ids)],
        )
        return _held([(self._id(blocker_id), self._id(chain_id)) for blocker_id, chain_id in rows], chain_ids)


def _held(needs: Sequence[tuple[UUID, UUID]], chain_ids: Collection[UUID]) -> set[UUID]:
    held: set[UUID] = set()
    further: set[Any] = {blocker for blocker, chain_id in needs if chain_id not in chain_ids}
    while further:
        held |= further
        further = {blocker for blocker, chain_id in needs if chain_id in held} - held
    return held
