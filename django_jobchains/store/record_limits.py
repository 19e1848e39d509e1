"""The dequeue of limited records: never more in process than allowed, and in turn for each key.

It works like the claim of limited jobs: a transaction tries to lock the keys, counts the records in process with a
newer snapshot, and dequeues. See docs/decisions/0106-limits-of-records.md.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from django_jobchains.store.database import Database
from django_jobchains.store.deduplication import TENANT_SEPARATOR as SEPARATOR
from django_jobchains.store.errors import retried
from django_jobchains.store.record_tables import Dequeued, IdsSelect, RecordPart, RecordTable
from django_jobchains.store.records import DequeueInTransaction, DequeueRequest, Records

#: The most keys, and so the most locks, of one dequeue.
MAX_KEYS = 64
#: The alias of the table with the key whose records are searched.
_TURN = "jobchains_turn"


class RecordTypeLimits(NamedTuple):
    """The limits of a record type, as they are declared.

    ``slot_limit``: how many of its records may be in process at once, in all workers together, or None for any number.
    ``field``: the field whose values take turns, if any. ``is_keyed``: whether the limit holds for each of its values.
    """

    slot_limit: int | None
    field: str | None
    is_keyed: bool


class RecordConcurrency(NamedTuple):
    """The limits of a record type in a database.

    ``name``: that of the registration. ``slot_limit``: how many of its records may be in process, None for any number.
    ``column``: SQL of the name of the column whose values take turns, None if there is none. ``is_keyed``: whether the
    limit holds for each of these values. ``select``: selects what is counted, the keys or ids of the registration's
    records.
    """

    name: str
    slot_limit: int | None
    is_keyed: bool
    column: str | None
    is_nullable: bool
    select: IdsSelect


class RecordRotation:
    """Whose turn it is: the one after the key that this worker served last."""

    def __init__(self) -> None:
        #: None: the smallest key.
        self.served: Any = None
        #: Whether another dequeue was deciding about a key in the last one, so that there may be free places.
        self.met_lock = False


class RecordLimits(RecordPart):
    def __init__(self, db: Database, records: Records) -> None:
        super().__init__(db)
        self._records = records

    @retried
    def dequeue(
        self,
        table: RecordTable,
        limits: RecordConcurrency,
        rotation: RecordRotation,
        request: DequeueRequest,
        *,
        joins_transaction: bool = False,
    ) -> list[Dequeued]:
        """Start records that are ready within their limits. The other arguments are those of ``Records.dequeue``."""
        if self.db.connection.in_atomic_block and not joins_transaction:
            raise DequeueInTransaction
        rotation.met_lock = False
        with self.db.transaction() as is_own:
            self.db.begin()
            self.db.write_first()
            if is_own:
                self.db.read_committed()
            room = request.limit
            if limits.slot_limit is not None and not limits.is_keyed:
                room = min(room, self._places(table, limits, rotation, limits.slot_limit))
            if room < 1:
                return []
            if limits.column is None:
                return self._start(table, request, room)
            keys = self.lock_keys(table, limits, rotation, request._replace(limit=room))
            return self.start_of(keys, table, limits, rotation, request._replace(limit=room)) if keys else []

    def lock_keys(
        self, table: RecordTable, limits: RecordConcurrency, rotation: RecordRotation, request: DequeueRequest
    ) -> list[Any]:
        """Return keys of records that probably may start, in turn, and lock them if they have limits.

        Keys that another dequeue has locked are left out.
        """
        sql, params = self._find(table, limits, rotation, request)
        lock, name = "true", []
        if limits.is_keyed and self.db.locks_rows:
            lock, name = self.db.try_lock(f"%s::text || '{SEPARATOR}' || COALESCE(key::text, '')"), [limits.name]
        limit = min(request.limit, MAX_KEYS)
        rows = self.db.fetch(f"{sql} LIMIT %s) SELECT key, {lock} FROM found", [*params, limit, *name])
        keys = [key for key, is_locked in rows if is_locked]
        rotation.met_lock = len(keys) < len(rows)
        return keys

    def start_of(
        self,
        keys: Sequence[Any],
        table: RecordTable,
        limits: RecordConcurrency,
        rotation: RecordRotation,
        request: DequeueRequest,
    ) -> list[Dequeued]:
        """Start records of these locked keys, an even share of each. Counts in another statement than ``lock_keys``."""
        counted = self._counted(table, limits) if limits.is_keyed else {}
        started: list[Dequeued] = []
        for key in keys:
            places = min(-(-request.limit // len(keys)), request.limit - len(started))
            if limits.is_keyed and limits.slot_limit is not None:
                places = min(places, limits.slot_limit - counted.get(key, 0))
            condition, params = ("IS NULL", []) if key is None else ("= %s", [key])
            found = self._start(table, _only(table, limits, request, condition, params), places)
            if found:
                rotation.served = key
                started += found
        return started

    def _places(self, table: RecordTable, limits: RecordConcurrency, rotation: RecordRotation, slot_limit: int) -> int:
        """Lock the registration, and return how many more of its records may start."""
        if self.db.locks_rows:
            [(is_locked,)] = self.db.fetch(f"SELECT {self.db.try_lock('%s::text')}", [limits.name])
            if not is_locked:
                rotation.met_lock = True
                return 0
        return slot_limit - self._counted(table, limits).get(None, 0)

    def _start(self, table: RecordTable, request: DequeueRequest, places: int) -> list[Dequeued]:
        if places < 1:
            return []
        # A power of two, because each number of records has its own statement. The next dequeue takes the rest.
        request = request._replace(limit=1 << (places.bit_length() - 1))
        return self._records.dequeue(table, request, joins_transaction=True)

    def _counted(self, table: RecordTable, limits: RecordConcurrency) -> dict[Any, int]:
        """Return how many records of each key are in process. Without keys, all of them have the key None."""
        key, group = ("key", "GROUP BY key") if limits.is_keyed else ("NULL", "")
        sql, params = _held(table, limits)
        return dict(self.db.fetch(f"WITH held(key) AS ({sql}) SELECT {key}, count(*) FROM held {group}", params))

    def _find(
        self, table: RecordTable, limits: RecordConcurrency, rotation: RecordRotation, request: DequeueRequest
    ) -> tuple[str, list[Any]]:
        """Return SQL of the keys that probably may start, in turn, up to the end of the CTE ``found``.

        It finds each key with one index probe. The keys after the one that was served last come first, then NULL, then
        the others.
        """
        column, own, served = f"n.{limits.column}", table.under("n"), rotation.served
        waits = f"{_waits(own)} AND {own.state} = 'queued'" if request.retry_seconds is None else _waits(own)
        first = f"SELECT {column} FROM {table.name} AS n WHERE {waits} AND {{}} ORDER BY {column} LIMIT 1"
        tables: list[str] = []
        arms: list[str] = []
        params: list[Any] = []
        of_arms: list[Any] = []
        has_room = "true"
        if limits.is_keyed:
            sql, params = _held(table, limits)
            full = f"SELECT key FROM jobchains_held GROUP BY key HAVING count(*) >= {limits.slot_limit}"
            tables += [f"jobchains_held(key) AS ({sql})", f"jobchains_full(key) AS MATERIALIZED ({full})"]
            has_room = f"{_TURN}.key NOT IN (SELECT key FROM jobchains_full WHERE key IS NOT NULL)"

        def add(name: str, begin: str, end: str, values: list[Any]) -> None:
            """Add the keys from the first one that meets a condition on, as long as they meet another."""
            following = first.format(f"{column} > {_TURN}.key AND {end}")
            tables.append(
                f"{name}(key) AS (SELECT ({first.format(begin)}) UNION ALL "
                f"SELECT ({following}) FROM {name} AS {_TURN} WHERE {_TURN}.key IS NOT NULL)"
            )
            params.extend(values)
            is_ready, ready_params = self._ready(table, limits, request, f"= {_TURN}.key")
            arms.append(f"SELECT key FROM {name} AS {_TURN} WHERE key IS NOT NULL AND {has_room} AND {is_ready}")
            of_arms.extend(ready_params)

        if served is None:
            add("jobchains_after", f"{column} IS NOT NULL", "true", [])
        else:
            add("jobchains_after", f"{column} > %s", "true", [served])
        if limits.is_nullable:
            is_full = "EXISTS (SELECT 1 FROM jobchains_full WHERE key IS NULL)" if limits.is_keyed else "false"
            is_ready, ready_params = self._ready(table, limits, request, "IS NULL")
            arms.append(f"SELECT NULL WHERE NOT {is_full} AND {is_ready}")
            of_arms += ready_params
        if served is not None:
            add("jobchains_until", f"{column} <= %s", f"{column} <= %s", [served, served])
        found = f"found(key) AS MATERIALIZED (SELECT key FROM ({' UNION ALL '.join(arms)}) AS turns"
        return f"WITH RECURSIVE {', '.join(tables)}, {found}", [*params, *of_arms]

    def _ready(
        self, table: RecordTable, limits: RecordConcurrency, request: DequeueRequest, condition: str
    ) -> tuple[str, list[Any]]:
        """Return SQL of whether a record is ready whose key meets a condition, with its parameters."""
        selects = self._records.selects(table, _only(table, limits, request, condition))
        # Not EXISTS, which PostgreSQL could turn into a join that reads all records.
        found = " OR ".join(f"({sql} LIMIT 1) IS NOT NULL" for sql, _ in selects)
        return f"({found or 'false'})", [value for _, values in selects for value in values]


def _held(table: RecordTable, limits: RecordConcurrency) -> tuple[str, list[Any]]:
    """Return an SQL SELECT of the key of each record in process, or of its id without keys."""
    found = limits.select(f"{table.under(table.name).state} = 'processing'", [], ["started_at"])
    sql, params = found or (f"SELECT {limits.column or table.id} FROM {table.name} WHERE 1 = 0", [])
    return sql, [*params]


def _only(
    table: RecordTable, limits: RecordConcurrency, request: DequeueRequest, condition: str, params: Sequence[Any] = ()
) -> DequeueRequest:
    """Return a request for records whose key meets a condition. It repeats the condition of the index of keys."""
    of_key = f"{table.name}.{limits.column} {condition} AND {_waits(table.under(table.name))}"

    def select(where: str, values: Sequence[Any], order: Sequence[str]) -> tuple[str, Sequence[Any]] | None:
        return request.select(f"({where}) AND {of_key}", [*values, *params], order)

    return request._replace(select=select)


def _waits(own: RecordTable) -> str:
    """SQL of the condition of the index of keys."""
    return f"{own.state} IN ('queued', 'errored')"
