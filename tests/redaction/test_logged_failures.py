"""How failed attempts are logged: level, template, fields and error, without payloads."""

import logging

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import Backoff, FailJob, JobType, Processors, Registry, RescheduleJob
from django_jobchains.worker import Worker
from tests.support.attempts import committed

pytestmark = committed

SECRET = "c4n4ry"
NEEDED = JobType("shop.needed")
DEPENDENT = JobType("shop.dependent", on_blocker_failure="fail")


@pytest.fixture
def logged(caplog):
    """Return a function that returns the log records of an event."""
    caplog.set_level(logging.DEBUG, "django_jobchains")
    return lambda event: [record for record in caplog.records if getattr(record, "event", "") == event]


@pytest.fixture
def run(logged):
    """Return a function that runs a handler with several inputs and returns the log records of its attempts."""

    def run(handler, *inputs, job_type="shop.broken"):
        registry, part = Registry(), Processors(backoff=Backoff(100))
        registry.add(part)
        registered = part.register(job_type)(handler)
        for value in inputs:
            registered.enqueue(value)
        Worker(slots=1, registry=registry).run_until_idle()
        return logged("AttemptEnded")

    return run


def fail(job):
    card = job.input
    raise (FailJob if card == "fails" else ValueError)("no luck")


def test_a_failed_attempt_is_a_warning_and_a_failed_job_an_error_with_one_template(run):
    records = run(fail, "tries", "fails")
    assert [record.levelname for record in records] == ["WARNING", "ERROR"]
    assert records[0].msg == records[1].msg, "log search cannot group them"
    for record, job in zip(records, Job.objects.order_by("id"), strict=True):
        known = {"job_id": job.id, "chain_id": job.chain_id, "type_name": "shop.broken", "attempt": 1}
        assert known.items() <= record.jobchains.items()
        assert "exception" not in record.jobchains


def test_records_contain_the_error_for_error_trackers_without_local_variables(run):
    def charge(job):
        try:
            fail(job)
        except ValueError as error:
            raise ExceptionGroup("several", [error]) from error

    [record] = run(charge, "tries")
    kind, error, calls = record.exc_info
    assert (kind, error.exceptions[0].args) == (ExceptionGroup, ("no luck",))
    names = []
    for first in (calls, error.__cause__.__traceback__):
        call = first
        while call:
            names.append(call.tb_frame.f_code.co_name)
            assert not call.tb_frame.f_locals, "an error tracker would send the input"
            call = call.tb_next
    assert {"charge", "fail"} <= set(names)


@pytest.mark.parametrize("cause", [None, KeyError("known")])
def test_records_do_not_contain_an_error_that_another_one_hides(run, cause):
    def charge(job):
        try:
            raise ValueError(job.input)
        except ValueError:
            raise LookupError("no card") from cause

    [record] = run(charge, SECRET)
    error = record.exc_info[1]
    assert (str(error), error.__cause__, error.__context__) == ("no card", cause, None)


def test_an_error_with_a_secret_is_logged_as_a_redacted_copy(run):
    def leak(job):
        raise LookupError(f"token={SECRET}")

    [record] = run(leak, None)
    kind, error, _ = record.exc_info
    assert (kind.__name__, str(error)) == ("LookupError", "token=********")
    assert SECRET not in logging.Formatter().format(record)


def test_rescheduling_is_not_logged_as_a_failure(run):
    def later(job):
        raise RescheduleJob(delay=60)

    [record] = run(later, None)
    assert (record.levelname, record.exc_info) == ("DEBUG", None)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_job_that_fails_with_its_blocker_is_an_error(run, logged, is_cancelled):
    blocker = NEEDED.enqueue("fails")
    job = DEPENDENT.enqueue(blockers=[blocker]).current_job
    if is_cancelled:
        chains.cancel(blocker)
    else:
        run(fail, job_type=NEEDED)
    [record] = logged("BlockedJobFailed")
    assert record.levelname == "ERROR"
    known = {"job_id": job.id, "chain_id": job.chain_id, "type_name": "shop.dependent"}
    assert {**known, "error": Job.objects.get(pk=job.pk).last_error}.items() <= record.jobchains.items()


def test_a_failure_with_a_blocker_is_logged_only_after_the_commit(logged):
    blocker = NEEDED.enqueue()
    DEPENDENT.enqueue(blockers=[blocker])
    for is_undone in (True, False):
        with transaction.atomic():
            chains.cancel(blocker)
            assert not logged("BlockedJobFailed")
            transaction.set_rollback(is_undone)
    assert len(logged("BlockedJobFailed")) == 1


def test_a_continuation_that_fails_with_its_blocker_is_logged(run, logged):
    blocker = NEEDED.enqueue()
    chains.cancel(blocker)

    def go_on(job):
        with job.complete():
            return job.continue_with(DEPENDENT, None, blockers=[blocker])

    [attempt] = run(go_on, None)
    [record] = logged("BlockedJobFailed")
    assert record.jobchains["chain_id"] == attempt.jobchains["chain_id"]
