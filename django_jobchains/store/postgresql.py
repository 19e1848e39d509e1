"""PostgreSQL: its SQL, locks and clock, and how a statement gets there with the least work."""

import json
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from django.db import IntegrityError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobchains import libpq
from django_jobchains.exceptions import TransactionEnded
from django_jobchains.own_statements import indifferent, own
from django_jobchains.store.counting import Activity
from django_jobchains.store.direct import Direct, is_possible
from django_jobchains.store.errors import CONFLICTS, QUERY_CANCELED, retried, sqlstate
from django_jobchains.store.rows import OpenTransaction
from django_jobchains.store.skip_scan import SkipScan

#: A prepared statement's plan is used no longer than this,
PLAN_SECONDS = 30
#: and not again after it took so long once.
SLOW_SECONDS = 0.1
UNIQUE_VIOLATION = "23505"
#: How long the row of an unused key is kept. A transaction with an older snapshot could not tell that it was used.
KEY_SECONDS = 86_400


class PostgreSQLStore(SkipScan):
    # A subquery with a volatile function is evaluated once and not merged into the statement around it.
    _clock = "clock_timestamp()"
    # clock_timestamp() is volatile and would turn an index condition into a filter; now() lags by the transaction.
    _now = "statement_timestamp()"
    json_cast = "::jsonb"
    _uuid = "%s::uuid"
    # The planner takes a JSON parameter for 100 rows, and would rather read a small table than look up so many.
    _by_ids = "AND job.id = ANY(%s::uuid[])"
    _beginning = "'-infinity'::timestamptz"
    _isolation = "current_setting('transaction_isolation')"
    # A lock takes a transaction id anyway. Savepoints have the id of their transaction, and no id is used twice.
    _transaction_id = "pg_current_xact_id()::text"
    _slow_statements = 0

    def _is_conflict(self, error: OperationalError) -> bool:
        return sqlstate(error) in CONFLICTS

    def _is_duplicate(self, error: IntegrityError) -> bool:
        return sqlstate(error) == UNIQUE_VIOLATION

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._directs: WeakKeyDictionary[psycopg.Connection[Any], Direct] = WeakKeyDictionary()
        self._patience = _Patience()
        # FOR NO KEY UPDATE in a subquery that is evaluated first: the rows are locked in the order of their ids.
        self._by_unlocked_ids = (
            f"AND job.id = ANY(ARRAY(SELECT free.id FROM {self.job} AS free WHERE free.id = ANY(%s::uuid[]) "
            f"ORDER BY free.id {self._locked('free')}))"
        )

    def prepare_for_workers(self) -> None:
        """Nothing: PostgreSQL is made for it."""

    def _rows(self, columns: str, name: str = "d") -> str:
        return f"json_to_recordset(%s::json) AS {name}({columns})"

    def _row(self, columns: str) -> str:
        values = (column.split() for column in columns.split(", "))
        return f"(SELECT {', '.join(f'%s::{type_} AS {name}' for name, type_ in values)}) AS d"

    def _json_text(self, column: str) -> str:
        return f"{column}::text"

    def _after(self, time: str, seconds: str) -> str:
        return f"({time} + {seconds} * interval '1 second')"

    def _seconds(self, since: str, until: str) -> str:
        return f"extract(epoch FROM {until} - {since})::float"

    def _start_of(self, span: str, time: str) -> str:
        return f"date_bin({span} * interval '1 second', {time}, 'epoch'::timestamptz)"

    def _latest(self, first: str, second: str) -> str:
        return f"GREATEST({first}, {second})"

    # NO KEY: whoever only refers to a job by a foreign key is not held up.
    def _held(self, alias: str) -> str:
        return f"FOR NO KEY UPDATE OF {alias}"

    def _shared(self, alias: str) -> str:
        return f"FOR SHARE OF {alias}"

    def _locked(self, alias: str) -> str:
        return f"FOR NO KEY UPDATE OF {alias} SKIP LOCKED"

    def _kept(self, alias: str) -> str:
        return f"FOR KEY SHARE OF {alias} SKIP LOCKED"

    # Deduplication keys are locked by rows: docs/decisions/0027-key-rows.md.

    def _lock_keys(self, lock_ids: Sequence[int]) -> Collection[int]:
        """Returns the keys whose rows are new: they conflict with older snapshots by themselves.

        A row that exists is locked and not changed, because the condition of its update is false.
        """
        rows = self._fetch(
            f"INSERT INTO {self.key_lock} (id, used_at) SELECT key::bigint, clock.now "
            f"FROM json_array_elements_text(%s::json) AS key CROSS JOIN {self.clock} ORDER BY 1 "
            "ON CONFLICT (id) DO UPDATE SET used_at = EXCLUDED.used_at WHERE false RETURNING id",
            [json.dumps(lock_ids)],
        )
        return {lock_id for (lock_id,) in rows}

    def _mark_keys(self, lock_ids: Collection[int]) -> None:
        ids = self._any("SELECT key::bigint FROM json_array_elements_text(%s::json) AS key")
        self._fetch(
            f"UPDATE {self.key_lock} SET used_at = clock.now FROM {self.clock} WHERE id {ids} RETURNING id",
            [json.dumps(list(lock_ids))],
        )

    @retried
    def forget_keys(self, limit: int) -> int:
        unused = (
            f"SELECT key.id FROM {self.key_lock} AS key WHERE key.used_at < {self._after(self.now, str(-KEY_SECONDS))} "
            f"ORDER BY key.used_at LIMIT %s {self._locked('key')}"
        )
        return len(self._fetch(f"DELETE FROM {self.key_lock} WHERE id {self._any(unused)} RETURNING id", [limit]))

    @contextmanager
    def _at_read_committed(self) -> Iterator[None]:
        with self.transaction():
            self._execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", [])
            yield

    @own
    def _read_committed(self) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            if cursor.fetchone() != ("read committed",):
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def _any(self, select: str) -> str:
        # Not "IN (SELECT … LIMIT n FOR UPDATE SKIP LOCKED)": a nested loop would run it again and lock more rows.
        return f"= ANY(ARRAY({select}))"

    def _is_listed(self, id: str, texts: str) -> str:
        return f"{texts}::jsonb ? {id}::text"

    def _id_text(self, id: UUID) -> str:
        return str(id)

    def _time_text(self, time: datetime) -> str:
        return time.isoformat()

    def _as_text(self, column: str) -> str:
        return f"{column}::text"

    def _time(self, text: str) -> datetime:
        return datetime.fromisoformat(text).astimezone(UTC)

    def _id(self, value: UUID) -> UUID:
        return value

    def _fetch(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Executes on the driver's own cursor, or in an attempt's transaction without one; prepared: planning the claim
        costs more than running it."""
        connection = self.connection
        if _is_watched(connection):
            return super()._fetch(sql, params)
        connection.ensure_connection()
        raw: psycopg.Connection[Any] = connection.connection
        direct = self._direct(raw)
        if direct.is_alone and direct.has_begun(raw, connection.atomic_blocks):
            with self._watching(connection) as started:
                return direct.fetch(raw, self._with_plan_age(sql, started), params)
        direct.is_alone = False
        threshold, raw.prepare_threshold = raw.prepare_threshold, 0
        try:
            with self._watching(connection) as started:
                return psycopg.Cursor(raw).execute(self._with_plan_age(sql, started), params).fetchall()
        finally:
            raw.prepare_threshold = threshold

    @contextmanager
    def _watching(self, connection: BaseDatabaseWrapper) -> Iterator[float]:
        """Around a statement: errors are Django's, and a slow one is counted. Yields the time."""
        connection.validate_no_broken_transaction()
        started = time.monotonic()
        try:
            with connection.wrap_database_errors:
                yield started
        finally:
            if time.monotonic() - started > SLOW_SECONDS:
                self._slow_statements += 1

    def _with_plan_age(self, sql: str, now: float) -> str:
        """The statement with a comment that changes now and then, and with it the prepared statement and its plan.

        PostgreSQL keeps a plan until the table is analyzed again. One made while the table was nearly empty reads the
        whole table at each claim once it has grown.
        """
        return f"{sql} -- {now // PLAN_SECONDS:.0f}.{self._slow_statements}"

    @property
    def _is_impatient(self) -> bool:
        return bool(self._patience.milliseconds) and not self.connection.in_atomic_block

    @contextmanager
    def waits_at_most(self, seconds: float) -> Iterator[None]:
        before, self._patience.milliseconds = self._patience.milliseconds, max(1, int(seconds * 1000))
        try:
            yield
        finally:
            self._patience.milliseconds = before

    @contextmanager
    def _waits_within(self, seconds: float) -> Iterator[None]:
        with transaction.atomic(using=self.using):  # a savepoint
            limit = f"{int(seconds * 1000)}ms"
            sql = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
            [(before, _)] = self._fetch(sql, [limit])
            yield
            self._fetch("SELECT set_config('lock_timeout', %s, true)", [before])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """The limit on waiting for locks goes to the server with BEGIN."""
        milliseconds = self._patience.milliseconds
        if not milliseconds or self.connection.in_atomic_block:
            with super().transaction():
                yield
            return
        with transaction.atomic(using=self.using):
            raw: psycopg.Connection[Any] = self.connection.connection
            limit = f"SET LOCAL lock_timeout = {milliseconds}"
            if not _is_watched(self.connection) and is_possible(raw):
                with self._watching(self.connection):
                    libpq.execute(raw, f"BEGIN; {limit}")
            else:
                self._execute(limit, [])
            yield

    @retried
    def activity(self) -> Activity:
        """Of other users' sessions a plain user sees no transactions."""
        rows = self._fetch(
            "SELECT (max(extract(epoch FROM clock_timestamp() - xact_start)) "
            "FILTER (WHERE datname = current_database() AND pid <> pg_backend_pid()))::float, count(*), "
            "current_setting('max_connections')::int FROM pg_stat_activity WHERE backend_type = 'client backend'",
            [],
        )
        return Activity(*rows[0])

    @contextmanager
    def reads_within(self, seconds: float) -> Iterator[None]:
        """Each statement; of a shorter time that somebody set it makes no longer one.

        And none is compiled: that takes longer than to read a page, a second for one of many parts.
        """
        is_nested = self.connection.in_atomic_block
        milliseconds = max(1, int(seconds * 1000))
        with transaction.atomic(using=self.using):  # in a transaction of the caller's a savepoint: a timeout undoes it
            [(timeout, jit, *_)] = self._fetch(
                "SELECT setting, current_setting('jit'), set_config('statement_timeout', "
                "CASE WHEN setting::bigint BETWEEN 1 AND %s THEN setting ELSE %s END, true), "
                "set_config('jit', 'off', true) FROM pg_settings WHERE name = 'statement_timeout'",
                [milliseconds, str(milliseconds)],
            )
            yield
            if is_nested:
                set_back = "SELECT set_config('statement_timeout', %s, true), set_config('jit', %s, true)"
                self._fetch(set_back, [timeout, jit])

    def is_out_of_time(self, error: OperationalError) -> bool:
        return sqlstate(error) == QUERY_CANCELED

    def _check_transaction(self, transaction: OpenTransaction | None) -> None:
        if transaction is None or transaction.id is None:
            return
        if self._fetch("SELECT pg_current_xact_id_if_assigned()::text", []) != [(transaction.id,)]:
            raise TransactionEnded

    def _inside(self, transaction: OpenTransaction | None) -> tuple[str, list[Any]]:
        if transaction is None:
            return "", []
        return "AND pg_current_xact_id_if_assigned()::text = %s", [transaction.id]

    def lock(self, job_id: UUID, transaction: OpenTransaction | None = None) -> tuple[str, int] | None:
        """BEGIN goes with it, unless the transaction has begun."""
        sql = (
            f"SELECT status, lease_number, {self._transaction_id} FROM {self.job} WHERE id = {self._uuid} "
            "FOR NO KEY UPDATE"
        )
        connection = self.connection
        if connection.atomic_blocks and not _is_watched(connection) and is_possible(connection.connection):
            rows = self._begin(connection, sql.replace("%s", f"'{job_id.hex}'"))
        else:
            rows = self._fetch(sql, [job_id.hex])
        for status, lease_number, transaction_id in rows:
            self._mark(transaction, transaction_id)
            return status, lease_number
        return None

    def lock_all(self, *args: Any, **kwargs: Any) -> dict[UUID, tuple[str, int]]:
        """BEGIN is sent here: if psycopg executed one of these statements, it would prepare it, and from then on no
        statement of any attempt on this connection could be a direct one."""
        connection = self.connection
        if connection.atomic_blocks and not _is_watched(connection) and is_possible(connection.connection):
            self._begin(connection, "")
        return super().lock_all(*args, **kwargs)

    def _begin(self, connection: BaseDatabaseWrapper, select: str) -> list[tuple[Any, ...]]:
        raw: psycopg.Connection[Any] = connection.connection
        with self._watching(connection):
            return self._direct(raw).begin(raw, connection.atomic_blocks[0], select)

    def _direct(self, raw: "psycopg.Connection[Any]") -> Direct:
        return self._directs.get(raw) or self._directs.setdefault(raw, Direct(raw))


class _Patience(threading.local):
    """How long this thread's transactions wait for a lock; 0 is as long as the server lets them."""

    milliseconds = 0


def _is_watched(connection: BaseDatabaseWrapper) -> bool:
    """Whether statements go through Django's cursor, not prepared: behind a transaction pooler (Django's
    ``DISABLE_SERVER_SIDE_CURSORS`` says so), where the next statement may meet another session; and while somebody logs
    or wraps Django's statements, who wants to see these too."""
    is_pooled = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    return is_pooled or connection.queries_logged or not indifferent.issuperset(connection.execute_wrappers)
