"""When a worker queries for jobs: in time, and not more often than necessary."""

import time

import pytest
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import Concurrency, RescheduleJob
from django_jobchains.worker.claim_loop import ClaimLoop
from tests.support.connections import holding
from tests.support.statements import statements_of_others
from tests.support.waiting import until, until_completed
from tests.support.workers import completed

#: The longest wait without a poll, whose interval is a minute.
SOON = 15.0
#: How many statements an idle or full worker may send per second to renew leases, reap and listen.
MAX_IDLE_STATEMENTS = 40


@pytest.fixture
def block(processors, gate):
    return processors.register("worker.block")(lambda job: gate.wait(30))


def until_quiet(statements, limit=MAX_IDLE_STATEMENTS / 4):
    until(lambda: statements.per_second() < limit)


@pytest.mark.parametrize("delay", [0.05, 0.7])
def test_idle_worker_starts_a_scheduled_job_when_it_is_due(quick, start_worker, delay):
    start_worker()
    chain = quick.enqueue(delay=delay)
    until_completed(chain, delay + SOON)
    assert chain.current_job.last_attempt_at >= chain.current_job.run_at


@pytest.mark.slow
@pytest.mark.parametrize("error", [RescheduleJob(delay=0), RescheduleJob(delay=0.3), ValueError("backs off")], ids=repr)
def test_job_that_does_not_complete_runs_again_when_it_is_due(processors, start_worker, error):
    """This holds even if the worker queried during the attempt, and found no due time to wait for."""

    @processors.register("worker.again")
    def again(job):
        job.signal.wait(0.7)
        if job.attempt < 3:
            raise error

    start_worker()
    until_completed(again.enqueue(), 3 * (0.7 + 0.3) + SOON)


@pytest.mark.parametrize("is_committed_by_attempt", [True, False])
def test_continuation_starts_at_once_without_a_notifier(
    processors, start_worker, gate, monkeypatch, is_committed_by_attempt
):
    monkeypatch.setattr("django_jobchains.worker.end_writer.publish", lambda *args: None)
    monkeypatch.setattr("django_jobchains.notifications.sqlite.POLL_SECONDS", 60)

    @processors.register("worker.step")
    def step(job):
        gate.wait(30)
        if is_committed_by_attempt:
            with job.complete():
                return job.continue_with("worker.step", 0) if job.input else None
        return job.continue_with("worker.step", 0) if job.input else None

    chain = step.enqueue(1)
    worker = start_worker()
    wake = worker.components.context.wake
    until(lambda: worker.components.slots.running == 1 and not (wake.needs_slots or wake.will_query_soon))
    gate.set()
    until_completed(chain, SOON)


@pytest.mark.postgresql  # Hints of SQLite name no types.
def test_free_place_causes_no_query_for_other_types(quick, processors, start_worker, monkeypatch):
    """Otherwise the next job of a limit would wait for a query that finds nothing."""
    claimed, claim_now = [], ClaimLoop._claim_now

    def record(loop, lane, *args):
        claimed.append(set(lane.leases))
        return claim_now(loop, lane, *args)

    monkeypatch.setattr(ClaimLoop, "_claim_now", record)
    limited = processors.register("worker.limited", concurrency=Concurrency(1))(lambda job: job.signal.wait(0.02))
    start_worker()
    chains.enqueue_many([limited.item() for _ in range(50)])
    until(lambda: completed() == 50)
    assert claimed.count({"worker.limited"}) >= 50
    assert claimed.count({"worker.quick"}) < claimed.count({"worker.limited"}) / 2
    quick.enqueue()
    until(lambda: completed() == 51)


def test_idle_worker_is_quiet(quick, start_worker):
    with statements_of_others() as statements:
        start_worker(slots=50)
        quick.enqueue(delay=3600)
        until_quiet(statements)
        before = statements.count("UPDATE")
        quick.enqueue()
        until(lambda: completed() == 1)
        until_quiet(statements)
        assert statements.count("UPDATE") - before <= 10, "they depend on the number of idle slots"
        assert statements.connections <= 10


def test_full_worker_with_a_backlog_is_quiet(block, start_worker):
    chains.enqueue_many([block.item() for _ in range(50)])
    with statements_of_others() as statements:
        start_worker(slots=3)
        until(lambda: Job.objects.with_status("running").count() == 3)
        until_quiet(statements, MAX_IDLE_STATEMENTS)


def test_full_worker_takes_the_next_job_when_a_slot_is_free(processors, start_worker):
    short = processors.register("worker.short")(lambda job: job.signal.wait(0.05))
    chains.enqueue_many([short.item() for _ in range(40)])
    started = time.monotonic()
    start_worker(slots=4)
    until(lambda: completed() == 40)
    assert time.monotonic() - started < 10 * 0.05 + SOON


@pytest.mark.parametrize(("slots", "count"), [(1, 2), (2, 1)])
def test_slot_that_becomes_free_causes_a_query_only_if_no_others_were_free(block, gate, start_worker, slots, count):
    worker = start_worker(slots=slots)
    wake = worker.components.context.wake
    chains.enqueue_many([block.item() for _ in range(count)])
    until(lambda: worker.components.slots.running == 1 and wake.needs_slots == (count > slots))
    until(lambda: not wake.will_query_soon)
    gate.set()
    until(lambda: completed() == count, SOON)
    until(lambda: not wake.needs_slots)


def test_many_jobs_need_few_statements_each(quick, make_worker):
    chains.enqueue_many([quick.item() for _ in range(1_000)])
    with statements_of_others() as statements:
        make_worker(slots=10).run_until_idle()
    assert completed() == 1_000
    assert len(statements) - statements.count("data_version") < 700


@pytest.mark.postgresql
def test_locked_due_job_does_not_cause_constant_queries(quick, start_worker):
    chain = quick.enqueue(delay=0.3)
    other = holding(lambda store: store.attempts.lock(chain.id))
    with statements_of_others() as statements:
        start_worker()
        until(lambda: chain.current_job.run_at < timezone.now())
        until_quiet(statements, MAX_IDLE_STATEMENTS)
        other.result()
    until_completed(chain, SOON)
