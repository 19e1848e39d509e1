"""Backlogs: other rows in the tables of the measured jobs, copied without the store, in a separate schema.

The rows belong to the past, to other workers or to the future. The measured worker serves ``SERVED``; the names of
other types lie between these, like the names of one application's modules.
"""

from collections.abc import Callable
from dataclasses import dataclass

from django.db import connections

from benchmarks.database import ID, add_records, empty_records, finish, migrate, settle
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job, JobBlocker
from django_jobchains.store import get_store
from django_jobchains.store.rows import NewJob

USING = "backlog"
#: The served types, and the measured one of them.
SERVED = tuple(f"app{number}.work" for number in range(10))
MEASURED = SERVED[3]
#: The number of rows copied by one statement.
CHUNK = 1_000_000
INPUT = '{"order": 48151623, "customer": "a name of usual length", "lines": [1, 2, 3, 4], "note": "' + "x" * 80 + '"}'


@dataclass(frozen=True)
class Backlog:
    """A backlog. ``queues``: the queues that the worker serves, or None for all queues."""

    name: str
    title: str
    count: int
    fill: Callable[[int], None]
    queues: tuple[str, ...] | None = None


def make(backlog: Backlog) -> None:
    """Create a schema with the tables; fill, analyze and flush them."""
    with connections["default"].cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS backlog CASCADE")
        cursor.execute("CREATE SCHEMA backlog")
    connections[USING].close()
    migrate(USING)
    backlog.fill(backlog.count)
    settle(USING)


def nothing(count: int) -> None:
    pass


def finished(count: int) -> None:
    """Add jobs of a served type that were completed over the last months."""
    store = get_store(USING)
    _create(MEASURED)
    finish(store.jobs.claim("past", 1, {MEASURED: 60}), USING, '{"sent": true, "receipt": "0123456789abcdef"}')
    ago = "- n * interval '1 second'"
    times = ("run_at", "created_at", "last_attempt_at", "finished_at")
    _copy(count, {column: f"job.{column} {ago}" for column in times})


def of_other_types(count: int, types: int = 50) -> None:
    """Add due jobs of other types, five of which lie between two served types."""
    _create("app0.other")
    name = f"'app' || n %% 10 || '.other_' || n %% {types}"
    _copy(count, {"type_name": name, "chain_type_name": name})


def of_many_other_types(count: int) -> None:
    of_other_types(count, 1_000)


def in_other_queues(count: int) -> None:
    """Add due jobs of a served type in a thousand queues; the worker serves one queue that lies between them."""
    _create(MEASURED, queue="a")
    _copy(count, {"queue": "CASE WHEN n %% 2 = 0 THEN 'a' ELSE 'z' END || n %% 1000"})


def of_other_types_in_other_queues(count: int) -> None:
    """Add due jobs in a thousand queues of one type each; the worker serves every queue, but none of the types."""
    _create("app0.other", queue="a")
    name = "'app' || n %% 10 || '.other_' || n %% 1000"
    _copy(count, {"queue": "'tenant_' || n %% 1000", "type_name": name, "chain_type_name": name})


def of_records(count: int) -> None:
    """Add completed records, and a tenth as many that wait for their time. Remove those of another cell."""
    empty_records()
    add_records(count, "completed", using=USING)
    add_records(count // 10, "queued", "now() + interval '1 day'", using=USING)


def of_tomorrow(count: int) -> None:
    """Add jobs of the measured type with a higher priority, scheduled for tomorrow."""
    _create(MEASURED, priority=50, delay_seconds=86_400)
    _copy(count, {"run_at": "job.run_at + n * interval '10 milliseconds'"})


def blocked(count: int) -> None:
    """Add jobs of the measured type, of which each hundred wait for one chain that is scheduled for tomorrow."""
    waits = f"{SERVED[0]}"
    _create(waits, delay_seconds=86_400)
    _copy(max(count // 100, 1), {})
    store = get_store(USING)
    store.jobs.create([NewJob(id_ := new_id(), id_, 0, MEASURED, MEASURED, "default", INPUT)])
    job, link = Job._meta.db_table, JobBlocker._meta.db_table
    _execute(f"UPDATE {job} SET status = 'blocked', on_blocker_failure = 'wait' WHERE type_name = '{MEASURED}'")
    _copy(count, {}, f"job.type_name = '{MEASURED}'")
    number = "(row_number() OVER (ORDER BY id) - 1)"
    _execute(
        f"INSERT INTO {link} (job_id, position, blocker_id, is_open) SELECT waiting.id, 0, chain.id, true "
        f"FROM (SELECT id, {number} / 100 AS n FROM {job} WHERE status = 'blocked') AS waiting "
        f"JOIN (SELECT id, {number} AS n FROM {job} WHERE type_name = '{waits}') AS chain USING (n)"
    )


def running(count: int) -> None:
    """Add running jobs of the measured type whose leases other workers hold."""
    _create(MEASURED)
    get_store(USING).jobs.claim("other", 1, {MEASURED: 86_400})
    _copy(count, {"leased_by": "'other ' || n %% 1000", "leased_until": "job.leased_until + n * interval '1 ms'"})


def _create(type_name: str, **changes: object) -> None:
    id_ = new_id()
    job = NewJob(id_, id_, 0, type_name, type_name, "default", INPUT)
    for name, value in changes.items():
        setattr(job, name, value)
    get_store(USING).jobs.create([job])


def _copy(count: int, changes: dict[str, str], condition: str = "true") -> None:
    """Copy one row ``count`` times with new ids. ``changes``: SQL by column, where ``n`` is the number of the copy."""
    own = {"id": "made.id", "chain_id": "made.id", **changes}
    columns = [str(field.column) for field in Job._meta.concrete_fields]
    values = ", ".join(own.get(column, f"job.{column}") for column in columns)
    table = Job._meta.db_table
    _execute(f"CREATE TEMPORARY TABLE one AS SELECT * FROM {table} AS job WHERE {condition} LIMIT 1")
    for start in range(1, count, CHUNK):
        _execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM one AS job, "
            f"(SELECT n, {ID} AS id FROM generate_series(%s::int, %s::int) AS n) AS made",
            [start, min(start + CHUNK, count) - 1],
        )
    _execute("DROP TABLE one")


def _execute(sql: str, params: list[int] | None = None) -> None:
    with connections[USING].cursor() as cursor:
        cursor.execute(sql, params or [])
