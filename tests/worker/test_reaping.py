"""Jobs of dead workers: rows with an expired lease, as a killed process leaves them."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, JobType, Lease, Processors
from django_jobchains.store.rows import Renewal
from django_jobchains.telemetry.events import JobReaped, ThreadFailed
from tests.support.waiting import until, until_completed
from tests.support.workers import completed


@pytest.fixture(autouse=True)
def _reaps_at_once(settings):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 40, "BACKOFF_JITTER": 0}


def create_orphaned(job_type, count=1, lease_ended=1.0, **columns):
    """Create running jobs of a worker that does not exist."""
    now = timezone.now()
    row = {
        "status": "running", "attempt": 1, "lease_number": 1, "leased_by": "dead",
        "leased_until": now - timedelta(seconds=lease_ended),
        "last_attempt_at": now - timedelta(seconds=lease_ended + 1),
    }  # fmt: skip
    enqueued = chains.enqueue_many([job_type.item() for _ in range(count)])
    jobs = Job.objects.filter(pk__in=[chain.id for chain in enqueued])
    jobs.update(**{**row, **columns})
    return list(jobs)


def backoff(seconds):
    return Backoff(seconds, multiplier=2, maximum_seconds=10_000, jitter=0)


def until_backed_off(expected):
    """Wait until these jobs are pending. ``expected``: their waits in seconds."""
    until(lambda: Job.objects.with_status("pending").count() == len(expected))
    for job, seconds in expected:
        job.refresh_from_db()
        waits = (job.run_at - job.failed_attempts.get().finished_at).total_seconds()
        assert seconds <= waits < seconds + 30  # the database's clock is read again when the row is written


def test_job_of_a_dead_worker_is_reaped(quick, start_worker, events):
    (job,) = create_orphaned(quick)
    start_worker(poll_seconds=0.2)
    until(lambda: completed(pk=job.pk))
    job.refresh_from_db()
    assert (job.attempt, job.lease_number, job.crashes, job.output) == (2, 2, 1, 2)
    (event,) = until(lambda: events.of(JobReaped))
    assert (event.job_id, event.chain_id, event.type_name) == (job.id, job.chain_id, job.type_name)
    assert (event.attempt, event.status, event.crashes) == (1, "pending", 1)
    crash = FailedAttempt.objects.get()
    assert (crash.job_id, crash.kind, crash.attempt) == (job.id, "crash", 1)
    assert (crash.lease_number, crash.worker) == (1, "dead")


def test_crashed_job_backs_off_by_the_nearest_policy(registry, start_worker):
    """The order is processor, slice, worker, settings. A worker's policy applies only to types that it serves."""
    part, bare = Processors(backoff=backoff(200)), Processors()
    registry.add(part)
    registry.add(bare)
    expected = {
        part.register("worker.own", backoff=backoff(100))(lambda job: None): 100,
        part.register("worker.of_slice")(lambda job: None): 200,
        bare.register("worker.bare")(lambda job: None): 300,
        part.register("other.of_slice")(lambda job: None): 200,
        bare.register("other.bare")(lambda job: None): 40,
        JobType("worker.unknown"): 40,
    }
    crashed = [(create_orphaned(job_type)[0], seconds) for job_type, seconds in expected.items()]
    crashed += [(create_orphaned(job_type, crashes=2)[0], 4 * seconds) for job_type, seconds in expected.items()]
    start_worker(types=["worker.*"], backoff=backoff(300))
    until_backed_off(crashed)


def test_backoff_function_is_called_outside_transactions_after_a_crash(registry, start_worker):
    """The function gets the number of crashes and no error. If it raises, the default backoff applies."""
    called = []

    def delay(failures, error):
        called.append((failures, error, connection.in_atomic_block))
        return 100 * failures

    def failing_delay(failures, error):
        raise ValueError("no delay")

    part = Processors()
    registry.add(part)

    def crashed(name, backoff, crashes):
        return create_orphaned(part.register(name, backoff=backoff)(lambda job: None), crashes=crashes)[0]

    expected = [
        (crashed("worker.function", delay, 2), 300),
        (crashed("worker.fails", failing_delay, 1), 80),
        (crashed("worker.plain", Backoff(70, 1, 70, 0), 0), 70),
    ]
    start_worker()
    until_backed_off(expected)
    assert called == [(3, None, False)]


def test_crashed_job_starts_when_its_backoff_ends(processors, start_worker):
    quick = processors.register("worker.quick", backoff=backoff(1))(lambda job: job.attempt)
    create_orphaned(quick, lease_ended=-0.5)
    start_worker(poll_seconds=60)
    until(lambda: completed() == 1)


def test_job_that_crashed_too_often_fails(quick, settings, start_worker, events):
    settings.JOBCHAINS = {**settings.JOBCHAINS, "MAX_CRASHES": 3}
    (job,) = create_orphaned(quick, crashes=2)
    start_worker(poll_seconds=0.2)
    until(lambda: Job.objects.filter(pk=job.pk, status="failed").exists())
    job.refresh_from_db()
    assert (job.crashes, job.attempt, job.leased_by) == (3, 1, None)
    assert job.finished_at is not None
    assert "dead" in str(job.last_error)
    until(lambda: [event.status for event in events.of(JobReaped)] == ["failed"])


def test_more_expired_jobs_than_one_batch_are_reaped_at_once(quick, settings, start_worker):
    settings.JOBCHAINS = {**settings.JOBCHAINS, "REAP_SECONDS": 3600}
    create_orphaned(quick, count=250)
    start_worker(poll_seconds=0.2)
    until(lambda: completed(crashes=1) == 250)


def test_live_worker_is_notified_that_its_job_was_reaped(processors, start_worker):
    """The notification arrives long before the worker would notice the loss when it renews the lease."""
    reasons = []

    @processors.register("worker.slow", lease=Lease(600))
    def slow(job):
        if job.attempt == 1:
            job.signal.wait(30)
            reasons.append(job.signal.reason)
        until(lambda: reasons)  # otherwise the first attempt could find its job completed

    start_worker()
    chain = slow.enqueue()
    until(lambda: chain.refresh().status == "running")
    Job.objects.filter(pk=chain.id).update(leased_until=timezone.now() - timedelta(seconds=1))
    start_worker()
    until(lambda: reasons == ["taken_by_another_worker"])
    until_completed(chain)


def test_worker_does_not_reap_its_own_jobs(processors, start_worker, events, monkeypatch):
    """A worker ends its own attempts itself: another attempt in the same worker would not help."""

    @processors.register("worker.long", lease=Lease(0.2))
    def long(job):
        job.signal.wait(0.1)
        until(lambda: Job.objects.filter(pk=job.id, leased_until__lt=timezone.now() - timedelta(seconds=0.5)).exists())

    worker = start_worker()
    # Renews no lease, and reports no loss.
    monkeypatch.setattr(worker.store.leases, "renew", lambda leases: Renewal(lost={}, cancelled=set()))
    chain = long.enqueue()
    until_completed(chain)
    assert (chain.current_job.attempt, chain.current_job.crashes) == (1, 0)
    assert events.of(ThreadFailed) == []  # renewing leases did not fail
