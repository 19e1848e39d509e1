"""Counts of records by their state, up to a limit and found by the partial indexes of ``JobRecord``."""

from typing import NamedTuple

from django_jobchains.store.errors import retried
from django_jobchains.store.record_tables import RecordPart, RecordTable
from django_jobchains.store.statements import statements

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
    def by_state(self, table: RecordTable, count_to: int, retry_seconds: float | None = None) -> RecordCount:
        """Count the records of each state up to ``count_to``; completed and canceled ones add no cost.

        ``retry_seconds``: the wait before errored records are tried again, None for never.
        """
        conditions = len(_INDEXED) + len(self._ready(table, retry_seconds))
        with self.db.limited():
            [row] = self.db.fetch(self._by_state(table, retry_seconds), [count_to] * conditions)
        queued, processing, errored, failed, *due = row
        return RecordCount(queued, processing, errored, failed, min(sum(due), count_to))

    @statements
    def _by_state(self, table: RecordTable, retry_seconds: float | None) -> str:
        record = table.under("record")
        conditions = [(f"{record.state} = '{state}'", order) for state, order in _INDEXED.items()]
        counts = ", ".join(
            f"""(SELECT count(*) FROM (
                SELECT 1 FROM {table.name} AS record WHERE {condition}
                ORDER BY {", ".join(getattr(record, column) for column in order)} LIMIT %s
            ) AS found)"""
            for condition, order in [*conditions, *self._ready(record, retry_seconds)]
        )
        return f"SELECT {counts}"
