"""What differs between databases: pieces of SQL, the form of ids and times, and how a statement is executed."""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobchains.models import (
    AttemptCount,
    DeferredWrite,
    FailedAttempt,
    Job,
    JobBlocker,
    JobProgress,
    KeyLock,
    LogLine,
    QueueState,
    WorkerPresence,
)
from django_jobchains.own_statements import own
from django_jobchains.store.rows import OpenTransaction


class Dialect(ABC):
    #: SQL of the database's time as a statement writes it,
    _clock: str
    #: and as a condition compares with it: stable, so that an index can serve it.
    _now: str
    #: Moved by tests alone: what the database's clock is taken to be ahead of itself.
    ahead_seconds: float = 0
    #: Casts a JSON text to the type of the columns ``input`` and ``output``.
    json_cast: str
    #: SQL of an id from a parameter of 32 hexadecimal digits.
    _uuid = "%s"
    #: SQL of a time before all others,
    _beginning = "''"
    #: and of the transaction's isolation level.
    _isolation = "''"
    #: SQL of the column job_id in a subquery of a RETURNING.
    _returned_job_id = "job_id"
    #: SQL of the id of the transaction that the statement is in.
    _transaction_id = "''"
    #: SQL that leads an UPDATE from many rows to the primary key, with the list of ids as its parameter.
    _by_ids = ""
    #: The same, which passes over rows that someone else has locked. Its locks are taken in the order of the ids.
    _by_unlocked_ids = ""

    def __init__(self, using: str) -> None:
        self.using = using
        quote = connections[using].ops.quote_name
        self.job = quote(Job._meta.db_table)
        self.failed_attempt = quote(FailedAttempt._meta.db_table)
        self.log_line = quote(LogLine._meta.db_table)
        self.progress = quote(JobProgress._meta.db_table)
        self.deferred_write = quote(DeferredWrite._meta.db_table)
        self.blocker = quote(JobBlocker._meta.db_table)
        self.worker = quote(WorkerPresence._meta.db_table)
        self.queue = quote(QueueState._meta.db_table)
        self.attempt_count = quote(AttemptCount._meta.db_table)
        self.key_lock = quote(KeyLock._meta.db_table)

    @property
    def _is_cancelled(self) -> str:
        """SQL of whether the attempt of a row of jobs was asked to stop.

        In a RETURNING, SQLite 3.40 takes NULL for NOT NULL: so the column is compared with itself.
        """
        return f"(COALESCE(cancel_requested_at = cancel_requested_at, false) OR {self._is_to_be_cancelled('chain_id')})"

    def _is_to_be_cancelled(self, chain_id: str) -> str:
        """SQL of whether ``chains.cancel`` found the chain's job locked: see ``deferred_writes``."""
        condition = f"later.job_id = {chain_id} AND later.kind = 'cancel'"
        return f"EXISTS (SELECT 1 FROM {self.deferred_write} AS later WHERE {condition})"

    @property
    def now(self) -> str:
        """SQL of the time a condition compares with."""
        return self._after(self._now, str(self.ahead_seconds)) if self.ahead_seconds else self._now

    @property
    def clock(self) -> str:
        """SQL of the time a statement writes, one for all its rows; a table with the column ``now``."""
        time = self._after(self._clock, str(self.ahead_seconds)) if self.ahead_seconds else self._clock
        # A sub-select of its own: it is read once, also by a plan that looks at the clock again for each row.
        return f"(SELECT (SELECT {time}) AS now) AS clock"

    @abstractmethod
    def _is_conflict(self, error: OperationalError) -> bool:
        """Whether trying the same transaction again may succeed at once."""

    @abstractmethod
    def _is_duplicate(self, error: IntegrityError) -> bool:
        """Whether it is a row with a key that exists."""

    @abstractmethod
    def _rows(self, columns: str, name: str = "d") -> str:
        """SQL of a table with these columns ("id uuid, delay_seconds float"), read from one JSON parameter."""

    @abstractmethod
    def _row(self, columns: str) -> str:
        """The same of a single row, with a parameter for each column."""

    @abstractmethod
    def _json_text(self, column: str) -> str:
        """SQL of a JSON column as text."""

    @abstractmethod
    def _after(self, time: str, seconds: str) -> str:
        """SQL of a time some seconds after another."""

    @abstractmethod
    def _seconds(self, since: str, until: str) -> str:
        """SQL of the seconds between two times."""

    @abstractmethod
    def _start_of(self, span: str, time: str) -> str:
        """SQL of the beginning of the minute or hour of a time; ``span``: SQL of its seconds."""

    @abstractmethod
    def _latest(self, first: str, second: str) -> str:
        """SQL of the later of two times; the first may be NULL."""

    @property
    def _planned(self) -> str:
        """SQL of the time a row ``d`` asks for: its ``run_at``, or so far from now, whichever is later."""
        return self._latest("d.run_at", self._after("clock.now", "d.delay_seconds"))

    @abstractmethod
    def _held(self, alias: str) -> str:
        """SQL that ends a SELECT: lock these rows, after whoever has them, and look at them again."""

    @abstractmethod
    def _shared(self, alias: str) -> str:
        """The same, together with others that lock them so: nobody can change them."""

    @abstractmethod
    def _locked(self, alias: str) -> str:
        """SQL that ends a SELECT: lock these rows, skip those that somebody else has locked."""

    @abstractmethod
    def _kept(self, alias: str) -> str:
        """SQL that ends a SELECT: nobody deletes these rows; skip those that somebody is about to delete."""

    @abstractmethod
    def _lock_keys(self, lock_ids: Sequence[int]) -> Collection[int]:
        """Locks deduplication keys until the transaction ends. ``lock_ids`` are numbers of ``lock_id``, each once.

        Keys are locked in one order, whatever the order given. Returns those that ``_mark_keys`` is not needed for.
        """

    def _mark_keys(self, lock_ids: Collection[int]) -> None:  # noqa: B027 - most have nothing to do
        """Makes transactions fail that lock one of these locked keys later with an older snapshot than ours."""

    def forget_keys(self, limit: int) -> int:
        """Deletes what is stored about keys that were not used lately, at most so many; returns how many."""
        return 0

    def _read_committed(self) -> None:  # noqa: B027 - most have nothing to do
        """Lets a transaction of our own that has just begun see what others commit meanwhile."""

    @contextmanager
    def _at_read_committed(self) -> Iterator[None]:
        """A transaction of the store's own that sees what others commit meanwhile, where there is a choice."""
        yield

    def _write_first(self) -> None:  # noqa: B027 - most have nothing to do
        """Begins a transaction that reads before it writes."""

    @property
    @abstractmethod
    def _groups_sql(self) -> str:
        """SQL of a recursive table ``groups``: the first job (queue, type_name, rank, run_at, id) of each queue, type
        and priority that has a pending one; in no order that counts. ``rank``: the priority turned round."""

    @abstractmethod
    def _check_transaction(self, transaction: OpenTransaction | None) -> None:
        """Raises ``TransactionEnded`` when the transaction that ``lock`` met is not the one that is open now."""

    @abstractmethod
    def _inside(self, transaction: OpenTransaction | None) -> tuple[str, list[Any]]:
        """SQL that ends a condition, with its parameters: true only in this transaction. A statement that finds fewer
        rows by it asks ``_check_transaction`` for the reason. Checks at once where that is not a round trip."""

    @abstractmethod
    def _any(self, select: str) -> str:
        """SQL of a condition's right side: equal to any row of a SELECT that is evaluated once."""

    @abstractmethod
    def _is_listed(self, id: str, texts: str) -> str:
        """SQL of whether an id is in a JSON list of ``_id_text``."""

    @abstractmethod
    def _id_text(self, id: UUID) -> str: ...

    @abstractmethod
    def _time_text(self, time: datetime) -> str: ...

    @abstractmethod
    def _as_text(self, column: str) -> str:
        """SQL of a time column as text: read faster than the driver's own times, and in no zone but its own."""

    @abstractmethod
    def _time(self, text: str) -> datetime:
        """The aware time of such a text."""

    @abstractmethod
    def _id(self, value: Any) -> UUID: ...

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.using]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of the store's own, or the caller's if one is open."""
        if self.connection.in_atomic_block:
            yield
        else:
            with transaction.atomic(using=self.using):
                yield

    @contextmanager
    def _waits_within(self, seconds: float) -> Iterator[None]:
        """Part of an open transaction that waits for locks no longer; if it raises, what it locked is free again."""
        yield

    @property
    def _is_impatient(self) -> bool:
        """Whether ``waits_at_most`` limits how long a transaction of the store's own would wait for a lock."""
        return False

    @contextmanager
    def waits_at_most(self, seconds: float) -> Iterator[None]:
        """Within it, this thread's own transactions of the store wait for a lock no longer."""
        yield

    @own
    def _fetch(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    @own
    def _execute(self, sql: str, params: Sequence[Any]) -> None:
        """A statement that returns nothing."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)

    def _by_ids_params(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [[row["job_id"] for row in rows]] if self._by_ids else []

    def _last_of(self, chain_id: str, column: str = "id") -> str:
        """SQL of a column of a chain's last job: one index probe, however long the chain is."""
        return (
            f"(SELECT last.{column} FROM {self.job} AS last WHERE last.chain_id = {chain_id} "
            "ORDER BY last.chain_index DESC LIMIT 1)"
        )

    @property
    def _ids_sql(self) -> str:
        """SQL of the ids in a parameter of ``ids_json``."""
        return f"SELECT d.job_id FROM {self._rows('job_id uuid')}"


def ids_json(ids: Iterable[UUID]) -> str:
    return json.dumps([{"job_id": id_.hex} for id_ in ids])
