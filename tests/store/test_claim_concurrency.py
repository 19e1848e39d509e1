"""Claims on several connections at the same time, and claims with a bad query plan."""

from uuid import UUID

import pytest
from django.db import connection, transaction

from django_jobchains.models import Job
from django_jobchains.policies import Backoff
from django_jobchains.store import Store
from tests.support.connections import Actor, committing, holding, waiting
from tests.support.jobs import MAIL, SHIP, claim, create, expire, stored

pytestmark = committing


def ids_of(actor: Actor) -> list[UUID]:
    return [job.id for job in actor.result()]


def test_claim_during_an_uncommitted_one_takes_other_jobs(store: Store) -> None:
    created = create(store, 20)
    first = holding(lambda store: claim(store, 10, "worker-1"))
    second = waiting(lambda store: claim(store, 10, "worker-2"))
    first.go_on()
    assert sorted(ids_of(first) + ids_of(second)) == sorted(created)
    assert Job.objects.filter(leased_by="worker-1").count() == Job.objects.filter(leased_by="worker-2").count() == 10


@pytest.mark.postgresql
def test_jobs_that_another_transaction_has_locked_are_skipped(store: Store) -> None:
    locked, *free = create(store, 3)
    other = holding(lambda store: store.attempts.lock(locked))
    assert [job.id for job in claim(store, 2)] == free
    assert claim(store) == []
    other.result()
    assert [job.id for job in claim(store)] == [locked]


@pytest.mark.postgresql
def test_claim_does_not_wait_for_a_job_that_is_being_deleted(store: Store) -> None:
    deleted, free = create(store, 2)
    other = holding(lambda store: Job.objects.filter(pk=deleted).delete())
    assert [job.id for job in claim(store)] == [free]
    other.result()
    assert claim(store) == []


@pytest.mark.postgresql
@pytest.mark.parametrize("limit", [1, 3])
def test_bad_query_plan_claims_no_more_than_the_limit(store: Store, limit: int) -> None:
    analyze_with_one_job(store)
    create(store, 19)
    with bad_plan():
        assert len(claim(store, limit)) == limit
    assert Job.objects.with_status("running").count() == limit


@pytest.mark.postgresql
def test_bad_query_plan_claims_no_more_than_the_limit_over_many_groups(store: Store) -> None:
    analyze_with_one_job(store)
    for priority in range(1, 6):
        create(store, 2, SHIP, priority=priority)
        create(store, 2, MAIL, priority=priority)
    with bad_plan():
        assert [job.priority for job in claim(store, 6)] == [5] * 4 + [4] * 2
    assert Job.objects.with_status("running").count() == 6


@pytest.mark.postgresql
def test_bad_query_plan_reaps_no_more_than_the_limit(store: Store) -> None:
    analyze_with_one_job(store)
    create(store, 19)
    expire(*claim(store))
    with bad_plan():
        assert len(store.leases.reap(1, Backoff(), 10)) == 1
    assert Job.objects.with_status("running").count() == 19


@pytest.mark.postgresql
def test_bad_query_plan_claims_no_job_that_is_locked(store: Store) -> None:
    locked = analyze_with_one_job(store)
    [free] = create(store)
    other = holding(lambda store: store.attempts.lock(locked))
    with bad_plan():
        assert [job.id for job in claim(store)] == [free]
    other.result()
    assert stored(locked).status == "pending"


def analyze_with_one_job(store: Store) -> UUID:
    """Make PostgreSQL expect one job, so that it repeats a subquery for each row."""
    [job_id] = create(store)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {Job._meta.db_table}")
    return job_id


class bad_plan(transaction.Atomic):  # noqa: N801 - used as a context manager
    """A transaction in which PostgreSQL joins with nested loops."""

    def __init__(self) -> None:
        super().__init__(using=None, savepoint=True, durable=False)

    def __enter__(self) -> None:
        connection.close()  # a new session has no cached plans
        super().__enter__()
        with connection.cursor() as cursor:
            for method in ("hashjoin", "mergejoin", "material", "memoize", "hashagg", "bitmapscan"):
                cursor.execute(f"SET LOCAL enable_{method} = off")
