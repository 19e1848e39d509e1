"""The figures of the overview about queues, types and failures."""

import json
from datetime import UTC, datetime

import pytest
from asgiref.sync import async_to_sync
from django.test.utils import CaptureQueriesContext

from django_jobchains import queues
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.monitoring import aoverview, overview
from django_jobchains.processors import JobType, get_registry
from django_jobchains.store.workers import Beat
from tests.support.jobs import MAIL, SHIP, alter, claim, create, database_now, expire, failed_try, running

pytestmark = pytest.mark.django_db


def claim_new(store, type_name):
    create(store, 1, type_name)
    return claim(store, types=[type_name])


def queue(name="default", **options):
    return next(part for part in overview(**options).queues if part.name == name)


def of_type(name=SHIP, **options):
    return next(part for part in overview(**options).types if part.name == name)


def test_an_empty_database(store):
    found = overview()
    assert (found.workers, found.queues, found.types, found.failing) == ((), (), (), ())
    assert (found.due, found.oldest_due_age_seconds, found.is_complete) == (0, None, True)


def test_due_and_scheduled_jobs_are_counted_separately(store):
    create(store, 3)
    create(store, 2, priority=5)
    create(store, 4, delay_seconds=3600)
    create(store, 1, MAIL)
    assert (queue().due, queue().scheduled, queue().is_capped) == (6, 4, False)
    assert (of_type().due, of_type().scheduled, of_type(MAIL).due) == (5, 4, 1)
    assert overview().due == 6


def test_jobs_that_are_completed_by_hand_are_not_due(store, monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {MAIL: JobType(MAIL)})
    create(store, 2, MAIL)
    create(store, 1, MAIL, delay_seconds=60)
    assert (queue().due, queue().outside, queue().scheduled, queue().oldest_due_age_seconds) == (0, 2, 1, None)
    assert (of_type(MAIL).due, of_type(MAIL).outside, overview().due) == (0, 2, 0)
    create(store, 1)
    assert (queue().due, queue().outside) == (1, 2)
    store.workers.beat(Beat("w", "host", 1, "0", 1, 0, 0, None, (MAIL,), False, 0, 10))
    assert (queue().due, queue().outside, of_type(MAIL).due) == (3, 0, 2)


def test_the_age_of_a_queue_is_that_of_its_oldest_due_job(store):
    create(store, priority=-5)
    Job.objects.update(run_at=datetime(2020, 1, 1, tzinfo=UTC))
    create(store, 2)
    create(store, 1, queue="new")
    create(store, 1, queue="later", delay_seconds=60)
    since_2020 = (database_now() - datetime(2020, 1, 1, tzinfo=UTC)).total_seconds()
    age = queue().oldest_due_age_seconds
    assert abs(age - since_2020) < 60
    assert overview().oldest_due_age_seconds >= age
    assert 0 <= queue("new").oldest_due_age_seconds < 60
    assert queue("later").oldest_due_age_seconds is None


def test_running_and_blocked_jobs_are_counted(store):
    jobs = running(store, 3)
    create(store, 2, MAIL, blockers=(jobs[0].id,), queue="mail")
    assert (queue().running, queue().blocked, queue().due) == (3, 0, 0)
    assert (queue("mail").running, queue("mail").blocked) == (0, 2)
    assert (of_type().running, of_type(MAIL).blocked) == (3, 2)


def test_jobs_that_have_ended_are_in_no_queue_and_failed_ones_are_counted_by_type(store):
    for status in ("completed", "cancelled"):
        alter(running(store, 2), status=status)
    assert (overview().queues, overview().types) == ((), ())
    store.attempts.fail([failed_try(job) for job in running(store, 3)])
    assert (overview().queues, of_type().failed) == ((), 3)


def test_failed_attempts_of_the_last_time_are_summed_by_type(store):
    first, second = running(store, 2)
    store.attempts.fail([failed_try(first, error="ValueError: old")])
    store.attempts.reschedule([failed_try(second, error="KeyError: 'price'\nsecond line")])
    claim(store)
    expire(second)
    assert not overview().failing[0].crashes
    [mail] = running(store, 1, type_name=MAIL)
    store.attempts.fail([failed_try(mail, error="Mail: down")])
    newest, older = overview().failing
    assert (newest.name, newest.attempts, newest.last_error) == (MAIL, 1, "Mail: down")
    assert (older.name, older.attempts, older.jobs) == (SHIP, 2, 2)
    assert older.last_error == "KeyError: 'price'"
    assert abs((older.last_at - database_now()).total_seconds()) < 60
    assert 0 <= older.last_age_seconds < 60
    FailedAttempt.objects.update(finished_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert overview().failing == ()


def test_counts_have_a_limit_and_are_then_shown_with_a_plus_sign(store):
    create(store, 5)
    create(store, 2, queue="few")
    found = overview(count_to=3)
    assert {part.name: (part.due, part.is_capped) for part in found.queues} == {"default": (3, True), "few": (2, False)}
    assert {part.name: found.shown(part, "due") for part in found.queues} == {"default": "3+", "few": "2"}
    assert found.is_due_lower_bound
    assert (queue(count_to=6).due, queue(count_to=6).is_capped) == (5, False)
    with pytest.raises(ValueError, match="count_to"):
        overview(count_to=0)


def test_the_limit_applies_to_the_running_jobs_of_all_queues_together(store):
    running(store, 2, queue="one")
    running(store, 2, queue="two")
    create(store, 1, queue="three")
    found = overview(count_to=3)
    shown = {queue.name: found.shown(queue, "running") for queue in found.queues}
    assert shown["three"] == "0"
    assert {shown["one"], shown["two"]} <= {"1+", "2+"}
    assert any(queue.is_capped for queue in found.queues)


def test_pauses_and_limits_of_queues_are_included(store):
    create(store, 1, queue="mail")
    queues.pause("mail", "empty")
    queues.set_limit("slow", 2)
    shown = {part.name: (part.is_paused, part.slot_limit, part.due) for part in overview().queues}
    assert shown == {"empty": (True, None, 0), "mail": (True, None, 1), "slow": (False, 2, 0)}


def test_it_can_be_serialized_as_json(store):
    store.attempts.fail([failed_try(job) for job in running(store)])
    create(store)
    written = json.loads(json.dumps(overview().as_json()))
    assert written["failing"][0]["name"] == SHIP
    assert datetime.fromisoformat(written["failing"][0]["last_at"]) == overview().failing[0].last_at
    assert written["database"]["vendor"] == store.connection.vendor


@pytest.mark.parametrize("size", [1, 30])
def test_it_takes_a_constant_number_of_statements(store, size):
    """One each for workers, rules, pending jobs, running and blocked jobs, failures, and PostgreSQL's activity."""
    for number in range(size):
        create(store, 2, queue=f"queue {number}")
        store.attempts.fail([failed_try(job) for job in claim_new(store, f"shop.type_{number}")])
        queues.pause(f"queue {number}")
    with CaptureQueriesContext(store.connection) as statements:
        overview()
    assert len(statements) == (6 if store.connection.vendor == "postgresql" else 5)


def test_the_number_of_groups_is_limited(store, monkeypatch):
    for module in ("store.stats", "monitoring.facts"):
        monkeypatch.setattr(f"django_jobchains.{module}.MAX_GROUPS", 3)
    for number in range(3):
        create(store, 1, queue=f"queue {number}")
    assert (len(overview().queues), overview().is_complete) == (3, True)
    create(store, 1, queue="queue 3")
    assert (len(overview().queues), overview().is_complete) == (3, False)


@pytest.mark.postgresql
def test_postgresql_counts_connections(store):
    database = overview().database
    assert database.connections is not None
    assert database.max_connections is not None
    assert 1 <= database.connections <= database.max_connections


@pytest.mark.django_db(transaction=True)
def test_the_async_twin_returns_the_same():
    assert async_to_sync(aoverview)().queues == ()
