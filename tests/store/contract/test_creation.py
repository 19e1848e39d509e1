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
    saved = {name: value for name, value in row(job_id).items() if value is not None}
    assert saved == {
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
        "crashes": 0,
        "max_attempts": 4,
        "input": {"order": 1},
        "created_at": created_at,
        "deduplication_key": "order-1",
        "context": {"tenant": 7},
    }


def test_an_empty_batch_creates_nothing(store):
    assert store.jobs.create([]) == []
    assert Job.objects.count() == 0


def test_jobs_of_one_call_have_one_time_and_their_own_dates_and_delays(store):
    date = database_now() + timedelta(days=1)
    past = datetime(2001, 1, 1, tzinfo=UTC)
    whens = [{"run_at": date}, {"delay_seconds": 30}, {"delay_seconds": 1e-7}, {}, {"run_at": past}]
    jobs = [stored(row.id) for row in store.jobs.create([new_job(**when) for when in whens])]
    (now,) = {job.created_at for job in jobs}
    for job, run_at in zip(jobs, [date, now + timedelta(seconds=30), now, now, now], strict=True):
        assert timedelta(0) <= job.run_at - run_at <= timedelta(milliseconds=1)


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
