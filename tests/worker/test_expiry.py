"""Workers cancel jobs that have expired instead of starting them, and report them."""

import threading
from datetime import timedelta

import pytest

from django_jobchains import chains, queues
from django_jobchains.models import Job
from django_jobchains.processors import Deduplicate
from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.events import ChainEnded, JobExpired
from tests.support.jobs import database_now
from tests.support.waiting import until

MINUTE = timedelta(minutes=1)


@pytest.fixture
def ended():
    """The events of chains that have ended."""
    found = []

    def sink(event):
        if isinstance(event, ChainEnded):
            found.append(event)

    add_sink(sink, ChainEnded)
    yield found
    remove_sink(sink)


def late(job_type, count=1, **options):
    return chains.enqueue_many([job_type.item(expires=database_now() - MINUTE, **options) for _ in range(count)])


def facts(job_type):
    jobs = Job.objects.of_type(job_type.name)
    return sorted((job.status, job.is_expired, job.attempt) for job in jobs)


@pytest.fixture
def batch(processors):
    return processors.register("worker.batch", batch_limit=5)(lambda batch: None)


@pytest.fixture
def isolated(processors):
    return processors.register("worker.isolated", isolation="process")(lambda job: None)


@pytest.fixture
def on_loop(processors):
    async def handler(job):
        raise AssertionError("It runs late.")

    return processors.register("worker.on_loop")(handler)


@pytest.mark.parametrize("kind", ["quick", "batch", "isolated", "on_loop"])
def test_expired_jobs_are_cancelled_and_others_run(request, quick, kind, make_worker, events, ended):
    """There are more expired jobs than slots, and they are the most urgent."""
    job_type = request.getfixturevalue(kind)
    expired = late(job_type, 30, priority=5)
    others = [quick.enqueue() for _ in range(3)]
    make_worker().run_until_idle()
    assert facts(job_type)[:30] == [("cancelled", True, 0)] * 30
    assert [chain.refresh().status for chain in others] == ["completed"] * 3
    reported = events.of(JobExpired)
    assert {(event.job_id, event.chain_id, event.type_name) for event in reported} == {
        (chain.id, chain.id, job_type.name) for chain in expired
    }
    assert len(reported) == 30
    until(lambda: len(ended) == 33)
    assert {event.chain_id for event in ended if event.status == "expired"} == {chain.id for chain in expired}


def test_expired_jobs_do_not_count_towards_the_limit_of_a_worker(quick, make_worker):
    late(quick, 5, priority=5)
    quick.enqueue()
    make_worker(max_jobs=1).run_until_idle()
    assert facts(quick) == [("cancelled", True, 0)] * 5 + [("completed", False, 1)]


def test_the_key_is_free_and_on_failure_does_not_fire(processors, make_worker):
    processors.register("worker.alert")(lambda job: None)
    job_type = processors.register("worker.with_alert", on_failure="worker.alert")(lambda job: None)
    key = Deduplicate("order-7")
    [chain] = late(job_type, deduplicate=key)
    make_worker().run_until_idle()
    assert chain.refresh().is_expired
    assert not Job.objects.of_type("worker.alert").exists()
    assert not job_type.enqueue(deduplicate=key).deduplicated


def test_maintenance_cancels_jobs_that_no_worker_claims(quick, start_worker, events, settings):
    settings.JOBCHAINS = {"SWEEP_SECONDS": 0.2}
    queues.pause("paused")
    paused = quick.enqueue(queue="paused", expires=timedelta(seconds=0.5))
    blocked = quick.enqueue(blockers=[quick.enqueue(delay=3600)], expires=timedelta(seconds=0.5))
    start_worker()
    until(lambda: len(events.of(JobExpired)) == 2)
    assert {event.job_id for event in events.of(JobExpired)} == {paused.id, blocked.id}
    assert [chain.refresh().is_expired for chain in (paused, blocked)] == [True, True]


@pytest.mark.parametrize("heeds", [False, True])
def test_a_stopping_worker_clears_the_limit_only_of_jobs_whose_handlers_it_has_called(
    processors, quick, make_worker, gate, heeds
):
    started = threading.Event()

    @processors.register("worker.long")
    def long(job):
        started.set()
        if heeds:
            job.signal.wait(30)
            job.signal.raise_if_aborted()
        gate.wait(30)

    called = long.enqueue(priority=1, expires=60 * MINUTE)
    chains.enqueue_many([quick.item(expires=60 * MINUTE) for _ in range(20)])
    worker = make_worker(slots=1)
    worker.components.slots.backlog.average_seconds = 0.001  # as after many short jobs: the worker claims ahead
    worker.start()
    assert started.wait(30)
    worker.stop(timeout=0)
    until(lambda: set(Job.objects.values_list("status", "attempt")) == {("pending", 0)})
    assert called.refresh().expires_at is None
    others = Job.objects.of_type(quick.name)
    assert not others.filter(expires_at=None).exists()
    assert others.filter(lease_number__gt=0).exists()


@pytest.mark.usefixtures("patient_stop")
@pytest.mark.parametrize("timeout", [60, 0])
@pytest.mark.parametrize("kind", ["quick", "isolated", "on_loop"])
def test_a_job_that_reaches_its_pool_while_the_worker_stops_has_not_begun(
    request, processors, kind, make_worker, monkeypatch, gate, timeout
):
    """It is returned to the queue while other handlers still run, if the worker waits for these."""
    long = processors.register("worker.long")(lambda job: gate.wait(30))
    job_type, worker = request.getfixturevalue(kind), make_worker()
    pool = next(lane.pool for lane in worker.components.lanes if job_type.name in lane.leases)
    is_claimed, is_closed, is_put, put = threading.Event(), threading.Event(), threading.Event(), pool.put

    def late(attempts):
        if job_type.name in [job.type_name for attempt in attempts for job in attempt.jobs]:
            is_claimed.set()
            is_closed.wait(30)
        put(attempts)
        if is_closed.is_set():
            is_put.set()

    monkeypatch.setattr(pool, "put", late)
    running = long.enqueue()
    worker.start()
    until(lambda: worker.running)
    chain = job_type.enqueue(expires=60 * MINUTE)
    assert is_claimed.wait(30)
    stopping = threading.Thread(target=worker.stop, args=[timeout])
    stopping.start()
    until(lambda: worker.components.slots._closed)
    is_closed.set()
    assert is_put.wait(30)
    if timeout:
        until(lambda: chain.refresh().status == "pending")
        assert running.refresh().status == "running"
    gate.set()
    stopping.join()
    assert (chain.refresh().status, chain.current_job.attempt) == ("pending", 0)
    assert chain.expires_at is not None
