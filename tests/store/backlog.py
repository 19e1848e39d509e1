"""Many rows, written past the store: what else lies in the tables when a statement is planned."""

from typing import Any

from django_jobchains.models import FailedAttempt, Job, JobBlocker

TABLES = tuple(model._meta.db_table for model in (Job, JobBlocker, FailedAttempt))


def analyze(cursor: Any) -> None:
    for table in TABLES:
        cursor.execute(f"ANALYZE {table}")


def add(
    cursor: Any,
    count: int,
    type_name: str,
    status: str,
    priority: int,
    due: str,
    *,
    types: int = 1,
    queues: int = 1,
) -> None:
    """``types``, ``queues``: over so many of them, whose names begin so."""
    type_sql = "%(type)s" if types == 1 else f"%(type)s || n %% {types}"
    queue_sql = "'default'" if queues == 1 else f"'queue_' || n %% {queues}"
    cursor.execute(
        f"INSERT INTO {Job._meta.db_table} (id, chain_id, chain_index, chain_type_name, type_name, queue, priority, "
        "status, run_at, attempt, lease_number, crashes, input, created_at, leased_by, leased_until, last_attempt_at, "
        "deduplication_key, output) "
        f"SELECT d.id, d.id, 0, {type_sql}, {type_sql}, {queue_sql}, %(priority)s, %(status)s, "
        "clock_timestamp() + %(due)s::interval + n * interval '1 ms', 1, 1, 0, '{}', clock_timestamp(), 'other', "
        "CASE WHEN %(status)s = 'running' THEN clock_timestamp() + interval '1 hour' END, clock_timestamp(), "
        "'key ' || n, CASE WHEN %(status)s = 'completed' THEN '1'::jsonb END "
        "FROM (SELECT n, gen_random_uuid() AS id FROM generate_series(1, %(count)s) AS n) AS d",
        {"type": type_name, "status": status, "priority": priority, "due": due, "count": count},
    )


def add_links(cursor: Any, type_name: str, blocker_type_name: str, *, is_open: bool) -> None:
    """One more blocker for each job of a type, of another type."""
    numbered = (
        f"(SELECT id, row_number() OVER (ORDER BY id) AS n FROM {Job._meta.db_table} "
        "WHERE type_name = %s AND status <> 'running' LIMIT 10000)"
    )
    cursor.execute(
        f"INSERT INTO {JobBlocker._meta.db_table} (job_id, position, blocker_id, is_open) "
        f"SELECT job.id, %s, blocker.id, %s FROM {numbered} AS job JOIN {numbered} AS blocker USING (n)",
        [0 if is_open else 1, is_open, type_name, blocker_type_name],
    )


def add_failed_attempts(cursor: Any) -> None:
    cursor.execute(
        f"INSERT INTO {FailedAttempt._meta.db_table} "
        "(job_id, attempt, lease_number, kind, error, traceback, worker, started_at, finished_at) "
        f"SELECT id, 1, 1, 'error', '', '', '', created_at, created_at FROM {Job._meta.db_table} "
        "WHERE status = 'completed' LIMIT 20000"
    )
