"""Many jobs: a worker does not grow with their number, and no statement takes longer than a second."""

import psutil
import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import session_defaults, until_count
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

JOBS = 20_000
BATCH = 2_000
#: The jobs that wait for one chain, and others.
DEPENDENTS = 50_000
UNRELATED = 200
MEGABYTE = 1024 * 1024


def test_twenty_thousand_jobs_leave_threads_files_and_memory_as_they_were(start_process):
    process = start_process().until_ready()
    worker = psutil.Process(process.pid)
    sizes = []
    for enqueued in range(BATCH, JOBS + 1, BATCH):
        chains.enqueue_many([jobs.nothing.item({"text": "x" * 200}) for _ in range(BATCH)])
        until_count(enqueued, process)
        sizes.append((worker.num_threads(), worker.num_fds(), worker.memory_info().rss))
    # Of several sizes, because a thread or a connection may live only for a moment.
    warm = [max(size) for size in zip(*sizes[:3], strict=True)]
    last = [min(size) for size in zip(*sizes[-3:], strict=True)]
    assert last[0] <= warm[0], sizes
    assert last[1] <= warm[1] + 2, sizes
    assert last[2] - warm[2] < 16 * MEGABYTE, sizes
    assert_invariants()


@pytest.mark.postgresql
def test_fifty_thousand_dependents_are_freed_while_other_jobs_continue(start_process):
    blocker = jobs.nothing.enqueue(None)
    multiply(jobs.after.enqueue(None, blockers=[blocker], delay=3600), DEPENDENTS)
    chains.enqueue_many([jobs.attempt.item(0.0) for _ in range(UNRELATED)])
    with session_defaults(statement_timeout="1s"):
        process = start_process("--slots", "4", LEASE_SECONDS="60").until_ready()
        others = Job.objects.exclude(type_name="chaos.after")
        until(lambda: not others.exclude(status="completed").exists(), 60, lambda: process.output[-3_000:])
    freed = Job.objects.filter(type_name="chaos.after", status="pending", attempt=0)
    assert freed.count() == DEPENDENTS
    assert set(others.values_list("attempt", "crashes", "lease_number")) == {(1, 0, 1)}
    assert Effect.objects.count() == UNRELATED
    assert not FailedAttempt.objects.exists()


def multiply(dependent, count):
    """Add copies of a job that waits for one chain, so that there are ``count`` of them."""
    columns = ", ".join(field.attname for field in Job._meta.local_fields if field.name not in ("id", "chain_id"))
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            WITH copies AS (
                INSERT INTO django_jobchains_job (id, chain_id, {columns})
                SELECT new.id, new.id, {columns}
                FROM django_jobchains_job AS job, (SELECT gen_random_uuid() FROM generate_series(2, %s)) AS new (id)
                WHERE job.id = %s
                RETURNING id
            )
            INSERT INTO django_jobchains_jobblocker (job_id, position, blocker_id, is_open)
            SELECT copies.id, link.position, link.blocker_id, link.is_open
            FROM copies, django_jobchains_jobblocker AS link
            WHERE link.job_id = %s
            """,
            [count, dependent.id, dependent.id],
        )
