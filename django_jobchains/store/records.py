"""Records, the rows of the project's own tables that workers run: dequeued, kept by heartbeats, ended and counted.

The methods correspond to the methods for jobs, and take a description of the table. Every write of an attempt checks
the state and the lease number of the record.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django.db import OperationalError

from django_jobchains.exceptions import JobchainsError, JobLocked
from django_jobchains.payloads.codecs import encode_json, encode_text
from django_jobchains.store.database import OpenTransaction, one_line, rows_json, statements
from django_jobchains.store.errors import is_lock_timeout, retried, retried_at_read_committed
from django_jobchains.store.record_tables import (
    KEY,
    Dequeued,
    IdsSelect,
    QuerySetSQL,
    RecordEnd,
    RecordKey,
    RecordPart,
    RecordTable,
)
from django_jobchains.store.rows import Renewal

_END = f"{KEY}, kind text, process_after timestamptz, message text, attempts bigint, delay float"
_LOGS = f"{KEY}, logs text"
#: The columns of the index of each state, in whose order its rows are counted, so that no other rows are read.
_INDEXED = {
    "queued": ["process_after", "queued_at"],
    "processing": ["started_at"],
    "errored": ["finished_at"],
    "failed": ["finished_at"],
}


class DequeueInTransaction(JobchainsError):
    """Records cannot be dequeued inside a transaction. Nothing was written."""

    def __init__(self) -> None:
        super().__init__(
            "Records cannot be dequeued inside a transaction: other connections could not see that they are "
            "processed until it ends. Call it outside of atomic blocks."
        )


class DequeueRequest(NamedTuple):
    """What to dequeue: up to ``limit`` records that ``select`` finds, unless their queue is paused.

    ``retry_seconds``: the wait before errored records are tried again, None for never. ``has_own_order``: ``select``
    has an order. ``prefers_planned``: otherwise, take those with a past ``process_after`` or an error before all
    others.
    """

    select: IdsSelect
    limit: int
    hostname: str
    queue: str
    retry_seconds: float | None = None
    has_own_order: bool = False
    prefers_planned: bool = False


class RecordCount(NamedTuple):
    """The number of records in each state, and of records that may be dequeued now, up to the limit."""

    queued: int
    processing: int
    errored: int
    failed: int
    due: int


class Records(RecordPart):
    def dequeue(
        self, table: RecordTable, request: DequeueRequest, *, joins_transaction: bool = False
    ) -> list[Dequeued]:
        """Start records that are ready. Records with a request to cancel are cancelled instead.

        Locked rows are skipped. Raises ``DequeueInTransaction`` inside a transaction, whose end the handlers' own
        statements would wait for. Tests pass ``joins_transaction``.
        """
        if self.db.connection.in_atomic_block and not joins_transaction:
            raise DequeueInTransaction
        return self._dequeue(table, request)

    @retried_at_read_committed
    def beat(self, table: RecordTable, keys: Sequence[RecordKey]) -> Renewal:
        """Write a heartbeat for running records, in the order of their ids. Locked records are skipped."""
        rows = table.keys_json(keys)
        beaten = self._fetch(self._beat(table), [rows, *([rows] if self.db.locks_rows else [])])
        by_key = {(table.ids.from_column(id_), number): bool(cancel) for id_, number, cancel in beaten}
        found = self.check(table, [key for key in keys if key not in by_key])
        cancelled = {key for key, is_cancelled in by_key.items() if is_cancelled}
        return Renewal(found.lost, cancelled | found.cancelled, locked=found.locked)

    @retried_at_read_committed
    def check(self, table: RecordTable, keys: Sequence[RecordKey]) -> Renewal:
        """Like ``beat``, without writing. All records that are still held are in ``locked``."""
        if not keys:
            return Renewal({}, set())
        rows = self._fetch(self._check(table), [table.keys_json(keys)])
        found = {table.ids.from_column(id_): (state, number, bool(cancel)) for id_, state, number, cancel in rows}
        reasons = {key: lost_reason(found.get(key[0]), key[1]) for key in keys}
        held = {key for key, reason in reasons.items() if reason is None}
        lost = {key: reason for key, reason in reasons.items() if reason is not None}
        return Renewal(lost, {key for key in held if found[key[0]][2]}, locked=held)

    @retried
    def state_of(self, table: RecordTable, id: Any) -> tuple[str, int] | None:
        """Return a record's state and lease number, or None if it does not exist."""
        rows = self._fetch(self._check(table), [table.ids_json([id])])
        return (rows[0][1], rows[0][2]) if rows else None

    def lock(
        self, table: RecordTable, id: Any, transaction: OpenTransaction | None = None, *, skips: bool = False
    ) -> tuple[str, int] | None:
        """Lock a record for the caller's transaction; return its state and lease number, or None if it does not exist.

        ``skips``: raises ``JobLocked`` instead of waiting for a lock.
        """
        self.db.begin()
        rows = self.db.fetch(self._lock(table, skips), [table.ids.to_parameter(id)])
        for _, state, lease_number, transaction_id in rows:
            self.db.mark(transaction, transaction_id)
            return state, lease_number
        if skips and self.state_of(table, id):
            raise JobLocked
        return None

    @retried
    def end(
        self, table: RecordTable, ends: Sequence[RecordEnd], *, transaction: OpenTransaction | None = None
    ) -> dict[RecordKey, str]:
        """Write the ends of attempts; return the states of the records that they still held.

        Records that others have locked are skipped: ``check`` distinguishes them from lost records.
        ``transaction``: what ``lock`` filled in; raises ``TransactionEnded`` if another one is open.
        """
        if transaction is not None or not self.db.is_impatient:
            return self._end(table, ends, transaction, skips=transaction is None)
        # Locking a row first, so that locked ones can be skipped, takes as long as writing it.
        try:
            return self._end(table, ends, None, skips=False)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
        return self._end(table, ends, None, skips=True)

    @retried
    def write_logs(self, table: RecordTable, key: RecordKey, logs: Callable[[], Sequence[dict[str, Any]]]) -> bool:
        """Replace the execution logs of a running attempt. Return False if the attempt has lost its record.

        ``logs`` is called when the row is locked, so that no thread replaces newer logs of another by older ones.
        """
        with self.db.transaction():
            self.lock(table, key[0])
            row = [table.ids.to_parameter(key[0]), key[1], encode_json(json.dumps(logs()))]
            return bool(self.db.fetch(self._write_logs(table), row))

    @retried
    def count_by_state(
        self, table: RecordTable, select: IdsSelect, count_to: int, retry_seconds: float | None = None
    ) -> RecordCount:
        """Count the selected records of each state up to ``count_to``; completed and cancelled ones add no cost.

        ``retry_seconds``: the wait before errored records are tried again, None for never.
        """
        own = table.under(table.name)
        conditions = [(f"{own.state} = '{state}'", order) for state, order in _INDEXED.items()]
        selects = [
            select(one_line(condition), [], order) or QuerySetSQL("SELECT 1 WHERE 1 = 0", [], has_values=False)
            for condition, order in [*conditions, *self._ready(own, retry_seconds)]
        ]
        counts = ", ".join(f"(SELECT count(*) FROM ({found.sql} LIMIT %s) AS found)" for found in selects)
        params = [value for found in selects for value in [*found.params, count_to]]
        [row] = self._fetch(f"SELECT {counts}", params, of_queryset=any(found.has_values for found in selects))
        queued, processing, errored, failed, *due = row
        return RecordCount(queued, processing, errored, failed, min(sum(due), count_to))

    @retried_at_read_committed
    def _dequeue(self, table: RecordTable, request: DequeueRequest) -> list[Dequeued]:
        selects = self.selects(table, request)
        if not selects:
            return []
        sql = self._start(table, tuple(select.sql for select in selects), request.limit)
        params = [param for select in selects for param in select.params]
        has_values = any(select.has_values for select in selects)
        rows = self._fetch(sql, [*params, request.hostname], of_queryset=has_values)
        return [Dequeued(table.ids.from_column(id_), *others) for id_, *others in rows]

    def _fetch(self, sql: str, params: Sequence[Any], *, of_queryset: bool = False) -> list[tuple[Any, ...]]:
        """Run a single statement, whose waits for a lock of the table ``waits_at_most`` limits."""
        with self.db.limited():
            return self.db.fetch(sql, params, of_queryset=of_queryset)

    def _end(
        self,
        table: RecordTable,
        ends: Sequence[RecordEnd],
        transaction: OpenTransaction | None,
        *,
        skips: bool,
    ) -> dict[RecordKey, str]:
        inside, inside_params = self.db.inside(transaction)
        skips = skips and self.db.locks_rows
        skipped = [table.keys_json(end.key for end in ends)] if skips else []
        with self.db.transaction():
            params = [rows_json(_END, [self._end_row(table, end) for end in ends]), *skipped, *inside_params]
            written = self.db.fetch(self._end_all(table, skips, inside), params)
            if len(written) < len(ends):
                self.db.check_transaction(transaction)
        return {(table.ids.from_column(id_), number): state for id_, number, state in written}

    def _end_row(self, table: RecordTable, end: RecordEnd) -> tuple[Any, ...]:
        process_after = end.process_after and self.db.time_text(end.process_after)
        row = (table.ids.to_parameter(end.id), *end[1:3], process_after)
        return *row, encode_text(end.message), end.max_attempts, end.delay_seconds

    # Which records are ready

    def selects(self, table: RecordTable, request: DequeueRequest) -> list[QuerySetSQL]:
        """Return a SELECT for each index that finds records, or a single SELECT if the caller has its own order.

        The default order uses times of different columns, so no single index covers it.
        """
        conditions = self._ready(table.under(table.name), request.retry_seconds)
        open_queue = (
            f"NOT EXISTS (SELECT 1 FROM {self.tables.queue} AS q WHERE q.name = %s AND q.paused_at IS NOT NULL)"
        )
        if request.prefers_planned:
            conditions = [*conditions[1:], conditions[0]]
        if request.has_own_order:
            conditions = [(" OR ".join(f"({condition})" for condition, _ in conditions), [])]
        selects = [
            request.select(one_line(f"({condition}) AND {open_queue}"), [request.queue], order)
            for condition, order in conditions
        ]
        return [select for select in selects if select is not None]

    def _ready(self, own: RecordTable, retry_seconds: float | None) -> list[tuple[str, list[str]]]:
        """Return SQL of a condition for each index that finds records that may be dequeued now, with its order."""
        planned = f"{own.process_after} <= {self.db.now}"
        is_queued = f"{own.state} = 'queued'"
        fresh, late = f"{is_queued} AND {own.process_after} IS NULL", f"{is_queued} AND {planned}"
        conditions = [(fresh, ["process_after", "queued_at"]), (late, ["process_after", "queued_at"])]
        if retry_seconds is not None:
            retried_at = self.db.after(self.db.now, str(-retry_seconds))
            # Someone else may have set the state without the time.
            conditions += [
                (
                    f"{own.state} = 'errored' AND {is_over} AND ({own.process_after} IS NULL OR {planned})",
                    ["finished_at"],
                )
                for is_over in (f"{own.finished_at} <= {retried_at}", f"{own.finished_at} IS NULL")
            ]
        return conditions

    # Statements

    def _start(self, table: RecordTable, selects: tuple[str, ...], limit: int) -> str:
        # Not cached, because ``pre_dequeue`` may create any number of conditions. The limit is written out, because
        # PostgreSQL might plan to sort all rows for an unknown limit. The rows that earlier SELECTs found are
        # subtracted, so that no row is locked unnecessarily.
        lock = self.db.skip_lock(table.name_in_lock)
        parts: list[str] = []
        names: list[str] = []
        for number, select in enumerate(selects):
            found = "".join(f" - (SELECT count(*) FROM {name})" for name in names)
            names.append(f"picked_{number}")
            parts.append(f"picked_{number}(id) AS MATERIALIZED ({select} LIMIT {limit}{found} {lock})")
        picked = self.db.any_of(" UNION ALL ".join(f"SELECT id FROM {name}" for name in names))
        old = table.under("record")
        cancel = f"COALESCE({old.cancel}, false)"
        return one_line(f"""
            WITH {", ".join(parts)}
            UPDATE {table.name} AS record SET
                {table.state} = CASE WHEN {cancel} THEN 'cancelled' ELSE 'processing' END,
                {table.lease_number} = {old.lease_number} + 1,
                {table.started_at} = CASE WHEN {cancel} THEN {old.started_at} ELSE clock.now END,
                {table.last_heartbeat_at} = CASE WHEN {cancel} THEN {old.last_heartbeat_at} ELSE clock.now END,
                {table.finished_at} = CASE WHEN {cancel} THEN clock.now END,
                {table.failure_message} = CASE WHEN {cancel} THEN {old.failure_message} ELSE {table.no_message} END,
                {table.execution_logs} = CASE WHEN {cancel} THEN {old.execution_logs}
                    ELSE '[]' END,
                {table.worker_hostname} = CASE WHEN {cancel} THEN {old.worker_hostname} ELSE %s END
            FROM {self.db.clock} WHERE {old.id} {picked} AND {old.state} IN ('queued', 'errored')
            RETURNING {self._returned(table, "id", "lease_number", "state")},
                {self.db.time_as_text(self.db.returned + table.started_at)}
        """)

    @statements
    def _beat(self, table: RecordTable) -> str:
        return f"""
            UPDATE {table.name} AS record SET {table.last_heartbeat_at} = clock.now
            FROM {self.db.rows(KEY)} CROSS JOIN {self.db.clock} WHERE {self._fence(table)} {self._unlocked(table)}
            RETURNING {self._returned(table, "id", "lease_number")}, {self._is_cancelled(table, self.db.returned)}
        """

    @statements
    def _check(self, table: RecordTable) -> str:
        return f"""
            SELECT {table.id}, {table.state}, {table.lease_number}, {self._is_cancelled(table, f"{table.name}.")}
            FROM {table.name}
            WHERE {table.id} {self._any_id(table)}
        """

    @statements
    def _lock(self, table: RecordTable, skips: bool) -> str:
        # The id is returned so that this statement, not a later one, fails if ALTER TABLE has changed its type: then
        # the transaction begins again, before the handler has written anything.
        is_it = f"{table.id} = {self.db.cast('%s', table.id_type)}"
        if self.db.locks_rows:
            name = table.name_in_lock
            lock = self.db.skip_lock(name) if skips else self.db.wait_lock(name)
            return f"""
                SELECT {table.id}, {table.state}, {table.lease_number}, {self.db.transaction_id} FROM {table.name}
                WHERE {is_it} {lock}
            """
        return f"""
            UPDATE {table.name} SET {table.lease_number} = {table.lease_number} WHERE {is_it}
            RETURNING {table.id}, {table.state}, {table.lease_number}, ''
        """

    @statements
    def _end_all(self, table: RecordTable, skips: bool, inside: str) -> str:
        old = table.under("record")
        cancel = self._is_cancelled(table, "record.")
        is_error = f"(d.kind IN ('errored', 'failed') AND NOT {cancel})"
        is_queued = f"(d.kind IN ('requeued', 'handed_back') AND NOT {cancel})"
        is_requeued = f"(d.kind = 'requeued' AND NOT {cancel})"
        return f"""
            UPDATE {table.name} AS record SET
                {table.state} = CASE WHEN d.kind = 'completed' THEN 'completed' WHEN {is_queued} THEN 'queued'
                    WHEN {cancel} THEN 'cancelled'
                    WHEN d.kind = 'failed' OR {old.num_failures} + 1 >= d.attempts THEN 'failed' ELSE 'errored' END,
                {table.failure_message} = CASE WHEN {is_error} THEN d.message ELSE {old.failure_message} END,
                {table.num_failures} = {old.num_failures} + CASE WHEN {is_error} THEN 1 ELSE 0 END,
                {table.started_at} = CASE WHEN {is_queued} THEN NULL ELSE {old.started_at} END,
                {table.finished_at} = CASE WHEN {is_queued} THEN NULL ELSE clock.now END,
                {table.queued_at} = CASE WHEN {is_requeued} THEN clock.now ELSE {old.queued_at} END,
                {table.process_after} = CASE WHEN {is_requeued}
                    THEN COALESCE(d.process_after, {self.db.after("clock.now", "d.delay")})
                    ELSE {old.process_after} END
            FROM {self.db.rows(_END)} CROSS JOIN {self.db.clock}
            WHERE {self._fence(table)} {self._unlocked(table) if skips else ""} {inside}
            RETURNING {self._returned(table, "id", "lease_number", "state")}
        """

    @statements
    def _write_logs(self, table: RecordTable) -> str:
        return f"""
            UPDATE {table.name} AS record SET {table.execution_logs} = d.logs{self.db.json_cast}
            FROM {self.db.row(_LOGS)} WHERE {self._fence(table)} RETURNING {self._returned(table, "id")}
        """

    def _unlocked(self, table: RecordTable) -> str:
        """SQL of an additional condition that locks the rows in the order of their ids, and skips locked ones."""
        if not self.db.locks_rows:
            return ""
        free = table.under("free")
        ids = f"""
            SELECT {free.id} FROM {table.name} AS free WHERE {free.id} {self._any_id(table)}
            ORDER BY {free.id} {self.db.skip_lock("free")}
        """
        return f"AND {table.under('record').id} {self.db.any_of(ids)}"


def lost_reason(found: tuple[str, int, bool] | tuple[str, int] | None, lease_number: int) -> str | None:
    """Return the abort reason of an attempt whose record now has this state and lease number, or None if it is held."""
    if found is None:
        return "not_found"
    state, number = found[0], found[1]
    if number == lease_number and state == "processing":
        return None
    if number == lease_number and state in ("completed", "cancelled"):
        return "already_completed" if state == "completed" else "cancelled"
    return "taken_by_another_worker"
