"""Deletes, in batches, chains that ended before a time and that no job of another chain needs.

They are found by walking an index in the order of the chains' ids, a bounded number of rows at a time, and deleted in a
transaction that does not wait for locks: locked chains are skipped.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django_jobchains.statuses import Status
from django_jobchains.store.chains import Chains
from django_jobchains.store.database import Database, Part, ids_json, statement, statements
from django_jobchains.store.errors import retried

#: SQL of whether a job is the last of its chain, as in the view of chains (see ``chain_view``).
_IS_LAST = "(NOT (status = 'completed') OR output IS NOT NULL)"
#: Columns of the row ``d`` with the values of ``EndedChains``.
_ENDED = "before timestamptz, types jsonb"


@dataclass(frozen=True)
class EndedChains:
    """Chains that ended in one of these statuses at or before a time. ``types`` None: of any type."""

    statuses: tuple[str, ...]
    before: datetime
    types: tuple[str, ...] | None = None
    #: Whether chains are included whose deduplication key can still match.
    keyed: bool = True


class EndPosition(NamedTuple):
    """Where a walk along an index continues: after this step of this chain."""

    chain_id: UUID
    chain_index: int = -1


@dataclass(frozen=True)
class Ends:
    """The result of a walk: the last jobs of chains that ended, the first chain that it read, and where to continue.

    ``next`` is None at its end.
    """

    job_ids: Sequence[UUID]
    first: UUID | None
    next: EndPosition | None


class Pruned(NamedTuple):
    """Chains that were deleted, and chains that were kept because a job of another chain needs them."""

    deleted: set[UUID]
    kept: set[UUID]


class Pruning(Part):
    def __init__(self, db: Database, chains: Chains) -> None:
        super().__init__(db)
        self._chains = chains

    @retried
    def find_ended(
        self, column: str, value: str, place: EndPosition, last: UUID, limit: int, ended: EndedChains
    ) -> Ends:
        """Read the next ``limit`` jobs with this status or chain type, up to the chain ``last``."""
        if column == "status":  # PostgreSQL only uses the index if the status is not a parameter.
            walk, start = f"status = '{Status(value)}'", []
        else:
            walk, start = f"chain_type_name = %s AND {self.db.is_ended} AND {_IS_LAST}", [value]
        sql = self._find(walk, ended.statuses, ended.types is not None, ended.keyed)
        values = [*start, place.chain_id.hex, place.chain_index, last.hex, limit, *self._values(ended), limit]
        rows = self.db.fetch(sql, values)
        found = [self.db.id(job_id) for job_id, _, _, has_ended, _ in rows if has_ended]
        places = [EndPosition(self.db.id(chain_id), index) for _, chain_id, index, _, _ in rows]
        has_more = bool(rows) and rows[-1][4] == limit
        return Ends(found, places[0].chain_id if places else None, places[-1] if has_more else None)

    @retried
    def prune(self, job_ids: Collection[UUID], ended: EndedChains, *, is_dry_run: bool = False) -> Pruned:
        """Delete the chains with these last jobs, if they are still ended and no job of another chain needs them."""
        with self.db.transaction() as is_own:
            if is_own:
                self.db.read_committed()
            if not is_dry_run:
                self.db.write_first()
            sql = self._lock_ended(ended.statuses, ended.types is not None, ended.keyed, is_dry_run)
            rows = self.db.fetch(sql, [*self._values(ended), ids_json(job_ids)])
            chain_ids = {self.db.id(chain_id) for _, chain_id in rows}
            kept = self._needed(chain_ids)
            deleted = chain_ids - kept
            if deleted and not is_dry_run:
                self._chains.erase(ids_json(deleted))
        return Pruned(deleted, kept)

    def _needed(self, chain_ids: Collection[UUID]) -> set[UUID]:
        """Return the chains that a remaining job needs: of another chain, or of one of these that is needed itself."""
        rows = self.db.fetch(self._references, [ids_json(chain_ids)])
        needs = [(self.db.id(blocker_id), self.db.id(chain_id)) for blocker_id, chain_id in rows]
        needed: set[UUID] = set()
        further = {blocker_id for blocker_id, chain_id in needs if chain_id not in chain_ids}
        while further:
            needed |= further
            further = {blocker_id for blocker_id, chain_id in needs if chain_id in needed} - needed
        return needed

    def _values(self, ended: EndedChains) -> list[str]:
        return [self.db.time_text(ended.before), json.dumps(ended.types)]

    # Statements

    @statements
    def _find(self, walk: str, statuses: tuple[str, ...], is_of_types: bool, keyed: bool) -> str:
        # Of the chains that are kept, only the first and the last are sent. They bound the walk.
        return f"""
            SELECT id, chain_id, chain_index, has_ended, n FROM (
                SELECT job.id, job.chain_id, job.chain_index,
                {self._has_ended(statuses, is_of_types, keyed)} AS has_ended,
                row_number() OVER (ORDER BY job.chain_id, job.chain_index) AS n FROM (
                    SELECT id, chain_id, chain_index, chain_type_name, deduplication_key, status, output, finished_at
                    FROM {self.tables.job} WHERE {walk}
                    AND (chain_id, chain_index) > ({self.db.id_param}, %s) AND chain_id <= {self.db.id_param}
                    ORDER BY chain_id, chain_index LIMIT %s
                ) AS job CROSS JOIN {self.db.row(_ENDED)}
            ) AS seen WHERE has_ended OR n = 1 OR n = %s ORDER BY n
        """

    @statements
    def _lock_ended(self, statuses: tuple[str, ...], is_of_types: bool, keyed: bool, is_dry_run: bool) -> str:
        return f"""
            SELECT job.id, job.chain_id FROM {self.db.row(_ENDED)} CROSS JOIN {self.tables.job} AS job
            WHERE job.id {self.db.any_id} AND {self._has_ended(statuses, is_of_types, keyed)}
            ORDER BY job.id {"" if is_dry_run else self.db.skip_lock("job")}
        """

    @statement
    def _references(self) -> str:
        return f"""
            SELECT DISTINCT link.blocker_id, job.chain_id FROM {self.tables.blocker} AS link
            JOIN {self.tables.job} AS job ON job.id = link.job_id
            WHERE link.blocker_id {self.db.any_id} AND job.status || '' <> 'completed'
        """

    def _has_ended(self, statuses: tuple[str, ...], is_of_types: bool, keyed: bool) -> str:
        """SQL of whether a job's chain ended like this by the time in ``d``. The status is not a bare column."""
        is_of_type = f"AND {self.db.is_listed('job.chain_type_name', 'd.types')}" if is_of_types else ""
        root_until = f"(SELECT root.deduplicates_until FROM {self.tables.job} AS root WHERE root.id = job.chain_id)"
        is_free = f"AND (job.deduplication_key IS NULL OR {root_until} < {self.db.now})"
        return f"""
            (job.status || '' IN ({", ".join(f"'{status}'" for status in statuses)})
            AND (job.status || '' <> 'completed' OR job.output IS NOT NULL) AND job.finished_at <= d.before
            {is_of_type} {"" if keyed else is_free})
        """
