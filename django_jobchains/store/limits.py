"""The claim of limited job types: never more running jobs than allowed, and in turn for each key.

A claim is a transaction of two statements. The first finds groups of pending jobs that probably may run, and tries to
lock what they are counted by. The second counts again, with a new snapshot, and claims. So only one claim at a time
decides about a key, nobody waits for another claim, and the truth is always the running jobs themselves. See
docs/decisions/0091-limits.md.
"""

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from django_jobchains.store.database import Database, Part, rows_json, statement
from django_jobchains.store.errors import retried, retried_at_read_committed
from django_jobchains.store.jobs import Jobs
from django_jobchains.store.rows import ClaimedJob, ExpiredJob

#: The most groups, and so the most locks, of one claim.
MAX_GROUPS = 64
#: How many times its even share of the claimed jobs one group may take, if other groups have fewer jobs.
MAX_SHARES = 2
#: The columns of the keys of jobs.
_KEYS = "job_id uuid, limit_key text, concurrency_key text, rate_key text"
_HAS_KEYS = "type_name text, is_counted int, has_rate int"
_WANTED = (
    "position int, queue text, type_name text, limit_key text, rank int, run_at timestamptz, concurrency_key text, "
    "slot_limit int, lease_seconds float"
)


class Rotation:
    """Whose turn it is: the limit key that was served last in each queue, for each type.

    It begins anywhere, so that workers that run for a short time do not all begin with the same keys.
    """

    def __init__(self, start: str | None = None) -> None:
        self.start = secrets.token_hex(8) if start is None else start
        self.served: dict[tuple[str, str], str] = {}


class Group(NamedTuple):
    """Pending jobs of a queue, a type, a limit key and a priority, of which the first is due."""

    queue: str
    type_name: str
    limit_key: str
    #: The negated priority.
    rank: int
    run_at: str
    concurrency_key: str | None
    #: Whether no other claim is deciding about its jobs.
    is_locked: bool
    #: The isolation level of the transaction.
    isolation: str


class StartRate(NamedTuple):
    """The microseconds between two starts, and how many may start at once after a pause."""

    microseconds: int
    burst: int


class LimitedTypes(NamedTuple):
    """The types to claim: the seconds of their leases, and how many of their jobs may run at once (None: any).

    ``rates``: of the types whose starts are limited.
    """

    leases: Mapping[str, float]
    slot_limits: Mapping[str, int | None]
    rates: Mapping[str, StartRate] = MappingProxyType({})


class Limits(Part, ABC):
    def __init__(self, db: Database, jobs: Jobs) -> None:
        super().__init__(db)
        self._jobs = jobs

    @retried_at_read_committed
    def claim(
        self,
        worker: str,
        limit: int,
        types: LimitedTypes,
        rotation: Rotation,
        queues: Collection[str] | None = None,
        excluded: Collection[str] = (),
        expired: list[ExpiredJob] | None = None,
    ) -> list[ClaimedJob]:
        """Claim up to ``limit`` due jobs within the limits of their types, in turn for each limit key.

        The other arguments are those of ``Jobs.claim``. Among the jobs of one key, the most urgent come first.
        """
        if not types.leases or limit < 1:
            return []
        groups, rows = self._claim(worker, limit, types, rotation, queues, excluded)
        taken = {(row[5], row[4], row[-1]) for row in rows}
        for group in groups:
            if (group.queue, group.type_name, group.limit_key) in taken:
                rotation.served[group.queue, group.type_name] = group.limit_key
        return self._jobs.claimed(rows, worker, expired)

    def _claim(
        self, worker: str, limit: int, types: LimitedTypes, rotation: Rotation, *served: Any
    ) -> tuple[list[Group], list[tuple[Any, ...]]]:
        """Return the groups, and rows of ``claimed_columns`` with the limit key of each claimed job."""
        with self.db.transaction() as is_own:
            self.db.write_first()
            groups = self.lock_groups(limit, types, rotation, *served)
            sees_others = not groups or groups[0].isolation in ("", "read committed")
            if sees_others or not is_own:
                return groups, self.claim_of(groups, worker, limit, types) if groups else []
        # The project's isolation level hides what others have committed since the transaction began.
        with self.db.at_read_committed():
            groups = self.lock_groups(limit, types, rotation, *served)
            return groups, self.claim_of(groups, worker, limit, types) if groups else []

    def lock_groups(
        self,
        limit: int,
        types: LimitedTypes,
        rotation: Rotation,
        queues: Collection[str] | None = None,
        excluded: Collection[str] = (),
    ) -> list[Group]:
        """Return groups that probably may run, in turn, and lock what they are counted by until the transaction ends.

        Groups that another claim has locked are left out.
        """
        params = self._served(types, rotation, queues, excluded)
        rows = self.db.fetch(self._lock_groups, [*params, min(limit, MAX_GROUPS)])
        return [group for group in map(Group._make, rows) if group.is_locked]

    def claim_of(self, groups: list[Group], worker: str, limit: int, types: LimitedTypes) -> list[tuple[Any, ...]]:
        """Claim jobs of these locked groups. Must be another statement than ``lock_groups``: its snapshot is newer."""
        wanted = [
            (position, *group[:6], types.slot_limits[group.type_name], types.leases[group.type_name])
            for position, group in enumerate(groups)
        ]
        share = min(limit, max(1, MAX_SHARES * limit // len(groups)))
        return self.db.fetch(self._claim_jobs, [rows_json(_WANTED, wanted), share, limit, worker])

    @retried_at_read_committed
    def next_due(
        self,
        types: LimitedTypes,
        queues: Collection[str] | None = None,
        excluded: Collection[str] = (),
    ) -> float | None:
        """Return the seconds until the next job is due whose limit has a free place: 0 or less if one is due."""
        ((seconds,),) = self.db.fetch(self._next_due, self._served(types, Rotation(""), queues, excluded))
        return None if seconds is None else float(seconds)

    @retried
    def without_keys(self, keys: Mapping[str, tuple[bool, bool]], limit: int) -> list[tuple[UUID, str, str]]:
        """Return jobs of limited types that were stored without keys, with their types and inputs.

        ``keys``: by type, whether running jobs are counted, and whether starts are. Reads all waiting jobs of these
        types.
        """
        rows = rows_json(_HAS_KEYS, [(name, *map(int, has_keys)) for name, has_keys in keys.items()])
        found = self.db.fetch(self._without_keys, [rows, limit])
        return [(self.db.id(id_), type_name, stored) for id_, type_name, stored in found]

    @retried
    def set_keys(self, rows: Sequence[tuple[UUID, str, str | None, str | None]]) -> list[str]:
        """Set the keys of waiting jobs; return the types of those that were not locked."""
        ids = [job_id.hex for job_id, *_ in rows]
        params = rows_json(_KEYS, [(id_, *row[1:]) for id_, row in zip(ids, rows, strict=True)])
        written = self.db.fetch(self._set_keys, [params, *self.db.by_ids_params(ids)])
        return [type_name for (type_name,) in written]

    @statement
    def _without_keys(self) -> str:
        return f"""
            SELECT job.id, job.type_name, {self.db.json_text("job.input")}
            FROM {self.db.rows(_HAS_KEYS)}
            JOIN {self.tables.job} AS job ON job.type_name = d.type_name
            WHERE job.status IN ('blocked', 'pending')
            AND (job.limit_key IS NULL OR (d.is_counted = 1 AND job.concurrency_key IS NULL)
                OR (d.has_rate = 1 AND job.rate_key IS NULL)) LIMIT %s
        """

    @statement
    def _set_keys(self) -> str:
        return f"""
            UPDATE {self.tables.job} AS job
            SET limit_key = d.limit_key, concurrency_key = d.concurrency_key, rate_key = d.rate_key
            FROM {self.db.rows(_KEYS)}
            WHERE job.id = d.job_id AND job.status || '' IN ('blocked', 'pending') {self.db.by_unlocked_ids}
            RETURNING type_name
        """

    def _served(
        self, types: LimitedTypes, rotation: Rotation, queues: Collection[str] | None, excluded: Collection[str]
    ) -> list[Any]:
        limited = [{"type_name": name, "slot_limit": types.slot_limits[name]} for name in types.leases]
        served = [{"queue": pair[0], "type_name": pair[1], "after": key} for pair, key in rotation.served.items()]
        listed = [] if queues is None else sorted(set(queues).difference(excluded))
        return [
            json.dumps(limited),
            json.dumps(served),
            rotation.start,
            json.dumps(listed),
            queues is None,
            json.dumps(list(excluded)),
        ]

    @property
    def _pending(self) -> str:
        """SQL of the condition of the index of pending limited jobs ``n``."""
        return "n.status = 'pending' AND n.limit_key IS NOT NULL"

    @property
    @abstractmethod
    def _scan(self) -> str:
        """SQL of tables, with ``reached``: the first job of each group of the served types and queues, in turn, with
        the limit of its type. The parameters are those of ``_served``."""

    @property
    @abstractmethod
    def _picked(self) -> str:
        """SQL of a table ``picked``: some of the due jobs of each group in ``wanted``; the parameter is how many."""

    @property
    @abstractmethod
    def _is_free(self) -> str:
        """SQL of whether the limit of a row of ``reached`` has a free place."""

    @property
    def _lock(self) -> str:
        """SQL of whether a group of ``found`` is now locked by this transaction."""
        return "true"

    @statement
    def _lock_groups(self) -> str:
        # Recursion stops when the limit is reached. A locked group is not replaced by another one.
        return f"""
            WITH RECURSIVE {self._scan},
            found AS MATERIALIZED (
                SELECT queue, type_name, limit_key, rank, run_at, concurrency_key, slot_limit FROM reached
                WHERE run_at <= {self.db.now} AND {self._is_free} LIMIT %s
            )
            SELECT queue, type_name, limit_key, rank, {self.db.time_as_text("run_at")}, concurrency_key,
                {self._lock}, {self.db.isolation}
            FROM found
        """

    @statement
    def _claim_jobs(self) -> str:
        lease_seconds = "(SELECT wanted.lease_seconds FROM wanted WHERE wanted.type_name = job.type_name LIMIT 1)"
        keys = self.db.any_of("SELECT DISTINCT concurrency_key FROM wanted WHERE concurrency_key IS NOT NULL")
        return f"""
            WITH RECURSIVE wanted AS MATERIALIZED (SELECT * FROM {self.db.rows(_WANTED)}),
            running AS MATERIALIZED (
                SELECT concurrency_key, count(*) AS count FROM {self.tables.job} {self.db.by_index("jobchains_counted")}
                WHERE status = 'running' AND concurrency_key IS NOT NULL AND concurrency_key {keys}
                GROUP BY concurrency_key
            ),
            {self._picked},
            turns AS (
                SELECT picked.*, row_number() OVER (
                    PARTITION BY type_name, limit_key ORDER BY rank, run_at, id
                ) AS turn FROM picked
            ),
            places AS (
                SELECT turns.*, row_number() OVER (PARTITION BY concurrency_key ORDER BY turn, position) AS place
                FROM turns
            ),
            due AS MATERIALIZED (
                SELECT places.id FROM places LEFT JOIN running ON running.concurrency_key = places.concurrency_key
                WHERE slot_limit IS NULL OR place <= slot_limit - COALESCE(running.count, 0)
                ORDER BY turn, position LIMIT %s
            )
            UPDATE {self.tables.job} AS job
            SET {self._jobs.started("clock.now")},
                leased_until = {self.db.after("clock.now", lease_seconds)}
            FROM {self.db.clock}
            WHERE job.id {self.db.any_of("SELECT id FROM due")} AND job.status || '' = 'pending'
            RETURNING {self._jobs.claimed_columns}, limit_key
        """

    @statement
    def _next_due(self) -> str:
        now = self.db.after(self.db.clock_sql, str(self.db.ahead_seconds))
        seconds = self.db.seconds(now, "min(run_at)")
        return f"WITH RECURSIVE {self._scan} SELECT {seconds} FROM reached WHERE {self._is_free}"
