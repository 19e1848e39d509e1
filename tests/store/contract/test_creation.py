"""Jobs are created with the given values, all or none of them, and one chain for each key."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import Job
from django_jobchains.store import CreatedJob, Effects, NewJob, Store
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.testing.contracts.payload_codecs import JSON_VALUES
from tests.support.connections import committing, holding, waiting
from tests.support.jobs import (
    MAIL,
    SHIP,
    claim,
    create,
    finished,
    new_job,
    running_job,
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
    job = new_job(queue="mail", priority=-7, max_attempts=4, run_at=FAR, lease_number=5, deduplication_key="k")
    (row,) = store.jobs.create([job])
    saved = stored(job.id)
    assert row == (job.id, saved.created_at, False)
    assert (saved.chain_id, saved.chain_index, saved.chain_type_name) == (job.id, 0, SHIP)
    assert (saved.type_name, saved.queue, saved.priority, saved.status) == (SHIP, "mail", -7, "pending")
    assert (saved.attempt, saved.lease_number, saved.crashes, saved.max_attempts) == (0, 5, 0, 4)
    assert (saved.leased_by, saved.leased_until, saved.finished_at, saved.output) == (None,) * 4
    assert saved.deduplication_key == "k"


def test_a_job_without_a_date_is_due_at_once(store):
    (job_id,) = create(store)
    saved = stored(job_id)
    assert (saved.priority, saved.queue, saved.run_at) == (0, "default", saved.created_at)
    assert [job.id for job in claim(store)] == [job_id]


def test_ids_are_returned_in_the_order_of_the_jobs(store):
    jobs = [new_job() for _ in range(20)]
    assert [row.id for row in store.jobs.create(jobs[::-1])] == [job.id for job in jobs[::-1]]


@pytest.mark.parametrize("value", JSON_VALUES, ids=json.dumps)
def test_json_is_read_back_equal(store, value):
    text = json.dumps(value)
    job = running_job(store, input=text, context=text)
    store.attempts.finish([finished(job, text)])
    saved = stored(job)
    assert [saved.input, saved.context, saved.output] == [value] * 3
    assert all(type(one) is type(value) for one in (saved.input, saved.context, saved.output))


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


def test_a_delay_counts_from_now(store):
    (job_id,) = create(store, delay_seconds=90.5)
    saved = stored(job_id)
    assert abs(saved.run_at - saved.created_at - timedelta(seconds=90.5)) < timedelta(milliseconds=2)


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
