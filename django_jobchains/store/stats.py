"""Counts jobs up to a limit by index, and counts attempts that ended. History adds no cost."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from django_jobchains.payloads.codecs import decode_text
from django_jobchains.store.database import Part, rows_json, statement, statements
from django_jobchains.store.errors import retried
from django_jobchains.text.errors import ENCODED, first_line

#: The limit of groups of one queue, type and priority that are counted.
MAX_GROUPS = 1_000
#: The limit of failed jobs, and of failed attempts, that are read, newest first.
MAX_FAILED = 1_000
#: The limit of pending jobs of a group, and of blocked jobs, that are read for their names.
MAX_READ = 1_000
#: The number of characters of an error.
ERROR_LENGTH = 500

#: The lengths in seconds of the spans in which attempts are counted.
MINUTE, HOUR = 60, 3_600
#: How many minutes and hours are shown, including the current one.
SHOWN_MINUTES, SHOWN_HOURS = 60, 24
#: How long spans are kept.
KEPT_SECONDS = {MINUTE: 2 * 3_600, HOUR: 8 * 86_400}
#: The limit of rows of each span that are deleted in one statement.
PRUNE_LIMIT = 2_000

_TALLY = (
    "type_name text, queue text, age_seconds float, completed int, failed int, crashed int, jobs_failed int, "
    "seconds float, longest_seconds float"
)
_KEYS = "concurrency_key text"
_TURNS = "queue text, type_name text, limit_key bigint, key text"
#: The rows that count an attempt: the row of its minute, and the rows of its type and its queue in that hour. So an
#: hour has one row for each type and one for each queue, and not one for each pair of them.
_SPANS = " UNION ALL ".join(
    f"SELECT {span} AS span, '{counted_by}' AS counted_by"
    for span, counted_by in ((MINUTE, ""), (HOUR, "type"), (HOUR, "queue"))
)
_HOURS_BACK = "back float"


class PendingGroup(NamedTuple):
    """Pending jobs of one queue, type and priority. ``due_seconds``: how long the first of them has been due, below 0
    if it is not due yet."""

    queue: str
    type_name: str
    due: int
    scheduled: int
    due_seconds: float


class HeldGroup(NamedTuple):
    """Jobs that are running, blocked or failed, of one queue and type."""

    status: str
    queue: str
    type_name: str
    jobs: int


class RunningGroup(NamedTuple):
    """Running jobs of one queue and type that limits count by the same keys; None: they are not counted."""

    queue: str
    type_name: str
    concurrency_key: str | None
    rate_key: str | None
    jobs: int


@dataclass(frozen=True)
class FailingType:
    """A type with recent failed attempts. Attempts of cancelled jobs are not included.

    ``crashes``: how many of the ``attempts`` failed because their lease expired. ``failed_jobs``: how many of the
    ``jobs`` have ended as failed. The other jobs are retried, or have completed later. ``last_error``: one line.
    ``new_failed_jobs``: the failed jobs whose last attempt failed in the last hour. ``counted_attempts`` and
    ``counted_failures``: all attempts and failed attempts in the last ``counted_seconds``, between one and two hours,
    as counted by workers.
    """

    name: str
    attempts: int
    crashes: int
    jobs: int
    last_error: str
    last_at: datetime
    last_age_seconds: float
    failed_jobs: int = 0
    new_failed_jobs: int = 0
    counted_attempts: int = 0
    counted_failures: int = 0
    counted_seconds: float = 0.0


@dataclass(frozen=True)
class DatabaseFacts:
    """Figures of the database server. Figures that the vendor does not provide are None."""

    alias: str
    vendor: str
    oldest_transaction_seconds: float | None
    connections: int | None
    max_connections: int | None


class TypeTally(NamedTuple):
    """Attempts of a type that ended about ``age_seconds`` ago. The durations of the ``crashed`` ones are unknown.

    ``jobs_failed``: how many of the failed and crashed attempts were the last of their jobs, which ended as failed.
    """

    type_name: str
    queue: str
    age_seconds: float
    completed: int
    failed: int
    crashed: int
    jobs_failed: int
    seconds: float
    longest_seconds: float


class SpanCount(NamedTuple):
    """Attempts that ended in ``span`` seconds. ``failed`` includes those that crashed."""

    span: int
    starts_at: datetime
    completed: int
    failed: int
    jobs_failed: int


@dataclass(frozen=True)
class TypeRuns:
    """The attempts of a type that ended in the last hours. The mean duration excludes crashes."""

    name: str
    completed: int
    failed: int
    jobs_failed: int
    mean_seconds: float
    longest_seconds: float


class Stats(Part):
    @retried
    def time_ago(self, seconds: float) -> datetime:
        """Return the database's time this many seconds ago."""
        time = self.db.time_as_text(self.db.after("clock.now", str(-seconds)))
        ((text,),) = self.db.fetch(f"SELECT {time} FROM {self.db.clock}", [])
        return self.db.time(text)

    @retried
    def activity(self) -> DatabaseFacts:
        """Return figures of the server, which are None for a database without one."""
        [figures] = self.db.fetch(self.db.activity, []) if self.db.activity else [(None, None, None)]
        return DatabaseFacts(self.db.using, self.db.connection.vendor, *figures)

    @retried
    def names(self, column: Literal["type_name", "chain_type_name", "queue"], limit: int) -> list[str]:
        """Return the types, chain types or queues of the jobs that exist, in order; a few index probes for each.

        Of many blocked jobs, the newest are read. Of each group of pending jobs, the first are read for chain types.
        """
        return [name for (name,) in self.db.fetch(self._names(column), [limit, limit])]

    @retried
    def pending_groups(self, count_to: int) -> list[PendingGroup]:
        """Count each group up to ``count_to``; at most ``MAX_GROUPS``, or one more if there are more."""
        return [PendingGroup(*row) for row in self.db.fetch(self._pending, [count_to, count_to, MAX_GROUPS + 1])]

    @retried
    def held_groups(self, count_to: int) -> list[HeldGroup]:
        """Count running and blocked jobs, up to ``count_to`` of each, and the newest ``MAX_FAILED`` failed ones."""
        return [HeldGroup(*row) for row in self.db.fetch(self._held(MAX_FAILED), [count_to, count_to])]

    @retried
    def running_groups(self, count_to: int) -> list[RunningGroup]:
        """Count running jobs, up to ``count_to`` in all."""
        return [RunningGroup(*row) for row in self.db.fetch(self._running, [count_to])]

    @retried
    def waiting_with(
        self, concurrency_keys: Sequence[str], turns: Sequence[tuple[str, str, int, str]], count_to: int
    ) -> dict[str, int]:
        """Count the due jobs that wait for limits, for each concurrency key and for each key of ``turns``.

        ``turns``: tuples of a queue, a type and a limit key, and the key in the result that counts their jobs. Reads up
        to ``count_to`` pending jobs for each queue, type and limit key.
        """
        keys = rows_json(_KEYS, [(key,) for key in concurrency_keys])
        rows = self.db.fetch(self._waiting, [keys, rows_json(_TURNS, turns), count_to])
        counts: defaultdict[str, int] = defaultdict(int)
        for key, waiting in rows:
            counts[key] += waiting
        return counts

    @retried
    def failing_types(self, within_seconds: float) -> list[FailingType]:
        """Return the recent ones of the newest ``MAX_FAILED`` failed attempts by type, latest failure first."""
        rows = self.db.fetch(self._failing(MAX_FAILED), [-within_seconds])
        return [
            FailingType(
                name,
                attempts,
                crashes,
                jobs,
                first_line(decode_text(error)),
                self.db.time(last_at),
                max(seconds, 0.0),
                *counts,
            )
            for name, attempts, crashes, jobs, error, last_at, seconds, *counts in rows
        ]

    @retried
    def add_counts(self, tallies: Sequence[TypeTally]) -> None:
        """Add to the minutes and the hours, by the database's clock, in which these attempts ended.

        For minutes, only the sum of all types is stored. For hours, the sums of each type and of each queue are.
        """
        self.db.fetch(self._add_counts, [json.dumps([tally._asdict() for tally in tallies])])

    @retried
    def prune_counts(self) -> int:
        """Delete rows that have been kept long enough, ``PRUNE_LIMIT`` of each span at most; return how many."""
        return len(self.db.fetch(self._prune_counts(PRUNE_LIMIT), []))

    @retried
    def counts_by_time(self, now: datetime, hours: int = SHOWN_HOURS) -> list[SpanCount]:
        """Return the minutes of the last hour, and the last hours, in which attempts ended."""
        rows = self.db.fetch(self._counts_by_time(hours), [self.db.time_text(now)] * 2)
        return [SpanCount(span, self.db.time(starts_at), *sums) for span, starts_at, *sums in rows]

    @retried
    def counts_by_type(self, now: datetime, limit: int, hours: int = SHOWN_HOURS) -> list[TypeRuns]:
        """Return the types whose attempts ended in these hours, those with the longest mean first."""
        return [TypeRuns(*row) for row in self.db.fetch(self._counts_by_type(limit, hours), [self.db.time_text(now)])]

    @retried
    def counts_of(self, now: datetime, hours: int, *, type_name: str = "", queue: str = "") -> list[SpanCount]:
        """Return the last hours in which attempts of a type, or of a queue, ended; an index probe for each hour."""
        back = rows_json(_HOURS_BACK, [[hour * HOUR] for hour in range(hours)])
        rows = self.db.fetch(self._counts_of, [type_name, queue, self.db.time_text(now), back])
        return [SpanCount(HOUR, self.db.time(starts_at), *sums) for starts_at, *sums in rows]

    # Statements

    @statements
    def _names(self, column: str) -> str:
        job = self.tables.job
        # Sub-selects make each step an index probe. For a join, the database might read the whole table.
        return f"""
            WITH RECURSIVE ended(name) AS (
                SELECT (SELECT {column} FROM {job} WHERE {self.db.is_ended} ORDER BY {column} LIMIT 1)
                UNION ALL
                SELECT (
                    SELECT row.{column} FROM {job} AS row WHERE {self.db.is_ended} AND row.{column} > ended.name
                    ORDER BY row.{column} LIMIT 1
                ) FROM ended WHERE ended.name IS NOT NULL
            ),
            {self.db.groups}
            SELECT name FROM (
                SELECT name FROM (SELECT name FROM ended LIMIT %s) AS limited
                UNION
                SELECT {column} FROM {job} WHERE status = 'running'
                UNION
                SELECT {column} FROM (SELECT {column} FROM {job} WHERE status = 'blocked'
                    ORDER BY chain_id DESC, chain_index DESC LIMIT {MAX_READ}) AS blocked
                UNION
                {self._pending_names(column)}
            ) AS found WHERE name IS NOT NULL ORDER BY name LIMIT %s
        """

    def _pending_names(self, column: str) -> str:
        if column != "chain_type_name":
            return f"SELECT {column} FROM groups"
        # The chains of later jobs are found by their first jobs.
        return f"""
            SELECT type_name FROM groups AS g WHERE EXISTS (
                SELECT 1 FROM (
                    SELECT chain_index FROM {self.tables.job} AS job
                    WHERE job.status = 'pending' AND job.queue = g.queue AND job.type_name = g.type_name
                    AND job.priority * -1 = g.rank LIMIT {MAX_READ}
                ) AS read WHERE chain_index = 0
            )
        """

    @statement
    def _pending(self) -> str:
        of_group = f"""
            FROM {self.tables.job} AS job WHERE job.status = 'pending' AND job.queue = g.queue
            AND job.type_name = g.type_name AND job.priority * -1 = g.rank
        """
        return f"""
            WITH RECURSIVE {self.db.groups}
            SELECT g.queue, g.type_name,
                (SELECT count(*) FROM (SELECT 1 {of_group} AND job.run_at <= {self.db.now} LIMIT %s) AS due),
                (SELECT count(*) FROM (SELECT 1 {of_group} AND job.run_at > {self.db.now} LIMIT %s) AS later),
                {self.db.seconds("g.run_at", self.db.now)}
            FROM (SELECT * FROM groups LIMIT %s) AS g
        """

    @statements
    def _held(self, max_failed: int) -> str:
        job = self.tables.job
        return f"""
            SELECT status, queue, type_name, count(*) FROM (
                SELECT * FROM (SELECT status, queue, type_name FROM {job}
                    WHERE status = 'running' ORDER BY leased_until LIMIT %s) AS running
                UNION ALL
                SELECT * FROM (SELECT status, queue, type_name FROM {job}
                    WHERE status = 'blocked' ORDER BY chain_id, chain_index LIMIT %s) AS blocked
                UNION ALL
                SELECT * FROM (SELECT status, queue, type_name FROM {job}
                    WHERE status = 'failed' ORDER BY chain_id DESC, chain_index DESC LIMIT {max_failed}) AS failed
            ) AS held GROUP BY status, queue, type_name
        """

    @statement
    def _running(self) -> str:
        return f"""
            SELECT queue, type_name, concurrency_key, rate_key, count(*) FROM (
                SELECT queue, type_name, concurrency_key, rate_key FROM {self.tables.job}
                WHERE status = 'running' ORDER BY leased_until LIMIT %s
            ) AS running GROUP BY queue, type_name, concurrency_key, rate_key
        """

    @statement
    def _waiting(self) -> str:
        keys = self.db.any_of(f"SELECT concurrency_key FROM {self.db.rows(_KEYS)}")
        return f"""
            WITH busy AS MATERIALIZED (
                SELECT queue, type_name, limit_key, concurrency_key AS key
                FROM {self.tables.job} {self.db.by_index("jobchains_counted")}
                WHERE status = 'running' AND concurrency_key IS NOT NULL AND concurrency_key {keys}
                AND limit_key IS NOT NULL
                UNION
                SELECT d.queue, d.type_name, d.limit_key, d.key FROM {self.db.rows(_TURNS)}
            )
            SELECT key, (
                SELECT count(*) FROM (
                    SELECT n.run_at FROM {self.tables.job} AS n {self.db.by_index("jobchains_limited")}
                    WHERE n.status = 'pending' AND n.limit_key IS NOT NULL AND n.queue = busy.queue
                    AND n.type_name = busy.type_name AND n.limit_key = busy.limit_key LIMIT %s
                ) AS behind WHERE run_at <= {self.db.now}
            ) FROM busy
        """

    @statements
    def _failing(self, max_failed: int) -> str:
        # The beginning of an encoded error cannot be decoded.
        is_encoded = f"substr(error, 1, {len(ENCODED)}) = '{ENCODED}'"
        start = f"CASE WHEN {is_encoded} THEN error ELSE substr(error, 1, {ERROR_LENGTH}) END"
        # If the limit were a parameter, PostgreSQL might plan to sort all attempts. For a join, it might read all jobs.
        is_new = f"finished_at > {self.db.after(self.db.now, str(-HOUR))}"
        last_hour = self.db.start_of(str(HOUR), self.db.after(self.db.now, str(-HOUR)))
        return f"""
            WITH newest AS (
                SELECT failed.id, failed.job_id, failed.kind, failed.finished_at,
                    (SELECT job.type_name FROM {self.tables.job} AS job WHERE job.id = failed.job_id) AS type_name,
                    (SELECT job.status FROM {self.tables.job} AS job WHERE job.id = failed.job_id) AS status
                FROM (SELECT * FROM {self.tables.failed_attempt} ORDER BY id DESC LIMIT {max_failed}) AS failed
            ),
            lately AS (
                SELECT type_name, count(*) AS attempts, sum(CASE kind WHEN 'crash' THEN 1 ELSE 0 END) AS crashes,
                    count(DISTINCT job_id) AS jobs, max(id) AS last_id, max(finished_at) AS last_at,
                    count(DISTINCT CASE status WHEN 'failed' THEN job_id END) AS failed_jobs,
                    count(DISTINCT CASE WHEN status = 'failed' AND {is_new} THEN job_id END) AS new_failed_jobs
                FROM newest
                WHERE finished_at > {self.db.after(self.db.now, "%s")} AND status <> 'cancelled' GROUP BY type_name
            ),
            counted AS (
                SELECT type_name, sum(completed + failed + crashed) AS attempts, sum(failed + crashed) AS failures
                FROM {self.tables.attempt_count}
                WHERE span = {HOUR} AND starts_at >= {last_hour} AND type_name <> '' GROUP BY type_name
            )
            SELECT lately.type_name, lately.attempts, crashes, jobs,
                (SELECT {start} FROM {self.tables.failed_attempt} WHERE id = last_id),
                {self.db.time_as_text("last_at")}, {self.db.seconds("last_at", self.db.now)},
                failed_jobs, new_failed_jobs, COALESCE(counted.attempts, 0), COALESCE(counted.failures, 0),
                {self.db.seconds(last_hour, self.db.now)}
            FROM lately LEFT JOIN counted ON counted.type_name = lately.type_name ORDER BY last_id DESC
        """

    @statement
    def _add_counts(self) -> str:
        table = self.tables.attempt_count
        starts_at = self.db.start_of("spans.span", self.db.after("clock.now", "d.age_seconds * -1"))
        # Sorted, so that workers that add to the same rows do not deadlock.
        return f"""
            INSERT INTO {table}
                (span, starts_at, type_name, queue, completed, failed, crashed, jobs_failed, seconds, longest_seconds)
            SELECT span, starts_at, type_name, queue,
                sum(completed), sum(failed), sum(crashed), sum(jobs_failed), sum(seconds), max(longest_seconds)
            FROM (
                SELECT spans.span, {starts_at} AS starts_at,
                    CASE counted_by WHEN 'type' THEN d.type_name ELSE '' END AS type_name,
                    CASE counted_by WHEN 'queue' THEN d.queue ELSE '' END AS queue,
                    completed, failed, crashed, jobs_failed, seconds, longest_seconds
                FROM {self.db.rows(_TALLY)} CROSS JOIN {self.db.clock} CROSS JOIN ({_SPANS}) AS spans
            ) AS counted
            WHERE true GROUP BY span, starts_at, type_name, queue ORDER BY span, starts_at, type_name, queue
            ON CONFLICT (span, starts_at, type_name, queue) DO UPDATE SET
                completed = {table}.completed + excluded.completed, failed = {table}.failed + excluded.failed,
                crashed = {table}.crashed + excluded.crashed, jobs_failed = {table}.jobs_failed + excluded.jobs_failed,
                seconds = {table}.seconds + excluded.seconds,
                longest_seconds = CASE WHEN {table}.longest_seconds > excluded.longest_seconds
                    THEN {table}.longest_seconds ELSE excluded.longest_seconds END
            RETURNING span
        """

    @statements
    def _prune_counts(self, limit: int) -> str:
        table = self.tables.attempt_count
        # Rows that another worker is deleting are skipped.
        old = ", ".join(
            f"""old_{span} AS MATERIALIZED (
                SELECT span, starts_at, type_name, queue FROM {table} WHERE span = {span}
                AND starts_at < {self.db.after(self.db.now, str(-seconds))} LIMIT {limit} {self.db.skip_lock(table)}
            )"""
            for span, seconds in KEPT_SECONDS.items()
        )
        keys = " UNION ALL ".join(f"SELECT span, starts_at, type_name, queue FROM old_{span}" for span in KEPT_SECONDS)
        return f"WITH {old} DELETE FROM {table} WHERE (span, starts_at, type_name, queue) IN ({keys}) RETURNING span"

    @statements
    def _counts_by_time(self, hours: int) -> str:
        columns = "SELECT span, starts_at, completed, failed + crashed AS failed, jobs_failed"
        spans = f"{columns} {self._shown(MINUTE, SHOWN_MINUTES)} UNION ALL {columns} {self._shown(HOUR, hours)}"
        return f"""
            SELECT span, {self.db.time_as_text("starts_at")}, sum(completed), sum(failed), sum(jobs_failed)
            FROM ({spans}) AS shown GROUP BY span, starts_at
        """

    @statements
    def _counts_by_type(self, limit: int, hours: int) -> str:
        return f"""
            SELECT type_name, sum(completed), sum(failed + crashed), sum(jobs_failed),
                COALESCE(sum(seconds) / NULLIF(sum(completed + failed), 0), 0.0) AS mean, max(longest_seconds)
            {self._shown(HOUR, hours)} GROUP BY type_name ORDER BY mean DESC, type_name LIMIT {limit:d}
        """

    def _shown(self, span: int, count: int) -> str:
        """SQL of the rows of a minute, or of a type in an hour. Those of queues count the same attempts again."""
        return f"""
            FROM {self.db.row("now timestamptz")} CROSS JOIN {self.tables.attempt_count} AS ended
            WHERE span = {span} AND starts_at > {self.db.after("d.now", str(-span * count))}
            AND starts_at <= d.now AND queue = ''
        """

    @statement
    def _counts_of(self) -> str:
        starts_at = self.db.start_of(str(HOUR), self.db.after("d.now", "hours.back * -1"))
        hours = f"SELECT {starts_at} FROM {self.db.row('now timestamptz')}, {self.db.rows(_HOURS_BACK, 'hours')}"
        return f"""
            SELECT {self.db.time_as_text("starts_at")}, completed, failed + crashed, jobs_failed
            FROM {self.tables.attempt_count} WHERE span = {HOUR} AND type_name = %s AND queue = %s
            AND starts_at {self.db.any_of(hours)}
        """
