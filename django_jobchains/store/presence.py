"""The rows of workers that run: each renews its own, and deletes those of workers that are gone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django_jobchains.store.dialect import Dialect
from django_jobchains.store.errors import retried

#: A worker is gone when so many of its heartbeats did not come.
MOST_MISSED = 6


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker says of itself; ``queues`` None: every queue."""

    worker: str
    host: str
    pid: int
    version: str
    slots: int
    busy: int
    stuck: int
    queues: tuple[str, ...] | None
    type_names: tuple[str, ...]
    is_stopping: bool
    up_seconds: float
    heartbeat_seconds: float


@dataclass(frozen=True, slots=True)
class PresentWorker:
    """A worker's last beat, when it came, and how long ago that was by the database's clock."""

    beat: Beat
    started_at: datetime
    heartbeat_at: datetime
    silent_seconds: float


_COLUMNS = (
    "id text, host text, pid int, version text, slots int, busy int, stuck int, queues text, type_names text, "
    "is_stopping boolean, up_seconds float, heartbeat_seconds float"
)


class Presence(Dialect):
    @retried
    def beat(self, beat: Beat) -> None:
        """Writes a worker's row, which may have been deleted meanwhile."""
        changing = ("slots", "busy", "stuck", "is_stopping", "heartbeat_at", "heartbeat_seconds")
        self._fetch(
            f"INSERT INTO {self.worker} (id, host, pid, version, slots, busy, stuck, queues, type_names, is_stopping, "
            "started_at, heartbeat_at, heartbeat_seconds) "
            f"SELECT d.id, d.host, d.pid, d.version, d.slots, d.busy, d.stuck, d.queues{self.json_cast}, "
            f"d.type_names{self.json_cast}, d.is_stopping, {self._after('clock.now', 'd.up_seconds * -1')}, clock.now, "
            f"d.heartbeat_seconds FROM {self._row(_COLUMNS)} CROSS JOIN {self.clock} WHERE true "
            f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in changing)} "
            "RETURNING id",
            [
                beat.worker,
                beat.host,
                beat.pid,
                beat.version,
                beat.slots,
                beat.busy,
                beat.stuck,
                None if beat.queues is None else json.dumps(beat.queues),
                json.dumps(beat.type_names),
                beat.is_stopping,
                beat.up_seconds,
                beat.heartbeat_seconds,
            ],
        )

    @retried
    def leave(self, worker: str) -> None:
        """Deletes a worker's row."""
        self._fetch(f"DELETE FROM {self.worker} WHERE id = %s RETURNING id", [worker])

    @retried
    def prune_workers(self) -> list[str]:
        """Deletes the rows of workers that missed ``MOST_MISSED`` heartbeats of theirs; returns their ids."""
        # Those that another worker deletes at the moment are left to it: two would wait for each other.
        silent = (
            f"SELECT id FROM {self.worker} "
            f"WHERE heartbeat_at < {self._after(self.now, f'heartbeat_seconds * -{MOST_MISSED}')} "
            f"{self._locked(self.worker)}"
        )
        rows = self._fetch(f"DELETE FROM {self.worker} WHERE id {self._any(silent)} RETURNING id", [])
        return [worker for (worker,) in rows]

    @retried
    def present_workers(self, known: Mapping[str, PresentWorker] | None = None) -> list[PresentWorker]:
        """The workers that have a row, those that started first in front.

        ``known``: those that were read before, by their ids. The lists of their queues and types, which never change,
        are not read again: with N workers that beat, these would be N² long lists in each interval.
        """
        known = known or {}
        known_ids = f"SELECT d.id FROM {self._rows('id text')}"
        rows = self._fetch(
            f"SELECT id, host, pid, version, slots, busy, stuck, CASE WHEN is_known THEN NULL ELSE queues END, "
            "CASE WHEN is_known THEN NULL ELSE type_names END, is_stopping, "
            f"heartbeat_seconds, {self._as_text('started_at')}, {self._as_text('heartbeat_at')}, "
            f"{self._seconds('heartbeat_at', self.now)} "
            f"FROM (SELECT worker.*, id {self._any(known_ids)} AS is_known FROM {self.worker} AS worker) AS present "
            "ORDER BY started_at, id",
            [json.dumps([{"id": id_} for id_ in known])],
        )
        return [self._present(known.get(row[0]), *row) for row in rows]

    @retried
    def count_workers(self) -> int:
        """How many workers have a row."""
        ((count,),) = self._fetch(f"SELECT count(*) FROM {self.worker}", [])
        return int(count)

    def _present(
        self,
        known: PresentWorker | None,
        id: str,
        host: str,
        pid: int,
        version: str,
        slots: int,
        busy: int,
        stuck: int,
        queues: str | None,
        type_names: str | None,
        is_stopping: bool,
        heartbeat_seconds: float,
        started_at: str,
        heartbeat_at: str,
        silent_seconds: float,
    ) -> PresentWorker:
        began, heard = self._time(started_at), self._time(heartbeat_at)
        if known:
            served, types = known.beat.queues, known.beat.type_names
        else:
            served = None if queues is None else tuple(json.loads(queues))
            types = tuple(json.loads(type_names or "[]"))
        up_seconds = (heard - began).total_seconds()
        beat = Beat(
            id,
            host,
            pid,
            version,
            slots,
            busy,
            stuck,
            served,
            types,
            bool(is_stopping),
            up_seconds,
            heartbeat_seconds,
        )
        return PresentWorker(beat, began, heard, max(silent_seconds, 0.0))
