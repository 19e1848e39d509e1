"""Counts of records by their state, up to a limit and found by the partial indexes of ``JobRecord``."""

from typing import Any, NamedTuple

from django_jobchains.store.errors import retried
from django_jobchains.store.record_tables import IdsSelect, RecordPart, RecordTable
from django_jobchains.store.statements import one_line

#: The columns of the index of each state, in whose order its rows are counted, so that no other rows are read.
_INDEXED = {
    "queued": ["process_after", "queued_at"],
    "processing": ["started_at"],
    "errored": ["finished_at"],
    "failed": ["finished_at"],
}


class RecordCount(NamedTuple):
    """The number of records in each state, and of those that may be dequeued now, up to the limit."""

    queued: int
    processing: int
    errored: int
    failed: int
    due: int


class RecordCounts(RecordPart):
    @retried
    def by_state(
        self, table: RecordTable, select: IdsSelect, count_to: int, retry_seconds: float | None = None
    ) -> RecordCount:
        """Count the selected records of each state up to ``count_to``; completed and canceled ones add no cost.

        ``retry_seconds``: the wait before errored records are tried again, None for never.
        """
        own = table.under(table.name)
        conditions = [(f"{own.state} = '{state}'", order) for state, order in _INDEXED.items()]
        counts: list[str] = []
        params: list[Any] = []
        for condition, order in [*conditions, *self._ready(own, retry_seconds)]:
            sql, values = select(one_line(condition), [], order) or ("SELECT 1 WHERE 1 = 0", [])
            counts.append(f"(SELECT count(*) FROM ({sql} LIMIT %s) AS found)")
            params += [*values, count_to]
        with self.db.limited():
            [row] = self.db.fetch(f"SELECT {', '.join(counts)}", params)
        queued, processing, errored, failed, *due = row
        return RecordCount(queued, processing, errored, failed, min(sum(due), count_to))
