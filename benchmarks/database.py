"""Creates, fills, empties and drops the measured database."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.core.management import call_command
from django.db import connections
from psycopg.conninfo import make_conninfo

from benchmarks.cells import NoServer
from benchmarks.own_server import own_server
from benchmarks.project.models import Effect
from benchmarks.project.settings import NAME, SERVER
from django_jobchains.db.ids import new_id
from django_jobchains.models import FailedAttempt, Job, JobBlocker, JobProgress, LogLine, Schedule
from django_jobchains.store import get_store
from django_jobchains.store.rows import FinishedJob, NewJob

OTHER_TYPES = 50
#: The alias of a database on a server of one cell.
OWN = "own"

#: Server settings that determine the cost of a commit and of planning.
SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "autovacuum",
    "jit",
)

#: SQL of a new time-ordered id.
ID = (
    "(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' "
    "|| substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid"
)


@contextmanager
def postgresql(*, allow_unsafe: bool) -> Iterator[dict[str, str]]:
    """Create a database with the tables, and yield the server's settings. Raises ``NoServer``."""
    with connected() as server:
        settings = settings_of(server)
        if not allow_unsafe and "off" in (settings["fsync"], settings["synchronous_commit"]):
            raise NoServer(
                f"fsync is {settings['fsync']} and synchronous_commit is {settings['synchronous_commit']}: without a "
                "flush at each commit the figures mean little. Turn both on, or pass --allow-unsafe."
            )
        _be_alone(server)
        server.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")
        server.execute(f"CREATE DATABASE {NAME}")
        try:
            migrate("default")
            yield settings
        finally:
            connections["default"].close()
            server.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")


@contextmanager
def own_database(options: str = "") -> Iterator[str]:
    """Yield the alias of a new database with the tables, on a new server. Both are removed at the end."""
    with own_server(options) as url:
        parts = urlsplit(url)
        own = {"NAME": parts.path[1:], "USER": parts.username, "PASSWORD": "", "HOST": parts.hostname}
        connections.databases[OWN] = {**connections.databases["default"], **own, "PORT": str(parts.port)}
        try:
            migrate(OWN)
            yield OWN
        finally:
            connections[OWN].close()
            del connections[OWN], connections.databases[OWN]


def connected() -> "psycopg.Connection[Any]":
    """Connect to the server's maintenance database. Raises ``NoServer``."""
    try:
        return psycopg.connect(SERVER.geturl(), autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        raise NoServer(
            f"No PostgreSQL to measure: {error}\nSet BENCH_DATABASE_URL=postgresql://user:password@host:port/postgres, "
            f"with a user who may create the database {NAME!r}, start a server with --own-server, or skip PostgreSQL "
            "with --only 'sqlite*'."
        ) from error


def _be_alone(server: "psycopg.Connection[Any]") -> None:
    """Lock the database's name until the connection closes, so that two runs do not drop each other's database."""
    (is_alone,) = server.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [NAME]).fetchone()  # type: ignore[misc]
    if not is_alone:
        raise NoServer(f"Another run uses the database {NAME!r}. Wait until it ends, or set BENCH_DATABASE_NAME.")


def settings_of(server: "psycopg.Connection[Any]") -> dict[str, str]:
    values = {name: server.execute(f"SHOW {name}").fetchone()[0] for name in SETTINGS}  # type: ignore[index]
    return {"server": server.execute("SHOW server_version").fetchone()[0], **values}  # type: ignore[index]


def migrate(using: str) -> None:
    call_command("migrate", database=using, run_syncdb=True, verbosity=0)


def conninfo() -> str:
    """Return the parameters of a psycopg connection or of pgbench."""
    return make_conninfo(SERVER.geturl(), dbname=NAME)


def connect() -> "psycopg.Connection[Any]":
    """Open a bare connection that prepares every statement."""
    connection = psycopg.connect(conninfo(), autocommit=True)
    connection.prepare_threshold = 0
    return connection


def new_jobs(type_name: str, count: int, *, is_task: bool = False) -> list[NewJob]:
    arguments = json.dumps({"args": [1], "kwargs": {}} if is_task else {"i": 1})
    ids = [new_id() for _ in range(count)]
    return [NewJob(id_, id_, 0, type_name, type_name, "default", arguments, is_task=is_task) for id_ in ids]


def finish(jobs: Iterable[Any], using: str = "default", output: str = "1") -> None:
    """Finish claimed jobs with the store, in one call."""
    get_store(using).attempts.finish([FinishedJob(job.id, job.lease_number, output) for job in jobs])


def fill(type_name: str, count: int, using: str = "default", *, is_task: bool = False) -> None:
    """Make these jobs the only pending ones, on vacuumed tables. ``is_task``: of a task of Django's framework."""
    empty(using)
    checkpoint(using)
    get_store(using).jobs.create(new_jobs(type_name, count, is_task=is_task))
    vacuum(using)


def add(type_name: str, count: int) -> None:
    """Add jobs like ``fill``, but keep the table's other jobs."""
    Job.objects.filter(type_name=type_name).delete()
    checkpoint()
    get_store().jobs.create(new_jobs(type_name, count))
    vacuum()


def add_backlog(finished: int, pending: int) -> None:
    """Add finished jobs, and pending jobs of types that no worker serves."""
    store = get_store()
    empty()
    store.jobs.create(new_jobs("bench.past", 1))
    finish(store.jobs.claim("bench", 1, {"bench.past": 60}))
    _multiply("bench.past", finished)
    for number in range(OTHER_TYPES):
        store.jobs.create(new_jobs(f"bench.other_{number:02}", 1))
    _multiply("bench.other_%", pending // OTHER_TYPES)


def empty_records() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("TRUNCATE project_import")


def add_records(count: int, state: str = "queued", process_after: str = "NULL", using: str = "default") -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO project_import (state, process_after) SELECT %s, {process_after} FROM generate_series(1, %s)",
            [state, count],
        )


def _multiply(type_name: str, count: int) -> None:
    """Copy each row of a type ``count`` times with new ids."""
    own = {"id": "made.id", "chain_id": "made.id", "run_at": "run_at + made.n * interval '1 microsecond'"}
    columns = [str(field.column) for field in Job._meta.concrete_fields]
    values = ", ".join(own.get(column, f"{Job._meta.db_table}.{column}") for column in columns)
    with connections["default"].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {Job._meta.db_table} ({', '.join(columns)}) SELECT {values} FROM {Job._meta.db_table} "
            f"CROSS JOIN LATERAL (SELECT n, {ID} AS id FROM generate_series(1, %s) AS n "
            f"WHERE {Job._meta.db_table}.id IS NOT NULL OFFSET 0) AS made WHERE type_name LIKE %s",
            [count, type_name],
        )


def empty(using: str = "default") -> None:
    models = (JobBlocker, FailedAttempt, LogLine, JobProgress, Job, Schedule, Effect)
    tables = [model._meta.db_table for model in models]
    with connections[using].cursor() as cursor:
        if connections[using].vendor == "postgresql":
            cursor.execute(f"TRUNCATE {', '.join(tables)}")
        else:
            for table in tables:
                cursor.execute(f"DELETE FROM {table}")


def settle(using: str = "default") -> None:
    vacuum(using)
    checkpoint(using)


def vacuum(using: str = "default") -> None:
    """Vacuum the tables of PostgreSQL, and move SQLite's write-ahead log into its file."""
    is_server = connections[using].vendor == "postgresql"
    with connections[using].cursor() as cursor:
        cursor.execute("VACUUM ANALYZE" if is_server else "PRAGMA wal_checkpoint(TRUNCATE)")


def checkpoint(using: str = "default") -> None:
    """Write everything to PostgreSQL's files, so that the server does not begin to do so during a measurement.

    A drain's jobs are created afterwards: the first change of a page after a checkpoint writes the whole page to the
    log, and that would otherwise be measured.
    """
    if connections[using].vendor == "postgresql":
        with connections[using].cursor() as cursor:
            cursor.execute("CHECKPOINT")


def completed(type_name: str, using: str = "default") -> int:
    return Job.objects.using(using).filter(type_name=type_name, status="completed").count()
