"""Up to a million jobs like those of a shop after some years, created by a few statements.

Every twenty jobs form nine chains of one to five steps, with ids and times one second apart. Nearly all are completed;
some failed or were cancelled, at any time. Pending and running jobs are among the newest. Blocked jobs are the oldest:
a query that walks from the newest to find them reads everything. The last chain has a hundredth of the jobs. Each
blocked job waits for eight chains that no other job waits for, and for one that all of them share.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import connection

from django_jobchains.models import Job, JobBlocker

#: A quarter of them shows whether a plan reads them all: ``make test-all`` sets the variable, on PostgreSQL. The plans
#: of SQLite do not depend on the number of rows.
JOBS = 1_000_000 if "JOBCHAINS_TEST_MILLION" in os.environ else 250_000
STEPS_OF_LONG_CHAIN = JOBS // 100
SHORT = JOBS - STEPS_OF_LONG_CHAIN
BLOCKED_BEFORE = JOBS * 12 // 1000
BUSY_FROM = SHORT - 60_000
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
#: For each of twenty jobs: its place, the place of its first step, its step, and whether it is the last one.
LAYOUT = [
    (first + step, first, step, step == steps - 1)
    for first, steps in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (8, 3), (11, 4), (15, 5)]
    for step in range(steps)
]
#: The number of types of first jobs; shop.type_0 is the most common. Later steps have the types shop.step_1 to 4.
ROOT_TYPES = 15
#: The type of the first jobs of a few chains.
RARE = "shop.rare"
#: A type of many later steps and the first jobs of a few chains.
MOSTLY_LATER = "shop.step_1"
ABSENT = "shop.absent"
LONG = "shop.loop"
#: Queues with a few jobs, with a fifth of the jobs (all completed), and with none. The other jobs are in "default".
RARE_QUEUE, RELIABLE_QUEUE, ABSENT_QUEUE = "rare", "reliable", "absent"


def id_of(number):
    """Return a version 7 UUID for the second with this number, like the ids that ``new_id`` creates."""
    milliseconds = int((BEGIN + timedelta(seconds=number)).timestamp() * 1000)
    return UUID(hex=f"{milliseconds:012x}70008{number:015x}")


#: A chain of five steps in the middle of the table, and a chain that others have as a blocker.
FIVE_STEPS = id_of(SHORT // 2 // 20 * 20 + 15)
BLOCKER_NUMBER = SHORT // 2 // 20 * 20
BLOCKER = id_of(BLOCKER_NUMBER)
LONG_CHAIN = id_of(SHORT)


@dataclass(frozen=True)
class Dialect:
    """The SQL of a database for a series of numbers, and for the id and the time of a number."""

    numbers: str
    id: str
    time: str
    json: str = "'{}'"


_SECONDS = int(BEGIN.timestamp())
_DIALECTS = {
    "postgresql": Dialect(
        "SELECT n FROM generate_series(0, {count} - 1) AS n",
        f"(lpad(to_hex(({_SECONDS} + {{n}}) * 1000::bigint), 12, '0') || '70008' "
        "|| lpad(to_hex({n}), 15, '0'))::uuid",
        f"to_timestamp({_SECONDS} + {{n}})",
        "'{}'::jsonb",
    ),
    "sqlite": Dialect(
        "SELECT 0 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < {count} - 1",
        f"printf('%012x70008%015x', ({_SECONDS} + {{n}}) * 1000, {{n}})",
        f"strftime('%Y-%m-%d %H:%M:%f000', {_SECONDS} + {{n}}, 'unixepoch')",
    ),
}


def load():
    """Create the jobs. PostgreSQL needs ANALYZE; SQLite works without statistics, as in most projects."""
    with connection.cursor() as cursor:
        cursor.execute(_jobs_sql(_DIALECTS[connection.vendor]))
        cursor.execute(_links_sql(_DIALECTS[connection.vendor]))
        if connection.vendor == "postgresql":
            cursor.execute(f"ANALYZE {_JOB}, {_LINK}")


def clear():
    clearing = {
        "postgresql": [f"TRUNCATE {_JOB} CASCADE"],
        # SQLite deletes a whole table quickly only if foreign keys need not be checked.
        "sqlite": ["PRAGMA foreign_keys = OFF", f"DELETE FROM {_LINK}", f"DELETE FROM {_JOB}", "VACUUM",
                   "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA foreign_keys = ON"],
    }  # fmt: skip
    with connection.cursor() as cursor:
        for sql in clearing[connection.vendor]:
            cursor.execute(sql)


_JOB, _LINK = Job._meta.db_table, JobBlocker._meta.db_table
_STATUS = f"""
    CASE WHEN is_last = 0 THEN 'completed'
         WHEN n < {BLOCKED_BEFORE} THEN 'blocked'
         WHEN n >= {BUSY_FROM} AND n % 20 = 0 THEN 'running'
         WHEN n >= {BUSY_FROM} AND n % 20 IN (1, 2, 5, 10) THEN 'pending'
         WHEN root * 7 % 71 = 0 THEN 'failed'
         WHEN root % 97 = 0 THEN 'cancelled'
         ELSE 'completed' END
"""
_ROOT_TYPE = f"""
    CASE WHEN root % 33000 = 0 THEN '{RARE}'
         WHEN root % 99000 = 11 THEN '{MOSTLY_LATER}'
         ELSE 'shop.type_' || ({ROOT_TYPES} * (root * 7 % 1000) * (root * 7 % 1000) / 1000000) END
"""
_QUEUE = f"""
    CASE WHEN root % 33000 = 4 THEN '{RARE_QUEUE}'
         WHEN status = 'completed' AND n % 4 = 0 THEN '{RELIABLE_QUEUE}'
         ELSE 'default' END
"""


def _jobs_sql(dialect):
    """Return the INSERT of the jobs, in the order of their ids, as in a real table."""
    layout = ", ".join(f"({place}, {first}, {step}, {int(is_last)})" for place, first, step, is_last in LAYOUT)
    return f"""
        WITH RECURSIVE numbers AS ({dialect.numbers.format(count=JOBS)}),
        layout(place, first, step, is_last) AS (VALUES {layout}),
        placed AS (
            SELECT n, n - n % 20 + first AS root, step, is_last
            FROM numbers JOIN layout ON place = n % 20 WHERE n < {SHORT}
            UNION ALL
            SELECT n, {SHORT}, n - {SHORT}, CASE n WHEN {JOBS} - 1 THEN 1 ELSE 0 END FROM numbers WHERE n >= {SHORT}
        ),
        typed AS (SELECT n, root, step, is_last, {_STATUS} AS status,
                  CASE root WHEN {SHORT} THEN '{LONG}' ELSE {_ROOT_TYPE} END AS root_type FROM placed),
        queued AS (SELECT typed.*, {_QUEUE} AS queue FROM typed)
        INSERT INTO {_JOB} (id, chain_id, chain_index, chain_type_name, type_name, queue, priority, status, run_at,
                            attempt, lease_number, crashes, input, output, created_at, finished_at, leased_until)
        SELECT {dialect.id.format(n="n")}, {dialect.id.format(n="root")}, step, root_type,
               CASE WHEN step = 0 OR root = {SHORT} THEN root_type ELSE 'shop.step_' || step END, queue, 0, status,
               {dialect.time.format(n="n")}, 1, 1, 0, {dialect.json},
               CASE WHEN is_last = 1 AND status = 'completed' THEN {dialect.json} END, {dialect.time.format(n="n")},
               CASE WHEN status IN ('completed', 'failed', 'cancelled') THEN {dialect.time.format(n="n + 1")} END,
               CASE status WHEN 'running' THEN {dialect.time.format(n="n + 1")} END
        FROM queued
    """


def _links_sql(dialect):
    """Return the INSERT of the links: each blocked job waits for eight separate chains and for a shared one."""
    own = dialect.id.format(n="(place * 8 + n) * 20")
    return f"""
        WITH RECURSIVE numbers AS ({dialect.numbers.format(count=9)}),
        waiting AS (SELECT id, row_number() OVER (ORDER BY id) AS place FROM {_JOB} WHERE status = 'blocked')
        INSERT INTO {_LINK} (job_id, position, blocker_id, is_open)
        SELECT id, n, CASE n WHEN 8 THEN {dialect.id.format(n=BLOCKER_NUMBER)} ELSE {own} END, true
        FROM waiting CROSS JOIN numbers
    """
