"""Every way in which a job ends as failed enqueues the chain of its ``on_failure``, in the same transaction."""

import threading

import pytest
from django.db import DatabaseError, transaction

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import FailJob, JobType
from django_jobchains.store.rows import Effects, EndedAttempt, FailedTry
from django_jobchains.testing import clock
from django_jobchains.worker import Worker
from tests.support.attempts import committed
from tests.support.scenario import JOBS, complete, kinds, outside
from tests.support.waiting import until
from tests.support.worker_app import jobs as worker_jobs

pytestmark = committed

HELD = {"scenario": 60.0}


@pytest.fixture
def alert(registry):
    """A type without a processor, so that its jobs stay pending."""
    job_type = JobType("worker.alert")
    registry.add(job_type)
    return job_type


@pytest.fixture
def broken(processors, alert):
    """Enqueue a job whose handler raises an error."""

    def broken(error=ValueError, **options):
        def handler(job):
            raise error

        return processors.register("scenario", on_failure=alert, **options)(handler).enqueue({"order": 7})

    return broken


def claimed(store, name="scenario"):
    [job] = store.jobs.claim("worker", 1, {name: 60})
    return job


def try_of(job, lease_number=None):
    return FailedTry(job.id, lease_number or job.lease_number, "no", "")


def alerts():
    return Job.objects.of_type("worker.alert")


def assert_alerts_for(*failed):
    """Check that there is one alert for each of these jobs, with its error, and no other."""
    assert {job.status for job in alerts()} == {"pending"}
    assert sorted(job.input["job_id"] for job in alerts()) == sorted(str(each.id) for each in failed)
    errors = {str(job.id): job.last_error for job in Job.objects.filter(status="failed")}
    assert all(job.input["error"] == errors[job.input["job_id"]] for job in alerts())


# Outcomes of handlers


def raises(error):
    def handler(jobs):
        yield outside(lambda: None)
        raise error

    return handler


def raises_in_complete(jobs):
    def fail():
        raise FailJob("no")

    yield complete(fail)


@kinds(*JOBS)
@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (raises(FailJob("no")), {}),
        (raises_in_complete, {}),
        (raises(KeyError("no")), {"fail_on": KeyError}),
        (raises(KeyError("no")), {"retry_if": lambda error: False}),
        (raises(KeyError("no")), {"max_attempts": 1}),
        (raises(SystemExit()), {"max_attempts": 1}),
    ],
)
def test_handler_that_fails_is_followed_by_an_alert(scenario, alert, work, handler, options):
    made = scenario.enqueue(handler, on_failure=alert, **options)
    work()
    assert_alerts_for(*made)


def test_each_failed_job_of_a_batch_is_followed_by_an_alert(processors, alert, work):
    @processors.register("worker.broken", on_failure=alert, batch_limit=5)
    def broken(jobs):
        for job in jobs:
            if job.input:
                job.fail("no")

    enqueued = [broken.enqueue(fails) for fails in (True, False, True)]
    work()
    assert_alerts_for(enqueued[0], enqueued[2])


@pytest.mark.parametrize("options", [{"input": int}, {"output": int, "max_attempts": 1}])
def test_invalid_payload_is_followed_by_an_alert(processors, alert, work, options):
    processors.register("scenario", on_failure=alert, **options)(lambda job: "not a number")
    chain = JobType("scenario").enqueue({"order": 7})
    work()
    assert_alerts_for(chain)
    assert alerts().get().input["input"] == {"order": 7}


def test_outcome_that_cannot_be_written_is_followed_by_an_alert(processors, alert, work, store, monkeypatch):
    def refuse(*args, **kwargs):
        raise DatabaseError("the value is out of range")

    processors.register("scenario", on_failure=alert, max_attempts=1)(lambda job: "done")
    monkeypatch.setattr(store.attempts, "finish", refuse)
    chain = JobType("scenario").enqueue()
    work()
    assert_alerts_for(chain)


def test_stuck_attempt_that_fails_is_followed_by_an_alert(processors, alert, settings):
    """The handler still runs when the attempt fails."""
    settings.JOBCHAINS = {**settings.JOBCHAINS, "STUCK_SECONDS": 0.1}
    released = threading.Event()
    handler = processors.register("scenario", on_failure=alert, timeout=0.1, max_attempts=1)
    chain = handler(lambda job: released.wait(15)).enqueue()
    worker = Worker(slots=1)
    worker.start()
    until(lambda: chain.refresh().status == "failed")
    assert_alerts_for(chain)
    released.set()
    worker.stop(timeout=5)


def test_deferred_failure_is_followed_by_an_alert(broken, store):
    chain = broken()
    store.deferred.defer([EndedAttempt("failed", try_of(claimed(store)))])
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


def test_reaper_enqueues_the_alert(broken, store, settings):
    settings.JOBCHAINS = {**settings.JOBCHAINS, "MAX_CRASHES": 1, "REAP_SECONDS": 0.1}
    chain = broken()
    store.jobs.claim("dead", 1, HELD)
    with clock() as time:
        time.advance(61)
        worker = Worker(slots=1)
        worker.start()
        until(lambda: chain.refresh().status == "failed")
        worker.stop(timeout=5)
    assert_alerts_for(chain)


# Failed blockers


@pytest.fixture
def blocker():
    return JobType("worker.blocker").enqueue()


@pytest.fixture
def dependent_type(processors, alert):
    return processors.register("worker.dependent", on_failure=alert, on_blocker_failure="fail")(lambda job: None)


def test_dependents_of_a_failed_blocker_are_followed_by_alerts(dependent_type, blocker, store):
    dependent = dependent_type.enqueue(blockers=[blocker])
    last = dependent_type.enqueue(blockers=[dependent])
    store.attempts.fail([try_of(claimed(store, "worker.blocker"))])
    assert_alerts_for(dependent, last)


def test_dependents_of_a_cancelled_blocker_are_followed_by_alerts_also_later(dependent_type, blocker):
    first = dependent_type.enqueue(blockers=[blocker])
    chains.cancel(blocker)
    assert_alerts_for(first)
    second = dependent_type.enqueue(blockers=[blocker])
    assert_alerts_for(first, second)
    alerts().delete()
    chains.retry(first)
    assert_alerts_for(first)


def test_job_that_the_sweeper_fails_is_followed_by_an_alert(dependent_type, blocker, store):
    dependent = dependent_type.enqueue(blockers=[blocker])
    Job.objects.filter(pk=blocker.id).update(status="failed")
    store.blockers.sweep(10, None, Effects())
    assert_alerts_for(dependent)


# Repeated alerts, and no alerts


def test_job_that_fails_again_after_a_retry_is_followed_by_another_alert(broken, work):
    chain = broken(FailJob("no"))
    work()
    chains.retry(chain)
    work()
    assert_alerts_for(chain, chain)
    assert [job.input["attempt"] for job in alerts().order_by("id")] == [1, 2]


def test_attempt_that_is_retried_has_no_alert(broken, work):
    broken()
    work()
    assert not alerts().exists()


def test_cancelled_job_has_no_alert(broken, store):
    pending, running = broken(), JobType("scenario").enqueue(priority=1)
    job = claimed(store)
    chains.cancel([pending, running])
    store.attempts.fail([try_of(job)])
    assert {pending.refresh().status, running.refresh().status} == {"cancelled"}
    assert not alerts().exists()


def test_failure_that_is_rolled_back_or_outdated_has_no_alert(broken, store):
    broken()
    job = claimed(store)
    store.attempts.fail([try_of(job, job.lease_number + 1)])
    assert not alerts().exists()
    with transaction.atomic():
        store.attempts.fail([try_of(job)])
        assert alerts().exists()
        transaction.set_rollback(True)
    assert not alerts().exists()
