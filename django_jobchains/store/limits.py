"""The claim of limited job types: never more running jobs and starts than allowed, and in turn for each key.

A claim is a transaction of two statements. The first finds groups of pending jobs that probably may run, and tries to
lock what they are counted by. The second counts again, with a new snapshot, and claims. So only one claim at a time
decides about a key, nobody waits for another claim, and the truth is always the running jobs themselves. Starts are
counted in ``rates``. See docs/decisions/0091-limits.md.
"""

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from django_jobchains.store.database import Database, Part, rows_json, statement
from django_jobchains.store.errors import retried, retried_at_read_committed
from django_jobchains.store.jobs import Jobs
from django_jobchains.store.rates import Rates, StartRate
from django_jobchains.store.rows import ClaimedJob, ExpiredJob

#: The most groups of one claim, which are also its most locks.
MAX_GROUPS = 64
#: How many times its even share of the claimed jobs one group may take, if other groups have fewer jobs.
MAX_SHARES = 2
#: The most jobs of one group.
MAX_SHARE = 1_000
#: Up to this limit, the running jobs of a key are counted for each group that has the key.
MAX_COUNTED_ONE_BY_ONE = 20
#: Limit keys are numbers of this many bytes, between these two.
KEY_BYTES = 7
BEFORE_ALL_KEYS, AFTER_ALL_KEYS = -1, 2 ** (8 * KEY_BYTES)
#: The columns of the keys of jobs.
_KEYS = "job_id uuid, limit_key bigint, concurrency_key text, rate_key text"
#: The columns of the served types.
TYPES = "type_name text, slot_limit int, shared_key text, microseconds bigint, burst int"
_HAS_KEYS = "type_name text, is_counted int, has_rate int"
_WANTED = (
    "position int, queue text, type_name text, limit_key bigint, rank int, run_at timestamptz, concurrency_key text, "
    "slot_limit int, rate_key text, microseconds bigint, burst int, lease_seconds float"
)


class Rotation:
    """Whose turn it is: the limit key that was served last in each queue, for each type.

    It begins anywhere, so that workers that run for a short time do not all begin with the same keys.
    ``next_start_at``: the monotonic time when a key that the last claim has served may start its next job. None: it may
    start one now, or has no rate.
    """

    next_start_at: float | None = None

    def __init__(self, start: int | None = None) -> None:
        self.start = secrets.randbelow(AFTER_ALL_KEYS) if start is None else start
        self.served: dict[tuple[str, str], int] = {}
        #: How many claims in a row met the lock of another, so that there may be free places.
        self.met_locks = 0


class Group(NamedTuple):
    """Pending jobs of a queue, a type, a limit key and a priority, of which the first is due."""

    queue: str
    type_name: str
    limit_key: int
    #: The negated priority.
    rank: int
    run_at: str
    concurrency_key: str | None
    rate_key: str | None
    #: Whether no other claim is deciding about its jobs.
    is_locked: bool
    #: The isolation level of the transaction.
    isolation: str


class LimitedTypes(NamedTuple):
    """The types to claim: the seconds of their leases, and how many of their jobs may run at the same time (None: any).

    ``rates``: of the types whose starts are limited. ``shared_keys``: of the types whose running jobs are all counted
    by one key. While it has no free place, a claim does not read their limit keys.
    """

    leases: Mapping[str, float]
    slot_limits: Mapping[str, int | None]
    rates: Mapping[str, StartRate] = MappingProxyType({})
    shared_keys: Mapping[str, str] = MappingProxyType({})


class Limits(Part, ABC):
    def __init__(self, db: Database, jobs: Jobs, rates: Rates) -> None:
        super().__init__(db)
        self._jobs = jobs
        self._rates = rates

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
        rotation.next_start_at = None
        if not types.leases or limit < 1:
            return []
        groups, rows = self._claim(worker, limit, types, rotation, queues, excluded)
        taken = {(row[5], row[4], row[-2]) for row in rows}
        for group in groups:
            if (group.queue, group.type_name, group.limit_key) in taken:
                rotation.served[group.queue, group.type_name] = group.limit_key
        return self._jobs.claimed(rows, worker, expired)

    def _claim(
        self, worker: str, limit: int, types: LimitedTypes, rotation: Rotation, *served: Any
    ) -> tuple[list[Group], list[tuple[Any, ...]]]:
        """Return the groups, and rows of ``claimed_columns`` with the limit key and the rate key of each job."""
        with self.db.transaction() as is_own:
            self.db.write_first()
            groups = self.lock_groups(limit, types, rotation, *served)
            sees_others = not groups or groups[0].isolation in ("", "read committed")
            if sees_others or not is_own:
                return groups, self.claim_of(groups, worker, limit, types, rotation) if groups else []
        # The project's isolation level hides commits of others since the transaction began.
        with self.db.at_read_committed():
            groups = self.lock_groups(limit, types, rotation, *served)
            return groups, self.claim_of(groups, worker, limit, types, rotation) if groups else []

    def lock_groups(
        self,
        limit: int,
        types: LimitedTypes,
        rotation: Rotation,
        queues: Collection[str] | None = None,
        excluded: Collection[str] = (),
    ) -> list[Group]:
        """Return groups that probably may run, in turn, and lock their keys until the transaction ends.

        Groups that another claim has locked are left out.
        """
        params = self._served(types, rotation, queues, excluded)
        rows = self.db.fetch(self._lock_groups, [*params, min(limit, MAX_GROUPS)])
        groups = [group for group in map(Group._make, rows) if group.is_locked]
        rotation.met_locks = rotation.met_locks + 1 if len(groups) < len(rows) else 0
        return groups

    def claim_of(
        self, groups: list[Group], worker: str, limit: int, types: LimitedTypes, rotation: Rotation
    ) -> list[tuple[Any, ...]]:
        """Claim jobs of these locked groups. Must be another statement than ``lock_groups``: its snapshot is newer."""
        wanted = [
            (
                position,
                *group[:6],
                types.slot_limits[group.type_name],
                group.rate_key,
                *(types.rates.get(group.type_name) or (None, None)),
                types.leases[group.type_name],
            )
            for position, group in enumerate(groups)
        ]
        share = min(limit, MAX_SHARE, max(1, MAX_SHARES * limit // len(groups)))
        rows = self.db.fetch(self._claim_jobs, [rows_json(_WANTED, wanted), share, limit, worker])
        claimed_at = time.monotonic()
        # Jobs that have expired have no time, because they are not started.
        started = [row for row in rows if row[20] and row[4] in types.rates]
        if started:
            starts = [(row[-1], types.rates[row[4]]) for row in started]
            seconds = self._rates.charge(starts, self.db.time(started[0][20]))
            rotation.next_start_at = claimed_at + seconds if seconds > 0 else None
        return rows

    @retried_at_read_committed
    def next_due(
        self,
        types: LimitedTypes,
        queues: Collection[str] | None = None,
        excluded: Collection[str] = (),
    ) -> float | None:
        """Return the seconds until the next job may start, if no place becomes free: 0 or less if one may now."""
        ((seconds,),) = self.db.fetch(self._next_due, self._served(types, Rotation(BEFORE_ALL_KEYS), queues, excluded))
        return None if seconds is None else float(seconds)

    @retried
    def without_keys(
        self, keys: Mapping[str, tuple[bool, bool]], limit: int, after: UUID | None = None
    ) -> tuple[list[tuple[UUID, str, str]], UUID | None]:
        """Return jobs of limited types that were stored without keys, with their types and inputs.

        ``keys``: by type, whether running jobs are counted, and whether starts are. Returns up to ``limit`` waiting
        jobs, of the chains with an id above ``after``, and the id to continue after.
        """
        rows = rows_json(_HAS_KEYS, [(name, *map(int, has_keys)) for name, has_keys in keys.items()])
        params = [rows, (after or UUID(int=0)).hex, limit]
        found = self.db.fetch(self._without_keys, [*params, *params, limit])
        jobs = [(self.db.id(id_), type_name, stored) for _, id_, type_name, stored in found]
        return jobs, self.db.id(found[-1][0]) if len(found) == limit else None

    @retried
    def set_keys(self, rows: Sequence[tuple[UUID, int, str | None, str | None]]) -> list[str]:
        """Set the keys of waiting jobs; return the types of the jobs that were not locked."""
        ids = [job_id.hex for job_id, *_ in rows]
        params = rows_json(_KEYS, [(id_, *row[1:]) for id_, row in zip(ids, rows, strict=True)])
        written = self.db.fetch(self._set_keys, [params, *self.db.by_ids_params(ids)])
        return [type_name for (type_name,) in written]

    @statement
    def _without_keys(self) -> str:
        # Each status separately: then its index has the order, and the jobs that have ended are not read.
        blocked, pending = (
            f"""
            SELECT * FROM (
                SELECT job.chain_id, job.id, job.type_name, {self.db.json_text("job.input")} AS input
                FROM {self.db.rows(_HAS_KEYS)}
                JOIN {self.tables.job} AS job ON job.type_name = d.type_name
                WHERE job.status = '{status}' AND job.chain_id > {self.db.id_param}
                AND (job.limit_key IS NULL OR (d.is_counted = 1 AND job.concurrency_key IS NULL)
                    OR (d.has_rate = 1 AND job.rate_key IS NULL))
                ORDER BY job.chain_id LIMIT %s
            ) AS {status}
            """
            for status in ("blocked", "pending")
        )
        return f"{blocked} UNION ALL {pending} ORDER BY 1 LIMIT %s"

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
        limited = [
            {
                "type_name": name,
                "slot_limit": types.slot_limits[name],
                "shared_key": types.shared_keys.get(name),
                **rate,
            }
            for name in types.leases
            for rate in [types.rates[name]._asdict() if name in types.rates else {}]
        ]
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
        the limit of its type. Types whose shared key has no free place are left out. The parameters are those of
        ``_served``."""

    @property
    @abstractmethod
    def _picked(self) -> str:
        """SQL of a table ``picked``: some of the due jobs of each group in ``free``; the parameter is how many."""

    def _is_free(self, key: str) -> str:
        """SQL of whether a key has a free place by the ``slot_limit`` of its row. No running job has the key NULL."""
        running = f"other.status = 'running' AND other.concurrency_key = {key}"
        return f"(slot_limit IS NULL OR (SELECT count(*) {self._counted} WHERE {running}) < slot_limit)"

    @property
    def _reached_is_free(self) -> str:
        """SQL of whether the key of a row of ``reached`` has a free place.

        Many groups can have one key. If its limit is high, all running jobs are counted once, and not for each group.
        """
        running = "other.status = 'running' AND other.concurrency_key IS NOT NULL"
        return f"""
            CASE WHEN slot_limit > {MAX_COUNTED_ONE_BY_ONE} THEN (concurrency_key, slot_limit) NOT IN (
                SELECT full_key, slot_limit FROM (SELECT DISTINCT slot_limit FROM types) AS high JOIN (
                    SELECT other.concurrency_key AS full_key, count(*) AS count {self._counted} WHERE {running}
                    GROUP BY other.concurrency_key
                ) AS running ON count >= slot_limit
            ) ELSE {self._is_free("reached.concurrency_key")} END
        """

    @property
    def _counted(self) -> str:
        return f"FROM {self.tables.job} AS other {self.db.by_index('jobchains_counted')}"

    @property
    def _has_keys(self) -> str:
        """SQL of whether a row of ``reached`` has the keys of its limits. Without them, it could exceed these."""
        return "(slot_limit IS NULL OR concurrency_key IS NOT NULL) AND (burst IS NULL OR rate_key IS NOT NULL)"

    @property
    def _starts_at(self) -> str:
        """SQL of when the rate of a row of ``reached`` allows the next start, in microseconds."""
        return f"CASE WHEN burst IS NULL THEN 0 ELSE {self._rates.starts_at('reached', 'reached.rate_key')} END"

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
                SELECT queue, type_name, limit_key, rank, run_at, concurrency_key, rate_key, slot_limit, burst
                FROM reached WHERE run_at <= {self.db.now} AND {self._has_keys}
                AND {self._reached_is_free}
                AND {self._starts_at} <= {self.db.microseconds(self.db.now)} LIMIT %s
            )
            SELECT queue, type_name, limit_key, rank, {self.db.time_as_text("run_at")}, concurrency_key, rate_key,
                {self._lock}, {self.db.isolation}
            FROM found
        """

    @statement
    def _claim_jobs(self) -> str:
        lease_seconds = "(SELECT wanted.lease_seconds FROM wanted WHERE wanted.type_name = job.type_name LIMIT 1)"
        keys = self.db.any_of("SELECT DISTINCT concurrency_key FROM wanted WHERE concurrency_key IS NOT NULL")
        return f"""
            WITH RECURSIVE wanted AS MATERIALIZED (SELECT * FROM {self.db.rows(_WANTED)}),
            {self._rates.buckets},
            running AS MATERIALIZED (
                SELECT concurrency_key, count(*) AS count FROM {self.tables.job} {self.db.by_index("jobchains_counted")}
                WHERE status = 'running' AND concurrency_key IS NOT NULL AND concurrency_key {keys}
                GROUP BY concurrency_key
            ),
            allowed AS MATERIALIZED (
                SELECT wanted.*, slot_limit - COALESCE(running.count, 0) AS places, {self._rates.starts} AS starts
                FROM {self._rates.of_wanted}
                LEFT JOIN running ON running.concurrency_key = wanted.concurrency_key
            ),
            free AS MATERIALIZED (
                SELECT * FROM allowed WHERE COALESCE(places, 1) > 0 AND COALESCE(starts, 1) > 0
            ),
            {self._picked},
            turns AS (
                SELECT picked.*, row_number() OVER (
                    PARTITION BY type_name, limit_key ORDER BY rank, run_at, id
                ) AS turn FROM picked
            ),
            ranked AS (
                SELECT turns.*, row_number() OVER (PARTITION BY concurrency_key ORDER BY turn, position) AS place,
                    row_number() OVER (PARTITION BY rate_key ORDER BY turn, position) AS start
                FROM turns
            ),
            due AS MATERIALIZED (
                SELECT id FROM ranked WHERE (places IS NULL OR place <= places) AND (starts IS NULL OR start <= starts)
                ORDER BY turn, position LIMIT %s
            )
            UPDATE {self.tables.job} AS job
            SET {self._jobs.started("clock.now")},
                leased_until = {self.db.after("clock.now", lease_seconds)}
            FROM moment AS clock
            WHERE job.id {self.db.any_of("SELECT id FROM due")} AND job.status || '' = 'pending'
            RETURNING {self._jobs.claimed_columns}, limit_key, rate_key
        """

    @statement
    def _next_due(self) -> str:
        now = self.db.after(self.db.clock_sql, str(self.db.ahead_seconds))
        allowed = f"({self._starts_at} - {self.db.microseconds(now)}) / 1000000.0"
        seconds = f"min({self.db.greatest}({self.db.seconds(now, 'run_at')}, {allowed}))"
        return f"""
            WITH RECURSIVE {self._scan}
            SELECT {seconds} FROM reached WHERE {self._has_keys} AND {self._reached_is_free}
        """
