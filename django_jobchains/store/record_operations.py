"""Changes of records outside of attempts: stalled records are reset, and people cancel, requeue and retry records."""

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from django.db import OperationalError

from django_jobchains.store.chains import CANCEL_SECONDS
from django_jobchains.store.database import one_line, rows_json, statements
from django_jobchains.store.errors import is_lock_timeout, retried
from django_jobchains.store.leases import CrashBackoff
from django_jobchains.store.record_tables import KEY, RecordKey, RecordPart, RecordTable, StalledRecord

#: An SQL SELECT of primary keys, with its parameters.
IdsOf = tuple[str, Sequence[Any]]

_STALLED = f"{KEY}, delay_seconds float"
_LEFT = "id text, value jsonb"


class RecordOperations(RecordPart):
    @retried
    def stalled(
        self, table: RecordTable, limit: int, *, stalled_seconds: float, held: Collection[Any] = ()
    ) -> list[RecordKey]:
        """Return records in process without heartbeats, the first ids first. Locked rows are skipped.

        Their heartbeats can be written now: this waits for locks of the table that would delay them. ``held``: the ids
        of the caller's own records, which it ends itself.
        """
        with self.db.transaction():
            if self.db.locks_rows:
                self.db.execute(f"LOCK TABLE {table.name} IN ROW EXCLUSIVE MODE", [])
            rows = self.db.fetch(self._stalled(table, "NOT"), [-stalled_seconds, table.ids_json(held), limit])
        return [(table.ids.from_column(id_), number) for id_, number, _ in rows]

    @retried
    def reset(
        self,
        table: RecordTable,
        keys: Collection[RecordKey],
        *,
        stalled_seconds: float,
        max_resets: int,
        backoff: CrashBackoff,
        message: str,
    ) -> list[StalledRecord]:
        """Take back these records if they still have no heartbeats: queued after a backoff, or failed.

        ``max_resets``: how often a record is queued again, before it fails with ``message``. Locked rows are skipped:
        their attempts are writing them.
        """
        with self.db.transaction():
            if not self.db.locks_rows:
                self.db.write_first()
            found = self.db.fetch(self._stalled(table, ""), [-stalled_seconds, table.keys_json(keys), len(keys)])
            rows = [
                {"id": table.ids.to_parameter(key[0]), "n": key[1], "delay_seconds": backoff.seconds(resets + 1)}
                for id_, number, resets in found
                if (key := (table.ids.from_column(id_), number)) in keys
            ]
            params = [*[max_resets] * 3, message, *[max_resets] * 3]
            written = self.db.fetch(self._reset(table), [*params, json.dumps(rows, default=str)])
        return [StalledRecord(table.ids.from_column(id_), state, resets) for id_, state, resets in written]

    @retried
    def cancel_flagged(self, table: RecordTable, limit: int) -> list[Any]:
        """Cancel waiting records that someone has flagged in the database; return their ids."""
        free = table.under("free")
        flagged = f"""
            SELECT {free.id} FROM {table.name} AS free
            WHERE {free.cancel} AND {free.state} IN ('queued', 'errored')
            ORDER BY {free.id} LIMIT %s {self.db.skip_lock("free")}
        """
        with self.db.transaction():  # ``waits_at_most`` does not limit waits in autocommit.
            cancelled = self.db.fetch(self._cancel(table, one_line(flagged)), [limit])
        return [table.ids.from_column(id_) for (id_,) in cancelled]

    @retried
    def cancel(self, table: RecordTable, ids: IdsOf) -> int:
        """Cancel waiting records, and flag records in process; return the number of both.

        The request is stored for a record in process that stays locked, in most cases by its handler.
        """
        select, params = ids
        with self.db.transaction():
            try:
                with self.db.waits_within(CANCEL_SECONDS):
                    locked = self._locked(table, select, "'queued', 'errored', 'processing'")
                    return len(self.db.fetch(self._cancel(table, locked), params, of_queryset=True))
            except OperationalError as error:
                if not is_lock_timeout(error):
                    raise
            waiting = self._locked(table, select, "'queued', 'errored'")
            count = len(self.db.fetch(self._cancel(table, waiting), params, of_queryset=True))
            unlocked, left = self.cancel_unlocked(table, ids)
            self.db.fetch(self._defer_cancel(table), [table.name, rows_json(_LEFT, [(id_, id_) for id_ in left])])
            return count + unlocked + len(left)

    def cancel_unlocked(self, table: RecordTable, ids: IdsOf) -> tuple[int, list[Any]]:
        """Cancel or flag records that are not locked. Return how many, and the ids of the others, as JSON values."""
        select, params = ids
        skipping = self._locked(table, select, "'queued', 'errored', 'processing'", self.db.skip_lock("free"))
        count = len(self.db.fetch(self._cancel(table, skipping), params, of_queryset=True))
        left = self.db.fetch(self._cancelable(table, select), params, of_queryset=True)
        return count, [table.ids.to_parameter(table.ids.from_column(id_)) for (id_,) in left]

    @retried
    def requeue(self, table: RecordTable, ids: IdsOf, process_after: datetime | None) -> int:
        """Queue failed, errored, cancelled and processing records; return how many."""
        select, params = ids
        time = process_after and self.db.time_text(process_after)
        sql = self._queue(
            table,
            select,
            # A running attempt can no longer write: its record is not in process until another attempt gets the next
            # number.
            states="'failed', 'errored', 'cancelled', 'processing'",
            process_after=self.db.cast("%s", "timestamptz"),
        )
        return self._queued(table, sql, [time, *params])

    @retried
    def retry(self, table: RecordTable, ids: IdsOf) -> int:
        """Queue failed, errored and cancelled records, now and with fresh counts; return how many."""
        select, params = ids
        counts = f", {table.num_failures} = 0, {table.num_resets} = 0"
        sql = self._queue(table, select, states="'failed', 'errored', 'cancelled'", counts=counts)
        return self._queued(table, sql, params)

    def _queued(self, table: RecordTable, sql: str, params: Sequence[Any]) -> int:
        """Queue records, and forget earlier requests to cancel them. Return how many."""
        with self.db.transaction():
            rows = self.db.fetch(sql, params, of_queryset=True)
            if rows and self.db.locks_rows:
                ids = table.ids_json(table.ids.from_column(id_) for (id_,) in rows)
                self.db.execute(self._forget_cancel(table), [ids])
        return len(rows)

    # Statements. Those with the caller's SELECT are not cached, because their number is unlimited.

    def _locked(self, table: RecordTable, select: str, states: str, lock: str | None = None) -> str:
        """SQL that locks the selected rows in these states, in the order of their ids, and by default waits for them.

        The UPDATE then checks their states again.
        """
        free = table.under("free")
        return one_line(f"""
            SELECT {free.id} FROM {table.name} AS free WHERE {free.id} IN ({select}) AND {free.state} IN ({states})
            ORDER BY {free.id} {self.db.wait_lock("free") if lock is None else lock}
        """)

    @statements
    def _stalled(self, table: RecordTable, negation: str) -> str:
        old = table.under("record")
        beaten_at = f"COALESCE({old.last_heartbeat_at}, {old.started_at}, {old.queued_at})"
        return f"""
            SELECT {old.id}, {old.lease_number}, {old.num_resets}
            FROM {table.name} AS record
            WHERE {old.state} = 'processing' AND {beaten_at} < {self.db.after(self.db.now, "%s")}
            AND {negation} {old.id} {self._any_id(table)}
            ORDER BY {old.id} LIMIT %s {self.db.skip_lock("record")}
        """

    @statements
    def _reset(self, table: RecordTable) -> str:
        old = table.under("record")
        cancel = f"COALESCE({old.cancel}, false)"
        is_last = f"{old.num_resets} >= %s"
        return f"""
            UPDATE {table.name} AS record SET
                {table.state} = CASE WHEN {cancel} THEN 'cancelled' WHEN {is_last} THEN 'failed' ELSE 'queued' END,
                {table.finished_at} = CASE WHEN {cancel} OR {is_last} THEN clock.now END,
                {table.failure_message} = CASE WHEN {is_last} AND NOT {cancel} THEN %s
                    ELSE {old.failure_message} END,
                {table.num_resets} = {old.num_resets} + CASE WHEN {cancel} OR {is_last} THEN 0 ELSE 1 END,
                {table.process_after} = CASE WHEN {cancel} OR {is_last} THEN {old.process_after}
                    ELSE {self.db.after("clock.now", "d.delay_seconds")} END,
                {table.started_at} = CASE WHEN {cancel} OR {is_last} THEN {old.started_at} END
            FROM {self.db.rows(_STALLED)} CROSS JOIN {self.db.clock} WHERE {self._fence(table)}
            RETURNING {self._returned(table, "id", "state", "num_resets")}
        """

    def _cancel(self, table: RecordTable, ids: str) -> str:
        old = table.under("record")
        return one_line(f"""
            UPDATE {table.name} AS record SET {table.cancel} = true,
                {table.state} = CASE WHEN {old.state} = 'processing' THEN {old.state} ELSE 'cancelled' END,
                {table.finished_at} = CASE WHEN {old.state} = 'processing' THEN NULL ELSE clock.now END
            FROM {self.db.clock} WHERE {self._is_in(table, ids)} AND {_is_cancelable(old)}
            RETURNING {self._returned(table, "id")}
        """)

    def _cancelable(self, table: RecordTable, ids: str) -> str:
        old = table.under("record")
        return one_line(f"""
            SELECT {old.id} FROM {table.name} AS record WHERE {self._is_in(table, ids)} AND {_is_cancelable(old)}
        """)

    @statements
    def _defer_cancel(self, table: RecordTable) -> str:
        return f"""
            INSERT INTO {self.tables.deferred_write} (job_id, kind, lease_number, outcome)
            SELECT {self._cancel_key(table, self.db.cast("d.id", table.id_type))}, 'record', 0,
                jsonb_build_object('table', %s::text, 'id', d.value, 'kind', 'cancel')
            FROM {self.db.rows(_LEFT)} RETURNING id
        """

    @statements
    def _forget_cancel(self, table: RecordTable) -> str:
        keys = f"SELECT {self._cancel_key(table, self.db.cast('d.id', table.id_type))} FROM {self.db.rows(KEY)}"
        return f"DELETE FROM {self.tables.deferred_write} WHERE job_id {self.db.any_of(keys)}"

    def _queue(
        self, table: RecordTable, select: str, *, states: str, process_after: str = "NULL", counts: str = ""
    ) -> str:
        """SQL that queues the selected records in these states. ``counts``: a comma and more assignments, if any."""
        ids = self._locked(table, select, states)
        return one_line(f"""
            UPDATE {table.name} AS record SET {table.state} = 'queued', {table.queued_at} = clock.now,
                {table.process_after} = {process_after}, {table.started_at} = NULL, {table.finished_at} = NULL,
                {table.cancel} = false{counts}
            FROM {self.db.clock} WHERE {self._is_in(table, ids)} AND {table.under("record").state} IN ({states})
            RETURNING {self._returned(table, "id")}
        """)

    def _is_in(self, table: RecordTable, ids: str) -> str:
        return f"{table.under('record').id} {self.db.any_of(ids)}"


def _is_cancelable(own: RecordTable) -> str:
    is_running = f"{own.state} = 'processing' AND NOT COALESCE({own.cancel}, false)"
    return f"({own.state} IN ('queued', 'errored') OR {is_running})"
