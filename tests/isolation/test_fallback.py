"""Child processes that cannot start use no attempt, and a worker claims only as many jobs as it has children."""

import threading

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.pools import Isolation
from django_jobchains.telemetry.events import IsolationFailed, IsolationWeakened
from django_jobchains.worker.isolated.isolation_pool import IsolationPool
from tests.support.waiting import stays, until, until_completed

SETUP = "tests.isolation.broken:refuse"


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


def echo(processors, isolation):
    @processors.register("isolation.echo", isolation=isolation)
    def echo(job):
        return [job.input, job.attempt]

    return echo


def test_attempts_run_in_a_thread_instead(processors, start_worker, events):
    fallbacks = []
    isolation = Isolation("process", setup=SETUP, on_fallback=fallbacks.append)
    chain = echo(processors, isolation).enqueue("heard")
    worker = start_worker()
    until_completed(chain, 30)
    assert chain.output == ["heard", 1]
    assert not FailedAttempt.objects.exists()
    assert [(fallback.requested, fallback.actual) for fallback in fallbacks] == [("process", "thread")]
    assert "no child for this test" in events.of(IsolationWeakened)[0].reason
    [pool] = worker.health().pools
    assert (pool.level, pool.is_weakened, pool.cannot_start) == ("process", True, False)


def test_a_thread_is_neither_recycled_nor_measured_as_a_child_process():
    pool = IsolationPool(Isolation("process", setup=SETUP), slots=1, worker="")
    thread = pool.acquire()
    assert (thread.level, pool.state().workers, pool.state().rss_bytes) == ("thread", 1, 0)
    pool.release(thread)
    assert (pool.state().workers, pool.state().recycled) == (0, 0)


def test_jobs_of_a_strict_isolation_are_handed_back_and_tried_later(processors, start_worker, events, monkeypatch):
    monkeypatch.setattr("django_jobchains.worker.isolated.isolation_pool.RETRY_SECONDS", 0.5)
    chain = echo(processors, Isolation("process", setup=SETUP, strict=True)).enqueue("heard")
    start_worker()
    until(lambda: len(events.of(IsolationFailed)) >= 2, 30)
    job = until(lambda: chain.jobs.filter(status="pending").first())  # One read: the job is soon claimed again.
    assert (job.attempt, job.crashes) == (0, 0)
    assert job.lease_number <= len(events.of(IsolationFailed)) + 1  # it is not claimed in between
    assert not FailedAttempt.objects.exists()


def test_a_worker_is_not_idle_while_its_only_attempt_runs(processors, make_worker):
    @processors.register("isolation.slow", isolation=Isolation("process", setup=SETUP))
    def slow(job):
        job.signal.wait(0.5)
        job.signal.raise_if_aborted()

    chain = slow.enqueue()
    make_worker(poll_seconds=0.02, shutdown_seconds=0).run_until_idle()
    assert chain.refresh().status == "completed"


def test_no_job_is_claimed_without_a_child_for_it(processors, start_worker, gate):
    @processors.register("isolation.held", isolation=Isolation("process", max_workers=1, setup=SETUP))
    def held(job):
        gate.wait(30)

    quick = processors.register("isolation.quick")(lambda job: None)
    waiting = chains.enqueue_many([held.item() for _ in range(3)])
    start_worker(slots=4)
    running = Job.objects.of_type("isolation.held").with_status("running")
    until(lambda: running.count() == 1, 30)
    until_completed(quick.enqueue())
    assert stays(lambda: running.count() == 1, 0.5)
    gate.set()
    for chain in waiting:
        until_completed(chain, 30)
