"""PostgreSQL's claims, also of limited types: their cost does not depend on the other rows of the table."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from django_jobchains.store.database import statement
from django_jobchains.store.jobs import Jobs
from django_jobchains.store.limits import AFTER_ALL_KEYS, BEFORE_ALL_KEYS, MAX_SHARE, TYPES, Limits

#: Below and above every negated priority.
BEFORE_ALL_RANKS, AFTER_ALL_RANKS = -32_769, 32_769

#: A group by the expressions of the index. The priority is negated, so that every column of the row comparison ascends,
#: as the index does; it is written as Django writes the index's expression, or the index would not be used.
_GROUP = "queue, type_name, priority * -1"
#: The same for the index of limited jobs.
_LIMITED_GROUP = "n.queue, n.type_name, n.limit_key, n.priority * -1"
_OF_RANGE = "n.queue = {0}.queue AND n.type_name = {0}.type_name"

#: The position of the group that a skip scan has reached, among the served types and queues.
_TYPE_POSITION = "width_bucket(reached.type_name::text, served.types)"
_QUEUE_POSITION = "width_bucket(reached.queue::text, served.queues)"
_IS_TYPE_SERVED = f"COALESCE(served.types[{_TYPE_POSITION}] = reached.type_name, false)"
_IS_QUEUE_SERVED = (
    "(NOT served.excluded ? reached.queue AND reached.queue <> ALL (served.paused) AND "
    f"(served.is_every_queue OR COALESCE(served.queues[{_QUEUE_POSITION}] = reached.queue, false)))"
)


class SkipScan(Jobs):
    """Finds the first job of each (queue, type, priority) by a skip scan, and then the jobs of these groups.

    Each step of the scan is one index probe. From a served group it goes to the next group, and from any other group to
    the next served type or queue, however many groups are between. So a claim makes no more probes than there are
    groups, and for each queue no more than two for each served type, plus one for each of its priorities. The backlogs
    of other types do not count. The served names are sorted by the database, in the order of its index:
    ``width_bucket`` finds a name and its successor. Paused queues are read in the same statement, so that no job is
    claimed after the pause of its queue was committed.
    """

    def _served(
        self, leases: Mapping[str, float], queues: Collection[str] | None, excluded: Collection[str]
    ) -> list[Any]:
        listed = [] if queues is None else set(queues).difference(excluded)
        return [json.dumps(dict(leases)), json.dumps(list(listed)), queues is None, json.dumps(list(excluded))]

    def _claim(self, worker: str, limit: int, served: list[Any]) -> list[tuple[Any, ...]]:
        return self.db.fetch(self._claim_jobs, [*served, limit, limit, worker, served[0]])

    @statement
    def _claim_jobs(self) -> str:
        # The index entries before the first job of a group are dead. They are scanned only once, to find that job:
        # while any transaction holds a snapshot, they are the entries of all jobs claimed since then.
        return f"""
            WITH RECURSIVE {self._heads},
            due AS MATERIALIZED (
                SELECT picked.id
                FROM (SELECT * FROM heads WHERE run_at <= {self.db.now} ORDER BY rank, run_at, id) AS served
                CROSS JOIN LATERAL (
                    SELECT id FROM {self.tables.job}
                    WHERE status = 'pending' AND queue = served.queue AND type_name = served.type_name
                    AND priority * -1 = served.rank AND run_at BETWEEN served.run_at AND {self.db.now}
                    ORDER BY run_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
                ) AS picked
                LIMIT %s
            )
            UPDATE {self.tables.job} AS job
            SET {self.started("clock.now")},
                leased_until = clock.now + (%s::jsonb ->> type_name)::float * interval '1 second'
            FROM {self.db.clock}
            WHERE job.id {self.db.any_of("SELECT id FROM due")} AND job.status || '' = 'pending'
            RETURNING {self.claimed_columns}
        """

    @statement
    def _next_due(self) -> str:
        now = self.db.after(self.db.clock_sql, str(self.db.ahead_seconds))
        return f"WITH RECURSIVE {self._heads} SELECT extract(epoch FROM min(run_at) - {now}) FROM heads"

    @property
    def _heads(self) -> str:
        """SQL of the first job of each (queue, type, priority) that is pending and served."""
        key = f"CROSS JOIN served CROSS JOIN LATERAL ({self._next_key}) AS key"
        return f"""
            served AS MATERIALIZED (
                SELECT ARRAY(SELECT name FROM jsonb_object_keys(%s::jsonb) AS name ORDER BY name) AS types,
                (SELECT array_agg(name ORDER BY name) FROM jsonb_array_elements_text(%s::jsonb) AS name) AS queues,
                %s::boolean AS is_every_queue, %s::jsonb AS excluded,
                ARRAY(SELECT name FROM {self.tables.queue} WHERE paused_at IS NOT NULL) AS paused
            ),
            {skip_scan(self.tables.job, "reached", key, "key")},
            heads AS MATERIALIZED (
                SELECT reached.* FROM reached CROSS JOIN served WHERE {_IS_TYPE_SERVED} AND {_IS_QUEUE_SERVED}
            )"""

    @property
    def _next_key(self) -> str:
        """SQL of the key before the next group: this group's key, or the start of the next that may be served.

        OFFSET 0 keeps PostgreSQL from evaluating the conditions again for each column of the key.
        """
        next_queue = (
            f"CASE WHEN served.is_every_queue THEN (SELECT queue FROM {self.tables.job} WHERE status = 'pending' "
            f"AND queue > reached.queue ORDER BY {_GROUP}, run_at, id LIMIT 1) "
            f"ELSE served.queues[{_QUEUE_POSITION} + 1] END"
        )
        return f"""
            SELECT CASE WHEN goes_on THEN reached.queue ELSE {next_queue} END AS queue,
            CASE WHEN is_served THEN reached.type_name WHEN goes_on THEN next_type ELSE served.types[1] END
            AS type_name,
            CASE WHEN is_served THEN reached.rank ELSE {BEFORE_ALL_RANKS} END AS rank
            FROM (
                SELECT is_open AND is_type AS is_served, is_open AND (is_type OR next_type IS NOT NULL) AS goes_on,
                next_type
                FROM (
                    SELECT {_IS_QUEUE_SERVED} AS is_open, {_IS_TYPE_SERVED} AS is_type,
                    served.types[{_TYPE_POSITION} + 1] AS next_type
                    OFFSET 0
                ) AS known
            ) AS step"""


def skip_scan(job: str, name: str, joins: str = "", key: str = "") -> str:
    """SQL of a recursive table ``name`` of the first pending job of each group: one index probe for each step.

    A step goes to the next group after the table's row, or after the row ``key`` of the ``joins``. ``rank`` is the
    negated priority.
    """
    key = key or name
    return f"""
        {name} AS (
            (SELECT queue, type_name, priority * -1 AS rank, run_at, id FROM {job}
             WHERE status = 'pending' ORDER BY {_GROUP}, run_at, id LIMIT 1)
            UNION ALL
            SELECT following.* FROM {name} {joins} CROSS JOIN LATERAL (
                SELECT queue, type_name, priority * -1 AS rank, run_at, id FROM {job}
                WHERE status = 'pending' AND ({_GROUP}) > ({key}.queue, {key}.type_name, {key}.rank)
                ORDER BY {_GROUP}, run_at, id LIMIT 1
            ) AS following
        )"""


class LimitScan(Limits):
    """The scan of limited jobs: one index probe for each group, and for each gap between saturated keys."""

    @property
    def _scan(self) -> str:
        """A range is a queue and a type. The keys after the one that was served last come first, then the others.

        Only the gaps between the keys of running jobs that are saturated are read: each step of ``passed`` finds the
        next group in its gap, or goes on to the next gap. ``befores`` are the keys at which the gaps end. A key that is
        saturated only together with other types of its group, or other keys, is found in a gap.

        The last two conditions of the ranges are always true. PostgreSQL expects that one row in 200 meets each of
        them, and so few ranges. For thousands, it would compile the statement, which takes longer than running it.
        """
        job = self.tables.job
        first = f"SELECT n.queue FROM {job} AS n WHERE {self._pending}"
        before = "((SELECT befores FROM bounds)[passed.gap])"
        return f"""
            types AS MATERIALIZED (SELECT * FROM {self.db.rows(TYPES, "type")}),
            served AS MATERIALIZED (SELECT * FROM {self.db.rows("queue text, type_name text, after bigint", "last")}),
            scope AS MATERIALIZED (
                SELECT %s::bigint AS start, %s::jsonb AS queues, %s::boolean AS is_every_queue, %s::jsonb AS excluded,
                ARRAY(SELECT name FROM {self.tables.queue} WHERE paused_at IS NOT NULL) AS paused
            ),
            queues AS (
                ({first} ORDER BY {_LIMITED_GROUP}, n.run_at, n.id LIMIT 1)
                UNION ALL
                SELECT following.queue FROM queues CROSS JOIN LATERAL (
                    {first} AND n.queue > queues.queue ORDER BY {_LIMITED_GROUP}, n.run_at, n.id LIMIT 1
                ) AS following
            ),
            ranges AS MATERIALIZED (
                SELECT row_number() OVER () AS number, queues.queue, types.*,
                    COALESCE(served.after, scope.start) AS start
                FROM queues CROSS JOIN scope CROSS JOIN types LEFT JOIN served
                ON served.queue = queues.queue AND served.type_name = types.type_name
                WHERE queues.queue <> ALL (scope.paused) AND NOT scope.excluded ? queues.queue
                AND (scope.is_every_queue OR scope.queues ? queues.queue) AND {self._is_free("types.shared_key")}
                AND queues.queue || '' = queues.queue AND types.type_name || '' = types.type_name
            ),
            gaps AS MATERIALIZED (
                SELECT number, false AS is_again, {AFTER_ALL_KEYS} AS before FROM ranges
                UNION ALL
                SELECT number, true, start + 1 FROM ranges
                UNION ALL
                SELECT number, limit_key <= start, limit_key FROM ranges JOIN (
                    SELECT limit_key, type_name, count(*) AS count FROM {job}
                    WHERE status = 'running' AND concurrency_key IS NOT NULL AND limit_key IS NOT NULL
                    GROUP BY limit_key, type_name
                ) AS running ON running.type_name = ranges.type_name AND running.count >= ranges.slot_limit
            ),
            bounds AS MATERIALIZED (SELECT array_agg(before ORDER BY number, is_again, before) AS befores FROM gaps),
            passed AS (
                SELECT queue::varchar, type_name, start AS limit_key, {AFTER_ALL_RANKS} AS rank,
                    NULL::timestamptz AS run_at, NULL::text AS concurrency_key, NULL::text AS rate_key,
                    slot_limit, microseconds, burst, last_gap - count + 1 AS gap, last_gap
                FROM ranges JOIN (
                    SELECT number, count(*) AS count, sum(count(*)) OVER (ORDER BY number)::int AS last_gap
                    FROM gaps GROUP BY number
                ) AS own USING (number)
                UNION ALL
                SELECT passed.queue, passed.type_name,
                    CASE WHEN head.rank IS NOT NULL THEN head.limit_key
                    WHEN {before} = {AFTER_ALL_KEYS} THEN {BEFORE_ALL_KEYS} ELSE {before} END,
                    COALESCE(head.rank, {AFTER_ALL_RANKS}), head.run_at, head.concurrency_key, head.rate_key,
                    passed.slot_limit, passed.microseconds, passed.burst,
                    CASE WHEN head.rank IS NULL THEN passed.gap + 1 ELSE passed.gap END, passed.last_gap
                FROM passed LEFT JOIN LATERAL (
                    SELECT n.limit_key, n.priority * -1 AS rank, n.run_at, n.concurrency_key, n.rate_key
                    FROM {job} AS n WHERE {self._pending} AND {_OF_RANGE.format("passed")}
                    AND (n.limit_key, n.priority * -1) > (passed.limit_key, passed.rank) AND n.limit_key < {before}
                    ORDER BY {_LIMITED_GROUP}, n.run_at, n.id LIMIT 1
                ) AS head ON true
                WHERE passed.gap <= passed.last_gap
            ),
            reached AS (SELECT * FROM passed WHERE run_at IS NOT NULL)"""

    @property
    def _lock(self) -> str:
        return f"""
            (slot_limit IS NULL OR {self.db.try_lock("concurrency_key")})
            AND (burst IS NULL OR {self._rates.try_lock("rate_key")})
        """

    @property
    def _picked(self) -> str:
        # Row comparisons, and the key in the order: otherwise PostgreSQL may read the backlog of all keys in the index
        # of claimable jobs, which does not contain the keys. The second limit is a constant: if PostgreSQL does not
        # know a limit when it plans, it expects a tenth of the backlog, and compiles the statement.
        group = "n.limit_key, n.priority * -1, n.run_at"
        first = "free.limit_key, free.rank, free.run_at"
        last = f"free.limit_key, free.rank, {self.db.now}"
        return f"""
            picked AS MATERIALIZED (
                SELECT free.position, free.type_name, free.limit_key, free.rank, free.concurrency_key, free.rate_key,
                    free.places, free.starts, due.id, due.run_at
                FROM free CROSS JOIN LATERAL (
                    SELECT id, run_at FROM (
                        SELECT n.id, n.run_at FROM {self.tables.job} AS n
                        WHERE {self._pending} AND {_OF_RANGE.format("free")}
                        AND ({group}) >= ({first}) AND ({group}) <= ({last})
                        ORDER BY {group}, n.id LIMIT LEAST(%s, free.places, free.starts) FOR NO KEY UPDATE SKIP LOCKED
                    ) AS own LIMIT {MAX_SHARE}
                ) AS due
            )"""
