"""PostgreSQL: SKIP LOCKED, RETURNING, and a claim whose cost does not depend on what else lies in the table."""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary
from zlib import crc32

import psycopg
from django.db import IntegrityError, NotSupportedError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobchains.own_statements import indifferent, own
from django_jobchains.store.base import Store
from django_jobchains.store.counting import Activity
from django_jobchains.store.direct import Direct, is_possible
from django_jobchains.store.errors import sqlstate

#: A prepared statement's plan is used no longer than this,
PLAN_SECONDS = 30
#: and not again after it took so long once.
SLOW_SECONDS = 0.1
#: serialization_failure, deadlock_detected
CONFLICTS = ("40001", "40P01")
UNIQUE_VIOLATION = "23505"
QUERY_CANCELED = "57014"
#: The advisory locks of deduplication keys: their class, and how many there are.
KEY_LOCK = 0x6A6F6273
KEY_LOCKS = 1024
#: Below every priority turned round.
BEFORE_ALL_RANKS = -32_769

#: Of the group a skip scan has reached.
_TYPE_PLACE = "width_bucket(reached.type_name::text, served.types)"
_QUEUE_PLACE = "width_bucket(reached.queue::text, served.queues)"
_IS_TYPE_SERVED = f"COALESCE(served.types[{_TYPE_PLACE}] = reached.type_name, false)"
_IS_QUEUE_SERVED = (
    "CASE WHEN served.is_every_queue THEN NOT served.excluded ? reached.queue "
    f"ELSE COALESCE(served.queues[{_QUEUE_PLACE}] = reached.queue, false) END"
)


class PostgreSQLStore(Store):
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
    _slow_statements = 0

    def _is_conflict(self, error: OperationalError) -> bool:
        return sqlstate(error) in CONFLICTS

    def _is_duplicate(self, error: IntegrityError) -> bool:
        return sqlstate(error) == UNIQUE_VIOLATION

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._directs: WeakKeyDictionary[psycopg.Connection[Any], Direct] = WeakKeyDictionary()

    def prepare_for_workers(self) -> None:
        """Nothing: PostgreSQL is made for it."""

    def _rows(self, columns: str, name: str = "d") -> str:
        return f"json_to_recordset(%s::json) AS {name}({columns})"

    def _row(self, columns: str) -> str:
        values = (column.split() for column in columns.split(", "))
        return f"(SELECT {', '.join(f'%s::{type_} AS {name}' for name, type_ in values)}) AS d"

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

    def _lock_keys(self, keys: Collection[str]) -> None:
        """By their hashes, a bounded number of them: the server's table of locks is small, and everybody's."""
        buckets = sorted({crc32(key.encode()) % KEY_LOCKS for key in keys})
        rows = self._fetch(
            f"SELECT pg_advisory_xact_lock(%s, bucket::int), {self._isolation} "
            "FROM json_array_elements_text(%s::json) AS bucket",
            [KEY_LOCK, json.dumps(buckets)],
        )
        if rows[0][1] == "repeatable read":
            raise NotSupportedError(
                "At REPEATABLE READ a transaction does not see a chain with the same key that was committed since it "
                "began. Enqueue with deduplicate= at READ COMMITTED or SERIALIZABLE, or else outside a transaction and "
                "without blockers."
            )

    @own
    def _read_committed(self) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            if cursor.fetchone() == ("repeatable read",):
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
        if direct.is_alone and connection.atomic_blocks[:1] == [direct.transaction]:
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

    def lock(self, job_id: UUID) -> tuple[str, int] | None:
        """BEGIN goes with it, unless the transaction has begun."""
        sql = f"SELECT status, lease_number FROM {self.job} WHERE id = {self._uuid} FOR NO KEY UPDATE"
        connection = self.connection
        if connection.atomic_blocks and not _is_watched(connection) and is_possible(connection.connection):
            rows = self._begin(connection, sql.replace("%s", f"'{job_id.hex}'"))
        else:
            rows = self._fetch(sql, [job_id.hex])
        return (rows[0][0], rows[0][1]) if rows else None

    def _begin(self, connection: BaseDatabaseWrapper, select: str) -> list[tuple[Any, ...]]:
        raw: psycopg.Connection[Any] = connection.connection
        with self._watching(connection):
            return self._direct(raw).begin(raw, connection.atomic_blocks[0], select)

    def _direct(self, raw: "psycopg.Connection[Any]") -> Direct:
        return self._directs.get(raw) or self._directs.setdefault(raw, Direct(raw))

    def _claim(
        self,
        worker: str,
        limit: int,
        leases: Mapping[str, float],
        queues: Collection[str] | None,
        excluded: Collection[str],
    ) -> list[tuple[Any, ...]]:
        # What lies before the first job of a group is dead. It is walked over once, to find that job, and not again:
        # while somebody holds a snapshot, these are the entries of all jobs claimed since.
        sql = f"""
            WITH RECURSIVE {self._heads_sql},
            due AS MATERIALIZED (
                SELECT picked.id
                FROM (SELECT * FROM heads WHERE run_at <= {self.now} ORDER BY rank, run_at, id) AS served
                CROSS JOIN LATERAL (
                    SELECT id FROM {self.job}
                    WHERE status = 'pending' AND queue = served.queue AND type_name = served.type_name
                    AND priority * -1 = served.rank AND run_at BETWEEN served.run_at AND {self.now}
                    ORDER BY run_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
                ) AS picked
                LIMIT %s
            )
            UPDATE {self.job} AS job
            SET status = 'running', attempt = attempt + 1, lease_number = lease_number + 1, leased_by = %s,
                leased_until = clock.now + (%s::jsonb ->> type_name)::float * interval '1 second',
                last_attempt_at = clock.now
            FROM {self.clock} WHERE job.id {self._any("SELECT id FROM due")}
            RETURNING {self._claimed_columns}
        """
        return self._fetch(sql, [*_served(leases, queues, excluded), limit, limit, worker, json.dumps(dict(leases))])

    def next_due(
        self, leases: Mapping[str, float], queues: Collection[str] | None = None, excluded: Collection[str] = ()
    ) -> float | None:
        now = self._after(self._clock, str(self.ahead_seconds))
        sql = f"WITH RECURSIVE {self._heads_sql} SELECT extract(epoch FROM min(run_at) - {now}) FROM heads"
        ((seconds,),) = self._fetch(sql, _served(leases, queues, excluded))
        return None if seconds is None else float(seconds)

    @property
    def _heads_sql(self) -> str:
        """The first job of each (queue, type, priority) that is pending and served, found by a skip scan.

        Each step is one index probe. From a group that is served it goes on to the next one; from one that is not, to
        the next type or queue that is, whatever lies between. So a claim makes no more probes than there are groups,
        and for each queue no more than two for each served type, with one for each of its priorities: others' backlogs
        do not count. The served names are sorted by the database, as its index is: ``width_bucket`` looks a name up,
        and what follows it.
        """
        group = "queue, type_name, priority * -1"
        return f"""
            served AS MATERIALIZED (
                SELECT ARRAY(SELECT name FROM jsonb_object_keys(%s::jsonb) AS name ORDER BY name) AS types,
                (SELECT array_agg(name ORDER BY name) FROM jsonb_array_elements_text(%s::jsonb) AS name) AS queues,
                %s::boolean AS is_every_queue, %s::jsonb AS excluded
            ),
            reached AS (
                (SELECT queue, type_name, priority * -1 AS rank, run_at, id FROM {self.job}
                 WHERE status = 'pending' ORDER BY {group}, run_at, id LIMIT 1)
                UNION ALL
                SELECT following.* FROM reached CROSS JOIN served CROSS JOIN LATERAL ({self._next_key}) AS key
                CROSS JOIN LATERAL (
                    SELECT queue, type_name, priority * -1 AS rank, run_at, id FROM {self.job}
                    WHERE status = 'pending' AND ({group}) > (key.queue, key.type_name, key.rank)
                    ORDER BY {group}, run_at, id LIMIT 1
                ) AS following
            ),
            heads AS MATERIALIZED (
                SELECT reached.* FROM reached CROSS JOIN served WHERE {_IS_TYPE_SERVED} AND {_IS_QUEUE_SERVED}
            )"""

    @property
    def _next_key(self) -> str:
        """What the next group lies behind: this one, or the start of the next that may be served."""
        next_queue = (
            f"CASE WHEN served.is_every_queue THEN (SELECT queue FROM {self.job} WHERE status = 'pending' "
            "AND queue > reached.queue ORDER BY queue, type_name, priority * -1, run_at, id LIMIT 1) "
            f"ELSE served.queues[{_QUEUE_PLACE} + 1] END"
        )
        return f"""
            SELECT CASE WHEN goes_on THEN reached.queue ELSE {next_queue} END AS queue,
            CASE WHEN is_served THEN reached.type_name WHEN goes_on THEN next_type ELSE served.types[1] END
            AS type_name,
            CASE WHEN is_served THEN reached.rank ELSE {BEFORE_ALL_RANKS} END AS rank
            FROM (
                SELECT is_open AND is_type AS is_served, is_open AND (is_type OR next_type IS NOT NULL) AS goes_on,
                next_type
                FROM (
                    SELECT {_IS_QUEUE_SERVED} AS is_open, {_IS_TYPE_SERVED} AS is_type,
                    served.types[{_TYPE_PLACE} + 1] AS next_type
                ) AS known
            ) AS step"""

    @property
    def _groups_sql(self) -> str:
        """The first job of each (queue, type, priority) that is pending, found by a skip scan.

        One index probe for each group that is present, however many jobs it holds. ``rank`` is the priority turned
        round, so that every column of the row comparison ascends, as the index does; it is written as Django writes the
        index's expression, or the index would not be used.
        """
        group = "queue, type_name, priority * -1"
        return f"""
            groups AS (
                (SELECT queue, type_name, priority * -1 AS rank, run_at, id FROM {self.job}
                 WHERE status = 'pending' ORDER BY {group}, run_at, id LIMIT 1)
                UNION ALL
                SELECT following.* FROM groups CROSS JOIN LATERAL (
                    SELECT queue, type_name, priority * -1 AS rank, run_at, id FROM {self.job}
                    WHERE status = 'pending' AND ({group}) > (groups.queue, groups.type_name, groups.rank)
                    ORDER BY {group}, run_at, id LIMIT 1
                ) AS following
            )"""


def _is_watched(connection: BaseDatabaseWrapper) -> bool:
    """Whether statements go through Django's cursor, not prepared: behind a transaction pooler (Django's
    ``DISABLE_SERVER_SIDE_CURSORS`` says so), where the next statement may meet another session; and while somebody logs
    or wraps Django's statements, who wants to see these too."""
    is_pooled = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    return is_pooled or connection.queries_logged or not indifferent.issuperset(connection.execute_wrappers)


def _served(leases: Mapping[str, float], queues: Collection[str] | None, excluded: Collection[str]) -> list[Any]:
    listed = [] if queues is None else set(queues).difference(excluded)
    return [json.dumps(dict(leases)), json.dumps(list(listed)), queues is None, json.dumps(list(excluded))]
