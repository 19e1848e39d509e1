"""How fast jobs and records may start: a token bucket for each rate key, kept as one time, by GCRA.

A bucket is stored as the time when it will be full. As many as the burst allows may then start at the same time. Each
start moves it by the interval of the rate. Jobs and records may start while it is at most ``burst`` intervals ahead.
Times are microseconds since 1970 by the database's clock, because sums of whole numbers are exact. See
docs/decisions/0102-rates.md.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django_jobchains.store.database import Part, ids_json, rows_json, statement, statements
from django_jobchains.store.errors import retried

_WANTED = "rate_key text, microseconds bigint, burst int"
_STARTED = "key text, count int, started_at bigint, microseconds bigint, burst int"
_CHARGES = "rate_key text, started_at bigint"
_KEYS = "key text"
#: More microseconds than any bucket can lack.
_NO_SLACK = 2**62
#: The microseconds by which a start may be later than a statement's time, which a concurrent transaction may have set.
_MAX_AHEAD = 10_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StartRate(NamedTuple):
    """The microseconds between two starts, and how many may start at the same time after a pause."""

    microseconds: int
    burst: int


class Charge(NamedTuple):
    """The bucket that counts a start, and the time when it was counted, in microseconds."""

    rate_key: str
    started_at: int


class Bucket(NamedTuple):
    """How many may start now, 0 if the row of the bucket is locked, and the seconds until the next one may."""

    starts: int
    seconds: float


class RecentStarts(NamedTuple):
    """A bucket that is not full. The times are microseconds, and ``now`` is the current one."""

    rate_key: str
    full_at: int
    started_at: int
    interval: int
    now: int

    def seconds_to_next(self, rate: StartRate) -> float:
        """Return the seconds until this rate allows the next start, which are not positive if it does now."""
        missing = self.full_at - self.started_at
        if rate.microseconds != self.interval:  # as in ``Rates.full_at``
            missing = rate.microseconds * -(-missing // self.interval)
        full_at = self.started_at + min(missing, rate.microseconds * rate.burst)
        return (full_at - rate.microseconds * (rate.burst - 1) - self.now) / 1e6


class Rates(Part):
    def try_lock(self, rate_key: str) -> str:
        """SQL of whether this transaction has locked a bucket until it ends. It does not wait for others."""
        return self.db.try_lock(f"'rate ' || {rate_key}")

    def starts_at(self, rate: str, rate_key: str) -> str:
        """SQL of when a rate allows the next start, in microseconds; it is in the past for a bucket without a row."""
        return f"""
            COALESCE((
                SELECT {self.full_at(rate)} - {rate}.microseconds * ({rate}.burst - 1)
                FROM {self.tables.rate_state} AS state WHERE state.key = {rate_key}
            ), 0)
        """

    @property
    def buckets(self) -> str:
        """SQL of tables about the rates of ``wanted``: the time, the rows of buckets, and those of them locked now."""
        rated = self.db.any_of("SELECT DISTINCT rate_key FROM wanted WHERE burst IS NOT NULL")
        return f"""
            moment AS MATERIALIZED (
                SELECT now, {self.db.microseconds("now")} AS microseconds FROM {self.db.clock}
            ),
            states AS MATERIALIZED (SELECT * FROM {self.tables.rate_state} WHERE key {rated}),
            locked AS MATERIALIZED (
                SELECT state.key FROM {self.tables.rate_state} AS state WHERE key {rated} {self.db.skip_lock("state")}
            )"""

    @property
    def of_wanted(self) -> str:
        """SQL that joins ``wanted`` with ``buckets``."""
        return """
            wanted CROSS JOIN moment AS clock
            LEFT JOIN states AS state ON state.key = wanted.rate_key
            LEFT JOIN locked ON locked.key = wanted.rate_key
        """

    @property
    def starts(self) -> str:
        """SQL of how many may start now by the rate of a row of ``of_wanted``, NULL without one."""
        burst = "clock.microseconds + wanted.microseconds * wanted.burst"
        full_at = f"{self.db.greatest}(COALESCE({self.full_at('wanted')}, 0), clock.microseconds)"
        return f"""
            CASE WHEN burst IS NULL THEN NULL WHEN state.key IS NOT NULL AND locked.key IS NULL THEN 0
            ELSE ({burst} - {full_at}) / wanted.microseconds END
        """

    def full_at(self, rate: str) -> str:
        """SQL of when a bucket is full, for a row ``state`` of the table and the rate of its key.

        It is never more than a burst after the last start. If the rate has changed, the bucket lacks as many starts as
        before, rounded up. As many microseconds would be more starts of a faster rate, or fewer of a slower one.
        """
        missing, interval = "(state.full_at - state.started_at)", "state.interval_microseconds"
        return f"""
            (state.started_at + {self.db.least}(
                CASE WHEN {interval} = {rate}.microseconds THEN {missing}
                ELSE {rate}.microseconds * (({missing} + {interval} - 1) / {interval}) END,
                {rate}.microseconds * {rate}.burst
            ))
        """

    def read(self, rate_keys: Iterable[str], rate: StartRate) -> dict[str, Bucket]:
        """Return the buckets of these keys, and lock their rows. The transaction holds the locks of the keys."""
        rows = self.db.fetch(self._read, [rows_json(_WANTED, [(key, *rate) for key in set(rate_keys)])])
        return {key: Bucket(starts, float(seconds)) for key, starts, seconds in rows}

    def charge(self, started: Iterable[tuple[str, StartRate]], now: datetime) -> float:
        """Count starts at this time: the keys of their buckets, and the rates.

        The transaction has claimed the jobs or records, and holds the locks of the keys and of their rows. Returns the
        seconds until one of these keys may start its next one, which are not positive if it may now.
        """
        microseconds = in_microseconds(now)
        counts = Counter(started)
        rows = [(key, count, microseconds, *rate) for (key, rate), count in counts.items()]
        full_at: dict[str, int] = dict(self.db.fetch(self._charge, [rows_json(_STARTED, rows)]))
        starts_at = [full_at[key] - rate.microseconds * (rate.burst - 1) for key, rate in counts]
        return (min(starts_at) - microseconds) / 1e6

    def refund_jobs(self, job_ids: Collection[UUID]) -> None:
        """Undo the starts of claimed jobs that have not begun, in the transaction of the caller.

        A later start may have been possible only because of the time that has passed since an earlier one. The part of
        the earlier one that this time had already returned is not undone: otherwise too many could start within a
        window. Buckets that others have locked are skipped.
        """
        self._refund_charges(ids_json(job_ids), of_jobs=True)

    @retried
    def refund(self, charges: Sequence[Charge]) -> None:
        """Undo these starts in the same way as ``refund_jobs``."""
        with self.db.transaction():
            self.db.write_first()
            self._refund_charges(rows_json(_CHARGES, charges), of_jobs=False)

    def _refund_charges(self, charges: str, *, of_jobs: bool) -> None:
        # Another statement, whose snapshot is newer than the locks.
        if keys := [key for (key,) in self.db.fetch(self._lock_charged(of_jobs), [charges])]:
            self.db.execute(self._refund(of_jobs), [charges, rows_json(_KEYS, [(key,) for key in keys])])

    @retried
    def recent(self, limit: int) -> list[RecentStarts]:
        """Return buckets that are not full, among this many rows."""
        return [RecentStarts(*row) for row in self.db.fetch(self._recent, [limit])]

    @retried
    def forget(self, limit: int) -> int:
        """Delete rows of full buckets, which have no meaning; return their number.

        Also deletes those with a start in the future: the clock was ahead, and nothing could start until that time.
        """
        return len(self.db.fetch(self._forget, [limit]))

    @statement
    def _recent(self) -> str:
        now = self.db.microseconds(self.db.now)
        return f"""
            SELECT key, full_at, started_at, interval_microseconds, {now}
            FROM (SELECT * FROM {self.tables.rate_state} LIMIT %s) AS state WHERE full_at > {now}
        """

    @statement
    def _charge(self) -> str:
        full_at = self.full_at("d")
        start = f"{self.db.greatest}(COALESCE({full_at}, 0), d.started_at)"
        # The bucket was full, or the rate has changed: earlier starts no longer delay later ones by one interval each.
        is_first = f"""
            (state.key IS NULL OR {full_at} <= d.started_at OR {full_at} < state.full_at
                OR state.interval_microseconds <> d.microseconds)
        """
        return f"""
            INSERT INTO {self.tables.rate_state}
                (key, full_at, started_at, interval_microseconds, refundable_since, slack)
            SELECT d.key, {start} + d.microseconds * d.count, d.started_at, d.microseconds,
                CASE WHEN {is_first} THEN d.started_at ELSE state.refundable_since END,
                CASE WHEN {is_first} THEN {_NO_SLACK}
                    ELSE {self.db.least}(state.slack, state.full_at - d.started_at) END
            FROM {self.db.rows(_STARTED)} LEFT JOIN {self.tables.rate_state} AS state ON state.key = d.key WHERE true
            ON CONFLICT (key) DO UPDATE SET full_at = excluded.full_at, started_at = excluded.started_at,
                interval_microseconds = excluded.interval_microseconds, refundable_since = excluded.refundable_since,
                slack = excluded.slack
            RETURNING key, full_at
        """

    @statement
    def _read(self) -> str:
        starts_at = f"COALESCE({self.full_at('wanted')}, 0) - wanted.microseconds * (wanted.burst - 1)"
        return f"""
            WITH wanted AS MATERIALIZED (SELECT * FROM {self.db.rows(_WANTED)}), {self.buckets}
            SELECT rate_key, {self.starts}, ({starts_at} - clock.microseconds) / 1000000.0 FROM {self.of_wanted}
        """

    def _charges(self, *, of_jobs: bool) -> str:
        """SQL of the buckets and times of the starts in a parameter, which has the ids of jobs or these columns."""
        if not of_jobs:
            return f"SELECT d.rate_key, d.started_at FROM {self.db.rows(_CHARGES)}"
        return f"""
            SELECT job.rate_key, {self.db.microseconds("job.last_attempt_at")} AS started_at
            FROM {self.tables.job} AS job WHERE job.id {self.db.any_id} AND job.rate_key IS NOT NULL
        """

    @statements
    def _lock_charged(self, of_jobs: bool) -> str:
        keys = self.db.any_of(f"SELECT rate_key FROM ({self._charges(of_jobs=of_jobs)}) AS charged")
        return f"""
            SELECT state.key FROM {self.tables.rate_state} AS state WHERE state.key {keys} {self.db.skip_lock("state")}
        """

    @statements
    def _refund(self, of_jobs: bool) -> str:
        def count(compared: str) -> str:
            return f"sum(CASE WHEN charged.started_at {compared} own.started_at THEN 1 ELSE 0 END)"

        locked = self.db.any_of(f"SELECT d.key FROM {self.db.rows(_KEYS)}")
        of_earlier = f"{self.db.least}(state.interval_microseconds * d.earlier, state.slack)"
        return f"""
            UPDATE {self.tables.rate_state} AS state
            SET full_at = state.full_at - state.interval_microseconds * d.latest - {of_earlier},
                slack = state.slack - {of_earlier}
            FROM (
                SELECT own.key, {count("=")} AS latest, {count("<")} AS earlier
                FROM ({self._charges(of_jobs=of_jobs)}) AS charged
                JOIN {self.tables.rate_state} AS own ON own.key = charged.rate_key
                WHERE charged.started_at >= own.refundable_since AND own.key {locked} GROUP BY own.key
            ) AS d
            WHERE state.key = d.key
        """

    @statement
    def _forget(self) -> str:
        now = self.db.microseconds(self.db.now)
        full = f"""
            SELECT state.key FROM {self.tables.rate_state} AS state
            WHERE state.full_at <= {now} OR state.started_at > {now} + {_MAX_AHEAD}
            LIMIT %s {self.db.skip_lock("state")}
        """
        return f"DELETE FROM {self.tables.rate_state} WHERE key {self.db.any_of(full)} RETURNING key"


def in_microseconds(time: datetime) -> int:
    """Return a time as the columns of buckets have it."""
    return (time - _EPOCH) // timedelta(microseconds=1)
