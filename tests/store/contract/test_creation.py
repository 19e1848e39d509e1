"""Jobs are created with the given values, all or none of them, and one chain for each key."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.db.ids import new_id
from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import Job
from django_jobchains.store import CreatedJob, Effects, NewJob, Store
from django_jobchains.store.deduplication import Deduplicate
from tests.support.connections import committing, holding, waiting
from tests.support.jobs import (
    MAIL,
    SHIP,
    claim,
    create,
    database_now,
    finished,
    new_job,
    row,
    stored,
    tables,
)

pytestmark = pytest.mark.django_db

FAR = datetime(2051, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)
KEY = Deduplicate("order-1")


def keyed(deduplicate: Deduplicate = KEY, type_name: str = SHIP, **changes: Any) -> NewJob:
    return new_job(type_name, deduplicate=deduplicate, deduplication_key=deduplicate.stored_key, **changes)


def create_one(store: Store, job: NewJob) -> CreatedJob:
    (row,) = store.jobs.create([job])
    return row


def test_a_job_is_stored_as_it_was_described(store):
    job = new_job(
        chain_id=new_id(), chain_index=3, chain_type_name="shop.root", queue="mail", priority=-7, max_attempts=4
    )
    job.input, job.context = '{"order": 1}', '{"tenant": 7}'
    job.lease_number, job.deduplication_key = 5, "order-1"
    start = database_now()
    [(job_id, created_at, is_deduplicated)] = store.jobs.create([job])
    assert not is_deduplicated
    assert start <= created_at <= database_now()
    assert row(job_id) == {
        "id": job.id,
        "chain_id": job.chain_id,
        "chain_index": 3,
        "chain_type_name": "shop.root",
        "type_name": SHIP,
        "queue": "mail",
        "priority": -7,
        "status": "pending",
        "run_at": created_at,
        "attempt": 0,
        "lease_number": 5,
        "leased_by": None,
        "leased_until": None,
        "crashes": 0,
        "reschedules": None,
        "max_attempts": 4,
        "input": {"order": 1},
        "output": None,
        "last_error": None,
        "created_at": created_at,
        "last_attempt_at": None,
        "finished_at": None,
        "completed_by": None,
        "deduplication_key": "order-1",
        "context": {"tenant": 7},
        "cancel_requested_at": None,
        "on_blocker_failure": None,
        "deduplicates_until": None,
    }


def test_an_empty_batch_creates_nothing(store):
    assert store.jobs.create([]) == []
    assert Job.objects.count() == 0


def test_jobs_of_one_call_have_the_same_time(store):
    assert len({row.created_at for row in store.jobs.create([new_job() for _ in range(100)])}) == 1


def test_a_date_within_this_millisecond_is_not_before_now(store):
    for _ in range(50):
        [job_id] = create(store, run_at=database_now() + timedelta(microseconds=500))
        assert stored(job_id).run_at >= stored(job_id).created_at


@pytest.mark.parametrize("seconds", [0, 0.0, 0.000_05, 1e-7, 5e-324, -0.0])
def test_a_tiny_delay_is_due_at_once(store, seconds):
    [job_id] = create(store, delay_seconds=seconds)
    job = stored(job_id)
    assert timedelta(0) <= job.run_at - job.created_at <= timedelta(milliseconds=1)


def test_one_job_can_have_a_date_and_another_a_delay(store):
    wanted = database_now() + timedelta(days=1)
    jobs = [new_job(run_at=wanted), new_job(delay_seconds=30), new_job()]
    dated, delayed, due = (stored(row.id) for row in store.jobs.create(jobs))
    assert dated.run_at == wanted
    assert abs(delayed.run_at - delayed.created_at - timedelta(seconds=30)) <= timedelta(milliseconds=1)
    assert due.run_at == due.created_at


@pytest.mark.slow
def test_25_000_jobs_are_created_in_order(store):
    jobs = [new_job(input=str(number)) for number in range(25_000)]
    assert [row.id for row in store.jobs.create(jobs)] == [job.id for job in jobs]
    assert Job.objects.count() == 25_000
    assert [job.input for job in claim(store, 3)] == ["0", "1", "2"]
    assert stored(jobs[-1].id).input == 24_999


@committing
def test_an_error_in_a_later_chunk_creates_none_of_the_jobs(store):
    jobs = [new_job() for _ in range(10_001)]
    with pytest.raises(DuplicateJobId):
        store.jobs.create([*jobs, jobs[0]])
    assert Job.objects.count() == 0


def test_a_time_keeps_its_microseconds(store):
    (job_id,) = create(store, run_at=FAR)
    assert stored(job_id).run_at == FAR
    store.db.ahead_seconds = (FAR - datetime.now(UTC)).total_seconds() + 60
    assert claim(store)[0].run_at == FAR


def test_a_time_in_another_zone_is_the_same_moment(store):
    (job_id,) = create(store, run_at=datetime.fromisoformat("2051-03-04T10:36:07.123456+05:30"))
    assert stored(job_id).run_at == FAR


def test_a_date_in_the_past_becomes_now(store):
    (job_id,) = create(store, run_at=datetime(2001, 1, 1, tzinfo=UTC))
    saved = stored(job_id)
    assert saved.run_at == saved.created_at


def test_an_existing_id_is_refused_with_its_whole_batch(store):
    (known,) = create(store)
    before = tables()
    with pytest.raises(DuplicateJobId), transaction.atomic():
        store.jobs.create([new_job(), new_job(id=known), new_job()])
    assert tables() == before


def test_the_effects_name_the_types_that_became_due(store):
    effects = Effects()
    store.jobs.create([new_job(), new_job(), new_job(MAIL, delay_seconds=60)], effects)
    assert effects.due_types == {SHIP, MAIL}
    assert effects.due_counts == {SHIP: 2}


def test_an_open_chain_is_returned_for_its_key(store):
    first = create_one(store, keyed())
    assert create_one(store, keyed()) == (first.id, first.created_at, True)
    assert not create_one(store, keyed(type_name=MAIL)).is_deduplicated
    assert not create_one(store, keyed(Deduplicate("order-2"))).is_deduplicated


def test_the_first_of_equal_keys_in_one_batch_is_used(store):
    rows = store.jobs.create([keyed(), new_job(), keyed()])
    assert [row.is_deduplicated for row in rows] == [False, False, True]
    assert rows[2].id == rows[0].id
    assert Job.objects.count() == 2


def test_an_ended_chain_is_returned_for_its_key_only_on_request(store):
    first = create_one(store, keyed())
    store.attempts.finish([finished(job) for job in claim(store)])
    assert create_one(store, keyed(Deduplicate("order-1", "any"))).id == first.id
    assert not create_one(store, keyed()).is_deduplicated


def test_a_chain_that_is_excluded_or_outside_of_the_window_is_not_returned(store):
    first = create_one(store, keyed())
    assert not create_one(store, keyed(Deduplicate("order-1", exclude_chain_ids=[first.id]))).is_deduplicated
    store.db.ahead_seconds = 61
    assert not create_one(store, keyed(Deduplicate("order-1", "any", timedelta(minutes=1)))).is_deduplicated
    assert create_one(store, keyed(Deduplicate("order-1", "any", timedelta(minutes=1)))).is_deduplicated


def test_incomplete_or_recent_returns_an_open_or_a_recent_chain(store):
    first = create_one(store, keyed())
    store.db.ahead_seconds = 61
    recent = Deduplicate("order-1", "incomplete_or_recent", timedelta(minutes=1))
    assert create_one(store, keyed(recent)).id == first.id
    store.attempts.finish([finished(job) for job in claim(store)])
    second = create_one(store, keyed(recent))
    store.attempts.finish([finished(job) for job in claim(store)])
    assert create_one(store, keyed(recent)) == (second.id, second.created_at, True)
    assert second.id != first.id


@committing
@pytest.mark.parametrize("scope", ["incomplete", "any", "incomplete_or_recent"])
def test_two_connections_with_the_same_key_start_one_chain(store, scope):
    """The second call waits, and then finds the chain of the first."""
    deduplicate = Deduplicate("order-1", scope, timedelta(hours=1))
    first = holding(lambda store: create_one(store, keyed(deduplicate)))
    second = waiting(lambda store: create_one(store, keyed(deduplicate)))
    first.go_on()
    assert (second.result().id, second.result().is_deduplicated) == (first.result().id, True)
    assert Job.objects.count() == 1


@committing
def test_the_second_call_with_a_key_starts_the_chain_if_the_first_is_rolled_back(store):
    first = holding(lambda store: create_one(store, keyed()))
    second = waiting(lambda store: create_one(store, keyed()))
    first.go_on(roll_back=True)
    assert not second.result().is_deduplicated
    assert [job.pk for job in Job.objects.all()] == [second.result().id]
