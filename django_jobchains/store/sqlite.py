"""SQLite: one writer at a time, so a statement that writes first needs no row locks.

Each of the store's transactions begins with a write (``BEGIN IMMEDIATE`` in effect): a transaction that reads first and
writes later fails immediately if another process wrote in between, regardless of the busy timeout.
"""

import json
import re
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import DatabaseError, IntegrityError, OperationalError

from django_jobchains.db.connections import is_watched
from django_jobchains.db.ids import id_of
from django_jobchains.exceptions import TransactionEnded
from django_jobchains.store import Store
from django_jobchains.store.database import Database, OpenTransaction, statement, statements
from django_jobchains.store.jobs import Jobs
from django_jobchains.store.limits import TYPES, Limits

#: Instructions of SQLite's virtual machine, about a millisecond.
STEPS_BETWEEN_CHECKS = 50_000
#: The savepoint that marks the transaction of an attempt.
SAVEPOINT = "jobchains_attempt"
_FORMAT = "'%%Y-%%m-%%d %%H:%%M:%%f000'"
#: The columns of a group, which are the columns of its first job.
_GROUP = "c.queue, c.type_name, c.priority * -1 AS rank, c.run_at, c.id"
#: A group of limited jobs, by the expressions of their index.
_LIMITED_GROUP = "n.queue, n.type_name, n.limit_key, n.priority * -1"
#: More than all jobs.
_NO_LIMIT = 2**31
_IS_QUEUE_SERVED = (
    "CASE WHEN scope.is_every_queue THEN c.queue NOT IN (SELECT name FROM closed) "
    "ELSE c.queue IN (SELECT name FROM queues) END"
)


class SQLiteDatabase(Database):
    has_one_writer = True
    now_sql = clock_sql = f"strftime({_FORMAT}, 'now')"
    # A bare column has lost its type there, so SQLite would read the whole table instead of the index.
    returned_job_id = "CAST(job_id AS text)"

    def fetch(self, sql: str, params: Sequence[Any], *, of_queryset: bool = False) -> list[tuple[Any, ...]]:
        """Run a statement without Django's cursor, which takes longer to replace the placeholders than SQLite to run
        most statements."""
        connection = self.connection
        if of_queryset or is_watched(connection):
            return super().fetch(sql, params)
        connection.ensure_connection()
        connection.validate_no_broken_transaction()
        raw: sqlite3.Connection = connection.connection
        with connection.wrap_database_errors:
            return raw.execute(_with_question_marks(sql), params).fetchall()

    @property
    def busy_seconds(self) -> float:  # type: ignore[override]
        return float(self.connection.settings_dict["OPTIONS"].get("timeout", 5))

    def is_conflict(self, error: DatabaseError) -> bool:
        return "database is locked" in str(error)

    def is_duplicate(self, error: IntegrityError) -> bool:
        return "UNIQUE constraint failed" in str(error)

    @contextmanager
    def reads_within(self, seconds: float) -> Iterator[None]:
        """Limit the total time of all reads inside, on this thread's connection."""
        self.connection.ensure_connection()
        raw = self.connection.connection
        end = time.monotonic() + seconds
        raw.set_progress_handler(lambda: time.monotonic() > end, STEPS_BETWEEN_CHECKS)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)

    def is_out_of_time(self, error: OperationalError) -> bool:
        return getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT

    def prepare_for_workers(self) -> None:
        """Turn on the write-ahead log permanently: with a rollback journal, readers and writers wait for each other."""
        if not self.connection.in_atomic_block:
            self.fetch("PRAGMA journal_mode = WAL", [])

    def identity(self) -> Any:
        [(path,)] = self.fetch("SELECT file FROM pragma_database_list WHERE name = 'main'", [])
        if not path:  # It is in memory.
            return str(self.connection.settings_dict["NAME"])
        file = Path(path).stat()
        return file.st_dev, file.st_ino

    def rows(self, columns: str, name: str = "d") -> str:
        names = [column.split()[0] for column in columns.split(", ")]
        values = ", ".join(f"json_extract(value, '$.{column}') AS {column}" for column in names)
        return f"(SELECT {values} FROM json_each(%s)) AS {name}"

    def row(self, columns: str) -> str:
        return f"(SELECT {', '.join(f'%s AS {column.split()[0]}' for column in columns.split(', '))}) AS d"

    def by_index(self, name: str) -> str:
        # Without ANALYZE, SQLite takes the index that begins with the status, and sorts all jobs that have it.
        return f"INDEXED BY {name}"

    def json_text(self, column: str) -> str:
        return column

    def after(self, time: str, seconds: str) -> str:
        # Adds a fifth of a millisecond, because SQLite before 3.42 reads one time in a hundred a millisecond too early.
        return f"strftime({_FORMAT}, substr({time}, 1, 23) || '2', ({seconds}) || ' seconds')"

    def seconds(self, since: str, until: str) -> str:
        return f"(julianday({until}) - julianday({since})) * 86400.0"

    def microseconds(self, time: str) -> str:
        return f"(CAST(strftime('%%s', {time}) AS INTEGER) * 1000000 + CAST(substr({time}, 21, 6) AS INTEGER))"

    def start_of(self, span: str, time: str) -> str:
        return f"datetime(CAST(strftime('%%s', {time}) AS INTEGER) / {span} * {span}, 'unixepoch')"

    def latest(self, first: str, second: str) -> str:
        return f"MAX(COALESCE({first}, ''), {second})"

    def write_first(self) -> None:
        self.fetch(f"UPDATE {self.tables.job} SET id = id WHERE id = ''", [])

    def any_of(self, select: str) -> str:
        return f"IN ({select})"

    def is_listed(self, id: str, texts: str) -> str:
        return f"{id} IN (SELECT value FROM json_each({texts}))"

    def id_text(self, id: UUID) -> str:
        return id.hex

    def time_text(self, time: datetime) -> str:
        return time.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")

    def time_as_text(self, column: str) -> str:
        return f"{column} || ''"  # An expression has no declared type, which the driver would use to convert it.

    def time(self, text: str) -> datetime:
        return _time(text)

    def id(self, value: str) -> UUID:
        return _id(value)

    def mark(self, transaction: OpenTransaction | None, id: str) -> None:
        """Mark the transaction by a savepoint, which exists until the transaction ends in any way."""
        if transaction is not None:
            transaction.id = SAVEPOINT
            self.execute(f"SAVEPOINT {SAVEPOINT}", [])

    def check_transaction(self, transaction: OpenTransaction | None) -> None:
        if transaction is None or transaction.id is None:
            return
        try:
            self.execute(f"RELEASE {SAVEPOINT}", [])
        except OperationalError as error:
            if "no such savepoint" not in str(error):
                raise
            raise TransactionEnded from error
        self.mark(transaction, SAVEPOINT)

    def inside(self, transaction: OpenTransaction | None) -> tuple[str, list[Any]]:
        self.check_transaction(transaction)
        return "", []

    def lock_sql(self, *, skips: bool) -> str:
        return (
            f"UPDATE {self.tables.job} SET lease_number = lease_number WHERE id = %s "
            "RETURNING status, lease_number, '', NULL"
        )

    @property
    def groups(self) -> str:
        """SQL that finds each group by a few index probes.

        SQLite has no LATERAL, and uses no index for row comparisons of expressions, so the next group is the next
        priority of this type, or else the next type of this queue, or else the next queue.
        """
        job = self.tables.job
        next_type = _first(job, "n.queue = c.queue AND n.type_name > c.type_name")
        return f"""
            found(id) AS (
                SELECT {_first(job, "true")}
                UNION ALL
                SELECT COALESCE({_next_priority(job)}, {next_type}, {_first(job, "n.queue > c.queue")})
                FROM found CROSS JOIN {job} AS c ON c.id = found.id
            ),
            groups AS (SELECT {_GROUP} FROM found CROSS JOIN {job} AS c ON c.id = found.id)"""


class SQLiteJobs(Jobs):
    def _served(
        self, leases: Mapping[str, float], queues: Collection[str] | None, excluded: Collection[str]
    ) -> list[Any]:
        types = [{"type_name": name, "lease_seconds": seconds} for name, seconds in leases.items()]
        listed = [] if queues is None else sorted(set(queues).difference(excluded))
        return [json.dumps(types), json.dumps(listed), queues is None, json.dumps(list(excluded))]

    def _claim(self, worker: str, limit: int, served: list[Any]) -> list[tuple[Any, ...]]:
        return self.db.fetch(self._claim_jobs(limit), [*served, limit, worker])

    @statements
    def _claim_jobs(self, limit: int) -> str:
        # The limit of groups is written out: for an unknown limit, SQLite expects a million groups, and builds a bloom
        # filter for them from the whole index at each claim. BETWEEN is used, because the bloom filter of 3.40 lets
        # nothing through to an index's expression.
        return f"""
            WITH RECURSIVE {self._heads},
            due AS MATERIALIZED (
                SELECT candidate.id, served.now, served.leased_until
                FROM (
                    SELECT * FROM heads WHERE run_at <= {self.db.now} ORDER BY rank, run_at, id LIMIT {limit}
                ) AS served
                CROSS JOIN {self.tables.job} AS candidate
                WHERE candidate.status = 'pending' AND candidate.queue = served.queue
                AND candidate.type_name = served.type_name
                AND candidate.priority * -1 BETWEEN served.rank AND served.rank
                AND candidate.run_at <= {self.db.now}
                LIMIT %s
            )
            UPDATE {self.tables.job} AS job
            SET {self.started("due.now")}, leased_until = due.leased_until
            FROM due WHERE job.id = due.id AND job.status || '' = 'pending'
            RETURNING {self.claimed_columns}
        """

    @statement
    def _next_due(self) -> str:
        seconds = f"(julianday(min(run_at)) - julianday('now')) * 86400.0 - {self.db.ahead_seconds}"
        return f"WITH RECURSIVE {self._heads} SELECT {seconds} FROM heads"

    @property
    def _heads(self) -> str:
        """The first job of each (queue, type, priority) that is pending and served, the time, and the end of its lease.

        One step skips everything up to the next served type or queue. Paused queues are read here, so that no job is
        claimed after the pause of its queue was committed.
        """
        job = self.tables.job
        next_queue = (
            f"CASE WHEN scope.is_every_queue THEN {_first(job, 'n.queue > c.queue')} "
            f"ELSE {_first(job, 'n.queue >= (SELECT min(name) FROM queues WHERE name > c.queue)')} END"
        )
        paused = f"SELECT name FROM {self.tables.queue} WHERE paused_at IS NOT NULL"
        of_queue = "n.queue = c.queue AND n.type_name"
        served_type = _first(job, f"{of_queue} >= (SELECT min(type_name) FROM types WHERE type_name > c.type_name)")
        return f"""
            types AS MATERIALIZED (SELECT * FROM {self.db.rows("type_name text, lease_seconds float")}),
            queues(name) AS MATERIALIZED (SELECT value FROM json_each(%s) WHERE value NOT IN ({paused})),
            scope AS MATERIALIZED (SELECT %s AS is_every_queue),
            closed(name) AS MATERIALIZED (SELECT value FROM json_each(%s) UNION ALL {paused}),
            reached(id) AS (
                SELECT {_first(job, "true")}
                UNION ALL
                SELECT CASE
                    WHEN NOT {_IS_QUEUE_SERVED} THEN {next_queue}
                    WHEN c.type_name NOT IN (SELECT type_name FROM types) THEN COALESCE({served_type}, {next_queue})
                    ELSE COALESCE({_next_priority(job)}, {_first(job, f"{of_queue} > c.type_name")}, {next_queue})
                END
                FROM reached CROSS JOIN scope CROSS JOIN {job} AS c ON c.id = reached.id
            ),
            heads AS MATERIALIZED (
                SELECT {_GROUP}, clock.now, {self.db.after("clock.now", "types.lease_seconds")} AS leased_until
                FROM reached CROSS JOIN scope CROSS JOIN {job} AS c ON c.id = reached.id
                CROSS JOIN types ON types.type_name = c.type_name CROSS JOIN {self.db.clock} WHERE {_IS_QUEUE_SERVED}
            )"""


class SQLiteLimits(Limits):
    """The scan of limited jobs. One transaction writes at a time, so nothing has to be locked."""

    @property
    def _scan(self) -> str:
        """A range is a queue and a type. The keys after the one that was served last come first, then the others.

        If SQLite expected as many groups as jobs, it would read all jobs for a bloom filter.
        """
        job, paused = self.tables.job, f"SELECT name FROM {self.tables.queue} WHERE paused_at IS NOT NULL"
        of_range = "n.queue = r.queue AND n.type_name = r.type_name AND n.limit_key"
        next_rank = f"{of_range} = c.limit_key AND n.priority * -1 > c.priority * -1"
        first_queue, next_queue = self._first("n.queue", "true"), self._first("n.queue", "n.queue > queues.queue")
        before = self._first("n.id", f"{of_range} <= r.start")
        return f"""
            types AS MATERIALIZED (SELECT * FROM {self.db.rows(TYPES)}),
            served AS MATERIALIZED (SELECT * FROM {self.db.rows("queue text, type_name text, after text")}),
            beginning AS MATERIALIZED (SELECT %s AS start),
            listed(name) AS MATERIALIZED (SELECT value FROM json_each(%s)),
            scope AS MATERIALIZED (SELECT %s AS is_every_queue),
            closed(name) AS MATERIALIZED (SELECT value FROM json_each(%s) UNION ALL {paused}),
            queues(queue) AS (
                SELECT {first_queue}
                UNION ALL
                SELECT {next_queue} FROM queues WHERE queues.queue IS NOT NULL
            ),
            ranges AS MATERIALIZED (
                SELECT queues.queue, types.*, COALESCE(served.after, beginning.start) AS start
                FROM queues CROSS JOIN beginning CROSS JOIN scope CROSS JOIN types LEFT JOIN served
                ON served.queue = queues.queue AND served.type_name = types.type_name
                WHERE queues.queue IS NOT NULL AND queues.queue NOT IN (SELECT name FROM closed)
                AND (scope.is_every_queue OR queues.queue IN (SELECT name FROM listed))
                AND {self._is_free("types.shared_key")}
            ),
            walked(queue, type_name, slot_limit, microseconds, burst, start, id) AS (
                SELECT r.queue, r.type_name, r.slot_limit, r.microseconds, r.burst, r.start,
                    COALESCE({self._first("n.id", f"{of_range} > r.start")}, {before})
                FROM ranges AS r
                UNION ALL
                SELECT r.queue, r.type_name, r.slot_limit, r.microseconds, r.burst, r.start, COALESCE(
                    {self._first("n.id", next_rank)},
                    CASE WHEN c.limit_key > r.start
                    THEN COALESCE({self._first("n.id", f"{of_range} > c.limit_key")}, {before})
                    ELSE {self._first("n.id", f"{of_range} > c.limit_key AND n.limit_key <= r.start")} END
                )
                FROM walked AS r CROSS JOIN {job} AS c ON c.id = r.id
            ),
            reached AS (
                SELECT c.queue, c.type_name, c.limit_key, c.priority * -1 AS rank, c.run_at, c.concurrency_key,
                    c.rate_key, r.slot_limit, r.microseconds, r.burst
                FROM walked AS r CROSS JOIN {job} AS c ON c.id = r.id WHERE likelihood(r.id IS NOT NULL, 0.000001)
            )"""

    def _first(self, column: str, condition: str, order: str = f"{_LIMITED_GROUP}, n.run_at, n.id") -> str:
        """SQL of a column of the first pending job ``n`` that meets a condition."""
        return (
            f"(SELECT {column} FROM {self.tables.job} AS n INDEXED BY jobchains_limited WHERE {self._pending} "
            f"AND {condition} ORDER BY {order} LIMIT 1)"
        )

    @property
    def _picked(self) -> str:
        due = (
            "n.queue = free.queue AND n.type_name = free.type_name AND n.limit_key = free.limit_key "
            f"AND n.priority * -1 = free.rank AND n.run_at <= {self.db.now}"
        )
        order = "n.run_at, n.id"
        return f"""
            walked(position, turn, id) AS (
                SELECT free.position, 1, {self._first("n.id", due, order)} FROM free
                UNION ALL
                SELECT walked.position, walked.turn + 1,
                    {self._first("n.id", f"{due} AND (n.run_at, n.id) > (c.run_at, c.id)", order)}
                FROM walked CROSS JOIN free ON free.position = walked.position
                CROSS JOIN {self.tables.job} AS c ON c.id = walked.id
                WHERE walked.turn < min(%s, COALESCE(free.places, {_NO_LIMIT}), COALESCE(free.starts, {_NO_LIMIT}))
            ),
            picked AS MATERIALIZED (
                SELECT free.position, free.type_name, free.limit_key, free.rank, free.concurrency_key, free.rate_key,
                    free.places, free.starts, c.id, c.run_at
                FROM walked CROSS JOIN free ON free.position = walked.position
                CROSS JOIN {self.tables.job} AS c ON c.id = walked.id
            )"""


class SQLiteStore(Store):
    database_class = SQLiteDatabase
    jobs_class = SQLiteJobs
    limits_class = SQLiteLimits


def _next_priority(job: str) -> str:
    return _first(job, "n.queue = c.queue AND n.type_name = c.type_name AND n.priority * -1 > c.priority * -1")


def _first(job: str, condition: str) -> str:
    """SQL of the first pending job ``n`` after a job ``c``, in the order of the index.

    The index is named for the reason in ``SQLiteDatabase.by_index``.
    """
    return (
        f"(SELECT id FROM {job} AS n INDEXED BY jobchains_claimable WHERE n.status = 'pending' AND {condition} "
        "ORDER BY n.queue, n.type_name, n.priority * -1, n.run_at, n.id LIMIT 1)"
    )


@lru_cache(maxsize=500)
def _with_question_marks(sql: str) -> str:
    return re.sub("(?<!%)%s", "?", sql).replace("%%", "%")


@lru_cache(maxsize=1_000)  # Jobs that are enqueued or claimed together have the same times.
def _time(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")  # This is faster than replacing the time zone of the result.


@lru_cache(maxsize=1_000)  # The same ids are read again when the attempts end.
def _id(text: str) -> UUID:
    return id_of(int(text, 16))  # This is faster than from hex, which also accepts other notations.
