"""The bare statements of a queue on our table, for the floors: what no queue can do without, prepared by the driver."""

import json
from collections.abc import Sequence
from typing import Any

import psycopg
from django.db import connection

from django_jobchains.models import Job, JobBlocker
from django_jobchains.store import get_store

JOB = Job._meta.db_table
BLOCKER = JobBlocker._meta.db_table
COLUMNS = (
    "id, chain_id, chain_index, chain_type_name, type_name, queue, priority, status, run_at, attempt, lease_number, "
    "crashes, input, created_at"
)

#: For one job, or for many by their ids. ``status || ''`` keeps PostgreSQL from the partial index of running jobs.
_FINISH = (
    f"UPDATE {JOB} SET status = 'completed', output = %s::jsonb, finished_at = clock_timestamp(), "
    "completed_by = leased_by, leased_by = NULL, leased_until = NULL, last_error = NULL "
    "WHERE {which} AND lease_number = 1 AND status || '' = 'running' RETURNING id"
)
FINISH_ONE = _FINISH.format(which="id = %s")
FINISH_MANY = _FINISH.format(which="id = ANY(%s)")
LOCK = f"SELECT status, lease_number FROM {JOB} WHERE id = %s FOR NO KEY UPDATE"
EFFECT = "INSERT INTO project_effect (job_id, value) VALUES (%s, %s)"

_PENDING = "0, 'pending', clock_timestamp(), 0, 0, 0"
INSERT_ONE = (
    f"INSERT INTO {JOB} ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, 'default', {_PENDING}, %s::jsonb, clock_timestamp()) "
    "RETURNING id, created_at"
)
INSERT_MANY = (
    f"INSERT INTO {JOB} ({COLUMNS}) SELECT d.id, d.chain_id, d.chain_index, d.name, d.name, 'default', {_PENDING}, "
    "d.input::jsonb, clock_timestamp() FROM unnest(%s::uuid[], %s::uuid[], %s::int[], %s::text[], %s::text[]) "
    "AS d(id, chain_id, chain_index, name, input) RETURNING id, created_at"
)

INSERT_BLOCKED = INSERT_MANY.replace("'pending'", "'blocked'")
INSERT_LINKS = (
    f"INSERT INTO {BLOCKER} (job_id, position, blocker_id, is_open) SELECT d.job_id, d.position, d.blocker_id, true "
    "FROM unnest(%s::uuid[], %s::int[], %s::uuid[]) AS d(job_id, position, blocker_id)"
)
#: For the chains by these ids, which have ended: what waits for them is locked, and freed when nothing is open.
LOCK_WAITING = (
    f"SELECT id FROM {JOB} WHERE id = ANY(ARRAY(SELECT job_id FROM {BLOCKER} WHERE is_open AND blocker_id = ANY(%s))) "
    "ORDER BY id FOR NO KEY UPDATE"
)
CLOSE_LINKS = f"UPDATE {BLOCKER} SET is_open = false WHERE is_open AND blocker_id = ANY(%s)"
FREE = (
    f"UPDATE {JOB} AS job SET status = 'pending' WHERE id = ANY(%s) AND status || '' = 'blocked' "
    f"AND NOT EXISTS (SELECT 1 FROM {BLOCKER} AS link WHERE link.job_id = job.id AND link.is_open)"
)


class Claim:
    """Our own claim as the bare statement it is, for jobs of one type."""

    def __init__(self, type_name: str, limit: int) -> None:
        statements: list[tuple[str, Sequence[Any]]] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            statements.append((sql, params))
            return execute(sql, params, many, context)

        with connection.execute_wrapper(note):
            get_store().claim("bench", limit, {f"{type_name}, not there": 60})
        ((self.sql, params),) = statements
        self.params = json.loads(json.dumps(params).replace(f"{type_name}, not there", type_name))

    def __call__(self, bare: "psycopg.Connection[Any]") -> list[tuple[Any, ...]]:
        """The claimed rows: id, chain_id, chain_index, …"""
        return bare.execute(self.sql, self.params).fetchall()

    @property
    def literal(self) -> str:
        """With its parameters written out, for pgbench."""
        parts = self.sql.split("%s")
        values = [str(value) if isinstance(value, int) else f"'{value}'" for value in self.params]
        return "".join(part + value for part, value in zip(parts, [*values, ""], strict=True))
