"""Every way in which a job ends as failed enqueues the chain of its ``on_failure``, in the same transaction."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import FailJob, JobType
from django_jobchains.store.rows import Effects, EndedAttempt, FailedTry
from django_jobchains.testing import clock
from django_jobchains.worker import Worker
from tests.support.attempts import committed
from tests.support.waiting import until
from tests.support.worker_app import jobs as worker_jobs

pytestmark = committed

Run = Callable[..., None]
HELD = {"worker.broken": 60.0}


@pytest.fixture
def alert(processors, registry):
    """A type without a processor, so that its jobs stay pending."""
    job_type = JobType[Any, Any]("worker.alert")
    registry.add(job_type)
    return job_type


def broken(processors, alert, error=ValueError, **options):
    @processors.register("worker.broken", on_failure=alert, **options)
    def broken(job):
        raise error

    return broken.enqueue({"order": 7})


def assert_alerts_for(*failed, status="failed"):
    """Check that there is one alert for each of these jobs, with its error, and no other."""
    alerts = list(Job.objects.of_type("worker.alert"))
    assert {job.status for job in alerts} == {"pending"}
    expected = sorted(str(each.id) for each in failed)
    assert sorted(job.input["job_id"] for job in alerts) == expected
    found = Job.objects.in_bulk([each.id for each in failed])
    assert {job.status for job in found.values()} == {status}
    for job in alerts:
        assert job.input["error"] == next(
            each.last_error for each in found.values() if str(each.id) == job.input["job_id"]
        )


# Outcomes of handlers


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (FailJob("no"), {}),
        (KeyError("no"), {"fail_on": KeyError}),
        (KeyError("no"), {"retry_if": lambda error: False}),
        (KeyError("no"), {"max_attempts": 1}),
        (SystemExit(), {"max_attempts": 1}),
        (KeyError("no"), {"max_attempts": 1, "mode": "atomic"}),
    ],
)
def test_handler_that_fails_is_followed_by_an_alert(processors, alert, work, error, options):
    chain = broken(processors, alert, error, **options)
    work()
    assert_alerts_for(chain)


def test_failure_in_complete_is_followed_by_an_alert(processors, alert, work):
    @processors.register("worker.broken", on_failure=alert)
    def broken(job):
        with job.complete():
            raise FailJob("no")

    chain = broken.enqueue()
    work()
    assert_alerts_for(chain)


def test_failure_of_an_async_handler_is_followed_by_an_alert(processors, alert, work):
    @processors.register("worker.broken", on_failure=alert)
    async def broken(job):
        raise FailJob("no")

    chain = broken.enqueue()
    work()
    assert_alerts_for(chain)


def test_each_failed_job_of_a_batch_is_followed_by_an_alert(processors, alert, work):
    @processors.register("worker.broken", on_failure=alert, batch_limit=5)
    def broken(jobs):
        for job in jobs:
            if job.input:
                job.fail("no")

    enqueued = [broken.enqueue(fails) for fails in (True, False, True)]
    work()
    assert_alerts_for(enqueued[0], enqueued[2])


def test_invalid_input_is_followed_by_an_alert(processors, alert, work):
    processors.register("worker.broken", on_failure=alert, input=int)(lambda job: None)
    chain = JobType[Any, Any]("worker.broken").enqueue({"order": 7})
    work()
    assert_alerts_for(chain)
    assert Job.objects.of_type("worker.alert").get().input["input"] == {"order": 7}


def test_invalid_output_is_followed_by_an_alert(processors, alert, work):
    @processors.register("worker.broken", on_failure=alert, output=int, max_attempts=1)
    def broken(job):
        return "not a number"

    chain = broken.enqueue()
    work()
    assert_alerts_for(chain)


def test_outcome_that_cannot_be_written_is_followed_by_an_alert(processors, alert, work, store, monkeypatch):
    def refuse(*args, **kwargs):
        raise DatabaseError("the value is out of range")

    processors.register("worker.broken", on_failure=alert, max_attempts=1)(lambda job: "done")
    monkeypatch.setattr(store.attempts, "finish", refuse)
    chain = JobType[Any, Any]("worker.broken").enqueue()
    work()
    assert_alerts_for(chain)


def test_stuck_attempt_that_fails_is_followed_by_an_alert(processors, alert, settings, registry):
    """The handler still runs when the attempt fails."""
    settings.JOBCHAINS = {**settings.JOBCHAINS, "STUCK_SECONDS": 0.1}
    released = threading.Event()

    @processors.register("worker.broken", on_failure=alert, timeout=0.1, max_attempts=1)
    def broken(job):
        released.wait(15)

    chain = broken.enqueue()
    worker = Worker(slots=1)
    worker.start()
    until(lambda: chain.refresh().status == "failed")
    assert_alerts_for(chain)
    released.set()
    worker.stop(timeout=5)


def test_deferred_failure_is_followed_by_an_alert(processors, alert, store):
    chain = broken(processors, alert)
    [job] = store.jobs.claim("worker", 1, HELD)
    failed = FailedTry(job.id, job.lease_number, "ValueError: no", "")
    store.deferred.defer([EndedAttempt("failed", failed)])
    store.deferred.apply(10, 0, Effects())
    assert_alerts_for(chain)


# Jobs of crashed workers


@pytest.mark.slow
def test_last_allowed_crash_is_followed_by_an_alert(start_process):
    """The reaper of another process ends the job of a worker that was killed."""
    chain = worker_jobs.dies.enqueue("payload")
    killed = start_process(jobchains={"MAX_CRASHES": 1})
    killed.wait()
    start_process(jobchains={"MAX_CRASHES": 1})
    until(lambda: Job.objects.of_type("chaos.mourns").with_status("completed").exists(), 30)
    assert chain.refresh().status == "failed"
    [output] = Job.objects.of_type("chaos.mourns").values_list("output", flat=True)
    assert output == [str(chain.id), "chaos.dies", 1, chain.current_job.last_error, "payload"]


def test_reaper_enqueues_the_alert(processors, alert, store, work, settings):
    settings.JOBCHAINS = {**settings.JOBCHAINS, "MAX_CRASHES": 1, "REAP_SECONDS": 0.1}
    chain = broken(processors, alert)
    store.jobs.claim("dead", 1, HELD)
    with clock() as time:
        time.advance(61)
        worker = Worker(slots=1)
        worker.start()
        until(lambda: chain.refresh().status == "failed")
        worker.stop(timeout=5)
    assert_alerts_for(chain)


# Failed blockers


def blocked(processors, alert):
    """Return a chain, another one that fails with it, and the type of the other."""
    blocker = JobType[Any, Any]("worker.blocker").enqueue()
    dependent = processors.register("worker.dependent", on_failure=alert, on_blocker_failure="fail")(lambda job: None)
    return blocker, dependent.enqueue(blockers=[blocker]), dependent


def test_dependents_of_a_failed_blocker_are_followed_by_alerts(processors, alert, store):
    _, dependent, job_type = blocked(processors, alert)
    last = job_type.enqueue(blockers=[dependent])
    [job] = store.jobs.claim("worker", 1, {"worker.blocker": 60})
    store.attempts.fail([FailedTry(job.id, job.lease_number, "no", "")])
    assert_alerts_for(dependent, last)


def test_dependents_of_a_cancelled_blocker_are_followed_by_alerts(processors, alert):
    blocker, dependent, _ = blocked(processors, alert)
    chains.cancel(blocker)
    assert_alerts_for(dependent)


def test_job_created_after_its_blocker_failed_is_followed_by_an_alert(processors, alert):
    blocker, first, job_type = blocked(processors, alert)
    chains.cancel(blocker)
    assert_alerts_for(first, job_type.enqueue(blockers=[blocker]))


def test_retried_job_that_fails_with_its_blocker_is_followed_by_another_alert(processors, alert):
    blocker, dependent, _ = blocked(processors, alert)
    chains.cancel(blocker)
    Job.objects.of_type("worker.alert").delete()
    chains.retry(dependent)
    assert_alerts_for(dependent)


def test_job_that_the_sweeper_fails_is_followed_by_an_alert(processors, alert, store):
    blocker, dependent, _ = blocked(processors, alert)
    Job.objects.filter(pk=blocker.id).update(status="failed")
    store.blockers.sweep(10, None, Effects())
    assert_alerts_for(dependent)


# Repeated alerts, and no alerts


def test_job_that_fails_again_after_a_retry_is_followed_by_another_alert(processors, alert, work):
    chain = broken(processors, alert, FailJob("no"))
    work()
    chains.retry(chain)
    work()
    assert_alerts_for(chain, chain)
    assert [job.input["attempt"] for job in Job.objects.of_type("worker.alert").order_by("id")] == [1, 2]


def test_attempt_that_is_retried_has_no_alert(processors, alert, work):
    broken(processors, alert)
    work()
    assert not Job.objects.of_type("worker.alert").exists()


def test_cancelled_job_has_no_alert(processors, alert, store):
    pending, running = broken(processors, alert), JobType[Any, Any]("worker.broken").enqueue(priority=1)
    [job] = store.jobs.claim("worker", 1, HELD)
    chains.cancel([pending, running])
    store.attempts.fail([FailedTry(job.id, job.lease_number, "no", "")])
    assert {pending.refresh().status, running.refresh().status} == {"cancelled"}
    assert not Job.objects.of_type("worker.alert").exists()


def test_failure_that_is_rolled_back_has_no_alert(processors, alert, store):
    broken(processors, alert)
    [job] = store.jobs.claim("worker", 1, HELD)
    with transaction.atomic():
        store.attempts.fail([FailedTry(job.id, job.lease_number, "no", "")])
        assert Job.objects.of_type("worker.alert").exists()
        transaction.set_rollback(True)
    assert not Job.objects.of_type("worker.alert").exists()


def test_failure_with_an_outdated_lease_number_has_no_alert(processors, alert, store):
    broken(processors, alert)
    [job] = store.jobs.claim("worker", 1, HELD)
    store.attempts.fail([FailedTry(job.id, job.lease_number + 1, "no", "")])
    assert not Job.objects.of_type("worker.alert").exists()
