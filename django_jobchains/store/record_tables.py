"""The SQL names of record tables, which belong to models of the project, and the rows that record methods take."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

from django_jobchains.store.database import Part, rows_json
from django_jobchains.store.rates import Charge

#: A record by its primary key, and the number of its lease.
RecordKey = tuple[Any, int]
RecordEndKind = Literal["completed", "errored", "failed", "requeued", "handed_back"]

#: The columns of ``rows`` that name a record.
KEY = "id text, n bigint"
COLUMNS = (
    "state",
    "failure_message",
    "queued_at",
    "started_at",
    "last_heartbeat_at",
    "finished_at",
    "process_after",
    "num_resets",
    "num_failures",
    "execution_logs",
    "worker_hostname",
    "cancel",
    "lease_number",
)
#: The states that workers know. Rows with any other state are ignored.
STATES = ("queued", "processing", "completed", "errored", "failed", "cancelled")


class QuerySetSQL(NamedTuple):
    """SQL compiled from a QuerySet. ``has_values``: some parameters are the QuerySet's, and not the store's."""

    sql: str
    params: Sequence[Any]
    has_values: bool


#: Returns a SELECT of primary keys, from a condition with its parameters and names of columns to order by. None: no
#: such row can exist.
IdsSelect = Callable[[str, Sequence[Any], Sequence[str]], QuerySetSQL | None]


@dataclass(frozen=True)
class RecordIds:
    """Converts primary keys to values of JSON parameters, and values that the database returns to primary keys."""

    to_parameter: Callable[[Any], Any]
    from_column: Callable[[Any], Hashable]


@dataclass(frozen=True)
class RecordTable:
    """Quoted names of a table, its primary key and the columns of a record. ``id_type``: the type of the key.

    ``no_message``: SQL of a failure message that is not set, depending on whether the column may be NULL.
    """

    name: str
    id: str
    id_type: str
    no_message: str
    state: str
    failure_message: str
    queued_at: str
    started_at: str
    last_heartbeat_at: str
    finished_at: str
    process_after: str
    num_resets: str
    num_failures: str
    execution_logs: str
    worker_hostname: str
    cancel: str
    lease_number: str
    ids: RecordIds = field(compare=False, repr=False)

    @property
    def name_in_lock(self) -> str:
        """The name as a clause of locks needs it, without the schema of a ``db_table`` such as ``schema"."table``."""
        return '"' + self.name.rpartition('"."')[2].removeprefix('"')

    def under(self, alias: str) -> "RecordTable":
        """Return the table with its column names prefixed by this alias."""
        names = {name: f"{alias}.{getattr(self, name)}" for name in ("id", *COLUMNS)}
        return replace(self, **names)  # type: ignore[arg-type]

    def keys_json(self, keys: Iterable[RecordKey]) -> str:
        """Return the parameter of ``Database.rows`` with the columns ``KEY``."""
        return rows_json(KEY, [(self.ids.to_parameter(id_), number) for id_, number in keys])

    def ids_json(self, ids: Iterable[Any]) -> str:
        """Return the same for a statement that only reads the ids."""
        return self.keys_json((id_, 0) for id_ in ids)


class Dequeued(NamedTuple):
    """A record that was dequeued. ``state``: "processing", or "cancelled" for a record that must not be started.

    ``started_at``: the text of the time. ``charge``: where its start was counted, if it has a rate.
    """

    id: Any
    lease_number: int
    state: str
    started_at: str = ""
    charge: Charge | None = None

    @property
    def key(self) -> RecordKey:
        return self.id, self.lease_number


class RecordEnd(NamedTuple):
    """How an attempt of a record ends.

    ``process_after`` or ``delay_seconds`` is for "requeued", ``message`` and ``max_attempts`` are for errors.
    """

    id: Any
    lease_number: int
    kind: RecordEndKind
    process_after: datetime | None = None
    message: str = ""
    max_attempts: int = 1
    delay_seconds: float | None = None

    @property
    def key(self) -> RecordKey:
        return self.id, self.lease_number


class StalledRecord(NamedTuple):
    """A record whose heartbeats were missing: "queued" again, "failed", or "cancelled" if this was requested."""

    id: Any
    state: str
    resets: int


class RecordPart(Part):
    """A part of the store with statements about record tables."""

    def _any_id(self, table: RecordTable) -> str:
        """SQL that compares with the ids of the statement's parameter, which is JSON with ``KEY``."""
        return self.db.any_of(f"SELECT {self.db.cast('d.id', table.id_type)} FROM {self.db.rows(KEY)}")

    def _fence(self, table: RecordTable) -> str:
        """SQL of whether the attempt of a row ``d`` with ``KEY`` still holds its record."""
        old = table.under("record")
        return f"""
            {old.id} = {self.db.cast("d.id", table.id_type)}
            AND {old.lease_number} = d.n AND {old.state} = 'processing'
        """

    def _is_cancelled(self, table: RecordTable, prefix: str) -> str:
        """SQL of whether the attempt of a record was asked to stop. ``prefix``: the prefix of the table's columns."""
        flag = f"COALESCE({prefix}{table.cancel}, false)"
        if not self.db.locks_rows:  # Then no request is ever deferred.
            return flag
        later = f"SELECT 1 FROM {self.tables.deferred_write} AS later"
        return f"({flag} OR EXISTS ({later} WHERE later.job_id = {self._cancel_key(table, f'{prefix}{table.id}')}))"

    def _cancel_key(self, table: RecordTable, id: str) -> str:
        """SQL of the key of a deferred request to cancel a record, in the column that has the ids of jobs."""
        literal = table.name.replace("'", "''")
        # Not md5, which servers in FIPS mode refuse.
        return f"left(encode(sha256(convert_to('{literal}' || ({id})::text, 'UTF8')), 'hex'), 32)::uuid"

    def _returned(self, table: RecordTable, *columns: str) -> str:
        return ", ".join(f"{self.db.returned}{getattr(table, column)}" for column in columns)
