"""Jobs of dead workers: rows with a lease that has run out, as a kill leaves them."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, JobType, Lease, Processors, Registry, RunningJob
from django_jobchains.store import Renewal
from django_jobchains.telemetry.events import JobReaped, ThreadFailed
from tests.worker.fixtures import Events, StartWorker
from tests.worker.waiting import stays, until, until_completed


@pytest.fixture(autouse=True)
def _reaps_at_once(settings: Any) -> None:
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 0.1, "BACKOFF_JITTER": 0}


@pytest.fixture
def quick(processors: Processors) -> JobType[Any, Any]:
    return processors.register("worker.quick")(lambda job: job.attempt)


def orphaned(job_type: JobType[Any, Any], count: int = 1, lease_ended: float = 1.0, **facts: Any) -> list[Job]:
    """Running jobs of a worker that does not exist."""
    enqueued = chains.enqueue_many([job_type.item() for _ in range(count)])
    now = timezone.now()
    jobs = Job.objects.filter(pk__in=[chain.id for chain in enqueued])
    jobs.update(
        status="running",
        attempt=1,
        lease_number=1,
        leased_by="dead",
        leased_until=now - timedelta(seconds=lease_ended),
        last_attempt_at=now - timedelta(seconds=lease_ended + 1),
    )
    jobs.update(**facts) if facts else None
    return list(jobs)


def test_a_dead_workers_job_is_taken_over(quick: JobType[Any, Any], start_worker: StartWorker, events: Events) -> None:
    (job,) = orphaned(quick)
    start_worker(poll_seconds=0.2)
    until(lambda: Job.objects.filter(pk=job.pk, status="completed").exists())
    job.refresh_from_db()
    assert (job.attempt, job.lease_number, job.crashes, job.output) == (2, 2, 1, 2)
    assert [(event.job_id, event.status, event.crashes) for event in events.of(JobReaped)] == [(job.id, "pending", 1)]
    crash = FailedAttempt.objects.get()
    assert (crash.job_id, crash.kind, crash.attempt, crash.lease_number, crash.worker) == (
        job.id,
        "crash",
        1,
        1,
        "dead",
    )


def test_a_crashed_job_backs_off_by_the_nearest_policy(
    registry: Registry, settings: Any, start_worker: StartWorker
) -> None:
    """Processor, slice, worker, settings. A worker's own policy is not about types that it does not serve."""
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 40, "BACKOFF_JITTER": 0}
    part, bare = Processors(backoff=backoff(200)), Processors()
    registry.add(part)
    registry.add(bare)
    expected = {
        part.register("worker.own", backoff=backoff(100))(nothing): 100,
        part.register("worker.of_slice")(nothing): 200,
        bare.register("worker.bare")(nothing): 300,
        part.register("other.of_slice")(nothing): 200,
        bare.register("other.bare")(nothing): 40,
        JobType("worker.unknown"): 40,
    }
    crashed = [(orphaned(job_type)[0], seconds) for job_type, seconds in expected.items()]
    crashed += [(orphaned(job_type, crashes=2)[0], 4 * seconds) for job_type, seconds in expected.items()]
    start_worker(types=["worker.*"], backoff=backoff(300))
    until(lambda: Job.objects.with_status("pending").count() == len(crashed))
    for job, seconds in crashed:
        job.refresh_from_db()
        assert (job.run_at - job.failed_attempts.get().finished_at).total_seconds() == pytest.approx(seconds, abs=0.1)


def nothing(job: RunningJob[None]) -> None: ...


def backoff(seconds: float) -> Backoff:
    return Backoff(seconds, multiplier=2, maximum_seconds=10_000, jitter=0)


def test_a_crashed_job_starts_when_its_backoff_ends(processors: Processors, start_worker: StartWorker) -> None:
    quick = processors.register("worker.quick", backoff=backoff(1))(lambda job: job.attempt)
    (job,) = orphaned(quick, lease_ended=-0.5)
    start_worker(poll_seconds=60)
    until(lambda: Job.objects.filter(pk=job.pk, status="completed").exists(), 6)


def test_a_job_that_crashed_too_often_fails(
    quick: JobType[Any, Any], settings: Any, start_worker: StartWorker, events: Events
) -> None:
    settings.JOBCHAINS = {**settings.JOBCHAINS, "MAX_CRASHES": 3}
    (job,) = orphaned(quick, crashes=2)
    start_worker(poll_seconds=0.2)
    until(lambda: Job.objects.filter(pk=job.pk, status="failed").exists())
    job.refresh_from_db()
    assert (job.crashes, job.attempt, job.leased_by) == (3, 1, None)
    assert job.finished_at is not None
    assert "dead" in str(job.last_error)
    until(lambda: [event.status for event in events.of(JobReaped)] == ["failed"])


def test_a_lease_that_has_not_ended_is_left_alone(quick: JobType[Any, Any], start_worker: StartWorker) -> None:
    (job,) = orphaned(quick, lease_ended=-3600)
    start_worker(poll_seconds=0.1)
    assert stays(lambda: Job.objects.filter(pk=job.pk, status="running", lease_number=1).exists(), 0.5)


def test_more_orphans_than_fit_one_transaction_are_taken_back_at_once(
    quick: JobType[Any, Any], settings: Any, start_worker: StartWorker
) -> None:
    settings.JOBCHAINS = {**settings.JOBCHAINS, "REAP_SECONDS": 3600}
    orphaned(quick, count=250)
    start_worker(poll_seconds=0.2)
    until(lambda: Job.objects.with_status("completed").count() == 250)
    assert set(Job.objects.values_list("crashes", flat=True)) == {1}


def test_a_live_worker_is_told_that_its_job_was_taken_back(
    processors: Processors, start_worker: StartWorker, settings: Any
) -> None:
    """Long before it would renew the lease, and notice by itself."""
    reasons: list[str | None] = []

    @processors.register("worker.slow", lease=Lease(600))
    def slow(job: RunningJob[None]) -> None:
        if job.attempt == 1:
            job.signal.wait(30)
            reasons.append(job.signal.reason)
        until(lambda: reasons)  # else the first attempt could find its job completed

    start_worker()
    chain = slow.enqueue()
    until(lambda: Job.objects.filter(pk=chain.id, status="running").exists())
    Job.objects.filter(pk=chain.id).update(leased_until=timezone.now() - timedelta(seconds=1))
    start_worker()
    until(lambda: reasons == ["taken_by_another_worker"], 15)
    until_completed(chain)


def test_a_worker_does_not_take_back_its_own_jobs(
    processors: Processors, start_worker: StartWorker, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends them itself: a new attempt beside the old one, in one worker, helps nobody."""

    @processors.register("worker.long", lease=Lease(0.2))
    def long(job: RunningJob[None]) -> None:
        job.signal.wait(0.1)
        until(lambda: Job.objects.filter(pk=job.id, leased_until__lt=timezone.now() - timedelta(seconds=0.5)).exists())

    worker = start_worker()
    monkeypatch.setattr(worker.store, "renew", lambda leases: Renewal(lost={}, cancelled=set()))  # renews nothing
    chain = long.enqueue()
    until_completed(chain)
    assert (chain.current_job.attempt, chain.current_job.crashes) == (1, 0)
    assert events.of(ThreadFailed) == []  # the part of the worker that renews works


@pytest.mark.postgresql
def test_a_row_that_a_transaction_holds_is_left_alone(quick: JobType[Any, Any], start_worker: StartWorker) -> None:
    """As a live attempt does whose complete() takes longer than its lease."""
    (held,), (free,) = orphaned(quick), orphaned(quick)
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=held.pk)
            locked.set()
            release.wait(30)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(10)
    start_worker(poll_seconds=0.2)
    until(lambda: Job.objects.filter(pk=free.pk, status="completed").exists())
    assert stays(lambda: Job.objects.filter(pk=held.pk, lease_number=1, status="running").exists(), 0.3)
    release.set()
    thread.join()
    until(lambda: Job.objects.filter(pk=held.pk, status="completed", crashes=1).exists())
