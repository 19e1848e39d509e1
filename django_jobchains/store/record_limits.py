"""The dequeue of limited records: never more in process or started than allowed, and in turn for each key.

It works like the claim of limited jobs: a transaction tries to lock the keys, counts the records in process with a
newer snapshot, and dequeues. Starts are counted in ``rates``. See docs/decisions/0106-limits-of-records.md.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from django_jobchains.store.database import Database
from django_jobchains.store.deduplication import KEY_LENGTH
from django_jobchains.store.deduplication import TENANT_SEPARATOR as SEPARATOR
from django_jobchains.store.errors import retried
from django_jobchains.store.rates import Charge, Rates, StartRate, in_microseconds
from django_jobchains.store.record_tables import Dequeued, IdsSelect, QuerySetSQL, RecordPart, RecordTable
from django_jobchains.store.records import DequeueInTransaction, DequeueRequest, Records

#: The most keys of one dequeue, which are also its most locks.
MAX_KEYS = 64
#: The alias of the table with the key whose records are searched.
_TURN = "jobchains_turn"
#: The name and the columns of the table with the rate. Aliases must differ from the columns of any model.
_RATE = "jobchains_rate"


class RecordRate(NamedTuple):
    """How fast records may start. ``name``: of the group, or of the registration. ``is_keyed``: each key may."""

    name: str
    rate: StartRate
    is_keyed: bool


class LimitedRecords(NamedTuple):
    """The limits of a record type in a database.

    ``name``: that of the registration. ``slot_limit``: how many of its records may be in process, None for any number.
    ``column``: SQL of the name of the column whose values take turns, None if there is none. ``key_text``: the template
    of SQL of such a value as text, as Python writes it. ``is_keyed``: whether the limit holds for each of these values.
    ``select``: selects what is counted, the keys or ids of the registration's records.
    """

    name: str
    slot_limit: int | None
    is_keyed: bool
    column: str | None
    is_nullable: bool
    key_text: str
    select: IdsSelect
    rate: RecordRate | None = None


class Turn(NamedTuple):
    """A key whose records probably may start, and the key of its bucket if it has its own rate."""

    key: Any
    rate_key: str | None


class RecordRotation:
    """Whose turn it is: the one after the key that this worker served last."""

    def __init__(self) -> None:
        #: None: the smallest key.
        self.served: Any = None
        #: Whether another dequeue was deciding about a key in the last one, so that there may be free places.
        self.met_lock = False
        #: The monotonic time when the next record may start, if the last dequeue found only the rate in the way.
        self.next_start_at: float | None = None

    def set_next_start(self, seconds: float | None) -> None:
        self.next_start_at = None if seconds is None or seconds <= 0 else time.monotonic() + seconds


class RecordLimits(RecordPart):
    def __init__(self, db: Database, records: Records, rates: Rates) -> None:
        super().__init__(db)
        self._records = records
        self._rates = rates

    @retried
    def dequeue(
        self,
        table: RecordTable,
        limits: LimitedRecords,
        rotation: RecordRotation,
        request: DequeueRequest,
        *,
        joins_transaction: bool = False,
    ) -> list[Dequeued]:
        """Start records that are ready within their limits. For the other arguments, see ``Records.dequeue``."""
        if self.db.connection.in_atomic_block and not joins_transaction:
            raise DequeueInTransaction
        rotation.met_lock, rotation.next_start_at = False, None
        if limits.slot_limit == 0:
            return []
        with self.db.transaction() as is_own:
            self.db.begin()
            self.db.write_first()
            if is_own:
                self.db.read_committed()
            rate, room = limits.rate, request.limit
            if limits.slot_limit is not None and not limits.is_keyed:
                if not self._has_locked(self.db.try_lock("%s::text"), limits.name, rotation):
                    return []
                room = min(room, limits.slot_limit - self._counted(table, limits).get(None, 0))
            if room > 0 and rate is not None and not rate.is_keyed:
                room = min(room, self._starts(table, rate, rotation, request))
            if room < 1:
                return []
            request = request._replace(limit=room)
            if limits.column is None:
                return self._charged([(None, each) for each in self._start(table, request, room)], rate, rotation)
            turns = self.lock_keys(table, limits, rotation, request)
            started = self.start_of(turns, table, limits, rotation, request) if turns else []
            if rate is not None and rate.is_keyed and not started:
                rotation.set_next_start(self._seconds_to_start(table, limits, rotation, request))
            return started

    def lock_keys(
        self, table: RecordTable, limits: LimitedRecords, rotation: RecordRotation, request: DequeueRequest
    ) -> list[Turn]:
        """Return keys of records that probably may start, in turn, and lock what they are counted by.

        Keys that others have locked are left out.
        """
        tables, turns = self._turns(table, limits, rotation, request, "<=")
        lock, name = "true", []
        if limits.is_keyed and self.db.locks_rows:
            lock, name = self.db.try_lock(f"%s::text || '{SEPARATOR}' || COALESCE(key::text, '')"), [limits.name]
        if limits.rate is not None and limits.rate.is_keyed:
            lock = f"{lock} AND {self._rates.try_lock('rate_key')}"
        rows = self.db.fetch(
            f"{tables}, found AS MATERIALIZED (SELECT key, rate_key FROM ({turns.sql}) AS turns LIMIT %s) "
            f"SELECT key, rate_key, {lock} FROM found",
            [*turns.params, min(request.limit, MAX_KEYS), *name],
            of_queryset=turns.has_values,
        )
        locked = [Turn(key, rate_key) for key, rate_key, is_locked in rows if is_locked]
        rotation.met_lock = len(locked) < len(rows)
        return locked

    def start_of(
        self,
        turns: Sequence[Turn],
        table: RecordTable,
        limits: LimitedRecords,
        rotation: RecordRotation,
        request: DequeueRequest,
    ) -> list[Dequeued]:
        """Start records of these locked keys, an even share of each. Counts in another statement than ``lock_keys``."""
        counted = self._counted(table, limits) if limits.is_keyed else {}
        rated = [turn.rate_key for turn in turns if turn.rate_key is not None]
        starts: dict[str | None, int] = {}
        if limits.rate is not None and rated:
            starts.update(self._read(limits.rate, rated, rotation))
        started: list[tuple[str | None, Dequeued]] = []
        for turn in turns:
            places = min(-(-request.limit // len(turns)), request.limit - len(started))
            if limits.is_keyed and limits.slot_limit is not None:
                places = min(places, limits.slot_limit - counted.get(turn.key, 0))
            places = min(places, starts.get(turn.rate_key, places))
            condition, params = ("IS NULL", []) if turn.key is None else ("= %s", [turn.key])
            found = self._start(table, _only(table, limits, request, condition, params), places)
            if found:
                rotation.served = turn.key
                started += [(turn.rate_key, each) for each in found]
                if turn.rate_key in starts:  # Very long keys may share a bucket.
                    starts[turn.rate_key] -= len(found)
        return self._charged(started, limits.rate, rotation)

    def _starts(self, table: RecordTable, rate: RecordRate, rotation: RecordRotation, request: DequeueRequest) -> int:
        """Lock the bucket of all records, and return how many it allows to start."""
        if not self._has_locked(self._rates.try_lock("%s::text"), rate.name, rotation):
            return 0
        starts = self._read(rate, [rate.name], rotation)[rate.name]
        if rotation.next_start_at is not None:  # Without ready records, the lane need not query at that time.
            is_ready, params, has_values = self._ready(table, request)
            if not self.db.fetch(f"SELECT 1 WHERE {is_ready}", params, of_queryset=has_values):
                rotation.next_start_at = None
        return starts

    def _has_locked(self, lock: str, name: str, rotation: RecordRotation) -> bool:
        """Lock a name with this SQL, and return whether no other dequeue or claim has locked it."""
        if not self.db.locks_rows:
            return True
        [(is_locked,)] = self.db.fetch(f"SELECT {lock}", [name])
        if not is_locked:
            rotation.met_lock = True
        return bool(is_locked)

    def _read(self, rate: RecordRate, rate_keys: Sequence[str], rotation: RecordRotation) -> dict[str, int]:
        """Return how many records may start by these buckets, in another statement than that of their locks."""
        buckets = self._rates.read(rate_keys, rate.rate)
        for bucket in buckets.values():
            if not bucket.starts and bucket.seconds <= 0:  # Someone else has locked its row.
                rotation.met_lock = True
        if not rate.is_keyed and not buckets[rate.name].starts:
            rotation.set_next_start(buckets[rate.name].seconds)
        return {key: bucket.starts for key, bucket in buckets.items()}

    def _charged(
        self, found: Sequence[tuple[str | None, Dequeued]], rate: RecordRate | None, rotation: RecordRotation
    ) -> list[Dequeued]:
        """Count the starts of records, by their rate keys if they have one each. Return the records with their charges.

        Records that were cancelled instead are not counted.
        """
        started = [each for _, each in found if each.state == "processing"]
        if rate is None or not started:
            return [each for _, each in found]
        # The last one, because they were started by several statements.
        now = max(self.db.time(each.started_at) for each in started)
        charges = {each.key: Charge(key or rate.name, in_microseconds(now)) for key, each in found if each in started}
        seconds = self._rates.charge([(charge.rate_key, rate.rate) for charge in charges.values()], now)
        if not rate.is_keyed:
            rotation.set_next_start(seconds)
        return [each._replace(charge=charges.get(each.key)) for _, each in found]

    def _start(self, table: RecordTable, request: DequeueRequest, places: int) -> list[Dequeued]:
        if places < 1:
            return []
        # A power of two, because each number of records has its own statement. The next dequeue takes the rest.
        request = request._replace(limit=1 << (places.bit_length() - 1))
        return self._records.dequeue(table, request, joins_transaction=True)

    def _counted(self, table: RecordTable, limits: LimitedRecords) -> dict[Any, int]:
        """Return how many records of each key are in process. Without keys, all of them have the key None."""
        key, group = ("key", "GROUP BY key") if limits.is_keyed else ("NULL", "")
        held, params, has_values = _held(table, limits)
        sql = f"WITH held(key) AS ({held}) SELECT {key}, count(*) FROM held {group}"
        return dict(self.db.fetch(sql, params, of_queryset=has_values))

    def _seconds_to_start(
        self, table: RecordTable, limits: LimitedRecords, rotation: RecordRotation, request: DequeueRequest
    ) -> float | None:
        """Return the seconds until the rate allows the next start of a key that has ready records and a free place."""
        tables, turns = self._turns(table, limits, rotation, request, ">")
        now = self.db.microseconds(self.db.now)
        sql = f"{tables} SELECT (min(starts_at) - {now}) / 1000000.0 FROM ({turns.sql}) AS turns"
        [(seconds,)] = self.db.fetch(sql, turns.params, of_queryset=turns.has_values)
        return None if seconds is None else float(seconds)

    def _turns(
        self,
        table: RecordTable,
        limits: LimitedRecords,
        rotation: RecordRotation,
        request: DequeueRequest,
        compared: str,
    ) -> tuple[str, QuerySetSQL]:
        """Return SQL of common tables, and a SELECT of the keys with ready records and a free place, in turn.

        The parameters are those of both. It finds each key with one index probe. The keys after the one that was served
        last come first, then NULL, then the others. ``compared``: how the time of the next start, if keys have rates,
        compares with the current time.
        """
        column, own, served = f"n.{limits.column}", table.under("n"), rotation.served
        waits = f"{_waits(own)} AND {own.state} = 'queued'" if request.retry_seconds is None else _waits(own)
        first = f"SELECT {column} FROM {table.name} AS n WHERE {waits} AND {{}} ORDER BY {column} LIMIT 1"
        tables: list[str] = []
        arms: list[QuerySetSQL] = []
        params: list[Any] = []
        has_room, has_values = "true", False
        if limits.is_keyed:
            sql, held_params, has_values = _held(table, limits)
            params += held_params
            full = f"SELECT key FROM jobchains_held GROUP BY key HAVING count(*) >= {limits.slot_limit}"
            tables += [f"jobchains_held(key) AS ({sql})", f"jobchains_full(key) AS MATERIALIZED ({full})"]
            has_room = f"{_TURN}.key NOT IN (SELECT key FROM jobchains_full WHERE key IS NOT NULL)"
        rate = limits.rate if limits.rate is not None and limits.rate.is_keyed else None
        if rate is not None:
            columns = ", ".join(self.db.cast("%s", kind) for kind in ("text", "bigint", "bigint"))
            tables.append(f"{_RATE}(name, microseconds, burst) AS MATERIALIZED (SELECT {columns})")
            params += [rate.name, *rate.rate]

        def add_arm(key: str, source: str, condition: str, ready: str) -> None:
            """Add the keys of a table that meet a condition, and a condition about their ready records."""
            rate_key, starts_at, is_allowed = "NULL", "0", "true"
            if rate is not None:
                is_null, text = key == "NULL", f"substr({limits.key_text.format(key)}, 1, {KEY_LENGTH})"
                rate_key = f"{_RATE}.name" if is_null else f"{_RATE}.name || '{SEPARATOR}' || {text}"
                starts_at = self._rates.starts_at(_RATE, rate_key)
                source = f"FROM {_RATE}" if is_null else f"{source} CROSS JOIN {_RATE}"
                is_allowed = f"{starts_at} {compared} {self.db.microseconds(self.db.now)}"
            is_ready = self._ready(table, _only(table, limits, request, ready))
            sql = (
                f"SELECT {key} AS key, {rate_key} AS rate_key, {starts_at} AS starts_at {source} "
                f"WHERE {condition} AND {is_allowed} AND {is_ready.sql}"
            )
            arms.append(is_ready._replace(sql=sql))

        def add(name: str, begin: str, end: str, values: list[Any]) -> None:
            """Add the keys from the first one that meets a condition on, as long as they meet another."""
            following = first.format(f"{column} > {_TURN}.key AND {end}")
            tables.append(
                f"{name}(key) AS (SELECT ({first.format(begin)}) UNION ALL "
                f"SELECT ({following}) FROM {name} AS {_TURN} WHERE {_TURN}.key IS NOT NULL)"
            )
            params.extend(values)
            condition = f"{_TURN}.key IS NOT NULL AND {has_room}"
            add_arm(f"{_TURN}.key", f"FROM {name} AS {_TURN}", condition, f"= {_TURN}.key")

        if served is None:
            add("jobchains_after", f"{column} IS NOT NULL", "true", [])
        else:
            add("jobchains_after", f"{column} > %s", "true", [served])
        if limits.is_nullable:
            is_full = "EXISTS (SELECT 1 FROM jobchains_full WHERE key IS NULL)" if limits.is_keyed else "false"
            add_arm("NULL", "", f"NOT {is_full}", "IS NULL")
        if served is not None:
            add("jobchains_until", f"{column} <= %s", f"{column} <= %s", [served, served])
        params += [value for arm in arms for value in arm.params]
        has_values = has_values or any(arm.has_values for arm in arms)
        turns = QuerySetSQL(" UNION ALL ".join(arm.sql for arm in arms), params, has_values)
        return f"WITH RECURSIVE {', '.join(tables)}", turns

    def _ready(self, table: RecordTable, request: DequeueRequest) -> QuerySetSQL:
        """Return SQL of whether a record of a request is ready."""
        selects = self._records.selects(table, request)
        # Not EXISTS, which PostgreSQL could turn into a join that reads all records.
        found = " OR ".join(f"({select.sql} LIMIT 1) IS NOT NULL" for select in selects)
        params = [value for select in selects for value in select.params]
        return QuerySetSQL(f"({found or 'false'})", params, any(select.has_values for select in selects))


def _held(table: RecordTable, limits: LimitedRecords) -> QuerySetSQL:
    """Return an SQL SELECT of the key of each record in process, or of its id without keys."""
    nothing = QuerySetSQL(f"SELECT {limits.column or table.id} FROM {table.name} WHERE 1 = 0", [], has_values=False)
    return limits.select(f"{table.under(table.name).state} = 'processing'", [], ["started_at"]) or nothing


def _only(
    table: RecordTable, limits: LimitedRecords, request: DequeueRequest, condition: str, params: Sequence[Any] = ()
) -> DequeueRequest:
    """Return a request for records whose key meets a condition. It repeats the condition of the index of keys."""
    of_key = f"{table.name}.{limits.column} {condition} AND {_waits(table.under(table.name))}"

    def select(where: str, values: Sequence[Any], order: Sequence[str]) -> QuerySetSQL | None:
        return request.select(f"({where}) AND {of_key}", [*values, *params], order)

    return request._replace(select=select)


def _waits(own: RecordTable) -> str:
    """SQL of the condition of the index of keys."""
    return f"{own.state} IN ('queued', 'errored')"
