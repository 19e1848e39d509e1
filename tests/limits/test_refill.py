"""The writer of ends takes the places of limits that it frees, unless other jobs wait for the slots."""

import threading

import pytest
from django.db import DataError, OperationalError

from django_jobchains import chains, queues
from django_jobchains.models import Job
from django_jobchains.notifications import wakeups
from django_jobchains.processors import Batch, Concurrency, Rate
from django_jobchains.store.limits import Limits
from django_jobchains.worker.refill import Refill
from tests.support.waiting import until
from tests.support.workers import completed

pytestmark = pytest.mark.django_db(transaction=True)


class Turnstile:
    """Lets one handler after another end, and knows which have begun."""

    def __init__(self):
        self.begun = []
        self._may_end = threading.Semaphore(0)

    def __call__(self, job):
        self.begun.append(job.type_name)
        assert self._may_end.acquire(timeout=60)

    def let_end(self, count=1):
        self._may_end.release(count)


@pytest.fixture
def turnstile(make_worker):
    turnstile = Turnstile()
    yield turnstile
    turnstile.let_end(100)


@pytest.fixture
def refills(monkeypatch):
    """The numbers of jobs that were claimed together with the ends of others, in the transactions of these."""
    found, claim = [], Limits.claim

    def recorded(store, *args, joins=False, **options):
        jobs = claim(store, *args, joins=joins, **options)
        if joins:
            assert store.db.connection.in_atomic_block
            found.append(len(jobs))
        return jobs

    monkeypatch.setattr(Limits, "claim", recorded)
    return found


@pytest.fixture
def hinted(monkeypatch):
    """The types of the hints about due jobs that were sent."""
    types, publish = [], wakeups.publish_after_commit

    def recorded(using, hints):
        types.extend(hint.subject for hint in hints if hint.kind == "job_scheduled")
        publish(using, hints)

    monkeypatch.setattr(wakeups, "publish_after_commit", recorded)
    return types


def has_spare_slots(worker):
    return worker.components.claim_loop.has_spare_slots


def is_written(worker):
    return worker.components.outcome_writer.is_drained


def test_the_next_job_is_claimed_with_the_end_of_another_and_nobody_is_woken(
    processors, start_worker, turnstile, refills, hinted
):
    sync = processors.register("limits.sync", concurrency=Concurrency(1))(turnstile)
    chains.enqueue_many([sync.item() for _ in range(3)])
    worker = start_worker(slots=3)
    for begun in (1, 2, 3):
        until(lambda begun=begun: len(turnstile.begun) == begun and is_written(worker))
        until(lambda: has_spare_slots(worker))
        assert (refills, hinted) == ([1] * (begun - 1), ["limits.sync"])  # the hint of the enqueue
        turnstile.let_end()
    until(lambda: completed() == 3 and is_written(worker))
    assert refills == [1, 1, 0]
    assert hinted == ["limits.sync"] * 2  # There was no other job, so that the place is free.


def test_jobs_that_wait_for_a_slot_get_it_before_a_limited_job(processors, start_worker, turnstile, refills):
    sync = processors.register("limits.sync", concurrency=Concurrency(1))(turnstile)
    other = processors.register("limits.other")(turnstile)
    chains.enqueue_many([sync.item() for _ in range(3)])
    worker = start_worker(slots=1)
    until(lambda: len(turnstile.begun) == 1)
    other.enqueue()
    turnstile.let_end()
    until(lambda: len(turnstile.begun) == 2)
    assert turnstile.begun == ["limits.sync", "limits.other"]
    assert not has_spare_slots(worker)
    assert refills == []


@pytest.mark.parametrize(
    "error", [DataError("a statement"), KeyError("a mistake"), OperationalError("no connection")], ids=str
)
def test_an_error_of_the_claim_does_not_affect_the_ended_job(processors, start_worker, turnstile, monkeypatch, error):
    """Without a connection, the writer tries again."""
    sync = processors.register("limits.sync", concurrency=Concurrency(1), max_attempts=1)(turnstile)
    chains.enqueue_many([sync.item() for _ in range(2)])
    worker = start_worker(slots=2)
    until(lambda: len(turnstile.begun) == 1 and has_spare_slots(worker))
    errors, claim = [error], Refill.claim

    def failing_once(*args):
        if errors:
            raise errors.pop()
        return claim(*args)

    monkeypatch.setattr(Refill, "claim", failing_once)
    turnstile.let_end()
    until(lambda: len(turnstile.begun) == 2)
    turnstile.let_end()
    until(lambda: completed() == 2)
    assert not errors
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}


def test_a_place_is_taken_by_a_type_of_the_same_group_only(processors, start_worker, turnstile, refills):
    first = processors.register("limits.first", concurrency=Concurrency(1, group="gateway"))(turnstile)
    second = processors.register("limits.second", concurrency=Concurrency(1, group="gateway"))(turnstile)
    chains.enqueue_many([first.item()])
    worker = start_worker(slots=2)
    until(lambda: len(turnstile.begun) == 1 and has_spare_slots(worker))
    chains.enqueue_many([second.item()])
    until(lambda: has_spare_slots(worker))
    turnstile.let_end()
    until(lambda: len(turnstile.begun) == 2)
    assert refills == [1]


@pytest.mark.parametrize("kind", ["rate", "batch", "queue"])
def test_the_claim_loop_takes_places_that_depend_on_something_else(processors, start_worker, turnstile, refills, kind):
    def handle_batch(batch: Batch[None]) -> None:
        turnstile(next(iter(batch)))

    options = {"rate": {"rate": Rate(1000, per=1)}, "batch": {"batch_limit": 1}}.get(kind, {})
    handler = handle_batch if kind == "batch" else turnstile
    sync = processors.register("limits.sync", concurrency=Concurrency(1), **options)(handler)
    if kind == "queue":
        queues.set_limit("default", 5)
    chains.enqueue_many([sync.item() for _ in range(2)])
    worker = start_worker(slots=3)
    until(lambda: len(turnstile.begun) == 1 and has_spare_slots(worker))
    turnstile.let_end()
    until(lambda: len(turnstile.begun) == 2)
    assert sum(refills) == 0
