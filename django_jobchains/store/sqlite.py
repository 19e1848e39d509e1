"""SQLite: one writer at a time, so a statement that writes first needs no row locks.

Each of the store's transactions begins with a write (``BEGIN IMMEDIATE`` in effect): a transaction that reads first and
writes later fails at once when another process wrote in between, whatever the busy timeout.
"""

import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, OperationalError

from django_jobchains.exceptions import TransactionEnded
from django_jobchains.store.base import Store
from django_jobchains.store.errors import retried
from django_jobchains.store.rows import OpenTransaction

#: Of SQLite's machine, about a millisecond.
STEPS_BETWEEN_LOOKS = 50_000
#: In the transaction of an attempt.
SAVEPOINT = "jobchains_attempt"
_FORMAT = "'%%Y-%%m-%%d %%H:%%M:%%f000'"
#: Columns of a group, of its first job.
_GROUP = "c.queue, c.type_name, c.priority * -1 AS rank, c.run_at, c.id"
_IS_QUEUE_SERVED = (
    "CASE WHEN scope.is_every_queue THEN c.queue NOT IN (SELECT name FROM closed) "
    "ELSE c.queue IN (SELECT name FROM queues) END"
)


class SQLiteStore(Store):
    _now = _clock = f"strftime({_FORMAT}, 'now')"
    json_cast = ""
    # Bare, it has lost its type there, and SQLite reads the whole table instead of the index.
    _returned_job_id = "CAST(job_id AS text)"

    def _is_conflict(self, error: OperationalError) -> bool:
        return "database is locked" in str(error)

    def _is_duplicate(self, error: IntegrityError) -> bool:
        return "UNIQUE constraint failed" in str(error)

    @contextmanager
    def reads_within(self, seconds: float) -> Iterator[None]:
        """All of them together, as long as they are read from this thread's connection."""
        self.connection.ensure_connection()
        raw = self.connection.connection
        end = time.monotonic() + seconds
        raw.set_progress_handler(lambda: time.monotonic() > end, STEPS_BETWEEN_LOOKS)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)

    def is_out_of_time(self, error: OperationalError) -> bool:
        return getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT

    def prepare_for_workers(self) -> None:
        """Turns the write-ahead log on, for good: with a rollback journal readers and writers wait for each other."""
        if not self.connection.in_atomic_block:
            self._fetch("PRAGMA journal_mode = WAL", [])

    def _rows(self, columns: str, name: str = "d") -> str:
        names = [column.split()[0] for column in columns.split(", ")]
        values = ", ".join(f"json_extract(value, '$.{column}') AS {column}" for column in names)
        return f"(SELECT {values} FROM json_each(%s)) AS {name}"

    def _row(self, columns: str) -> str:
        return f"(SELECT {', '.join(f'%s AS {column.split()[0]}' for column in columns.split(', '))}) AS d"

    def _json_text(self, column: str) -> str:
        return column

    def _after(self, time: str, seconds: str) -> str:
        # A fifth of a millisecond more, or SQLite before 3.42 reads one time in a hundred a millisecond too early.
        return f"strftime({_FORMAT}, substr({time}, 1, 23) || '2', ({seconds}) || ' seconds')"

    def _seconds(self, since: str, until: str) -> str:
        return f"(julianday({until}) - julianday({since})) * 86400.0"

    def _start_of(self, span: str, time: str) -> str:
        return f"datetime(CAST(strftime('%%s', {time}) AS INTEGER) / {span} * {span}, 'unixepoch')"

    def _latest(self, first: str, second: str) -> str:
        return f"MAX(COALESCE({first}, ''), {second})"

    def _held(self, alias: str) -> str:
        return ""

    def _shared(self, alias: str) -> str:
        return ""

    def _locked(self, alias: str) -> str:
        return ""

    def _kept(self, alias: str) -> str:
        return ""

    def _lock_keys(self, lock_ids: Sequence[int]) -> Collection[int]:
        self._write_first()
        return lock_ids

    def _write_first(self) -> None:
        self._fetch(f"UPDATE {self.job} SET id = id WHERE id = ''", [])

    def _any(self, select: str) -> str:
        return f"IN ({select})"

    def _is_listed(self, id: str, texts: str) -> str:
        return f"{id} IN (SELECT value FROM json_each({texts}))"

    def _id_text(self, id: UUID) -> str:
        return id.hex

    def _time_text(self, time: datetime) -> str:
        return time.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")

    def _as_text(self, column: str) -> str:
        return f"{column} || ''"  # as an expression it has no declared type, which the driver would go by

    def _time(self, text: str) -> datetime:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)

    def _id(self, value: str) -> UUID:
        return UUID(hex=value)

    def _mark(self, transaction: OpenTransaction | None, id: str) -> None:
        """By a savepoint: it lives as long as its transaction, whatever ends that."""
        if transaction is not None:
            transaction.id = SAVEPOINT
            self._execute(f"SAVEPOINT {SAVEPOINT}", [])

    def _check_transaction(self, transaction: OpenTransaction | None) -> None:
        if transaction is None or transaction.id is None:
            return
        try:
            self._execute(f"RELEASE {SAVEPOINT}", [])
        except OperationalError as error:
            if "no such savepoint" not in str(error):
                raise
            raise TransactionEnded from error
        self._mark(transaction, SAVEPOINT)

    def _inside(self, transaction: OpenTransaction | None) -> tuple[str, list[Any]]:
        self._check_transaction(transaction)
        return "", []

    def lock(self, job_id: UUID, transaction: OpenTransaction | None = None) -> tuple[str, int] | None:
        sql = f"UPDATE {self.job} SET lease_number = lease_number WHERE id = %s RETURNING status, lease_number"
        for status, lease_number in self._fetch(sql, [job_id.hex]):
            self._mark(transaction, SAVEPOINT)
            return status, lease_number
        return None

    def _claim(
        self,
        worker: str,
        limit: int,
        leases: Mapping[str, float],
        queues: Collection[str] | None,
        excluded: Collection[str],
    ) -> list[tuple[Any, ...]]:
        # The limit of groups is written out: for one it does not know SQLite expects a million of them, and builds a
        # bloom filter for them at each claim, from the whole index. BETWEEN, because that of 3.40 lets nothing through
        # to an index's expression.
        sql = f"""
            WITH RECURSIVE {self._heads_sql},
            due AS MATERIALIZED (
                SELECT candidate.id, served.lease_seconds
                FROM (SELECT * FROM heads WHERE run_at <= {self.now} ORDER BY rank, run_at, id LIMIT {limit}) AS served
                CROSS JOIN {self.job} AS candidate
                WHERE candidate.status = 'pending' AND candidate.queue = served.queue
                AND candidate.type_name = served.type_name
                AND candidate.priority * -1 BETWEEN served.rank AND served.rank
                AND candidate.run_at <= {self.now}
                LIMIT %s
            )
            UPDATE {self.job} AS job
            SET status = 'running', attempt = attempt + 1, lease_number = lease_number + 1, leased_by = %s,
                leased_until = {self._after("clock.now", "due.lease_seconds")}, last_attempt_at = clock.now
            FROM due CROSS JOIN {self.clock} WHERE job.id = due.id AND job.status || '' = 'pending'
            RETURNING {self._claimed_columns}
        """
        return self._fetch(sql, [*_served(leases, queues, excluded), limit, worker])

    @retried
    def next_due(
        self, leases: Mapping[str, float], queues: Collection[str] | None = None, excluded: Collection[str] = ()
    ) -> float | None:
        seconds_sql = f"(julianday(min(run_at)) - julianday('now')) * 86400.0 - {self.ahead_seconds}"
        sql = f"WITH RECURSIVE {self._heads_sql} SELECT {seconds_sql} FROM heads"
        ((seconds,),) = self._fetch(sql, _served(leases, queues, excluded))
        return seconds if seconds is None else float(seconds)

    @property
    def _heads_sql(self) -> str:
        """The first job of each (queue, type, priority) that is pending and served, with the seconds of its lease.

        What is not served is passed in one step to the next type or queue that is, whatever lies between. Paused queues
        are read here, so that no job is claimed once the pause of its queue has been committed.
        """
        paused = f"SELECT name FROM {self.queue} WHERE paused_at IS NOT NULL"
        next_queue = (
            f"CASE WHEN scope.is_every_queue THEN {self._first('n.queue > c.queue')} "
            f"ELSE {self._first('n.queue >= (SELECT min(name) FROM queues WHERE name > c.queue)')} END"
        )
        of_queue = "n.queue = c.queue AND n.type_name"
        served_type = self._first(f"{of_queue} >= (SELECT min(type_name) FROM types WHERE type_name > c.type_name)")
        return f"""
            types AS MATERIALIZED (SELECT * FROM {self._rows("type_name text, lease_seconds float")}),
            queues(name) AS MATERIALIZED (SELECT value FROM json_each(%s) WHERE value NOT IN ({paused})),
            scope AS MATERIALIZED (SELECT %s AS is_every_queue),
            closed(name) AS MATERIALIZED (SELECT value FROM json_each(%s) UNION ALL {paused}),
            reached(id) AS (
                SELECT {self._first("true")}
                UNION ALL
                SELECT CASE
                    WHEN NOT {_IS_QUEUE_SERVED} THEN {next_queue}
                    WHEN c.type_name NOT IN (SELECT type_name FROM types) THEN COALESCE({served_type}, {next_queue})
                    ELSE COALESCE({self._next_priority}, {self._first(f"{of_queue} > c.type_name")}, {next_queue})
                END
                FROM reached CROSS JOIN scope CROSS JOIN {self.job} AS c ON c.id = reached.id
            ),
            heads AS MATERIALIZED (
                SELECT {_GROUP}, types.lease_seconds
                FROM reached CROSS JOIN scope CROSS JOIN {self.job} AS c ON c.id = reached.id
                CROSS JOIN types ON types.type_name = c.type_name WHERE {_IS_QUEUE_SERVED}
            )"""

    @property
    def _groups_sql(self) -> str:
        """A few index probes a group.

        SQLite has no LATERAL and seeks no row comparison over an expression, so the next group is the next priority of
        this type, or else the next type of this queue, or else the next queue.
        """
        next_type = self._first("n.queue = c.queue AND n.type_name > c.type_name")
        return f"""
            found(id) AS (
                SELECT {self._first("true")}
                UNION ALL
                SELECT COALESCE({self._next_priority}, {next_type}, {self._first("n.queue > c.queue")})
                FROM found CROSS JOIN {self.job} AS c ON c.id = found.id
            ),
            groups AS (SELECT {_GROUP} FROM found CROSS JOIN {self.job} AS c ON c.id = found.id)"""

    @property
    def _next_priority(self) -> str:
        return self._first("n.queue = c.queue AND n.type_name = c.type_name AND n.priority * -1 > c.priority * -1")

    def _first(self, condition: str) -> str:
        """SQL of the first pending job ``n`` after a job ``c``, as the index has them."""
        return (
            f"(SELECT id FROM {self.job} AS n WHERE n.status = 'pending' AND {condition} "
            "ORDER BY n.queue, n.type_name, n.priority * -1, n.run_at, n.id LIMIT 1)"
        )


def _served(leases: Mapping[str, float], queues: Collection[str] | None, excluded: Collection[str]) -> list[Any]:
    types = [{"type_name": name, "lease_seconds": seconds} for name, seconds in leases.items()]
    listed = [] if queues is None else sorted(set(queues).difference(excluded))
    return [json.dumps(types), json.dumps(listed), queues is None, json.dumps(list(excluded))]
