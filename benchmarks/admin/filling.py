"""A database of that many jobs, from nothing."""

import time
from collections.abc import Callable

from django.contrib.auth.models import User
from django.db import connection

from benchmarks.admin import beside, jobs
from benchmarks.admin.sizes import Sizes
from benchmarks.admin.writing import Statements
from benchmarks.database import migrate

USER = "operator"


def fill(sizes: Sizes, tell: Callable[[str], object]) -> None:
    """Into the empty default database; the last step is ANALYZE, for everything else has none to plan by."""
    begun = time.monotonic()
    migrate("default")
    User.objects.create_superuser(USER)
    run = Statements()
    with run.without_indexes(jobs.JOB), run.without_indexes(beside.LINK):
        jobs.write_chains(run, sizes, tell)
        beside.write_special_chains(run, sizes)
        tell("indexes")
    run("VACUUM ANALYZE")
    for name, write in {
        "blockers": lambda: beside.write_blockers(run, sizes),
        "failed attempts": lambda: beside.write_failed_attempts(run),
        "logs and progress": lambda: beside.write_notes(run, sizes),
        "workers, queues and counts": lambda: beside.write_present(run),
    }.items():
        tell(name)
        write()
    tell("VACUUM ANALYZE")
    run("VACUUM ANALYZE")
    run("CHECKPOINT")
    tell(f"{size()} in {time.monotonic() - begun:.0f} s")


def refresh() -> None:
    """What grows old: workers that are alive, counts of the last hour."""
    beside.write_present(Statements())


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
