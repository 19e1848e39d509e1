"""Recurring chains: each one enqueues its successor while it completes, with a key that excludes itself."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection

from django_jobchains.chains import Deduplicate
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, JobType, Processors, Registry, RunningJob
from django_jobchains.worker import Worker
from tests.support.attempts import WITHOUT_WAKE_UPS, committed, on_own_connection
from tests.support.waiting import until

pytestmark = committed

KEY = "tick"
DAY = 86_400


@dataclass
class Tick:
    """A recurring type, and functions that its handler calls."""

    job_type: JobType[Any, Any]
    registry: Registry
    before: Callable[[RunningJob[Any]], Any] = lambda job: None
    after: Callable[[RunningJob[Any]], Any] = lambda job: None
    runs: list[int] = field(default_factory=list)

    def enqueue(self, input, *, delay=0, exclude=()):
        return self.job_type.enqueue(input, delay=delay, deduplicate=Deduplicate(KEY, exclude_chain_ids=exclude))

    def work(self, **options):
        Worker(registry=self.registry, slots=2, **options).run_until_idle()


@pytest.fixture
def tick(settings):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    processors, registry = Processors(backoff=Backoff(0.02, 1, 0.02, 0)), Registry()
    registry.add(processors)
    last = 4

    @processors.register("shop.tick")
    def run(job: RunningJob[int]) -> None:
        made.runs.append(job.input)
        made.before(job)
        with job.complete():
            made.enqueue(job.input + 1, delay=DAY * (job.input >= last), exclude=[job.chain_id])
            made.after(job)

    made = Tick(run, registry)
    return made


def open_inputs():
    return list(Job.objects.incomplete().order_by("input").values_list("input", flat=True))


def test_each_chain_starts_exactly_one_successor(tick):
    tick.enqueue(0)
    tick.work()
    assert tick.runs == [0, 1, 2, 3, 4]
    assert [(job.input, job.chain_index) for job in Job.objects.order_by("input")] == [(n, 0) for n in range(6)]
    assert open_inputs() == [5]


def test_enqueueing_the_same_key_again_returns_the_successor(tick):
    tick.enqueue(4)
    tick.work()
    again = tick.enqueue(100)
    assert (again.deduplicated, again.input) == (True, 5)


def test_another_process_gets_the_running_chain(tick):
    got = []
    tick.before = lambda job: on_own_connection(lambda: got.append(tick.enqueue(100)))
    first = tick.enqueue(4)
    tick.work()
    assert [chain.id for chain in got] == [first.id]
    assert open_inputs() == [5]


def test_successor_that_another_process_enqueued_is_used(tick):
    tick.before = lambda job: on_own_connection(lambda: tick.enqueue(100, delay=DAY, exclude=[job.chain_id]))
    tick.enqueue(4)
    tick.work()
    assert open_inputs() == [100]
    assert [job.input for job in Job.objects.order_by("pk")] == [4, 100]


def test_another_process_gets_the_successor_during_the_completion(tick):
    got = []
    thread = threading.Thread(target=lambda: on_own_connection(lambda: got.append(tick.enqueue(100, delay=DAY))))

    def enqueue_meanwhile(job: RunningJob[Any]) -> None:
        thread.start()
        until_waiting(thread)

    tick.after = enqueue_meanwhile
    tick.enqueue(4)
    tick.work()
    thread.join(30)
    assert [(chain.deduplicated, chain.input) for chain in got] == [(True, 5)]
    assert open_inputs() == [5]


def until_waiting(thread):
    """Wait until the thread waits for the key, which only PostgreSQL reports, or has ended."""
    if connection.vendor == "postgresql":
        until(lambda: not thread.is_alive() or waits_for_a_key())


def waits_for_a_key():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype IN ('transactionid', 'tuple') AND NOT granted")
        return bool(cursor.fetchone()[0])


def test_many_concurrent_calls_create_no_second_successor(tick):
    stop = threading.Event()

    def keep_enqueueing():
        while not stop.is_set():
            tick.enqueue(100, delay=DAY)

    threads = [threading.Thread(target=on_own_connection, args=(keep_enqueueing,)) for _ in range(3)]
    tick.enqueue(0)
    for thread in threads:
        thread.start()
    tick.work()
    stop.set()
    for thread in threads:
        thread.join(30)
    assert tick.runs == [0, 1, 2, 3, 4]
    assert open_inputs() == [5]
    assert Job.objects.count() == 6


def test_completion_that_fails_rolls_back_the_successor_and_its_retry_enqueues_one(tick):
    def fail_once(job: RunningJob[Any]) -> None:
        if job.attempt == 1:
            raise OSError("no network")

    tick.after = fail_once
    tick.enqueue(4)

    def has_run_twice():
        tick.work()
        return tick.runs == [4, 4]

    until(has_run_twice)
    assert FailedAttempt.objects.count() == 1
    assert open_inputs() == [5]
    assert Job.objects.count() == 2
