"""PostgreSQL's scan of limited jobs: one index probe for each key, starting with the one whose turn it is."""

from django_jobchains.store.limits import TYPES, Limits

#: A group by the expressions of the index, see ``claim``.
_GROUP = "n.queue, n.type_name, n.limit_key, n.priority * -1"
_OF_RANGE = "n.queue = {0}.queue AND n.type_name = {0}.type_name"


class LimitScan(Limits):
    @property
    def _scan(self) -> str:
        """A range is a queue and a type. The keys after the one that was served last come first, then the others.

        The last two conditions of the ranges are always true. PostgreSQL expects that one row in 200 meets each of
        them, and so few ranges. For thousands, it would compile the statement, which takes longer than running it.
        """
        job = self.tables.job
        first = f"SELECT n.queue FROM {job} AS n WHERE {self._pending}"
        of_range, of_reached = _OF_RANGE.format("ranges"), _OF_RANGE.format("reached")
        next_group = f"{of_reached} AND (n.limit_key, n.priority * -1) > (reached.limit_key, reached.rank)"
        next_round = f"reached.limit_key > reached.start AND {of_reached} AND n.limit_key <= reached.start"
        return f"""
            types AS MATERIALIZED (SELECT * FROM {self.db.rows(TYPES, "type")}),
            served AS MATERIALIZED (SELECT * FROM {self.db.rows("queue text, type_name text, after text", "last")}),
            scope AS MATERIALIZED (
                SELECT %s::text AS start, %s::jsonb AS queues, %s::boolean AS is_every_queue, %s::jsonb AS excluded,
                ARRAY(SELECT name FROM {self.tables.queue} WHERE paused_at IS NOT NULL) AS paused
            ),
            queues AS (
                ({first} ORDER BY {_GROUP}, n.run_at, n.id LIMIT 1)
                UNION ALL
                SELECT following.queue FROM queues CROSS JOIN LATERAL (
                    {first} AND n.queue > queues.queue ORDER BY {_GROUP}, n.run_at, n.id LIMIT 1
                ) AS following
            ),
            ranges AS MATERIALIZED (
                SELECT queues.queue, types.*, COALESCE(served.after, scope.start) AS start
                FROM queues CROSS JOIN scope CROSS JOIN types LEFT JOIN served
                ON served.queue = queues.queue AND served.type_name = types.type_name
                WHERE queues.queue <> ALL (scope.paused) AND NOT scope.excluded ? queues.queue
                AND (scope.is_every_queue OR scope.queues ? queues.queue)
                AND queues.queue || '' = queues.queue AND types.type_name || '' = types.type_name
            ),
            reached AS (
                SELECT head.*, ranges.slot_limit, ranges.microseconds, ranges.burst, ranges.start
                FROM ranges CROSS JOIN LATERAL (
                    ({self._head(f"{of_range} AND n.limit_key > ranges.start")})
                    UNION ALL
                    ({self._head(f"{of_range} AND n.limit_key <= ranges.start")})
                    LIMIT 1
                ) AS head
                UNION ALL
                SELECT following.*, reached.slot_limit, reached.microseconds, reached.burst, reached.start
                FROM reached CROSS JOIN LATERAL (
                    ({self._head(next_group)})
                    UNION ALL
                    ({self._head(next_round)})
                    LIMIT 1
                ) AS following
                WHERE reached.limit_key > reached.start OR following.limit_key <= reached.start
            ),
            counts AS MATERIALIZED (
                SELECT COALESCE(jsonb_object_agg(concurrency_key, count), '{{}}') AS by_key FROM (
                    SELECT concurrency_key, count(*) AS count FROM {job}
                    WHERE status = 'running' AND concurrency_key IS NOT NULL GROUP BY concurrency_key
                ) AS running
            )"""

    def _head(self, condition: str) -> str:
        """SQL of the first pending job that meets a condition."""
        return (
            "SELECT n.queue, n.type_name, n.limit_key, n.priority * -1 AS rank, n.run_at, n.concurrency_key, "
            f"n.rate_key FROM {self.tables.job} AS n WHERE {self._pending} AND {condition} "
            f"ORDER BY {_GROUP}, n.run_at, n.id LIMIT 1"
        )

    @property
    def _is_free(self) -> str:
        # Sub-selects, not joins: a join could read the whole scan before it returns the first row.
        count = "COALESCE(((SELECT by_key FROM counts) ->> concurrency_key)::bigint, 0)"
        return f"(slot_limit IS NULL OR {count} < slot_limit)"

    @property
    def _lock(self) -> str:
        return f"""
            (slot_limit IS NULL OR {self.db.try_lock("concurrency_key")})
            AND (burst IS NULL OR {self._rates.try_lock("rate_key")})
        """

    @property
    def _picked(self) -> str:
        # Row comparisons, and the key in the order: otherwise PostgreSQL may read the backlog of all keys in the index
        # of claimable jobs, which does not contain the keys.
        group = "n.limit_key, n.priority * -1, n.run_at"
        first = "free.limit_key, free.rank, free.run_at"
        last = f"free.limit_key, free.rank, {self.db.now}"
        return f"""
            picked AS MATERIALIZED (
                SELECT free.position, free.type_name, free.limit_key, free.rank, free.concurrency_key, free.rate_key,
                    free.places, free.starts, due.id, due.run_at
                FROM free CROSS JOIN LATERAL (
                    SELECT n.id, n.run_at FROM {self.tables.job} AS n
                    WHERE {self._pending} AND {_OF_RANGE.format("free")}
                    AND ({group}) >= ({first}) AND ({group}) <= ({last})
                    ORDER BY {group}, n.id LIMIT LEAST(%s, free.places, free.starts) FOR NO KEY UPDATE SKIP LOCKED
                ) AS due
            )"""
