"""SQLite's scan of limited jobs. One transaction writes at a time, so nothing has to be locked."""

from django_jobchains.store.limits import TYPES, Limits

#: More than all jobs.
_NO_LIMIT = 2**31
_GROUP = "n.queue, n.type_name, n.limit_key, n.priority * -1"


class SQLiteLimits(Limits):
    @property
    def _scan(self) -> str:
        """A range is a queue and a type. The keys after the one that was served last come first, then the others.

        If SQLite expected as many groups as jobs, it would read all jobs for a bloom filter.
        """
        job, paused = self.tables.job, f"SELECT name FROM {self.tables.queue} WHERE paused_at IS NOT NULL"
        of_range = "n.queue = r.queue AND n.type_name = r.type_name AND n.limit_key"
        next_rank = f"{of_range} = c.limit_key AND n.priority * -1 > c.priority * -1"
        first_queue, next_queue = self._first("n.queue", "true"), self._first("n.queue", "n.queue > queues.queue")
        before = self._first("n.id", f"{of_range} <= r.start")
        return f"""
            types AS MATERIALIZED (SELECT * FROM {self.db.rows(TYPES)}),
            served AS MATERIALIZED (SELECT * FROM {self.db.rows("queue text, type_name text, after text")}),
            beginning AS MATERIALIZED (SELECT %s AS start),
            listed(name) AS MATERIALIZED (SELECT value FROM json_each(%s)),
            scope AS MATERIALIZED (SELECT %s AS is_every_queue),
            closed(name) AS MATERIALIZED (SELECT value FROM json_each(%s) UNION ALL {paused}),
            queues(queue) AS (
                SELECT {first_queue}
                UNION ALL
                SELECT {next_queue} FROM queues WHERE queues.queue IS NOT NULL
            ),
            ranges AS MATERIALIZED (
                SELECT queues.queue, types.*, COALESCE(served.after, beginning.start) AS start
                FROM queues CROSS JOIN beginning CROSS JOIN scope CROSS JOIN types LEFT JOIN served
                ON served.queue = queues.queue AND served.type_name = types.type_name
                WHERE queues.queue IS NOT NULL AND queues.queue NOT IN (SELECT name FROM closed)
                AND (scope.is_every_queue OR queues.queue IN (SELECT name FROM listed))
            ),
            walked(queue, type_name, slot_limit, microseconds, burst, start, id) AS (
                SELECT r.queue, r.type_name, r.slot_limit, r.microseconds, r.burst, r.start,
                    COALESCE({self._first("n.id", f"{of_range} > r.start")}, {before})
                FROM ranges AS r
                UNION ALL
                SELECT r.queue, r.type_name, r.slot_limit, r.microseconds, r.burst, r.start, COALESCE(
                    {self._first("n.id", next_rank)},
                    CASE WHEN c.limit_key > r.start
                    THEN COALESCE({self._first("n.id", f"{of_range} > c.limit_key")}, {before})
                    ELSE {self._first("n.id", f"{of_range} > c.limit_key AND n.limit_key <= r.start")} END
                )
                FROM walked AS r CROSS JOIN {job} AS c ON c.id = r.id
            ),
            reached AS (
                SELECT c.queue, c.type_name, c.limit_key, c.priority * -1 AS rank, c.run_at, c.concurrency_key,
                    c.rate_key, r.slot_limit, r.microseconds, r.burst
                FROM walked AS r CROSS JOIN {job} AS c ON c.id = r.id WHERE likelihood(r.id IS NOT NULL, 0.000001)
            )"""

    def _first(self, column: str, condition: str, order: str = f"{_GROUP}, n.run_at, n.id") -> str:
        """SQL of a column of the first pending job ``n`` that meets a condition."""
        return (
            f"(SELECT {column} FROM {self.tables.job} AS n INDEXED BY jobchains_limited WHERE {self._pending} "
            f"AND {condition} ORDER BY {order} LIMIT 1)"
        )

    @property
    def _is_free(self) -> str:
        count = (
            f"(SELECT count(*) FROM {self.tables.job} AS other INDEXED BY jobchains_counted "
            "WHERE other.status = 'running' AND other.concurrency_key = reached.concurrency_key)"
        )
        return f"(slot_limit IS NULL OR {count} < slot_limit)"

    @property
    def _picked(self) -> str:
        due = (
            "n.queue = free.queue AND n.type_name = free.type_name AND n.limit_key = free.limit_key "
            f"AND n.priority * -1 = free.rank AND n.run_at <= {self.db.now}"
        )
        order = "n.run_at, n.id"
        return f"""
            walked(position, turn, id) AS (
                SELECT free.position, 1, {self._first("n.id", due, order)} FROM free
                UNION ALL
                SELECT walked.position, walked.turn + 1,
                    {self._first("n.id", f"{due} AND (n.run_at, n.id) > (c.run_at, c.id)", order)}
                FROM walked CROSS JOIN free ON free.position = walked.position
                CROSS JOIN {self.tables.job} AS c ON c.id = walked.id
                WHERE walked.turn < min(%s, COALESCE(free.places, {_NO_LIMIT}), COALESCE(free.starts, {_NO_LIMIT}))
            ),
            picked AS MATERIALIZED (
                SELECT free.position, free.type_name, free.limit_key, free.rank, free.concurrency_key, free.rate_key,
                    free.places, free.starts, c.id, c.run_at
                FROM walked CROSS JOIN free ON free.position = walked.position
                CROSS JOIN {self.tables.job} AS c ON c.id = walked.id
            )"""
