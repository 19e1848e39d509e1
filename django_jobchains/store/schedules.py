"""The rows of schedules. A tick fires once, because the transaction that enqueues its chain locks and moves its row."""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django_jobchains.payloads.codecs import encode_payloads, encode_text
from django_jobchains.store.database import Part, names_json, statement, statements
from django_jobchains.store.errors import retried, retried_at_read_committed

#: The columns that a declaration or a call sets, after the name.
_SET = (
    "type_name text, input text, cron text, every_seconds float, timezone text, overlap text, on_missed text, "
    "max_catch_up int, jitter_seconds float, queue text, priority int, declarations text, anchor_at timestamptz, "
    "next_tick_at timestamptz"
)
_NAMES = [column.split()[0] for column in _SET.split(", ")]
_TIMES = ("anchor_at", "next_tick_at")
_FIRED = "name text, next_tick_at timestamptz, last_tick_at timestamptz, last_chain_id uuid"


class ScheduleRow(NamedTuple):
    """A row that is locked, with the database's time."""

    name: str
    type_name: str
    input: str
    cron: str | None
    every_seconds: float | None
    timezone: str
    overlap: str
    on_missed: str
    max_catch_up: int
    jitter_seconds: float | None
    queue: str | None
    priority: int | None
    source: str
    last_error: str | None
    is_paused: bool
    last_chain_id: UUID | None
    anchor_at: datetime
    now: datetime
    #: Of a schedule that is due, never None.
    next_tick_at: datetime | None


class FiredSchedule(NamedTuple):
    """The next tick of a schedule and, if it has fired, its last tick and chain."""

    name: str
    next_tick_at: datetime | None
    last_tick_at: datetime | None = None
    last_chain_id: UUID | None = None


class Schedules(Part):
    @retried
    def store(self, rows: Sequence[Mapping[str, Any]], live: Collection[str] = ()) -> list[str]:
        """Store the declared schedules; return the names of the schedules that were new or differed.

        A schedule with the same rule keeps its anchor and its next tick. With another rule, it keeps a tick that is
        due already. Rows whose ``declarations`` are in ``live`` are not changed.
        """
        params = [self._json(rows), json.dumps(list(live))]
        return [name for (name,) in self.db.fetch(self._store, params)]

    @retried
    def create(self, row: Mapping[str, Any]) -> bool:
        """Insert a schedule that is not of the code. Return False if the name is used."""
        return bool(self.db.fetch(self._create, [self._json([row])]))

    @retried
    def update(self, row: Mapping[str, Any]) -> None:
        """Set all columns of a schedule that the caller has locked."""
        self.db.fetch(self._update, [self._json([row])])

    def lock(self, names: Collection[str]) -> list[ScheduleRow]:
        """Wait for the locks of these schedules; return the existing ones. The caller opens the transaction."""
        self.db.write_first()
        self.db.fetch(self._lock, [names_json(names)])
        return self.read(names)

    @retried
    def read(self, names: Collection[str]) -> list[ScheduleRow]:
        return self._rows(self._read, [names_json(names)])

    def pause(self, names: Collection[str]) -> None:
        self.db.fetch(self._pause, [names_json(names)])

    def resume(self, next_ticks: Mapping[str, datetime | None]) -> None:
        """Resume schedules, with their next ticks."""
        rows = [{"name": name, "next_tick_at": time and self.db.time_text(time)} for name, time in next_ticks.items()]
        self.db.fetch(self._resume, [json.dumps(rows)])

    @retried
    def delete(self, name: str) -> None:
        self.db.fetch(f"DELETE FROM {self.tables.schedule} WHERE name = %s RETURNING name", [name])

    @retried_at_read_committed
    def seconds_to_next(self, excluded: Collection[str] = ()) -> float | None:
        """Return the seconds until the next tick of other schedules than these: 0 or less if it is due."""
        rows = self.db.fetch(self._seconds_to_next, [json.dumps(list(excluded))])
        return float(rows[0][0]) if rows else None

    def due(
        self, limit: int, excluded: Collection[str] = (), names: Collection[str] | None = None
    ) -> list[ScheduleRow]:
        """Lock up to ``limit`` schedules whose tick is due, and that no other transaction has locked; earliest first.

        ``names``: None for all. The caller opens the transaction.
        """
        self.db.write_first()
        listed = [] if names is None else [json.dumps(list(names))]
        rows = self._rows(self._due(limit, names is not None), [json.dumps(list(excluded)), *listed])
        return sorted(rows, key=lambda row: (row.next_tick_at or row.now, row.name))

    def fired(self, rows: Sequence[FiredSchedule]) -> None:
        """Set the next ticks of schedules that ``due`` has locked."""
        names = [names_json(row.name for row in rows)] if self.db.by_ids else []
        self.db.fetch(self._set_fired, [json.dumps([self._fired_row(row) for row in rows]), *names])

    def run(self, name: str, chain_id: UUID) -> None:
        """Set the last chain, which was enqueued without a tick."""
        sql = f"UPDATE {self.tables.schedule} SET last_chain_id = {self.db.id_param} WHERE name = %s RETURNING name"
        self.db.fetch(sql, [chain_id.hex, name])

    @retried
    def fail(self, errors: Mapping[str, str]) -> None:
        """Store why the next ticks of schedules could not be fired, by their names."""
        rows = [{"name": name, "last_error": encode_text(error)} for name, error in sorted(errors.items())]
        self.db.fetch(self._fail, [json.dumps(rows)])

    def _rows(self, sql: str, params: Sequence[Any]) -> list[ScheduleRow]:
        rows = []
        for *values, is_paused, chain_id, anchor, now, next_tick in self.db.fetch(sql, params):
            times = (time and self.db.time(time) for time in (anchor, now, next_tick))
            rows.append(ScheduleRow._make((*values, bool(is_paused), chain_id and self.db.id(chain_id), *times)))
        return rows

    def _json(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """Return the parameter of the rows, in the order of their names, so that transactions do not deadlock."""
        texts: list[dict[str, Any]] = []
        for row in sorted(rows, key=lambda row: str(row["name"])):
            times = {name: row[name] and self.db.time_text(row[name]) for name in _TIMES}
            texts.append(encode_payloads({**row, **times}))
        return json.dumps(texts)

    def _fired_row(self, row: FiredSchedule) -> dict[str, Any]:
        return {
            "name": row.name,
            "next_tick_at": row.next_tick_at and self.db.time_text(row.next_tick_at),
            "last_tick_at": row.last_tick_at and self.db.time_text(row.last_tick_at),
            "last_chain_id": row.last_chain_id and row.last_chain_id.hex,
        }

    # Statements

    def _insert(self, condition: str) -> str:
        values = ", ".join(f"d.{name}{self.db.json_cast if name == 'input' else ''}" for name in _NAMES)
        return f"""
            INSERT INTO {self.tables.schedule} (name, {", ".join(_NAMES)}, source, created_at)
            SELECT d.name, {values}, CASE WHEN d.declarations IS NULL THEN 'admin' ELSE 'code' END, clock.now
            FROM {self.db.rows(f"name text, {_SET}")} CROSS JOIN {self.db.clock}
            WHERE {condition} ORDER BY d.name
        """

    @statement
    def _create(self) -> str:
        return f"{self._insert('true')} ON CONFLICT (name) DO NOTHING RETURNING name"

    @statement
    def _store(self) -> str:
        own = self.tables.schedule
        is_same = " AND ".join(
            f"COALESCE({own}.{column}, {none}) = COALESCE(excluded.{column}, {none})"
            for column, none in (("cron", "''"), ("every_seconds", "0"))
        )
        is_same += f" AND (excluded.cron IS NULL OR {own}.timezone = excluded.timezone)"
        is_due = f"{own}.next_tick_at <= {self.db.now}"
        same_version = "AND known.declarations = d.declarations"
        kept = {"anchor_at": is_same, "next_tick_at": f"{is_same} OR {is_due}"}
        values = [
            f"{name} = CASE WHEN {kept[name]} THEN {own}.{name} ELSE excluded.{name} END"
            if name in kept
            else f"{name} = excluded.{name}"
            for name in _NAMES
        ]
        # Rows that another worker of the same version has stored are not even locked.
        is_new = f"NOT EXISTS (SELECT 1 FROM {own} AS known WHERE known.name = d.name {same_version})"
        return f"""
            {self._insert(is_new)} ON CONFLICT (name) DO UPDATE SET source = 'code', {", ".join(values)}
            WHERE COALESCE({own}.declarations, '') <> excluded.declarations
            AND NOT {self.db.is_listed(f"COALESCE({own}.declarations, '')", "%s")}
            RETURNING name
        """

    @statement
    def _update(self) -> str:
        values = ", ".join(f"{name} = d.{name}{self.db.json_cast if name == 'input' else ''}" for name in _NAMES)
        return f"""
            UPDATE {self.tables.schedule} AS schedule SET {values}, last_error = NULL, last_error_at = NULL
            FROM {self.db.rows(f"name text, {_SET}")} WHERE schedule.name = d.name RETURNING 1
        """

    @property
    def _are_named(self) -> str:
        named = self.db.rows("name text")
        return f"name {self.db.any_of(f'SELECT d.name FROM {named}')}"

    @statement
    def _lock(self) -> str:
        return f"""
            SELECT schedule.name FROM {self.tables.schedule} AS schedule WHERE schedule.{self._are_named}
            ORDER BY schedule.name {self.db.wait_lock("schedule")}
        """

    @statement
    def _pause(self) -> str:
        return f"""
            UPDATE {self.tables.schedule} SET paused_at = COALESCE(paused_at, clock.now) FROM {self.db.clock}
            WHERE {self._are_named} RETURNING name
        """

    @statement
    def _resume(self) -> str:
        return f"""
            UPDATE {self.tables.schedule} AS schedule SET paused_at = NULL, next_tick_at = d.next_tick_at
            FROM {self.db.rows("name text, next_tick_at timestamptz")} WHERE schedule.name = d.name
            RETURNING 1
        """

    @property
    def _waiting(self) -> str:
        return f"""
            paused_at IS NULL AND next_tick_at IS NOT NULL AND NOT {self.db.is_listed("name", "%s")}
        """

    @statement
    def _seconds_to_next(self) -> str:
        return f"""
            SELECT {self.db.seconds(self.db.now, "next_tick_at")} FROM {self.tables.schedule} WHERE {self._waiting}
            ORDER BY next_tick_at LIMIT 1
        """

    @property
    def _columns(self) -> str:
        columns = ", ".join(ScheduleRow._fields[1:14]).replace(
            "input", f"COALESCE({self.db.json_text('input')}, 'null')"
        )
        times = map(self.db.time_as_text, ("anchor_at", self.db.now, "next_tick_at"))
        return f"name, {columns}, paused_at IS NOT NULL, last_chain_id, {', '.join(times)}"

    @statement
    def _read(self) -> str:
        return f"SELECT {self._columns} FROM {self.tables.schedule} WHERE {self._are_named} ORDER BY name"

    @statements
    def _due(self, limit: int, is_named: bool) -> str:
        return f"""
            SELECT {self._columns} FROM {self.tables.schedule} AS schedule
            WHERE {self._waiting} AND next_tick_at <= {self.db.now}
            {f"AND {self.db.is_listed('name', '%s')}" if is_named else ""}
            ORDER BY schedule.next_tick_at LIMIT {limit} {self.db.skip_lock("schedule")}
        """

    @statement
    def _set_fired(self) -> str:
        # As for ``by_ids``: PostgreSQL would scan all schedules, and SQLite the rows of the parameter for each name.
        by_names = f"AND schedule.{self._are_named}" if self.db.by_ids else ""
        return f"""
            UPDATE {self.tables.schedule} AS schedule SET next_tick_at = d.next_tick_at,
                last_tick_at = COALESCE(d.last_tick_at, schedule.last_tick_at),
                last_chain_id = COALESCE(d.last_chain_id, schedule.last_chain_id),
                last_error = NULL, last_error_at = NULL
            FROM {self.db.rows(_FIRED)} WHERE schedule.name = d.name {by_names} RETURNING 1
        """

    @statement
    def _fail(self) -> str:
        return f"""
            UPDATE {self.tables.schedule} AS schedule SET last_error = d.last_error, last_error_at = clock.now
            FROM {self.db.rows("name text, last_error text")} CROSS JOIN {self.db.clock}
            WHERE schedule.name = d.name RETURNING 1
        """
