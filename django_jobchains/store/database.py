"""A database: its dialect, which is the SQL that differs between vendors, and how statements and transactions run.

``Part`` is the base of the groups of the store's methods, which own the SQL of their tables. A statement is built once,
and sent as one line: extra spaces and line breaks in its text do not matter.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple
from uuid import UUID

from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobchains.db.connections import is_broken, own_statements

Arguments = TypeVarTuple("Arguments")
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Tables:
    """The names of the tables in SQL. The store imports no models, so that models can use the store."""

    job: str = '"django_jobchains_job"'
    chain: str = '"django_jobchains_chain"'
    blocker: str = '"django_jobchains_jobblocker"'
    failed_attempt: str = '"django_jobchains_failedattempt"'
    log_line: str = '"django_jobchains_logline"'
    progress: str = '"django_jobchains_jobprogress"'
    deferred_write: str = '"django_jobchains_deferredwrite"'
    worker: str = '"django_jobchains_workerpresence"'
    queue: str = '"django_jobchains_queuestate"'
    limit_override: str = '"django_jobchains_limitoverride"'
    schedule: str = '"django_jobchains_schedule"'
    attempt_count: str = '"django_jobchains_attemptcount"'
    key_lock: str = '"django_jobchains_keylock"'
    rate_state: str = '"django_jobchains_ratestate"'
    task_name: str = '"django_jobchains_taskname"'


@dataclass(slots=True)
class OpenTransaction:
    """The caller's transaction: ``lock`` fills it in, and later calls rely on it."""

    #: The database's id of the transaction, by which later calls notice that it has ended.
    id: str | None = None
    #: The job's chain, if no job waited for it after the lock. Only this transaction can change that until it ends.
    unawaited_chain_id: UUID | None = None


class Database(ABC):
    #: SQL of the database's time, for writing it.
    clock_sql: str
    #: SQL of the database's time, for conditions: it is stable, so that an index can be used.
    now_sql: str
    #: Casts a JSON text to the type of the JSON columns.
    json_cast = ""
    #: SQL of an id from a parameter of 32 hexadecimal digits.
    id_param = "%s"
    #: SQL of whether a job is in the indexes of ended jobs: see ``ListIndex``. Elsewhere they contain all jobs.
    is_ended = "true"
    #: SQL of a time before all others.
    beginning = "''"
    #: SQL of the transaction's isolation level.
    isolation = "''"
    #: SQL of whether the transaction has to write the rows that it locks, so that older snapshots conflict with it.
    writes_locked = "false"
    #: SQL of the column job_id in a subquery of a RETURNING.
    returned_job_id = "job_id"
    #: SQL of the id of the statement's transaction.
    transaction_id = "''"
    #: SQL that leads an UPDATE from many rows to the primary key, with the list of ids as its parameter.
    by_ids = ""
    #: The same, but skips rows that other transactions have locked. It locks in the order of the ids.
    by_unlocked_ids = ""
    #: Whether a statement that writes sees everything that was committed, because one transaction writes at a time.
    has_one_writer = False
    #: After this time, a conflict is not retried: the driver has waited as long as the project allows.
    busy_seconds = math.inf
    #: The functions of the smaller and the larger of two values that are not NULL.
    least, greatest = "MIN", "MAX"
    #: Whether rows can be read from arrays, see ``arrays``.
    has_arrays = False
    #: Whether several transactions can write to different rows of a table at a time.
    locks_rows = False
    #: The prefix of the written table's columns in a RETURNING. The rows that an UPDATE joins may have the same names.
    returned = ""
    #: SQL of the last columns of ``DatabaseFacts``, empty for a database without a server.
    activity = ""

    def __init__(self, using: str) -> None:
        self.using = using
        self.tables = Tables()
        #: SQL of a condition's right side: equal to one of the ids in a parameter of ``ids_json``.
        self.any_id = self.any_of(f"SELECT d.job_id FROM {self.rows('job_id uuid')}")
        #: A cache of the texts of statements by name, see ``statements``.
        self.built: list[tuple[MutableMapping[str, Any], str]] = []
        self.ahead_seconds = 0.0

    @property
    def ahead_seconds(self) -> float:
        """The seconds that the store adds to the database's clock. Only tests set it."""
        return self._ahead_seconds

    @ahead_seconds.setter
    def ahead_seconds(self, seconds: float) -> None:
        self._ahead_seconds = seconds
        ahead = str(seconds)
        #: SQL of the time a condition compares with.
        self.now = self.after(self.now_sql, ahead) if seconds else self.now_sql
        time = self.after(self.clock_sql, ahead) if seconds else self.clock_sql
        #: SQL of the time a statement writes, one for all its rows; a table with the column ``now``. The inner
        #: sub-select is evaluated once, also by a plan that reads the clock again for each row.
        self.clock = f"(SELECT (SELECT {time}) AS now) AS clock"
        while self.built:
            texts, name = self.built.pop()
            texts.pop(name, None)

    # Running statements

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return connections[self.using]

    @own_statements
    def fetch(self, sql: str, params: Sequence[Any], *, of_queryset: bool = False) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows.

        ``of_queryset``: some parameters belong to a QuerySet. Only Django's cursor converts all their types.
        """
        with connections[self.using].cursor() as cursor:
            cursor.execute(sql, params)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    @own_statements
    def execute(self, sql: str, params: Sequence[Any]) -> None:
        """Run a statement that returns nothing."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)

    def cancel(self, connection: BaseDatabaseWrapper) -> None:  # noqa: B027 - an embedded database has nothing to cancel
        """Cancel the statement that another thread is running on its connection."""

    def fetch_first(self, lock: str, look: str | None, id: UUID) -> list[tuple[Any, ...]]:
        """Lock a row by its id, which may be the first statement of a transaction.

        ``look`` returns the same columns, as committed before the row was locked. It is run only if it costs no round
        trip.
        """
        return self.fetch(lock, [id.hex])

    @property
    def is_untouched(self) -> bool:
        """Whether the store has sent nothing in the transaction since ``lock``."""
        return False

    @property
    def can_commit(self) -> bool:
        """Whether ``commit_with`` is possible."""
        return False

    def commit_with(self, sql: str, params: Sequence[Any]) -> bool:
        """Commit the transaction together with its last statement. The commit of ``atomic`` then sends nothing.

        Raises ``TransactionEnded`` if the statement divides by zero. Returns False if it takes the root of a negative
        number: the transaction can then only be rolled back.
        """
        raise NotImplementedError

    @abstractmethod
    def is_conflict(self, error: DatabaseError) -> bool:
        """Return whether the same transaction may succeed if it is repeated immediately."""

    @abstractmethod
    def is_duplicate(self, error: IntegrityError) -> bool:
        """Return whether the error is about a key that exists."""

    # Transactions

    @property
    def is_in_transaction(self) -> bool:
        """Whether the store joins the caller's transaction. Without autocommit, the caller always has one."""
        connection = self.connection
        return connection.in_atomic_block or not connection.get_autocommit()

    @contextmanager
    def transaction(self) -> Iterator[bool]:
        """Open a transaction of the store, or join the caller's. Yields whether it is the store's own."""
        if self.connection.in_atomic_block:
            yield False
        else:
            is_own = not self.is_in_transaction
            with transaction.atomic(using=self.using):  # Without autocommit, a savepoint.
                yield is_own

    def begin(self) -> None:  # noqa: B027 - most databases have nothing to do
        """Send the BEGIN of a transaction that Django has opened, if it has not been sent yet."""

    def write_first(self) -> None:  # noqa: B027 - most databases have nothing to do
        """Begin a transaction that reads before it writes."""

    def read_committed(self, *, links: bool = False) -> None:  # noqa: B027 - most databases have nothing to do
        """Let a transaction of the store that has just begun see later commits of other transactions.

        ``links``: it may link jobs to chains, which other transactions may end at the project's level.
        """

    @contextmanager
    def at_read_committed(self) -> Iterator[None]:
        """Open a transaction of the store that sees later commits of others, if the database has this choice."""
        yield

    def each_in_savepoint(self, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | Exception]:
        """Call the project's code with each item in an open transaction; return its results, or the errors it raised.

        An error of the database, even a swallowed one, may break the transaction. So the calls share a savepoint, and
        those after such an error have another one.
        """
        results: list[Result | Exception] = []
        while len(results) < len(items):
            with transaction.atomic(using=self.using):
                for item in items[len(results) :]:
                    try:
                        results.append(call(item))
                    except Exception as error:
                        results.append(error)
                    if is_broken(self.connection):
                        transaction.set_rollback(True, using=self.using)
                        break
        return results

    @contextmanager
    def waits_within(self, seconds: float) -> Iterator[None]:
        """Limit the waits for locks in a part of an open transaction. If that part raises, its locks are released."""
        yield

    @property
    def is_impatient(self) -> bool:
        """Whether ``waits_at_most`` limits how long a transaction of the store would wait for a lock."""
        return False

    @contextmanager
    def waits_at_most(self, seconds: float) -> Iterator[None]:
        """Limit the waits for locks of this thread's transactions of the store."""
        yield

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Open a transaction if ``waits_at_most`` limits its waits. It does not limit them in autocommit."""
        yield

    @contextmanager
    def reads_within(self, seconds: float) -> Iterator[None]:
        """End reads that take longer with an ``OperationalError`` that ``is_out_of_time`` recognizes.

        Does nothing if the database has no such limit.
        """
        yield

    def is_out_of_time(self, error: OperationalError) -> bool:
        """Return whether ``reads_within`` ended a read. The transaction that it joined is unchanged."""
        return False

    def prepare_for_workers(self) -> None:  # noqa: B027 - most databases have nothing to do
        """Prepare the database for several threads and processes."""

    def identity(self) -> Any:
        """Return a value that is equal for two aliases that reach the same job tables."""
        return self.using

    def column_types(self, table: str) -> dict[str, tuple[str, bool | None]]:
        """Return the types of a project's table by column, and whether they are NOT NULL, which is None for a view.

        Empty if there is no table, or if the database does not enforce types.
        """
        return {}

    def mark(self, transaction: OpenTransaction | None, id: str) -> None:
        """Record the transaction that is open."""
        if transaction is not None:
            transaction.id = id

    @abstractmethod
    def check_transaction(self, transaction: OpenTransaction | None) -> None:
        """Raise ``TransactionEnded`` unless the transaction that ``lock`` recorded is still open."""

    @abstractmethod
    def inside(self, transaction: OpenTransaction | None) -> tuple[str, list[Any]]:
        """SQL that ends a condition, with its parameters: true only in this transaction. A statement that finds fewer
        rows because of it asks ``check_transaction`` for the reason. Checks immediately if this needs no round trip."""

    # Rows and conditions

    @abstractmethod
    def rows(self, columns: str, name: str = "d") -> str:
        """SQL of a table with these columns ("id uuid, delay_seconds float"), read from one JSON parameter."""

    @abstractmethod
    def row(self, columns: str) -> str:
        """SQL of a table with a single row, with a parameter for each column."""

    def arrays(self, columns: str, shared: str) -> str:
        """SQL of a table with ``columns``, each read from the text of an array in a parameter, and ``shared`` columns,
        which have the same value in all rows. The parameters of these come first. A shorter array is filled with NULL.
        """
        raise NotImplementedError

    def cast(self, value: str, type: str) -> str:
        """SQL of a value from a parameter, cast to the type of the project's columns."""
        return value

    @abstractmethod
    def any_of(self, select: str) -> str:
        """SQL of a condition's right side: equal to any row of a SELECT that is evaluated once."""

    @abstractmethod
    def is_listed(self, id: str, texts: str) -> str:
        """SQL of whether an id is in a JSON list of ``id_text``."""

    @abstractmethod
    def json_text(self, column: str) -> str:
        """SQL of a JSON column as text."""

    def by_ids_params(self, ids: Iterable[str]) -> list[Any]:
        """Return the parameter of ``by_ids``, if it has one."""
        return [list(ids)] if self.by_ids else []

    @property
    @abstractmethod
    def groups(self) -> str:
        """SQL of a recursive table ``groups``: the first pending job (queue, type_name, rank, run_at, id) of each
        queue, type and priority, in any order. ``rank`` is the negated priority."""

    def by_index(self, name: str) -> str:
        """SQL after a table's alias that names the index to use, if the database would choose a worse one."""
        return ""

    # Locks, which end a SELECT

    def wait_lock(self, alias: str) -> str:
        """SQL that waits for the locks of these rows, and reads them again."""
        return ""

    def shared_lock(self, alias: str) -> str:
        """SQL that waits for the locks of these rows, and then locks them against changes in shared mode."""
        return ""

    def skip_lock(self, alias: str) -> str:
        """SQL that locks these rows, and skips rows that other transactions have locked."""
        return ""

    def keep_lock(self, alias: str) -> str:
        """SQL that keeps these rows from being deleted, and skips rows that are being deleted."""
        return ""

    @abstractmethod
    def lock_sql(self, *, skips: bool) -> str:
        """A statement that locks the job with the id in its parameter: its status, its lease number,
        ``transaction_id``, and NULL. ``skips``: it finds no row if another transaction has locked it."""

    def try_lock(self, name: str) -> str:
        """SQL of whether this transaction has locked a name until it ends. It does not wait for other transactions."""
        return "true"

    # Times and ids

    @abstractmethod
    def after(self, time: str, seconds: str) -> str:
        """SQL of a time some seconds after another."""

    @abstractmethod
    def seconds(self, since: str, until: str) -> str:
        """SQL of the seconds between two times."""

    @abstractmethod
    def microseconds(self, time: str) -> str:
        """SQL of the microseconds from 1970 until a time, which is a whole number."""

    @abstractmethod
    def start_of(self, span: str, time: str) -> str:
        """SQL of the start of the minute or hour of a time; ``span``: SQL of its length in seconds."""

    @abstractmethod
    def latest(self, first: str, second: str) -> str:
        """SQL of the later of two times; the first may be NULL."""

    @property
    def planned(self) -> str:
        """SQL of the time that a row ``d`` asks for: its ``run_at``, or its ``delay_seconds`` from now if later."""
        return self.latest("d.run_at", self.after("clock.now", "d.delay_seconds"))

    @abstractmethod
    def time_as_text(self, column: str) -> str:
        """SQL of a time column as text without a time zone, which is read faster than the driver's times."""

    @abstractmethod
    def time(self, text: str) -> datetime:
        """Return the aware time of a text from ``time_as_text``."""

    @abstractmethod
    def time_text(self, time: datetime) -> str: ...

    @abstractmethod
    def id(self, value: Any) -> UUID: ...

    @abstractmethod
    def id_text(self, id: UUID) -> str: ...

    # Conditions that several parts use

    @property
    def is_cancelled(self) -> str:
        """SQL of whether the attempt of a row of jobs was asked to stop.

        In a RETURNING, SQLite 3.40 takes NULL for NOT NULL: so the column is compared with itself.
        """
        return f"(COALESCE(cancel_requested_at = cancel_requested_at, false) OR {self.is_to_be_cancelled('chain_id')})"

    @property
    def is_expired(self) -> str:
        """SQL of whether a cancelled job had not started when it expired."""
        return "COALESCE(job.cancel_requested_at = job.expires_at, false)"

    def is_to_be_cancelled(self, chain_id: str) -> str:
        """SQL of whether ``chains.cancel`` found the chain's job locked: see ``DeferredWrites``."""
        condition = f"later.job_id = {chain_id} AND later.kind = 'cancel'"
        return f"EXISTS (SELECT 1 FROM {self.tables.deferred_write} AS later WHERE {condition})"

    def last_of(self, chain_id: str, column: str = "id") -> str:
        """SQL of a column of a chain's last job: one index probe, however long the chain is."""
        return (
            f"(SELECT last.{column} FROM {self.tables.job} AS last WHERE last.chain_id = {chain_id} "
            "ORDER BY last.chain_index DESC LIMIT 1)"
        )


def ids_json(ids: Iterable[UUID]) -> str:
    return json.dumps([{"job_id": id_.hex} for id_ in ids])


def names_json(names: Iterable[str]) -> str:
    return json.dumps([{"name": name} for name in names])


def rows_json(columns: str, rows: Iterable[Sequence[Any]]) -> str:
    """Return the parameter of ``Database.rows`` with these values of its columns."""
    names = [column.split()[0] for column in columns.split(", ")]
    return json.dumps([dict(zip(names, row, strict=True)) for row in rows], default=str)


class Part:
    """A group of the store's methods. Each is one transaction with a constant number of statements for any batch size.

    It joins the caller's transaction if one is open. Rows travel as one JSON parameter (``Database.rows``).
    """

    def __init__(self, db: Database) -> None:
        self.db = db
        self.tables = db.tables


class statement:  # noqa: N801 - a decorator, as ``property`` is
    """A property with the text of a statement. It is built once, and rebuilt only after a test has moved the clock."""

    def __init__(self, build: Callable[[Any], str]) -> None:
        self._build = build

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, part: Any, owner: type | None = None) -> str:
        sql = part.__dict__[self._name] = one_line(self._build(part))
        part.db.built.append((part.__dict__, self._name))
        return sql


def statements(build: Callable[[Any, *Arguments], str]) -> Callable[[Any, *Arguments], str]:
    """Like ``statement``, for a method: build the text once for each combination of its few possible arguments."""

    @wraps(build)
    def text(part: Any, *args: *Arguments) -> str:
        texts: dict[Any, str] | None = part.__dict__.get(name)
        if texts is None:
            texts = part.__dict__[name] = {}
            part.db.built.append((part.__dict__, name))
        sql = texts.get(args)
        if sql is None:
            sql = texts[args] = one_line(build(part, *args))
        return sql

    name = f"{build.__name__} texts"
    return text


def one_line(sql: str) -> str:
    return " ".join(sql.split())
