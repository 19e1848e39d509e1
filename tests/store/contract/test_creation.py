"""Jobs are created with the given values, all or none of them."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from django_jobchains.db.ids import new_id
from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import Job
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.jobs import BATCH_SIZE
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
    [(job_id, created_at, is_deduplicated, is_replaced)] = store.jobs.create([job])
    assert not is_deduplicated
    assert not is_replaced
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


#: Values in which the jobs of a batch may differ.
OPTIONS = {
    "type": {"type_name": MAIL},
    "type of a step": {"type_name": MAIL, "chain_index": 1, "chain_type_name": SHIP},
    "step": {"chain_index": 3},
    "type of the chain": {"chain_index": 1, "chain_type_name": "shop.root"},
    "queue": {"queue": "mail"},
    "priority": {"priority": -3},
    "date": {"run_at": FAR},
    "delay": {"delay_seconds": 60.0},
    "limit of attempts": {"max_attempts": 2},
    "cancelled": {"is_cancelled": True},
    "key": {"deduplication_key": "order-1"},
    "lease": {"lease_number": 9},
    "context": {"context": '{"tenant": 7}'},
    "schedule": {"schedule_name": "nightly"},
    "time of a schedule": {"scheduled_for": FAR},
    "time of its limit": {"expires_at": FAR},
    "limit after it is due": {"expires_seconds": 60.0},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_job_of_a_batch_is_stored_as_if_it_was_created_alone(store, name):
    def job(**values):
        chain = {"chain_id": new_id()} if "chain_index" in values else {}
        return new_job(**values, **chain)

    given = [{}, OPTIONS[name], OPTIONS[name], {}]
    alone = [stored_values(store, [job(**values)]) for values in given]
    together = stored_values(store, [job(**values) for values in given])
    assert together == [values for [values] in alone]
    assert stored_values(store, [job(**OPTIONS[name]) for _ in range(2)]) == together[1:3]


def test_keys_of_a_batch_have_their_own_windows(store):
    hour = timedelta(hours=1)
    given = [None, Deduplicate("a", "any", hour), Deduplicate("b", "any", 2 * hour), Deduplicate("c", "any", hour)]
    jobs = [new_job(deduplicate=key, deduplication_key=key and key.key) for key in given]
    saved = stored_values(store, jobs)
    assert [values["deduplication_key"] for values in saved] == [None, "a", "b", "c"]
    assert [values["deduplicates_until"] for values in saved] == [None, hour, 2 * hour, hour]
    step, first = [new_job(deduplication_key="d", deduplicate=key) for key in (None, Deduplicate("d", "any", hour))]
    assert [values["deduplicates_until"] for values in stored_values(store, [step, first])] == [None, hour]


def test_jobs_with_and_without_blockers_are_created_together(store):
    (blocker,) = create(store)
    rows = store.jobs.create([new_job(), new_job(blockers=(blocker,), on_blocker_failure="fail"), new_job()])
    saved = [row(created.id) for created in rows]
    assert [job["status"] for job in saved] == ["pending", "blocked", "pending"]
    assert [job["on_blocker_failure"] for job in saved] == [None, "fail", None]


def test_inputs_of_a_batch_are_stored_unchanged(store):
    texts = ["", "a,b", '"\\"', "{}", "]", "ä\n\u2028"]
    inputs = [None, True, 0, -1.5, *texts, [], [1, [2, None]], {}, {"a": {"b": "],["}}]
    rows = store.jobs.create([new_job(input=json.dumps(value)) for value in inputs])
    assert [row(created.id)["input"] for created in rows] == inputs


def stored_values(store, jobs):
    """Create jobs and return their columns, except their ids, with their times relative to their creation."""
    rows = [row(created.id) for created in store.jobs.create(jobs)]
    assert [values.pop("chain_id") for values in rows] == [job.chain_id for job in jobs]
    assert [values.pop("id") for values in rows] == [job.id for job in jobs]
    for values in rows:
        created_at = values.pop("created_at")
        for name in ("run_at", "finished_at", "deduplicates_until", "expires_at"):
            if values[name] not in (None, FAR):
                values[name] -= created_at
    return rows


@committing
def test_an_error_in_a_later_batch_creates_none_of_the_jobs(store):
    jobs = [new_job() for _ in range(BATCH_SIZE + 1)]
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
