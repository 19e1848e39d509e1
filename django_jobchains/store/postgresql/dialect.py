"""PostgreSQL: its SQL, locks and clock, and a fast way to send statements to it."""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from django.db import DatabaseError, DataError, IntegrityError, NotSupportedError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobchains.db.connections import is_watched, own_statements
from django_jobchains.exceptions import TransactionEnded
from django_jobchains.store.database import Database, OpenTransaction
from django_jobchains.store.errors import (
    DIVISION_BY_ZERO,
    QUERY_CANCELED,
    ROOT_OF_NEGATIVE,
    UNIQUE_VIOLATION,
    is_plan_outdated,
    is_serialization_conflict,
    sqlstate,
    sqlstate_of_statement,
)
from django_jobchains.store.postgresql.claim import skip_scan
from django_jobchains.store.postgresql.wire import Direct, can_begin

#: How long the plan of a prepared statement is used.
PLAN_SECONDS = 30
#: After a statement that took this long, older plans are not used again.
SLOW_SECONDS = 0.1
#: This happens at most once in this time, because it also takes long to prepare statements if the network is slow.
SLOW_INTERVAL_SECONDS = 3
#: How long a request to cancel a statement may take.
CANCEL_SECONDS = 0.5


class PostgreSQLDatabase(Database):
    # A subquery with a volatile function is evaluated once and not merged into the statement around it.
    clock_sql = "clock_timestamp()"
    # clock_timestamp() is volatile and would turn an index condition into a filter; now() lags by the transaction.
    now_sql = "statement_timestamp()"
    json_cast = "::jsonb"
    id_param = "%s::uuid"
    # The planner expects 100 rows from a JSON parameter, and would scan a small table rather than look up that many.
    by_ids = "AND job.id = ANY(%s::uuid[])"
    is_ended = "status IN ('completed', 'failed', 'cancelled')"
    beginning = "'-infinity'::timestamptz"
    isolation = "current_setting('transaction_isolation')"
    # SERIALIZABLE finds these conflicts itself, but only between transactions that are all at this level.
    writes_locked = (
        f"({isolation} = 'repeatable read' OR COALESCE(current_setting('jobchains.is_lowered', true), '') = 'on')"
    )
    # A lock takes a transaction id anyway. Savepoints have the id of their transaction, and no id is used twice.
    transaction_id = "pg_current_xact_id()::text"
    # A user without special privileges cannot see the transactions of other users' sessions.
    activity = """
        SELECT (max(extract(epoch FROM clock_timestamp() - xact_start))
            FILTER (WHERE datname = current_database() AND pid <> pg_backend_pid()))::float,
            count(*), current_setting('max_connections')::int
        FROM pg_stat_activity WHERE backend_type = 'client backend'
    """
    least, greatest = "LEAST", "GREATEST"
    has_arrays = True
    locks_rows = True
    returned = "record."
    #: Changes when plans that are still young must not be used again.
    _plan_generation = 0
    _slow_at = -math.inf

    def is_conflict(self, error: DatabaseError) -> bool:
        return is_serialization_conflict(error)

    def is_duplicate(self, error: IntegrityError) -> bool:
        return sqlstate(error) == UNIQUE_VIOLATION

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._directs: WeakKeyDictionary[psycopg.Connection[Any], Direct] = WeakKeyDictionary()
        self._patience = _Patience()
        # FOR NO KEY UPDATE in a subquery that is evaluated first: the rows are locked in the order of their ids.
        self.by_unlocked_ids = (
            f"AND job.id = ANY(ARRAY(SELECT free.id FROM {self.tables.job} AS free WHERE free.id = ANY(%s::uuid[]) "
            f"ORDER BY free.id {self.skip_lock('free')}))"
        )

    def cancel(self, connection: BaseDatabaseWrapper) -> None:
        raw: psycopg.Connection[Any] | None = connection.connection
        if raw is not None:
            raw.cancel_safe(timeout=CANCEL_SECONDS)

    def identity(self) -> Any:
        # Not the address, which differs behind a pooler; and a search_path leads to other tables of a database.
        # The time is a number, because connections may have different time zones.
        return self.fetch(
            "SELECT extract(epoch FROM pg_postmaster_start_time())::text, current_database(), to_regclass(%s)::oid",
            [self.tables.job],
        )

    def column_types(self, table: str) -> dict[str, tuple[str, bool | None]]:
        rows = self.fetch(
            """
            SELECT a.attname,
                CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod)
                    ELSE format_type(a.atttypid, a.atttypmod) END,
                CASE WHEN c.relkind IN ('r', 'p') THEN a.attnotnull END
            FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_type AS t ON t.oid = a.atttypid
            WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
            """,
            [table],
        )
        return {name: (type_, is_required) for name, type_, is_required in rows}

    @property
    def groups(self) -> str:
        return skip_scan(self.tables.job, "groups")

    def rows(self, columns: str, name: str = "d") -> str:
        return f"json_to_recordset(%s::json) AS {name}({columns})"

    def row(self, columns: str) -> str:
        return f"(SELECT {_parameters(columns)}) AS d"

    def arrays(self, columns: str, shared: str) -> str:
        named = [column.split() for column in columns.split(", ")]
        # The elements of a JSON array are parsed together, and need no quotes.
        arrays = [f"jsonb_array_elements(%s::{t})" if t == "jsonb" else f"unnest(%s::{t}[])" for _, t in named]
        names = ", ".join(name for name, _ in named)
        return f"(SELECT {_parameters(shared)}, own.* FROM ROWS FROM ({', '.join(arrays)}) AS own({names})) AS d"

    def cast(self, value: str, type: str) -> str:
        return f"({value})::{type}"

    def json_text(self, column: str) -> str:
        return f"{column}::text"

    def after(self, time: str, seconds: str) -> str:
        return f"({time} + {seconds} * interval '1 second')"

    def seconds(self, since: str, until: str) -> str:
        return f"extract(epoch FROM {until} - {since})::float"

    def microseconds(self, time: str) -> str:
        return f"(extract(epoch FROM {time}) * 1000000)::bigint"

    def start_of(self, span: str, time: str) -> str:
        return f"date_bin({span} * interval '1 second', {time}, 'epoch'::timestamptz)"

    def latest(self, first: str, second: str) -> str:
        return f"GREATEST({first}, {second})"

    # NO KEY, so that transactions that only refer to a job by a foreign key do not wait.
    def wait_lock(self, alias: str) -> str:
        return f"FOR NO KEY UPDATE OF {alias}"

    def shared_lock(self, alias: str) -> str:
        return f"FOR SHARE OF {alias}"

    def skip_lock(self, alias: str) -> str:
        return f"FOR NO KEY UPDATE OF {alias} SKIP LOCKED"

    def keep_lock(self, alias: str) -> str:
        return f"FOR KEY SHARE OF {alias} SKIP LOCKED"

    def try_lock(self, name: str) -> str:
        # The lock belongs to the transaction, and is released after others can see what it has committed.
        return f"pg_try_advisory_xact_lock(hashtextextended({name}, 5701))"

    @contextmanager
    def at_read_committed(self) -> Iterator[None]:
        with self.transaction():
            self.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", [])
            yield

    @own_statements
    def read_committed(self, *, links: bool = False) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            if cursor.fetchone() != ("read committed",):
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                if links:
                    cursor.execute("SET LOCAL jobchains.is_lowered = 'on'")

    def any_of(self, select: str) -> str:
        # Not "IN (SELECT … LIMIT n FOR UPDATE SKIP LOCKED)": a nested loop would run it again and lock more rows.
        return f"= ANY(ARRAY({select}))"

    def is_listed(self, id: str, texts: str) -> str:
        return f"{texts}::jsonb ? {id}::text"

    def id_text(self, id: UUID) -> str:
        return str(id)

    def time_text(self, time: datetime) -> str:
        return time.isoformat()

    def time_as_text(self, column: str) -> str:
        return f"{column}::text"

    def time(self, text: str) -> datetime:
        return _time(text)

    def id(self, value: UUID) -> UUID:
        return value

    def fetch(self, sql: str, params: Sequence[Any], *, of_queryset: bool = False) -> list[tuple[Any, ...]]:
        """Run a prepared statement, because planning the claim takes longer than running it."""
        connection = self.connection
        connection.ensure_connection()
        raw: psycopg.Connection[Any] = connection.connection
        direct = self._direct(raw)
        direct.is_untouched = False
        if of_queryset or is_watched(connection):
            self.begin()
            return super().fetch(sql, params)
        with self._watching(connection) as now:
            return direct.fetch(raw, connection.atomic_blocks, sql, self._plan_age(now), params)

    def execute(self, sql: str, params: Sequence[Any]) -> None:
        self.begin()
        super().execute(sql, params)
        self._direct(self.connection.connection).is_untouched = False

    @contextmanager
    def _watching(self, connection: BaseDatabaseWrapper) -> Iterator[float]:
        """Raise Django's errors for a statement. Yields the monotonic time.

        If it is slow, or its table was altered, statements are prepared again from now on.
        """
        connection.validate_no_broken_transaction()
        started = time.monotonic()
        try:
            with connection.wrap_database_errors:
                yield started
        except NotSupportedError as error:
            self._plan_generation += is_plan_outdated(error)
            raise
        finally:
            now = time.monotonic()
            if now - started > SLOW_SECONDS and now - self._slow_at > SLOW_INTERVAL_SECONDS:
                self._plan_generation += 1
                self._slow_at = now

    def _plan_age(self, now: float) -> str:
        """Return a text that changes from time to time, so that statements are prepared and planned again.

        PostgreSQL keeps a plan until the table is analyzed again. A plan made while the table was nearly empty reads
        the whole table at each claim after it has grown.
        """
        return f"{now // PLAN_SECONDS:.0f}.{self._plan_generation}"

    @property
    def is_impatient(self) -> bool:
        return bool(self._patience.milliseconds) and not self.connection.in_atomic_block

    @contextmanager
    def waits_at_most(self, seconds: float) -> Iterator[None]:
        before, self._patience.milliseconds = self._patience.milliseconds, max(1, int(seconds * 1000))
        try:
            yield
        finally:
            self._patience.milliseconds = before

    @contextmanager
    def waits_within(self, seconds: float) -> Iterator[None]:
        self.begin()
        with transaction.atomic(using=self.using):  # a savepoint
            limit = f"{int(seconds * 1000)}ms"
            sql = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
            [(before, _)] = self.fetch(sql, [limit])
            yield
            self.fetch("SELECT set_config('lock_timeout', %s, true)", [before])

    @contextmanager
    def transaction(self) -> Iterator[bool]:
        """Send BEGIN and the limit of waits for locks together with the first statement of the store."""
        with super().transaction() as is_own:
            if is_own and self._patience.milliseconds:
                self._limit_waits(f"SET LOCAL lock_timeout = {self._patience.milliseconds}")
            yield is_own

    def _limit_waits(self, sql: str) -> None:
        connection = self.connection
        if can_begin(connection):
            self._direct(connection.connection).begin_with_next(connection.atomic_blocks[0], sql)
        else:
            self.execute(sql, [])

    @contextmanager
    def limited(self) -> Iterator[None]:
        if not self.is_impatient:
            yield
            return
        with self.transaction():
            self.begin()  # A statement of the project may follow, which would not send the limit.
            yield

    @contextmanager
    def reads_within(self, seconds: float) -> Iterator[None]:
        """Limit the time of each statement. A shorter limit that is already set is kept.

        JIT is off inside: compiling takes longer than reading a page, a second for a statement with many parts.
        """
        is_nested = self.connection.in_atomic_block
        milliseconds = max(1, int(seconds * 1000))
        with transaction.atomic(using=self.using):  # A savepoint in the caller's transaction: a timeout undoes it.
            [(timeout, jit, *_)] = self.fetch(
                "SELECT setting, current_setting('jit'), set_config('statement_timeout', "
                "CASE WHEN setting::bigint BETWEEN 1 AND %s THEN setting ELSE %s END, true), "
                "set_config('jit', 'off', true) FROM pg_settings WHERE name = 'statement_timeout'",
                [milliseconds, str(milliseconds)],
            )
            yield
            if is_nested:
                set_back = "SELECT set_config('statement_timeout', %s, true), set_config('jit', %s, true)"
                self.fetch(set_back, [timeout, jit])

    def is_out_of_time(self, error: OperationalError) -> bool:
        return sqlstate(error) == QUERY_CANCELED

    def check_transaction(self, transaction: OpenTransaction | None) -> None:
        if transaction is None or transaction.id is None:
            return
        if self.fetch("SELECT pg_current_xact_id_if_assigned()::text", []) != [(transaction.id,)]:
            raise TransactionEnded

    def inside(self, transaction: OpenTransaction | None) -> tuple[str, list[Any]]:
        if transaction is None:
            return "", []
        return "AND pg_current_xact_id_if_assigned()::text = %s", [transaction.id]

    def lock_sql(self, *, skips: bool) -> str:
        return (
            f"SELECT status, lease_number, {self.transaction_id}, NULL FROM {self.tables.job} "
            f"WHERE id = {self.id_param} FOR NO KEY UPDATE{' SKIP LOCKED' if skips else ''}"
        )

    def fetch_first(self, lock: str, look: str | None, id: UUID) -> list[tuple[Any, ...]]:
        """Send the BEGIN with the statements, unless the transaction has begun."""
        connection = self.connection
        if not can_begin(connection):
            return self.fetch(lock, [id.hex])
        raw: psycopg.Connection[Any] = connection.connection
        direct = self._direct(raw)
        if look is None or not direct.is_alone:
            return self._begin(connection, lock.replace("%s", f"'{id.hex}'"))
        with self._watching(connection) as now:
            direct.age = self._plan_age(now)
            first = [direct.call(raw, sql, direct.age, [id.hex]) for sql in (lock, look)]
        return self._begin(connection, "; ".join(first))

    @property
    def is_untouched(self) -> bool:
        return self._direct(self.connection.connection).is_untouched

    @property
    def can_commit(self) -> bool:
        connection = self.connection
        raw: psycopg.Connection[Any] = connection.connection
        return not is_watched(connection) and self._direct(raw).can_commit(raw, connection.atomic_blocks)

    def commit_with(self, sql: str, params: Sequence[Any]) -> bool:
        connection = self.connection
        raw: psycopg.Connection[Any] = connection.connection
        try:
            with self._watching(connection):
                self._direct(raw).commit(raw, sql, params)
        except DataError as error:
            code = sqlstate_of_statement(error)
            if code == DIVISION_BY_ZERO:
                raise TransactionEnded from error
            if code != ROOT_OF_NEGATIVE:
                raise
            return False
        return True

    def begin(self) -> None:
        """Send the BEGIN of a transaction that Django has opened, if it has not been sent yet.

        Otherwise psycopg would run and prepare the first statement. From then on, no statement of an attempt on this
        connection could be sent directly.
        """
        connection = self.connection
        if can_begin(connection):
            self._begin(connection, "")

    def _begin(self, connection: BaseDatabaseWrapper, select: str) -> list[tuple[Any, ...]]:
        raw: psycopg.Connection[Any] = connection.connection
        with self._watching(connection):
            return self._direct(raw).begin(raw, connection.atomic_blocks[0], select)

    def _direct(self, raw: "psycopg.Connection[Any]") -> Direct:
        return self._directs.get(raw) or self._directs.setdefault(raw, Direct(raw))


def _parameters(columns: str) -> str:
    return ", ".join(f"%s::{type_} AS {name}" for name, type_ in (column.split() for column in columns.split(", ")))


@lru_cache(maxsize=1_000)  # Jobs that are enqueued or claimed together have the same times.
def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


class _Patience(threading.local):
    """The limit of waits for locks of this thread's transactions; 0 is the limit of the server."""

    milliseconds = 0
