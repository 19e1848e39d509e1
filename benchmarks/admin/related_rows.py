"""Writes the rows related to jobs: special chains, blockers, failed attempts, logs, workers, queues, counts."""

from collections.abc import Iterable
from typing import Any

from benchmarks.admin.jobs import ERROR, JOB, insert_sql
from benchmarks.admin.sizes import DAYS, HUB, JOIN, LOOP, STUBBORN, TALKATIVE, Sizes
from benchmarks.admin.writing import Statements
from django_jobchains.models import (
    AttemptCount,
    FailedAttempt,
    JobBlocker,
    JobProgress,
    LogLine,
    QueueState,
    WorkerPresence,
)

WORKERS = 12
#: The number of fan-ins: half of them wait, and half have run.
JOINS = 20
LINES = 5
LINES_OF_TALKATIVE = 1_000
ATTEMPTS_OF_TALKATIVE = 5
#: The first number of special jobs, above the numbers of all other chains.
_SPECIAL = 1 << 56

LINK, FAILED = JobBlocker._meta.db_table, FailedAttempt._meta.db_table
LINE, PROGRESS = LogLine._meta.db_table, JobProgress._meta.db_table
_TRACEBACK = """
    'Traceback (most recent call last):' || E'\\n' || repeat(E'  File "/srv/shop/charging.py", line 48, in charge\\n'
    '    reference = gateway.charge(order, idempotency_key=str(job.id))\\n', 12) || error
"""


def write_special_chains(run: Statements, sizes: Sizes) -> None:
    run(insert_sql(_special_sql(LOOP, "running", steps=sizes.steps_of_loop, days=2)))
    run(insert_sql(_special_sql(HUB, "pending", days=DAYS + 1)))
    run(insert_sql(_special_sql(STUBBORN, "pending", attempt=sizes.attempts_of_stubborn, days=3)))
    run(insert_sql(_special_sql(TALKATIVE, "running", attempt=ATTEMPTS_OF_TALKATIVE)))
    run(insert_sql(_special_sql(JOIN, "blocked", chains=JOINS // 2, attempt=0, days=1)))
    run(insert_sql(_special_sql(JOIN, "completed", chains=JOINS // 2, days=1.5)))


def _special_sql(
    type_name: str, status: str, *, chains: int = 1, steps: int = 1, attempt: int = 1, days: float = 0.1
) -> str:
    """Return SQL for chains of one type; all steps except the last are completed."""
    names = [LOOP, HUB, STUBBORN, TALKATIVE, JOIN]
    base = _SPECIAL + (names.index(type_name) << 40) + (ord(status[0]) << 32)
    began = f"now() - interval '{days} days'"
    return f"""
        SELECT {base} + (c << 20) + step AS number, step, {began} + (c + step * 15) * interval '1 s' AS at,
               {base} + (c << 20) AS root_number, {began} + c * interval '1 s' AS root_at,
               step = {steps} - 1 AS is_last,
               CASE step WHEN {steps} - 1 THEN '{status}' ELSE 'completed' END AS status, false AS is_scheduled,
               '{type_name}' = '{JOIN}' AS has_blockers, {attempt} AS attempt, '{type_name}' AS root_type,
               '{type_name}' AS type_name, '{type_name}' AS queue, 0 AS priority, NULL AS key
        FROM generate_series(0::bigint, {chains} - 1) AS c, generate_series(0, {steps} - 1) AS step
    """


def write_blockers(run: Statements, sizes: Sizes) -> None:
    """Link the oldest blocked jobs to one chain, the others to three chains each, and the fan-ins to hundreds."""
    run(f"""
        INSERT INTO {LINK} (job_id, position, blocker_id, is_open)
        SELECT job.id, 0, (SELECT id FROM {JOB} WHERE type_name = '{HUB}'), true
        FROM {JOB} AS job WHERE status = 'blocked' AND type_name <> '{JOIN}' ORDER BY job.id LIMIT {sizes.dependents}
    """)
    lonely = f"type_name <> '{JOIN}' AND NOT EXISTS (SELECT FROM {LINK} WHERE job_id = job.id)"
    _link(run, f"status = 'blocked' AND {lonely}", "pending", 3, is_open=True)
    of_joins = sizes.blockers_of_join
    _link(run, f"status = 'blocked' AND type_name = '{JOIN}'", "pending", of_joins, is_open=True)
    _link(run, f"status = 'completed' AND type_name = '{JOIN}'", "completed", of_joins, is_open=False)


def _link(run: Statements, which: str, status: str, each: int, *, is_open: bool) -> None:
    """Return SQL that links each of these jobs to the next ``each`` of the newest chains with that status."""
    dependents = f"SELECT id, row_number() OVER (ORDER BY id) - 1 AS n FROM {JOB} AS job WHERE {which}"
    chains = f"""
        SELECT chain_id, row_number() OVER (ORDER BY chain_id) - 1 AS n FROM (
            SELECT chain_id FROM {JOB} WHERE status = '{status}' AND type_name NOT LIKE 'scale.%'
                   AND (status <> 'completed' OR output IS NOT NULL)
            ORDER BY chain_id DESC LIMIT {each} * (SELECT count(*) FROM ({dependents}) AS counted)) AS newest
    """
    run(f"""
        INSERT INTO {LINK} (job_id, position, blocker_id, is_open)
        SELECT dependent.id, chain.n % {each}, chain.chain_id, {str(is_open).lower()}
        FROM ({dependents}) AS dependent JOIN ({chains}) AS chain ON dependent.n = chain.n / {each}
    """)


def write_failed_attempts(run: Statements) -> None:
    """Write all attempts of the failed jobs, and the attempts before the last one of the other jobs."""
    run(f"""
        INSERT INTO {FAILED} (job_id, attempt, lease_number, kind, error, traceback, worker, started_at, finished_at)
        SELECT id, attempt, attempt, CASE n % 40 WHEN 0 THEN 'crash' ELSE 'error' END, error, {_TRACEBACK},
               'worker-' || n % 12 || ':100:a', finished_at - interval '1 s', finished_at
        FROM (
            SELECT job.id, tried.attempt, {ERROR.format(number="n")} AS error, n,
                   COALESCE(finished_at, now()) - (job.attempt - tried.attempt) * interval '20 s' AS finished_at
            FROM (SELECT *, ('x' || right(id::text, 7))::bit(28)::int AS n FROM {JOB} WHERE attempt > 0
                  AND (status = 'failed' OR attempt > 1)) AS job
            CROSS JOIN LATERAL generate_series(1, CASE job.status WHEN 'failed' THEN job.attempt
                                                                  WHEN 'pending' THEN job.attempt
                                                                  ELSE job.attempt - 1 END) AS tried(attempt)
        ) AS failed ORDER BY finished_at
    """)


def write_notes(run: Statements, sizes: Sizes) -> None:
    """Write log lines and progress of the newest jobs that were tried. One job has many lines in each attempt."""
    newest = f"SELECT * FROM {JOB} WHERE attempt > 0 ORDER BY id DESC LIMIT {sizes.talking}"
    run(_lines_sql(newest, LINES, "job.attempt"))
    talkative = f"SELECT * FROM {JOB} WHERE type_name = '{TALKATIVE}'"
    run(f"DELETE FROM {LINE} WHERE job_id IN (SELECT id FROM ({talkative}) AS job)")
    run(_lines_sql(talkative, LINES_OF_TALKATIVE, "generate_series(1, job.attempt)"))
    run(f"""
        INSERT INTO {PROGRESS} (job_id, lease_number, attempt, fraction, text, logged_at)
        SELECT id, attempt, attempt, 0.42, 'page 42 of 100', COALESCE(last_attempt_at, created_at)
        FROM ({newest}) AS job
    """)


def _lines_sql(jobs: str, lines: int, attempts: str) -> str:
    return f"""
        INSERT INTO {LINE} (job_id, lease_number, position, attempt, logged_at, level, text, fields)
        SELECT id, try, position, try, logged_at + position * interval '20 ms', 20 + 10 * (position % 3),
               'charged the card of order ' || position, jsonb_build_object('order', position, 'token', md5(id::text))
        FROM (SELECT job.id, {attempts} AS try, COALESCE(last_attempt_at, created_at) AS logged_at FROM ({jobs}) AS job)
             AS tried CROSS JOIN generate_series(0, {lines} - 1) AS position
    """


def write_present(run: Statements) -> None:
    """Write the rows that become outdated: live workers, counts of the last day, paused queues.

    They are written again before each measurement.
    """
    for model in (WorkerPresence, QueueState, AttemptCount):
        run(f"DELETE FROM {model._meta.db_table}")
    types = [row[0] for row in run(_types_sql())]
    WorkerPresence.objects.bulk_create(_workers(run, types))
    run(_counts_sql(60, 120))
    run(_counts_sql(3_600, 192))
    run(f"""
        INSERT INTO {QueueState._meta.db_table} (name, paused_at, slot_limit)
        VALUES ('queue_03', now() - interval '2 hours', NULL), ('queue_17', now(), 2), ('queue_21', NULL, 5)
    """)


def _types_sql() -> str:
    """Return SQL for the types of the jobs that have ended, each found by one index probe."""
    jobs = f"SELECT type_name FROM {JOB} WHERE status IN ('completed', 'failed', 'cancelled')"
    return f"""
        WITH RECURSIVE types AS (
            SELECT ({jobs} ORDER BY type_name LIMIT 1) AS name
            UNION ALL
            SELECT ({jobs} AND type_name > types.name ORDER BY type_name LIMIT 1)
            FROM types WHERE types.name IS NOT NULL
        ) SELECT name FROM types WHERE name IS NOT NULL
    """


def _workers(run: Statements, types: list[str]) -> Iterable[Any]:
    ((now,),) = run("SELECT now()")
    for number in range(WORKERS):
        yield WorkerPresence(
            id=f"worker-{number}:100:a",
            host=f"app-{number % 4}.example",
            pid=100 + number,
            version="0.1",
            slots=20,
            busy=number,
            stuck=0,
            queues=None if number % 3 else [f"queue_{queue:02}" for queue in range(number, 30, 3)],
            type_names=types,
            is_stopping=number == 5,
            started_at=now,
            heartbeat_at=now,
            heartbeat_seconds=30.0,
        )


def _counts_sql(span: int, spans: int) -> str:
    start = f"to_timestamp(floor(extract(epoch FROM now()) / {span}) * {span}) - n * interval '{span} s'"
    return f"""
        INSERT INTO {AttemptCount._meta.db_table}
               (span, starts_at, type_name, queue, completed, failed, crashed, jobs_failed, seconds, longest_seconds)
        SELECT {span}, {start}, name, '', {span} / (1 + t % 20), t % 3, t % 2, 0, {span} * 0.2 / (1 + t % 17), t % 40
        FROM generate_series(0, {spans} - 1) AS n,
             (SELECT name, row_number() OVER (ORDER BY name) AS t FROM ({_types_sql()}) AS named) AS types
    """
