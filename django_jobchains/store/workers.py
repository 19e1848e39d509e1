"""The rows of running workers. Each worker renews its own row, and deletes the rows of dead workers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any, Literal

from django_jobchains.store.database import Part, names_json, statement
from django_jobchains.store.errors import retried

#: The number of missed heartbeats after which a worker is considered dead.
MAX_MISSED = 6
#: A worker is stale after this number of missed heartbeats.
STALE_AFTER_MISSED = 3
#: The number of pools in a row.
MAX_POOLS = 20


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool of child processes of a worker.

    ``workers``: the number of live child processes, ``busy`` of which run a handler. ``is_saturated``: all child
    processes that the pool may have are busy. ``cannot_start``: child processes do not start, so no job is claimed.
    ``is_weakened``: child processes do not start, so handlers run in threads of the worker. ``rss_bytes``: the resident
    memory of all child processes, and ``largest_rss_bytes`` of the largest one. The other numbers count child processes
    since the worker started: ``recycled`` ones were replaced at one of their limits, ``crashed`` ones died, and
    ``killed`` ones were killed because their handler did not stop.
    """

    level: str
    key: str
    workers: int
    busy: int
    max_workers: int
    is_saturated: bool
    cannot_start: bool
    is_weakened: bool
    rss_bytes: int
    largest_rss_bytes: int
    recycled: int
    crashed: int
    killed: int

    @property
    def state(self) -> Literal["cannot_start", "in_threads", "saturated", "busy", "idle"]:
        if self.cannot_start:
            return "cannot_start"
        if self.is_weakened:
            return "in_threads"
        if self.is_saturated:
            return "saturated"
        return "busy" if self.busy else "idle"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a worker reports with each heartbeat. ``queues`` None: every queue. ``pools``: up to ``MAX_POOLS``."""

    id: str
    host: str
    pid: int
    version: str
    slots: int
    busy: int
    stuck: int
    queues: tuple[str, ...] | None
    type_names: tuple[str, ...]
    is_stopping: bool
    pools: tuple[PoolState, ...] = field(default=(), kw_only=True)
    #: Identifies the schedules that the worker's code declares; "" for none.
    schedules: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Beat(WorkerState):
    """A worker's heartbeat. The fields are in the order of ``_COLUMNS``, which ends with the digest of the types."""

    up_seconds: float
    heartbeat_seconds: float


@dataclass(frozen=True, slots=True)
class WorkerFacts(WorkerState):
    """A worker, as of its last heartbeat. ``is_stale``: several heartbeats are missing."""

    is_stale: bool
    started_at: datetime
    heartbeat_at: datetime
    #: The interval of its heartbeats, and the age of the last one by the database's clock.
    heartbeat_seconds: float
    heartbeat_age_seconds: float
    up_seconds: float

    @property
    def is_maintenance_only(self) -> bool:
        """Whether the worker runs no handlers."""
        return not self.slots

    @property
    def state(self) -> Literal["stale", "stuck", "stopping", "maintenance", "busy", "idle"]:
        if self.is_stale:
            return "stale"
        if self.stuck:
            return "stuck"
        if self.is_stopping:
            return "stopping"
        if self.is_maintenance_only:
            return "maintenance"
        return "busy" if self.busy else "idle"


_COLUMNS = (
    "id text, host text, pid int, version text, slots int, busy int, stuck int, queues text, type_names text, "
    "is_stopping boolean, pools text, schedules text, up_seconds float, heartbeat_seconds float, types_digest text"
)


class Workers(Part):
    @retried
    def beat(self, beat: Beat) -> None:
        """Write a worker's row, even if it has been deleted in the meantime."""
        row = {**asdict(beat), "type_names": json.dumps(beat.type_names)}
        row["pools"] = json.dumps([asdict(pool) for pool in beat.pools[:MAX_POOLS]])
        row["queues"] = None if beat.queues is None else json.dumps(beat.queues)
        self.db.fetch(self._beat, [*row.values(), digest_of(beat.type_names)])

    @retried
    def leave(self, worker: str) -> None:
        """Delete a worker's row."""
        self.db.fetch(f"DELETE FROM {self.tables.worker} WHERE id = %s RETURNING id", [worker])

    @retried
    def prune(self) -> list[str]:
        """Delete the rows of workers that missed ``MAX_MISSED`` of their heartbeats; return their ids."""
        return [worker for (worker,) in self.db.fetch(self._prune, [])]

    @retried
    def present(self, known: Mapping[str, WorkerFacts] | None = None) -> list[WorkerFacts]:
        """Return the workers that have a row, in the order of their starts.

        ``known``: the workers that were read before, by their ids. The lists of their queues and types are not read
        again unless the types have changed: with N workers that beat, these would be N² long lists in each interval.
        """
        known = known or {}
        names = [f"{id_} {digest_of(worker.type_names)}" for id_, worker in known.items()]
        rows = self.db.fetch(self._present, [names_json(names)])
        return [self._worker(row, known.get(row[0])) for row in rows]

    @retried
    def count(self) -> int:
        """Return how many workers have a row."""
        ((count,),) = self.db.fetch(f"SELECT count(*) FROM {self.tables.worker}", [])
        return int(count)

    def _worker(self, row: tuple[Any, ...], known: WorkerFacts | None) -> WorkerFacts:
        worker, host, pid, version, slots, busy, stuck, queues, type_names, is_stopping, *rest = row
        pools, schedules, interval, *times = rest
        started_at, heartbeat_at, age = self.db.time(times[0]), self.db.time(times[1]), max(times[2], 0.0)
        if known and type_names is None:
            served, types = known.queues, known.type_names
        else:
            served = None if queues is None else tuple(json.loads(queues))
            types = tuple(json.loads(type_names or "[]"))
        return WorkerFacts(
            *(worker, host, pid, version, slots, busy, stuck, served, types, bool(is_stopping)),
            pools=_pools(pools),
            schedules=schedules,
            is_stale=age > STALE_AFTER_MISSED * interval,
            started_at=started_at,
            heartbeat_at=heartbeat_at,
            heartbeat_seconds=interval,
            heartbeat_age_seconds=age,
            up_seconds=(heartbeat_at - started_at).total_seconds() + age,
        )

    @statement
    def _beat(self) -> str:
        # A list that has not changed is kept, so that PostgreSQL does not store a long one again at each heartbeat.
        worker = self.tables.worker
        is_changed = f"{worker}.types_digest <> excluded.types_digest"
        return f"""
            INSERT INTO {worker} (id, host, pid, version, slots, busy, stuck, queues, type_names,
                is_stopping, pools, schedules, started_at, heartbeat_at, heartbeat_seconds, types_digest)
            SELECT d.id, d.host, d.pid, d.version, d.slots, d.busy, d.stuck, d.queues{self.db.json_cast},
                d.type_names{self.db.json_cast}, d.is_stopping, d.pools{self.db.json_cast}, d.schedules,
                {self.db.after("clock.now", "d.up_seconds * -1")}, clock.now, d.heartbeat_seconds, d.types_digest
            FROM {self.db.row(_COLUMNS)} CROSS JOIN {self.db.clock} WHERE true
            ON CONFLICT (id) DO UPDATE SET slots = excluded.slots, busy = excluded.busy, stuck = excluded.stuck,
                is_stopping = excluded.is_stopping, pools = excluded.pools, heartbeat_at = excluded.heartbeat_at,
                heartbeat_seconds = excluded.heartbeat_seconds, types_digest = excluded.types_digest,
                type_names = CASE WHEN {is_changed} THEN excluded.type_names ELSE {worker}.type_names END
            RETURNING id
        """

    @statement
    def _prune(self) -> str:
        # Rows that another worker is deleting are skipped, because two workers could deadlock.
        silent = f"""
            SELECT id FROM {self.tables.worker}
            WHERE heartbeat_at < {self.db.after(self.db.now, f"heartbeat_seconds * -{MAX_MISSED}")}
            {self.db.skip_lock(self.tables.worker)}
        """
        return f"DELETE FROM {self.tables.worker} WHERE id {self.db.any_of(silent)} RETURNING id"

    @statement
    def _present(self) -> str:
        known = self.db.any_of(f"SELECT d.name FROM {self.db.rows('name text')}")
        return f"""
            SELECT id, host, pid, version, slots, busy, stuck, CASE WHEN is_known THEN NULL ELSE queues END,
                CASE WHEN is_known THEN NULL ELSE type_names END, is_stopping, pools, schedules, heartbeat_seconds,
                {self.db.time_as_text("started_at")}, {self.db.time_as_text("heartbeat_at")},
                {self.db.seconds("heartbeat_at", self.db.now)}
            FROM (
                SELECT worker.*, id || ' ' || types_digest {known} AS is_known FROM {self.tables.worker} AS worker
            ) AS present
            ORDER BY started_at, id
        """


def digest_of(type_names: Sequence[str]) -> str:
    return blake2b(json.dumps(type_names).encode(), digest_size=16).hexdigest()


def _pools(stored: str | None) -> tuple[PoolState, ...]:
    """Return the pools of a row. Workers of other versions may have stored other fields."""
    names = PoolState.__dataclass_fields__.keys()
    return tuple(PoolState(**pool) for pool in json.loads(stored or "[]") if pool.keys() == names)
