"""Fills a new database with jobs."""

import time
from collections.abc import Callable

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection

from benchmarks.admin import jobs, related_rows
from benchmarks.admin.sizes import Sizes
from benchmarks.admin.writing import Statements, statements

USER = "operator"


def fill(sizes: Sizes, show: Callable[[str], object]) -> None:
    """Create the tables, a user and the rows in the empty default database."""
    begun = time.monotonic()
    call_command("migrate", run_syncdb=True, verbosity=0)
    make_user()
    with statements() as run:
        write(run, sizes, show)
        run("VACUUM")
        run("CHECKPOINT")
    show(f"{size()} in {time.monotonic() - begun:.0f} s")


def make_user() -> None:
    User.objects.create_superuser(USER)


def write(run: Statements, sizes: Sizes, show: Callable[[str], object]) -> None:
    """Write all rows to the empty tables, then ANALYZE. The first ANALYZE serves the steps in between."""
    with run.without_indexes(jobs.JOB):
        jobs.write_chains(run, sizes, show)
        related_rows.write_special_chains(run, sizes)
        show("indexes")
    run(f"ANALYZE {jobs.JOB}")
    show("blockers")
    related_rows.write_blockers(run, sizes)
    show("failed attempts")
    related_rows.write_failed_attempts(run)
    show("logs and progress")
    related_rows.write_notes(run, sizes)
    show("workers, queues and counts")
    related_rows.write_present(run)
    run("ANALYZE")


def refresh() -> None:
    """Write the rows that become outdated again: live workers, counts of the last hour."""
    with statements() as run:
        related_rows.write_present(run)


def rows() -> dict[str, int]:
    """Return the exact numbers of rows."""
    run = Statements()
    by_status = run(f"SELECT status, count(*) FROM {jobs.JOB} GROUP BY status ORDER BY status")
    ((chains,),) = run(f"SELECT count(*) FROM {jobs.JOB} WHERE chain_index = 0")
    others = {
        table: run(f"SELECT count(*) FROM {table}")[0][0]
        for table in (related_rows.LINK, related_rows.FAILED, related_rows.LINE)
    }
    names = {"jobs": sum(count for _, count in by_status), "chains": chains}
    return {
        **names,
        **{f"{status} jobs": count for status, count in by_status},
        "blockers": others[related_rows.LINK],
        "failed attempts": others[related_rows.FAILED],
        "log lines": others[related_rows.LINE],
    }


def size() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_size_pretty(pg_database_size(current_database()))")
        (text,) = cursor.fetchone()
    return str(text)
