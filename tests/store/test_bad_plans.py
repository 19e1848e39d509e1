"""A claim or a reaper takes no more than its limit, whatever plan PostgreSQL chooses."""

import pytest
from django.db import connection, transaction

from django_jobchains.declare.policies import Backoff
from django_jobchains.models import Job
from tests.support.connections import committing, holding
from tests.support.jobs import MAIL, SHIP, claim, create, expire, stored

pytestmark = [committing, pytest.mark.postgresql]


@pytest.mark.parametrize("limit", [1, 3])
def test_bad_query_plan_claims_no_more_than_the_limit(store, limit):
    analyze_with_one_job(store)
    create(store, 19)
    with bad_plan():
        assert len(claim(store, limit)) == limit
    assert Job.objects.with_status("running").count() == limit


def test_bad_query_plan_claims_no_more_than_the_limit_over_many_groups(store):
    analyze_with_one_job(store)
    for priority in range(1, 6):
        create(store, 2, SHIP, priority=priority)
        create(store, 2, MAIL, priority=priority)
    with bad_plan():
        assert [job.priority for job in claim(store, 6)] == [5] * 4 + [4] * 2
    assert Job.objects.with_status("running").count() == 6


def test_bad_query_plan_reaps_no_more_than_the_limit(store):
    analyze_with_one_job(store)
    create(store, 19)
    expire(*claim(store))
    with bad_plan():
        assert len(store.leases.reap(1, Backoff(), 10)) == 1
    assert Job.objects.with_status("running").count() == 19


def test_bad_query_plan_claims_no_job_that_is_locked(store):
    locked = analyze_with_one_job(store)
    [free] = create(store)
    other = holding(lambda store: store.attempts.lock(locked))
    with bad_plan():
        assert [job.id for job in claim(store)] == [free]
    other.result()
    assert stored(locked).status == "pending"


def analyze_with_one_job(store):
    """Make PostgreSQL expect one job, so that it repeats a subquery for each row."""
    [job_id] = create(store)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {Job._meta.db_table}")
    return job_id


class bad_plan(transaction.Atomic):  # noqa: N801 - used as a context manager
    """A transaction in which PostgreSQL joins with nested loops."""

    def __init__(self):
        super().__init__(using=None, savepoint=True, durable=False)

    def __enter__(self):
        connection.close()  # a new session has no cached plans
        super().__enter__()
        with connection.cursor() as cursor:
            for method in ("hashjoin", "mergejoin", "material", "memoize", "hashagg", "bitmapscan"):
                cursor.execute(f"SET LOCAL enable_{method} = off")
