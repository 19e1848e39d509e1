"""Many rows, written with SQL, so that statements are planned for tables of a realistic size."""

from contextlib import contextmanager
from random import getrandbits

from django.db import connection

from django_jobchains.models import FailedAttempt, Job, JobBlocker

TABLES = tuple(model._meta.db_table for model in (Job, JobBlocker, FailedAttempt))


def analyze(cursor):
    for table in TABLES:
        cursor.execute(f"ANALYZE {table}")


def forget_statistics(cursor):
    """Delete the statistics of SQLite, as if ANALYZE had never run."""
    cursor.execute("DELETE FROM sqlite_stat1")
    cursor.execute("ANALYZE sqlite_master")  # reads the statistics again


def pretend_rows(cursor, count):
    """Let PostgreSQL plan as if the table of jobs had this many rows, until the next ANALYZE."""
    cursor.execute(
        "UPDATE pg_class SET reltuples = reltuples * (%s / (SELECT reltuples FROM pg_class WHERE oid = %s::regclass)) "
        "WHERE oid = %s::regclass OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = %s::regclass)",
        [count, *[Job._meta.db_table] * 3],
    )


def empty(cursor):
    for table in reversed(TABLES):
        cursor.execute(f"TRUNCATE {table} CASCADE" if connection.vendor == "postgresql" else f"DELETE FROM {table}")
    analyze(cursor)


@contextmanager
def committed_rows(blocker, fill):
    """Commit rows for all tests of a module. Does nothing on SQLite."""
    with blocker.unblock():
        if connection.vendor != "postgresql":
            yield
            return
        with connection.cursor() as cursor:
            fill(cursor)
            analyze(cursor)
        yield
        with connection.cursor() as cursor:  # no ANALYZE, after which plans for empty tables would be used
            cursor.execute(f"TRUNCATE {Job._meta.db_table} CASCADE")


def add(cursor, count, type_name, status, priority, due, *, types=1, queues=1):
    """Insert jobs. With ``types`` or ``queues`` above 1, a number is appended to the names of types or queues."""
    numbered_type = "%(type)s" if types == 1 else f"%(type)s || n %% {types}"
    queue = "'default'" if queues == 1 else f"'queue_' || n %% {queues}"
    now, due_at, in_an_hour, output, made = _EXPRESSIONS[connection.vendor]
    cursor.execute(
        f"INSERT INTO {Job._meta.db_table} (id, chain_id, chain_index, chain_type_name, type_name, queue, priority, "
        "status, run_at, attempt, lease_number, crashes, input, created_at, leased_by, leased_until, last_attempt_at, "
        "deduplication_key, output) "
        f"SELECT d.id, d.id, 0, {numbered_type}, {numbered_type}, {queue}, %(priority)s, %(status)s, "
        f"{due_at}, 1, 1, 0, '{{}}', {now}, 'other', CASE WHEN %(status)s = 'running' THEN {in_an_hour} END, {now}, "
        f"'key ' || n, CASE WHEN %(status)s = 'completed' THEN {output} END FROM ({made}) AS d",
        {
            "type": type_name,
            "status": status,
            "priority": priority,
            "due": due,
            "count": count,
            "seed": getrandbits(63),
        },
    )


_FORMAT = "'%%Y-%%m-%%d %%H:%%M:%%f000'"
#: SQL expressions: now, the due date of job n, now plus an hour, an output, and a query for numbered ids.
_EXPRESSIONS = {
    "postgresql": (
        "clock_timestamp()",
        "clock_timestamp() + %(due)s::interval + n * interval '1 ms'",
        "clock_timestamp() + interval '1 hour'",
        "'1'::jsonb",
        "SELECT n, gen_random_uuid() AS id FROM generate_series(1, %(count)s) AS n",
    ),
    "sqlite": (
        f"strftime({_FORMAT}, 'now')",
        f"strftime({_FORMAT}, 'now', %(due)s, (n * 0.001) || ' seconds')",
        f"strftime({_FORMAT}, 'now', '1 hour')",
        "'1'",
        (
            # Not randomblob(), which old versions of SQLite evaluate again for each use of the id.
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < %(count)s) "
            "SELECT n, printf('%%016x%%016x', %(seed)s, n) AS id FROM numbers"
        ),
    ),
}


def add_links(cursor, type_name, blocker_type_name, *, is_open):
    """Link each job of a type to a chain of another type."""
    jobs, blockers = (_some_ids(cursor, name) for name in (type_name, blocker_type_name))
    cursor.executemany(
        f"INSERT INTO {JobBlocker._meta.db_table} (job_id, position, blocker_id, is_open) VALUES (%s, %s, %s, %s)",
        [(job, 0 if is_open else 1, blocker, is_open) for job, blocker in zip(jobs, blockers, strict=False)],
    )


def _some_ids(cursor, type_name):
    cursor.execute(
        f"SELECT id FROM {Job._meta.db_table} WHERE type_name = %s AND status <> 'running' ORDER BY id LIMIT 10000",
        [type_name],
    )
    return [id_ for (id_,) in cursor.fetchall()]


def add_failed_attempts(cursor):
    cursor.execute(
        f"INSERT INTO {FailedAttempt._meta.db_table} "
        "(job_id, attempt, lease_number, kind, error, traceback, worker, started_at, finished_at) "
        f"SELECT id, 1, 1, 'error', '', '', '', created_at, created_at FROM {Job._meta.db_table} "
        "WHERE status = 'completed' LIMIT 20000"
    )
