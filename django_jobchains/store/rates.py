"""How fast jobs may start: a token bucket for each rate key, kept as one time, by GCRA.

A bucket is a time: when it will be full, so that as many jobs may start at once as the burst allows. Each start moves
it by the interval of the rate. Jobs may start while it is at most ``burst`` intervals ahead. Times are microseconds
since 1970 by the database's clock, because sums of whole numbers are exact. See docs/decisions/0102-rates.md.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django_jobchains.store.database import Part, ids_json, rows_json, statement
from django_jobchains.store.errors import retried

_STARTED = "key text, count int, started_at bigint, microseconds bigint, burst int"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StartRate(NamedTuple):
    """The microseconds between two starts, and how many may start at once after a pause."""

    microseconds: int
    burst: int


class Rates(Part):
    def full_at(self, state: str, rate: str) -> str:
        """SQL of when a bucket is full, for a row of the table and the rate of its key.

        It is never more than a burst after the last start, unless the rate was lower then.
        """
        return f"{self.db.least}({state}.full_at, {state}.started_at + {rate}.microseconds * {rate}.burst)"

    def charge(self, started: Iterable[tuple[str, StartRate]], now: datetime) -> float:
        """Count the starts of jobs at this time: the keys of their buckets, and the rates.

        The transaction has claimed the jobs, and holds the locks of the keys and of their rows. Returns the seconds
        until one of these keys may start its next job, which are not positive if it may now.
        """
        microseconds = (now - _EPOCH) // timedelta(microseconds=1)
        counts = Counter(started)
        rows = [(key, count, microseconds, *rate) for (key, rate), count in counts.items()]
        full_at: dict[str, int] = dict(self.db.fetch(self._charge, [rows_json(_STARTED, rows)]))
        starts_at = [full_at[key] - rate.microseconds * (rate.burst - 1) for key, rate in counts]
        return (min(starts_at) - microseconds) / 1e6

    def refund(self, job_ids: Collection[UUID]) -> None:
        """Undo the starts of claimed jobs that have not begun, unless other jobs have started since then.

        A later start may have been possible only because of the time that has passed since the first one. If that were
        undone, too many could start within a window. Buckets that a claim has locked are skipped for the same reason.
        """
        ids = ids_json(job_ids)
        self.db.execute(self._refund, [ids, ids])

    @retried
    def forget(self, limit: int) -> int:
        """Delete rows of buckets that are full, which mean nothing; return their number."""
        return len(self.db.fetch(self._forget, [limit]))

    @statement
    def _charge(self) -> str:
        start = f"{self.db.greatest}(COALESCE({self.full_at('state', 'd')}, 0), d.started_at)"
        return f"""
            INSERT INTO {self.tables.rate_state} (key, full_at, started_at, interval_microseconds)
            SELECT d.key, {start} + d.microseconds * d.count, d.started_at, d.microseconds
            FROM {self.db.rows(_STARTED)} LEFT JOIN {self.tables.rate_state} AS state ON state.key = d.key WHERE true
            ON CONFLICT (key) DO UPDATE SET full_at = excluded.full_at, started_at = excluded.started_at,
                interval_microseconds = excluded.interval_microseconds
            RETURNING key, full_at
        """

    @statement
    def _refund(self) -> str:
        started_at = self.db.microseconds("job.last_attempt_at")
        job = f"{self.tables.job} AS job WHERE job.id {self.db.any_id} AND job.rate_key IS NOT NULL"
        unlocked = f"""
            SELECT free.key FROM {self.tables.rate_state} AS free
            WHERE free.key {self.db.any_of(f"SELECT job.rate_key FROM {job}")} {self.db.skip_lock("free")}
        """
        return f"""
            UPDATE {self.tables.rate_state} AS state
            SET full_at = state.full_at - state.interval_microseconds * d.count
            FROM (
                SELECT job.rate_key, {started_at} AS started_at, count(*) AS count FROM {job} GROUP BY 1, 2
            ) AS d
            WHERE state.key = d.rate_key AND state.started_at = d.started_at AND state.key {self.db.any_of(unlocked)}
        """

    @statement
    def _forget(self) -> str:
        full = f"""
            SELECT state.key FROM {self.tables.rate_state} AS state
            WHERE state.full_at <= {self.db.microseconds(self.db.now)} LIMIT %s {self.db.skip_lock("state")}
        """
        return f"DELETE FROM {self.tables.rate_state} WHERE key {self.db.any_of(full)} RETURNING key"
