"""What a claim returns and writes."""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.support.connections import committing
from tests.support.jobs import MAIL, SHIP, WORKER, claim, create, database_now, failed_try, new_job, row, stored

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("limit", [0, -1])
def test_claim_with_a_limit_below_one_returns_nothing(store: Store, limit: int) -> None:
    create(store)
    assert claim(store, limit) == []


@pytest.mark.parametrize("name", ["quo'te", 'dou"ble', "per%cent %s", "back\\slash", "schlüssel-鍵-🔑", "null", "a,b"])
def test_type_and_queue_names_are_taken_literally(store: Store, name: str) -> None:
    create(store, 1, SHIP)
    [named] = create(store, 1, name, queue=name)
    [job] = store.jobs.claim(WORKER, 10, {name: 60}, [name])
    assert (job.id, job.type_name, job.queue) == (named, name, name)


def test_claim_writes_the_worker_the_lease_and_the_attempt_and_nothing_else(store: Store) -> None:
    [job_id] = create(store, priority=3, max_attempts=4, input='{"a":1}')
    before, start = row(job_id), database_now()
    assert len(claim(store, worker="host-7")) == 1
    after, end = row(job_id), database_now()
    changed = {name: value for name, value in after.items() if value != before[name]}
    assert start <= changed.pop("last_attempt_at") <= end
    assert start + timedelta(seconds=60) <= changed.pop("leased_until") <= end + timedelta(seconds=60)
    assert changed == {"status": "running", "attempt": 1, "lease_number": 1, "leased_by": "host-7"}


def test_claimed_job_is_returned_as_it_is_stored(store: Store) -> None:
    chain_id = create(store, priority=-1)[0]
    claim(store)
    create(
        store, chain_id=chain_id, chain_index=1, chain_type_name="shop.root", queue="mail", priority=7, max_attempts=9
    )
    [job] = claim(store)
    values, returned = row(job.id), job._asdict()
    assert returned.pop("key") == (job.id, job.lease_number)
    del returned["input"]  # a JSON text
    assert returned.pop("worker") == values["leased_by"]
    assert returned == {name: values[name] for name in returned} | {"reschedules": 0}
    assert (job.chain_id, job.chain_index, job.chain_type_name, job.max_attempts) == (chain_id, 1, "shop.root", 9)


def test_claimed_job_has_its_last_error(store: Store) -> None:
    create(store)
    [job] = claim(store)
    assert job.last_error is None
    store.attempts.reschedule([failed_try(job, error="Boom: 1")])
    assert claim(store)[0].last_error == "Boom: 1"


def test_each_type_has_its_own_lease_duration(store: Store) -> None:
    create(store, 1, SHIP)
    create(store, 2, MAIL)
    seconds = {SHIP: 10, MAIL: 90.5}
    for job in store.jobs.claim(WORKER, 10, seconds):
        saved = stored(job)
        assert saved.leased_until - saved.last_attempt_at == timedelta(seconds=seconds[job.type_name])


def test_attempts_of_one_claim_have_the_same_time(store: Store) -> None:
    create(store, 50)
    claim(store)
    assert Job.objects.values("last_attempt_at").distinct().count() == 1


def test_lowest_and_the_highest_priority_are_claimed(store: Store) -> None:
    lowest, highest = create(store, priority=-32_768) + create(store, priority=32_767)
    assert [job.id for job in claim(store)] == [highest, lowest]


def test_jobs_of_many_types_are_claimed_in_one_call(store: Store) -> None:
    types = [f"shop.type{number:03}" for number in range(300)]
    store.jobs.create([new_job(name, id=new_id()) for name in types])
    assert sorted(job.type_name for job in store.jobs.claim(WORKER, 1_000, dict.fromkeys(types, 60))) == types


@committing
def test_claim_in_an_old_transaction_gets_a_full_lease(store: Store) -> None:
    create(store)
    with transaction.atomic():
        let_time_pass(0.4)
        start = database_now()
        [job] = claim(store)
        end = database_now()
    saved = stored(job)
    assert start <= saved.last_attempt_at <= end
    assert start + timedelta(seconds=60) <= saved.leased_until <= end + timedelta(seconds=60)


@pytest.mark.postgresql
@committing
def test_old_transaction_claims_what_became_due_meanwhile(store: Store) -> None:
    with transaction.atomic():
        create(store, delay_seconds=0.3)
        let_time_pass(0.4)
        assert len(claim(store)) == 1


def let_time_pass(seconds: float) -> None:
    """Wait inside of the open transaction, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        until = database_now() + timedelta(seconds=seconds)
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_sleep(%s)", [seconds])
        while database_now() < until:
            pass
