"""A database of that many jobs, from nothing."""

import time
from collections.abc import Callable

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection

from benchmarks.admin import beside, jobs
from benchmarks.admin.sizes import Sizes
from benchmarks.admin.writing import Statements, statements

USER = "operator"


def fill(sizes: Sizes, tell: Callable[[str], object]) -> None:
    """The empty default database: tables, a user, rows."""
    begun = time.monotonic()
    call_command("migrate", run_syncdb=True, verbosity=0)
    make_user()
    with statements() as run:
        write(run, sizes, tell)
        run("VACUUM")
        run("CHECKPOINT")
    tell(f"{size()} in {time.monotonic() - begun:.0f} s")


def make_user() -> None:
    User.objects.create_superuser(USER)


def write(run: Statements, sizes: Sizes, tell: Callable[[str], object]) -> None:
    """Into the empty tables. The last step is ANALYZE; the first one is there for the steps between."""
    with run.without_indexes(jobs.JOB):
        jobs.write_chains(run, sizes, tell)
        beside.write_special_chains(run, sizes)
        tell("indexes")
    run(f"ANALYZE {jobs.JOB}")
    tell("blockers")
    beside.write_blockers(run, sizes)
    tell("failed attempts")
    beside.write_failed_attempts(run)
    tell("logs and progress")
    beside.write_notes(run, sizes)
    tell("workers, queues and counts")
    beside.write_present(run)
    run("ANALYZE")


def refresh() -> None:
    """What grows old: workers that are alive, counts of the last hour."""
    with statements() as run:
        beside.write_present(run)


def rows() -> dict[str, int]:
    """How much there is, counted exactly."""
    run = Statements()
    by_status = run(f"SELECT status, count(*) FROM {jobs.JOB} GROUP BY status ORDER BY status")
    ((chains,),) = run(f"SELECT count(*) FROM {jobs.JOB} WHERE chain_index = 0")
    others = {table: run(f"SELECT count(*) FROM {table}")[0][0] for table in (beside.LINK, beside.FAILED, beside.LINE)}
    names = {"jobs": sum(count for _, count in by_status), "chains": chains}
    return {
        **names,
        **{f"{status} jobs": count for status, count in by_status},
        "blockers": others[beside.LINK],
        "failed attempts": others[beside.FAILED],
        "log lines": others[beside.LINE],
    }


def size() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_size_pretty(pg_database_size(current_database()))")
        (text,) = cursor.fetchone()
    return str(text)
