"""What a claim takes, and what it writes."""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_jobchains.ids import new_id
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.store.connections import committing
from tests.store.jobs import MAIL, SHIP, WORKER, alter, claim, create, database_now, failed_try, new_job, row, stored

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("limit", [1, 2, 7, 20])
def test_a_claim_takes_no_more_than_its_limit(store: Store, limit: int) -> None:
    create(store, 20)
    assert len(claim(store, limit)) == limit
    assert Job.objects.with_status("running").count() == limit


def test_the_limit_holds_over_types_queues_and_priorities(store: Store) -> None:
    for queue in ("default", "slow"):
        for priority in (-5, 0, 5):
            for type_name in (SHIP, MAIL):
                create(store, 3, type_name, queue=queue, priority=priority)
    assert len(claim(store, 5)) == 5
    assert Job.objects.with_status("running").count() == 5


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_takes_nothing(store: Store, limit: int) -> None:
    create(store)
    assert claim(store, limit) == []


def test_a_claim_takes_what_there_is_when_that_is_less(store: Store) -> None:
    ids = create(store, 3)
    assert {job.id for job in claim(store, 10)} == set(ids)
    assert claim(store, 10) == []


def test_nothing_is_claimed_from_an_empty_table(store: Store) -> None:
    assert claim(store) == []


def test_future_jobs_are_not_claimed(store: Store) -> None:
    create(store, run_at=database_now() + timedelta(seconds=30))
    create(store, delay_seconds=30)
    [due] = create(store)
    assert [job.id for job in claim(store)] == [due]


def test_a_future_job_is_claimed_once_it_is_due(store: Store) -> None:
    [job_id] = create(store, delay_seconds=30)
    assert claim(store) == []
    Job.objects.filter(pk=job_id).update(run_at=database_now() - timedelta(microseconds=1000))
    assert [job.id for job in claim(store)] == [job_id]


def test_only_the_given_types_are_claimed(store: Store) -> None:
    [ship] = create(store, 1, SHIP)
    create(store, 1, MAIL)
    create(store, 1, SHIP + "2")
    create(store, 1, "shop")
    assert [job.id for job in claim(store, types=[SHIP])] == [ship]


def test_no_types_claim_nothing(store: Store) -> None:
    create(store)
    assert store.claim(WORKER, 10, {}) == []


@pytest.mark.parametrize("name", ["quo'te", 'dou"ble', "per%cent %s", "back\\slash", "schlüssel-鍵-🔑", "null", "a,b"])
def test_type_and_queue_names_are_taken_literally(store: Store, name: str) -> None:
    create(store, 1, SHIP)
    [named] = create(store, 1, name, queue=name)
    [job] = store.claim(WORKER, 10, {name: 60}, [name])
    assert (job.id, job.type_name, job.queue) == (named, name, name)


def test_only_the_given_queues_are_served(store: Store) -> None:
    by_queue = {queue: create(store, queue=queue)[0] for queue in ("default", "mail", "slow")}
    claimed = store.claim(WORKER, 10, {SHIP: 60}, ["mail", "slow", "unused"])
    assert {job.id for job in claimed} == {by_queue["mail"], by_queue["slow"]}


def test_no_queues_claim_nothing(store: Store) -> None:
    create(store)
    assert store.claim(WORKER, 10, {SHIP: 60}, []) == []


def test_queues_none_serves_every_queue(store: Store) -> None:
    create(store, queue="default")
    create(store, queue="mail")
    assert len(store.claim(WORKER, 10, {SHIP: 60}, None)) == 2


def test_a_claim_writes_the_worker_the_lease_and_the_attempt_and_nothing_else(store: Store) -> None:
    [job_id] = create(store, priority=3, max_attempts=4, input='{"a":1}')
    before, start = row(job_id), database_now()
    assert len(claim(store, worker="host-7")) == 1
    after, end = row(job_id), database_now()
    changed = {name: value for name, value in after.items() if value != before[name]}
    assert start <= changed.pop("last_attempt_at") <= end
    assert start + timedelta(seconds=60) <= changed.pop("leased_until") <= end + timedelta(seconds=60)
    assert changed == {"status": "running", "attempt": 1, "lease_number": 1, "leased_by": "host-7"}


def test_a_claimed_job_is_told_as_it_is_stored(store: Store) -> None:
    chain_id = create(store, priority=-1)[0]
    claim(store)
    create(
        store, chain_id=chain_id, chain_index=1, chain_type_name="shop.root", queue="mail", priority=7, max_attempts=9
    )
    [job] = claim(store)
    values = row(job.id)
    assert {name: values[name] for name in job._fields if name != "input"} == {
        name: value for name, value in job._asdict().items() if name != "input"
    }
    assert (job.chain_id, job.chain_index, job.chain_type_name, job.max_attempts) == (chain_id, 1, "shop.root", 9)


def test_each_claim_raises_the_attempt_and_the_lease_number(store: Store) -> None:
    create(store)
    for number in (1, 2, 3):
        [job] = claim(store)
        assert (job.attempt, job.lease_number) == (number, number)
        store.reschedule([failed_try(job)])


def test_a_claimed_job_carries_its_last_error(store: Store) -> None:
    create(store)
    [job] = claim(store)
    assert job.last_error is None
    store.reschedule([failed_try(job, error="Boom: 1")])
    assert claim(store)[0].last_error == "Boom: 1"


def test_each_type_has_the_seconds_of_its_own_lease(store: Store) -> None:
    create(store, 1, SHIP)
    create(store, 2, MAIL)
    seconds = {SHIP: 10, MAIL: 90.5}
    for job in store.claim(WORKER, 10, seconds):
        saved = stored(job)
        assert saved.leased_until - saved.last_attempt_at == timedelta(seconds=seconds[job.type_name])


def test_attempts_of_one_claim_have_one_time(store: Store) -> None:
    create(store, 50)
    claim(store)
    assert Job.objects.values("last_attempt_at").distinct().count() == 1


def test_a_running_job_is_not_claimed_even_after_its_lease(store: Store) -> None:
    create(store)
    jobs = claim(store)
    alter(jobs, leased_until=database_now() - timedelta(days=1))
    assert claim(store) == []


def test_a_priority_of_either_end_is_claimed(store: Store) -> None:
    lowest, highest = create(store, priority=-32_768) + create(store, priority=32_767)
    assert [job.id for job in claim(store)] == [highest, lowest]


def test_jobs_of_many_types_are_claimed_in_one_call(store: Store) -> None:
    types = [f"shop.type{number:03}" for number in range(300)]
    store.create([new_job(name, id=new_id()) for name in types])
    assert sorted(job.type_name for job in store.claim(WORKER, 1_000, dict.fromkeys(types, 60))) == types


@committing
def test_a_claim_in_an_old_transaction_gets_a_full_lease(store: Store) -> None:
    create(store)
    with transaction.atomic():
        grow_old(0.4)
        start = database_now()
        [job] = claim(store)
        end = database_now()
    saved = stored(job)
    assert start <= saved.last_attempt_at <= end
    assert start + timedelta(seconds=60) <= saved.leased_until <= end + timedelta(seconds=60)


@pytest.mark.postgresql
@committing
def test_an_old_transaction_claims_what_became_due_meanwhile(store: Store) -> None:
    create(store, delay_seconds=0.3)
    with transaction.atomic():
        assert claim(store) == []
        grow_old(0.4)
        assert len(claim(store)) == 1


def grow_old(seconds: float) -> None:
    """Lets the open transaction be so many seconds old, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        until = database_now() + timedelta(seconds=seconds)
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_sleep(%s)", [seconds])
        while database_now() < until:
            pass
