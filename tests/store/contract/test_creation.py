"""Jobs are created with the given values, all or none of them."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from django_jobchains.db.ids import new_id
from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import Job
from django_jobchains.store.rows import Effects
from tests.support.connections import committing
from tests.support.jobs import (
    MAIL,
    SHIP,
    claim,
    create,
    database_now,
    new_job,
    row,
    stored,
    tables,
)

pytestmark = pytest.mark.django_db

FAR = datetime(2051, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)


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
