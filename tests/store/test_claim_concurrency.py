"""Claims of several connections at once."""

import threading
from collections.abc import Callable
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_jobchains.models import Job
from django_jobchains.policies import Backoff
from django_jobchains.store import Store
from tests.store.connections import DEADLINE_SECONDS, Actor, committing, holding, waiting
from tests.store.jobs import MAIL, SHIP, claim, create, expire, stored

pytestmark = committing


def ids_of(actor: Actor) -> list[UUID]:
    return [job.id for job in actor.result()]


def test_two_connections_at_once_share_no_job_and_together_claim_all(store: Store) -> None:
    created = create(store, 40) + create(store, 40, MAIL)
    barrier = threading.Barrier(2)
    actors = [Actor(claims_until_nothing_is_left(barrier, f"worker-{number}")).start() for number in range(2)]
    claimed = [job_id for actor in actors for job_id in actor.result()]
    claimed += [job.id for job in claim(store)]  # what both left, because the other had it locked
    assert sorted(claimed) == sorted(created)
    assert set(Job.objects.values_list("attempt", "lease_number")) == {(1, 1)}


def claims_until_nothing_is_left(barrier: threading.Barrier, worker: str) -> Callable[[Store], list[UUID]]:
    def call(store: Store) -> list[UUID]:
        ids: list[UUID] = []
        barrier.wait(DEADLINE_SECONDS)
        while jobs := claim(store, 3, worker):
            ids += [job.id for job in jobs]
        return ids

    return call


def test_a_claim_beside_an_uncommitted_one_takes_other_jobs(store: Store) -> None:
    created = create(store, 20)
    first = holding(lambda store: claim(store, 10, "worker-1"))
    second = waiting(lambda store: claim(store, 10, "worker-2"))
    first.go_on()
    assert sorted(ids_of(first) + ids_of(second)) == sorted(created)
    assert Job.objects.filter(leased_by="worker-1").count() == Job.objects.filter(leased_by="worker-2").count() == 10


def test_a_claim_rolled_back_leaves_its_jobs_to_the_next(store: Store) -> None:
    created = create(store, 5)
    first = holding(lambda store: claim(store, 5, "worker-1"))
    first.go_on(roll_back=True)
    first.result()
    assert [job.id for job in claim(store, 5, "worker-2")] == created
    assert set(Job.objects.values_list("attempt", "leased_by")) == {(1, "worker-2")}


@pytest.mark.postgresql
def test_jobs_that_another_transaction_has_locked_are_skipped(store: Store) -> None:
    locked, *free = create(store, 3)
    other = holding(lambda store: store.lock(locked))
    assert [job.id for job in claim(store, 2)] == free
    assert claim(store) == []
    other.result()
    assert [job.id for job in claim(store)] == [locked]


@pytest.mark.postgresql
def test_a_type_with_all_its_jobs_locked_does_not_hide_others(store: Store) -> None:
    locked = create(store, 3, SHIP, priority=5)
    free = create(store, 2, MAIL)
    other = holding(lambda store: [store.lock(job_id) for job_id in locked])
    assert [job.id for job in claim(store, 2)] == free
    other.result()


@pytest.mark.postgresql
def test_a_job_that_a_user_deletes_is_not_waited_for(store: Store) -> None:
    deleted, free = create(store, 2)
    other = holding(lambda store: Job.objects.filter(pk=deleted).delete())
    assert [job.id for job in claim(store)] == [free]
    other.result()
    assert claim(store) == []


@pytest.mark.postgresql
@pytest.mark.parametrize("limit", [1, 3])
def test_a_bad_query_plan_claims_no_more_than_the_limit(store: Store, limit: int) -> None:
    analyze_with_one_job(store)
    create(store, 19)
    with bad_plan():
        assert len(claim(store, limit)) == limit
    assert Job.objects.with_status("running").count() == limit


@pytest.mark.postgresql
def test_a_bad_query_plan_claims_no_more_than_the_limit_over_many_groups(store: Store) -> None:
    analyze_with_one_job(store)
    for priority in range(1, 6):
        create(store, 2, SHIP, priority=priority)
        create(store, 2, MAIL, priority=priority)
    with bad_plan():
        assert [job.priority for job in claim(store, 6)] == [5] * 4 + [4] * 2
    assert Job.objects.with_status("running").count() == 6


@pytest.mark.postgresql
def test_a_bad_query_plan_reaps_no_more_than_the_limit(store: Store) -> None:
    analyze_with_one_job(store)
    create(store, 19)
    expire(*claim(store))
    with bad_plan():
        assert len(store.reap(1, Backoff(), 10)) == 1
    assert Job.objects.with_status("running").count() == 19


@pytest.mark.postgresql
def test_a_bad_query_plan_claims_no_job_that_is_locked(store: Store) -> None:
    locked = analyze_with_one_job(store)
    [free] = create(store)
    other = holding(lambda store: store.lock(locked))
    with bad_plan():
        assert [job.id for job in claim(store)] == [free]
    other.result()
    assert stored(locked).status == "pending"


def analyze_with_one_job(store: Store) -> UUID:
    """Lets PostgreSQL think that there is one job: it then runs a subquery again for each row it finds."""
    [job_id] = create(store)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {Job._meta.db_table}")
    return job_id


class bad_plan(transaction.Atomic):  # noqa: N801 - reads as the context it is
    """A transaction in which PostgreSQL joins by plain nested loops."""

    def __init__(self) -> None:
        super().__init__(using=None, savepoint=True, durable=False)

    def __enter__(self) -> None:
        connection.close()  # a new session has no plan of before
        super().__enter__()
        with connection.cursor() as cursor:
            for method in ("hashjoin", "mergejoin", "material", "memoize", "hashagg", "bitmapscan"):
                cursor.execute(f"SET LOCAL enable_{method} = off")
