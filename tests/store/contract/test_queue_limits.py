"""Queues with a limit that holds for all workers: one claim at a time decides about a queue, and counts what runs."""

import pytest
from django.db import transaction

from django_jobchains.models import Job
from django_jobchains.store.queues import LimitedQueue
from tests.records.models import Upload
from tests.store.conftest import with_locks
from tests.support.connections import READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE, Actor, elsewhere
from tests.support.jobs import LEASE_SECONDS, SHIP, WORKER, create

pytestmark = pytest.mark.django_db
MAIL = LimitedQueue("mail", 2)


def start(store, queue=MAIL, limit=10, worker=WORKER):
    """Claim jobs of a queue within its limit."""

    def claim(places):
        if places < 1:
            return []
        return store.jobs.claim(worker, min(places, limit), {SHIP: LEASE_SECONDS}, [queue.name])

    return store.queues.start_within(queue, claim)


def add(store, count=1, queue="mail", **changes):
    return create(store, count, SHIP, queue=queue, **changes)


def test_no_more_jobs_run_than_the_limit_allows(store):
    add(store, 5)
    add(store, 5, "other")
    first, _ = start(store)
    assert start(store) == []
    store.attempts.hand_back([first.key])
    assert len(start(store)) == 1


def test_jobs_of_other_queues_do_not_count(store):
    add(store, 3)
    add(store, 3, "other")
    store.jobs.claim(WORKER, 10, {SHIP: LEASE_SECONDS}, ["other"])
    assert store.queues.count(MAIL) == 0
    assert len(start(store)) == 2


def test_records_in_process_count(store, processors, registry):
    processors.records(Upload)(lambda record, run: None)
    [kind] = registry.record_types()
    add(store, 3)
    Upload.objects.bulk_create([Upload(state="processing"), Upload()])
    assert len(start(store, MAIL._replace(tables=[kind.table(store.using)]))) == 1


@with_locks
def test_one_claim_at_a_time_decides_about_a_queue(store):
    """In both orders: the second claim begins while the first is deciding, and when it has committed."""
    add(store, 5)
    with transaction.atomic():
        assert len(start(store)) == 2
        assert elsewhere(lambda other: start(other, worker="other")) is None
        assert len(elsewhere(lambda other: start(other, LimitedQueue("other", 2), worker="other"))) == 0
    assert elsewhere(lambda other: start(other, worker="other")) == []


@with_locks
@pytest.mark.parametrize("level", [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
def test_a_claim_counts_what_was_committed_after_its_lock(store, level):
    """At every isolation level of the project. What runs changes only under the lock: this stands for a claim that
    committed just before."""
    *_, last = add(store, 5)
    actor = Actor(start, level=level, stops_before=1).start().until_stopped()
    # Not a job that the claim would take: the conflict would let it begin again.
    elsewhere(lambda _: Job.objects.filter(pk=last).update(status="running"))
    assert len(actor.result()) == 1


def test_a_failed_claim_keeps_nothing(store):
    add(store)

    def fail(places):
        store.jobs.claim(WORKER, places, {SHIP: LEASE_SECONDS}, ["mail"])
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), transaction.atomic():
        store.queues.start_within(MAIL, fail)
    assert store.queues.count(MAIL) == 0
