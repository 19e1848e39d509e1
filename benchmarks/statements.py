"""The bare statements that every queue needs, on our table and prepared by the driver, for the floors."""

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

#: Finishes one job, or many jobs by their ids. ``status || ''`` keeps PostgreSQL from using the index of running jobs.
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

RECORD = "project_import"
DEQUEUE_RECORD = (
    f"UPDATE {RECORD} SET state = 'processing', lease_number = lease_number + 1, started_at = clock_timestamp(), "
    "last_heartbeat_at = clock_timestamp(), finished_at = NULL, failure_message = NULL, execution_logs = '[]'::jsonb, "
    f"worker_hostname = 'bare' WHERE id = (SELECT id FROM {RECORD} WHERE state = 'queued' AND process_after IS NULL "
    "ORDER BY process_after, queued_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) RETURNING id, lease_number"
)
FINISH_RECORD = (
    f"UPDATE {RECORD} SET state = 'completed', finished_at = clock_timestamp() "
    "WHERE id = %s AND lease_number = %s AND state = 'processing' RETURNING id"
)

INSERT_BLOCKED = INSERT_MANY.replace("'pending'", "'blocked'")
INSERT_LINKS = (
    f"INSERT INTO {BLOCKER} (job_id, position, blocker_id, is_open) SELECT d.job_id, d.position, d.blocker_id, true "
    "FROM unnest(%s::uuid[], %s::int[], %s::uuid[]) AS d(job_id, position, blocker_id)"
)
#: These statements lock the jobs that wait for ended chains, close the links, and free jobs without open links.
LOCK_WAITING = (
    f"SELECT id FROM {JOB} WHERE id = ANY(ARRAY(SELECT job_id FROM {BLOCKER} WHERE is_open AND blocker_id = ANY(%s))) "
    "ORDER BY id FOR NO KEY UPDATE"
)
CLOSE_LINKS = f"UPDATE {BLOCKER} SET is_open = false WHERE is_open AND blocker_id = ANY(%s)"
#: EXISTS is not used, because PostgreSQL may turn it into a hash of all open links.
FREE = (
    f"UPDATE {JOB} AS job SET status = 'pending' WHERE id = ANY(%s) AND status || '' = 'blocked' "
    f"AND (SELECT 1 FROM {BLOCKER} AS link WHERE link.job_id = job.id AND link.is_open LIMIT 1) IS NULL"
)


class Claim:
    """Our own claim as a bare statement, for jobs of one type."""

    def __init__(self, type_name: str, limit: int) -> None:
        statements: list[tuple[str, Sequence[Any]]] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            statements.append((sql, params))
            return execute(sql, params, many, context)

        with connection.execute_wrapper(note):
            get_store().jobs.claim("bench", limit, {f"{type_name}, not there": 60})
        ((self.sql, params),) = statements
        self.params = json.loads(json.dumps(params).replace(f"{type_name}, not there", type_name))

    def __call__(self, bare: "psycopg.Connection[Any]") -> list[tuple[Any, ...]]:
        """Return the claimed rows: id, chain_id, chain_index, …"""
        return bare.execute(self.sql, self.params).fetchall()

    @property
    def literal(self) -> str:
        """Return the statement with its parameters inserted, for pgbench."""
        parts = self.sql.split("%s")
        values = [str(value) if isinstance(value, int) else f"'{value}'" for value in self.params]
        return "".join(part + value for part, value in zip(parts, [*values, ""], strict=True))
