"""Writes the jobs of half a year of a growing shop, with statements of a hundred thousand chains each.

The chains are numbered, and the oldest is 0. A chain's number decides everything about it, so that two runs create the
same chains. Jobs are written in the order of their creation: the steps of different chains are mixed. Nearly
all jobs are completed. Running, due and scheduled jobs are among the newest chains. Half of the blocked jobs are the
oldest of all, where a query that walks from the newest job to find them reads everything.
"""

from collections.abc import Callable

from benchmarks.admin.sizes import APPS, COMMON, DAYS, QUEUES, STEPS, TYPES, Sizes
from benchmarks.admin.writing import Statements
from django_jobchains.models import Job

#: The number of chains written by one statement.
CHUNK = 100_000
#: The numbers of chains after which types (a prime above the number of chains) and lots repeat.
_TYPES_AFTER, _LOTS = 1_000_003, 1_000
#: The number of failed chains of the common type, in the whole time.
RARE_FAILURES = 4

JOB = Job._meta.db_table

#: The columns of a placed job, with their SQL. ``now()`` is the start of the transaction.
_ENDED = "status IN ('completed', 'failed', 'cancelled')"
_WAS_TRIED = "status IN ('completed', 'failed', 'running')"
COLUMNS = {
    "id": "{job_id}",
    "chain_id": "{root_id}",
    "chain_index": "step",
    "chain_type_name": "root_type",
    "type_name": "type_name",
    "queue": "queue",
    "priority": "priority",
    "status": "status",
    "run_at": "CASE WHEN is_scheduled THEN now() + (1 + number % 500) * interval '7 minutes' ELSE at END",
    "attempt": "attempt",
    "lease_number": "attempt",
    "leased_by": "CASE status WHEN 'running' THEN 'worker-' || number % 12 || ':100:a' END",
    "leased_until": "CASE status WHEN 'running' THEN now() + (number % 60) * interval '1 s' END",
    "crashes": "CASE WHEN attempt > 1 AND number % 11 = 0 THEN 1 ELSE 0 END",
    "input": """jsonb_build_object('order', number, 'customer', 'a name of usual length', 'lines',
                jsonb_build_array(1, 2, number % 7), 'token', md5(number::text), 'note', repeat('x', 80))""",
    "output": """CASE WHEN is_last AND status = 'completed'
                 THEN jsonb_build_object('sent', true, 'receipt', md5(number::text)) END""",
    "last_error": f"CASE WHEN status = 'failed' OR NOT ({_ENDED}) AND attempt > 0 AND status <> 'running' "
    "THEN {error} END",
    "created_at": "at",
    "last_attempt_at": "CASE WHEN attempt > 0 THEN at + interval '400 ms' END",
    "finished_at": f"CASE WHEN {_ENDED} THEN at + (1 + number % 30) * interval '1 s' END",
    "completed_by": "CASE WHEN status = 'completed' AND number % 50 > 0 THEN 'worker-' || number % 12 || ':100:a' END",
    "deduplication_key": "key",
    "context": """CASE WHEN number % 5 = 0
                  THEN jsonb_build_object('tenant', 'tenant-' || number % 40, 'actor', number % 300) END""",
    "on_blocker_failure": "CASE WHEN has_blockers THEN 'wait' END",
}
ERROR = """
    (ARRAY['ConnectionError: the gateway did not answer within 30 seconds',
           'shop.errors.CardDeclined: the card of customer 48151623 was declined: insufficient funds',
           'ValueError: invalid literal for int() with base 10: ''4,50''',
           'TimeoutError: no reply from stock-03'])[{number} % 4 + 1]
"""


def id_sql(at: str, number: str) -> str:
    """Return SQL for the version 7 UUID of a job with that time and number."""
    milliseconds = f"(date_part('epoch', {at}) * 1000)::bigint"
    return f"(lpad(to_hex({milliseconds}), 12, '0') || '70008' || lpad(to_hex({number}), 15, '0'))::uuid"


def write_chains(run: Statements, sizes: Sizes, show: Callable[[str], object]) -> None:
    for first in range(0, sizes.chains, CHUNK):
        last = min(first + CHUNK, sizes.chains) - 1
        run(insert_sql(_steps_sql(sizes, first, last)))
        show(f"{last + 1:,} of {sizes.chains:,} chains")


def insert_sql(placed: str) -> str:
    """Return SQL that inserts jobs placed by a SELECT.

    The SELECT returns the columns number, step, at, root_number, root_at, is_last, status, is_scheduled, has_blockers,
    attempt, root_type, type_name, queue, priority and key.
    """
    known = {
        "job_id": id_sql("at", "number"),
        "root_id": id_sql("root_at", "root_number"),
        "error": ERROR.format(number="number"),
    }
    values = ", ".join(sql.format(**known) for sql in COLUMNS.values())
    return f"INSERT INTO {JOB} ({', '.join(COLUMNS)}) SELECT {values} FROM ({placed}) AS placed ORDER BY placed.at"


def _steps_sql(sizes: Sizes, first: int, last: int) -> str:
    app = f"(ARRAY{list(APPS)})[type % {len(APPS)} + 1]"
    return f"""
        WITH chains AS MATERIALIZED ({_chains_sql(sizes, first, last)}),
        steps AS MATERIALIZED (
            SELECT *, c * 32 + step AS number, step = steps - 1 AS is_last,
                   began + (c * 13 % 40) * interval '1 s' AS root_at,
                   began + (step * 45 + (c * 13 + step * 7) % 40) * interval '1 s' AS at,
                   {app} || '.type_' || lpad(type::text, 2, '0') AS root_type
            FROM chains CROSS JOIN LATERAL generate_series(0, steps - 1) AS step
        )
        SELECT number, step, at, c * 32 AS root_number, root_at, is_last, root_type,
               CASE WHEN is_last THEN replace(state, 'scheduled', 'pending') ELSE 'completed' END AS status,
               is_last AND state = 'scheduled' AS is_scheduled, is_last AND state = 'blocked' AS has_blockers,
               CASE WHEN is_last AND state = 'failed' THEN 3
                    WHEN is_last AND state IN ('scheduled', 'blocked', 'cancelled') THEN 0
                    WHEN is_last AND state = 'pending' AND c % 20 > 0 THEN 0
                    WHEN number % 50 = 7 THEN 2 ELSE 1 END AS attempt,
               CASE step WHEN 0 THEN root_type ELSE {app} || '.step_' || least(step, 5) END AS type_name,
               'queue_' || lpad((type % {QUEUES})::text, 2, '0') AS queue,
               CASE WHEN type = 7 THEN 10 ELSE 0 END AS priority,
               CASE WHEN c % 10 = 3 THEN 'order:' || c END AS key
        FROM steps
    """


def _chains_sql(sizes: Sizes, first: int, last: int) -> str:
    """Return SQL for chains with a ``state``, which is a status or "scheduled". ``age`` counts the newer chains."""
    busy, waiting = sizes.running * 5 // 2, sizes.pending * 13 // 10
    return f"""
        SELECT *, CASE
            WHEN age < {busy} AND age % 5 < 2 THEN 'running'
            WHEN age < {waiting} AND age % 25 = 4 THEN 'scheduled'
            WHEN age < {waiting} AND age % 5 > 0 THEN 'pending'
            WHEN c < {sizes.blocked} AND c % 2 = 0 THEN 'blocked'
            WHEN age >= {waiting} AND age < {waiting + sizes.blocked} AND age % 2 = 0 THEN 'blocked'
            WHEN type = 0 AND place * {sizes.chains} < {RARE_FAILURES * _TYPES_AFTER} THEN 'failed'
            WHEN type % 10 > 0 AND lot < 80 THEN 'failed'
            WHEN lot >= {_LOTS - 10} THEN 'cancelled'
            ELSE 'completed' END AS state
        FROM (
            SELECT c, {sizes.chains} - 1 - c AS age, place, c * 7919 % {_LOTS} AS lot,
                   floor({TYPES} * power(place::float8 / {_TYPES_AFTER}, 3))::int AS type,
                   (ARRAY{list(STEPS)})[c / 7 % {len(STEPS)} + 1] AS steps,
                   now() - interval '30 minutes'
                       - power(({sizes.chains} - c)::float8 / {sizes.chains}, 2) * interval '{DAYS} days' AS began
            FROM (SELECT c, c * 104729 % {_TYPES_AFTER} AS place FROM generate_series({first}::bigint, {last}) AS c)
                 AS numbered
        ) AS typed
    """


assert f"{APPS[0]}.type_00" == COMMON
