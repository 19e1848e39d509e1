"""Counts of records by their state, up to a limit and found by the partial indexes of ``JobRecord``."""

from typing import NamedTuple

from django_jobchains.store.errors import retried
from django_jobchains.store.record_tables import RecordTable
from django_jobchains.store.statements import Part, statements

#: The columns of the index of each state, in whose order its rows are counted, so that no other rows are read.
_INDEXED = {
    "queued": ("process_after", "queued_at"),
    "processing": ("started_at",),
    "errored": ("finished_at",),
    "failed": ("finished_at",),
}


class RecordCount(NamedTuple):
    """The number of records in each state, up to the limit."""

    queued: int
    processing: int
    errored: int
    failed: int


class RecordCounts(Part):
    @retried
    def by_state(self, table: RecordTable, count_to: int) -> RecordCount:
        """Count the records of each state up to ``count_to``; completed and canceled ones add no cost."""
        [row] = self.db.fetch(self._by_state(table), [count_to] * len(_INDEXED))
        return RecordCount(*row)

    @statements
    def _by_state(self, table: RecordTable) -> str:
        record = table.under("record")
        counts = ", ".join(
            f"""(SELECT count(*) FROM (
                SELECT 1 FROM {table.name} AS record WHERE {record.state} = '{state}'
                ORDER BY {", ".join(getattr(record, column) for column in columns)} LIMIT %s
            ) AS {state}_rows)"""
            for state, columns in _INDEXED.items()
        )
        return f"SELECT {counts}"
