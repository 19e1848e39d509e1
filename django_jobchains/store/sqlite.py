"""SQLite: one writer at a time, so a statement that writes first needs no row locks.

Each of the store's transactions begins with a write (``BEGIN IMMEDIATE`` in effect): a transaction that reads first and
writes later fails at once when another process wrote in between, whatever the busy timeout.
"""

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django_jobchains.store.base import Store

_FORMAT = "'%%Y-%%m-%%d %%H:%%M:%%f000'"
#: Columns of a group, of its first job.
_GROUP = "job.queue, job.type_name, job.priority * -1 AS rank, job.run_at, job.id"


class SQLiteStore(Store):
    _now = _clock = f"strftime({_FORMAT}, 'now')"
    json_cast = ""

    def prepare_for_workers(self) -> None:
        """Turns the write-ahead log on, for good: with a rollback journal readers and writers wait for each other."""
        if not self.connection.in_atomic_block:
            self._fetch("PRAGMA journal_mode = WAL", [])

    def _rows(self, columns: str, name: str = "d") -> str:
        names = [column.split()[0] for column in columns.split(", ")]
        values = ", ".join(f"json_extract(value, '$.{column}') AS {column}" for column in names)
        return f"(SELECT {values} FROM json_each(%s)) AS {name}"

    def _row(self, columns: str) -> str:
        return f"(SELECT {', '.join(f'%s AS {column.split()[0]}' for column in columns.split(', '))}) AS d"

    def _after(self, time: str, seconds: str) -> str:
        # A fifth of a millisecond more, or SQLite before 3.42 reads one time in a hundred a millisecond too early.
        return f"strftime({_FORMAT}, substr({time}, 1, 23) || '2', ({seconds}) || ' seconds')"

    def _seconds(self, since: str, until: str) -> str:
        return f"(julianday({until}) - julianday({since})) * 86400.0"

    def _latest(self, first: str, second: str) -> str:
        return f"MAX(COALESCE({first}, ''), {second})"

    def _held(self, alias: str) -> str:
        return ""

    def _shared(self, alias: str) -> str:
        return ""

    def _locked(self, alias: str) -> str:
        return ""

    def _lock_keys(self, keys: Collection[str]) -> None:
        self._write_first()

    def _write_first(self) -> None:
        self._fetch(f"UPDATE {self.job} SET id = id WHERE false", [])

    def _any(self, select: str) -> str:
        return f"IN ({select})"

    def _is_listed(self, id: str, texts: str) -> str:
        return f"{id} IN (SELECT value FROM json_each({texts}))"

    def _id_text(self, id: UUID) -> str:
        return id.hex

    def _time_text(self, time: datetime) -> str:
        return time.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")

    def _as_text(self, column: str) -> str:
        return f"{column} || ''"  # as an expression it has no declared type, which the driver would go by

    def _time(self, text: str) -> datetime:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)

    def _id(self, value: str) -> UUID:
        return UUID(hex=value)

    def lock(self, job_id: UUID) -> tuple[str, int] | None:
        sql = f"UPDATE {self.job} SET lease_number = lease_number WHERE id = %s RETURNING status, lease_number"
        rows = self._fetch(sql, [job_id.hex])
        return (rows[0][0], rows[0][1]) if rows else None

    def _claim(
        self,
        worker: str,
        limit: int,
        leases: Mapping[str, float],
        queues: Collection[str] | None,
        excluded: Collection[str],
    ) -> list[tuple[Any, ...]]:
        # BETWEEN, because SQLite 3.40 may put a bloom filter over an index's expression, through which nothing passes.
        sql = f"""
            WITH RECURSIVE {self._heads_sql},
            due AS MATERIALIZED (
                SELECT candidate.id, served.lease_seconds
                FROM (SELECT * FROM heads WHERE run_at <= {self.now} ORDER BY rank, run_at, id LIMIT %s) AS served
                CROSS JOIN {self.job} AS candidate
                WHERE candidate.status = 'pending' AND candidate.queue = served.queue
                AND candidate.type_name = served.type_name
                AND candidate.priority * -1 BETWEEN served.rank AND served.rank
                AND candidate.run_at <= {self.now}
                LIMIT %s
            )
            UPDATE {self.job} AS job
            SET status = 'running', attempt = attempt + 1, lease_number = lease_number + 1, leased_by = %s,
                leased_until = {self._after("clock.now", "due.lease_seconds")}, last_attempt_at = clock.now
            FROM due CROSS JOIN {self.clock} WHERE job.id = due.id
            RETURNING {self._claimed_columns}
        """
        return self._fetch(sql, [*_served(leases, queues, excluded), limit, limit, worker])

    def next_due(
        self, leases: Mapping[str, float], queues: Collection[str] | None = None, excluded: Collection[str] = ()
    ) -> float | None:
        seconds_sql = f"(julianday(min(run_at)) - julianday('now')) * 86400.0 - {self.ahead_seconds}"
        sql = f"WITH RECURSIVE {self._heads_sql} SELECT {seconds_sql} FROM heads"
        ((seconds,),) = self._fetch(sql, _served(leases, queues, excluded))
        return seconds if seconds is None else float(seconds)

    @property
    def _heads_sql(self) -> str:
        """Of the groups those that are served, with the seconds of their leases."""
        return f"""
            {self._found_sql},
            heads AS MATERIALIZED (
                SELECT {_GROUP}, d.lease_seconds
                FROM found JOIN {self.job} AS job ON job.id = found.id
                JOIN {self._rows("type_name text, lease_seconds float")} ON d.type_name = job.type_name
                CROSS JOIN (SELECT %s AS served, %s AS excluded) AS queues
                WHERE (queues.served = 'null' OR job.queue IN (SELECT value FROM json_each(queues.served)))
                AND job.queue NOT IN (SELECT value FROM json_each(queues.excluded))
            )"""

    @property
    def _groups_sql(self) -> str:
        return f"""
            {self._found_sql},
            groups AS (SELECT {_GROUP} FROM found JOIN {self.job} AS job ON job.id = found.id)"""

    @property
    def _found_sql(self) -> str:
        """The first job of each (queue, type, priority) that is pending: a few index probes a group.

        SQLite has no LATERAL and seeks no row comparison over an expression, so the next group is the next priority of
        this type, or else the next type of this queue, or else the next queue.
        """

        def first(condition: str) -> str:
            return (
                f"(SELECT id FROM {self.job} AS n WHERE n.status = 'pending' AND {condition} "
                "ORDER BY n.queue, n.type_name, n.priority * -1, n.run_at, n.id LIMIT 1)"
            )

        next_priority = first("n.queue = c.queue AND n.type_name = c.type_name AND n.priority * -1 > c.priority * -1")
        next_type = first("n.queue = c.queue AND n.type_name > c.type_name")
        return f"""
            found(id) AS (
                SELECT {first("true")}
                UNION ALL
                SELECT COALESCE({next_priority}, {next_type}, {first("n.queue > c.queue")})
                FROM found JOIN {self.job} AS c ON c.id = found.id
            )"""


def _served(leases: Mapping[str, float], queues: Collection[str] | None, excluded: Collection[str]) -> list[str]:
    types = [{"type_name": name, "lease_seconds": seconds} for name, seconds in leases.items()]
    return [json.dumps(types), json.dumps(None if queues is None else list(queues)), json.dumps(list(excluded))]
