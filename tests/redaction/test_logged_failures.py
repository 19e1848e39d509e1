"""How failed attempts are logged: level, template, fields and error, without payloads."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from django_jobchains.processors import (
    Backoff,
    Continuation,
    FailJob,
    JobType,
    Processors,
    Registry,
    RescheduleJob,
    RunningJob,
)
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import JobReaped
from django_jobchains.worker import Worker
from tests.support.attempts import committed

pytestmark = committed

SECRET = "c4n4ry"

Run = Callable[..., list[logging.LogRecord]]


@pytest.fixture
def run(caplog):
    """Return a function that runs a handler with several inputs and returns the log records of its attempts."""

    def run(handler: Callable[[RunningJob[Any]], Any], *inputs: Any, **options: Any) -> list[logging.LogRecord]:
        registry, part = Registry(), Processors(backoff=Backoff(100))
        registry.add(part)
        job_type = part.register("shop.broken", **options)(handler)
        for value in inputs:
            job_type.enqueue(value)
        with caplog.at_level(logging.DEBUG, "django_jobchains"):
            Worker(slots=1, registry=registry).run_until_idle()
        return [record for record in caplog.records if getattr(record, "event", "") == "AttemptEnded"]

    return run


def fail(job: RunningJob[Any]) -> None:
    card = job.input
    raise (FailJob if card == "fails" else ValueError)("no luck")


def test_a_failed_attempt_is_a_warning_and_a_failed_job_an_error_with_one_template(run):
    records = run(fail, "tries", "fails")
    assert [record.levelname for record in records] == ["WARNING", "ERROR"]
    assert records[0].msg == records[1].msg, "log search cannot group them"
    for record, job in zip(records, Job.objects.order_by("id"), strict=True):
        fields = record.jobchains
        assert (fields["job_id"], fields["chain_id"]) == (job.id, job.chain_id)
        assert (fields["type_name"], fields["attempt"]) == ("shop.broken", 1)
        assert "exception" not in fields


def test_records_contain_the_error_for_error_trackers(run):
    (record,) = run(fail, "tries")
    assert record.exc_info is not None
    kind, error, calls = record.exc_info
    assert kind is ValueError
    assert str(error) == "no luck"
    names = []
    while calls:
        names.append(calls.tb_frame.f_code.co_name)
        assert not calls.tb_frame.f_locals, "an error tracker would send the input"
        calls = calls.tb_next
    assert names[-1] == "fail"


def test_local_variables_of_a_cause_are_removed(run):
    def charge(job: RunningJob[Any]) -> None:
        try:
            fail(job)
        except ValueError as error:
            raise ExceptionGroup("several", [error]) from error

    (record,) = run(charge, "tries")
    assert record.exc_info is not None
    cause = record.exc_info[1].__cause__
    assert cause is not None
    assert cause.__traceback__ is not None
    assert not cause.__traceback__.tb_frame.f_locals


def test_an_error_with_a_secret_is_logged_as_a_redacted_copy(run):
    def leak(job: RunningJob[Any]) -> None:
        raise LookupError(f"token={SECRET}")

    (record,) = run(leak, None)
    assert record.exc_info is not None
    kind, error, _ = record.exc_info
    assert (kind.__name__ if kind else "", str(error)) == ("LookupError", "token=********")
    assert SECRET not in logging.Formatter().format(record)


def test_rescheduling_is_not_logged_as_a_failure(run):
    def later(job: RunningJob[Any]) -> None:
        raise RescheduleJob(delay=60)

    (record,) = run(later, None)
    assert (record.levelname, record.exc_info) == ("DEBUG", None)


@pytest.mark.parametrize(("status", "level"), [("pending", "WARNING"), ("cancelled", "WARNING"), ("failed", "ERROR")])
def test_a_crash_is_an_error_if_it_ends_the_job(caplog, status, level):
    report(JobReaped("worker", Job().id, Job().id, "shop.broken", 1, status, 1))
    assert [record.levelname for record in caplog.records] == [level]


NEEDED: JobType[Any, Any] = JobType("shop.needed")
DEPENDENT: JobType[Any, Any] = JobType("shop.dependent", on_blocker_failure="fail")


def failed_with_blocker(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", "") == "BlockedJobFailed"]


def fail_in_a_worker(blocker: Chain) -> None:
    registry, part = Registry(), Processors()
    registry.add(part)
    part.register(NEEDED)(fail)
    Worker(slots=1, registry=registry).run_until_idle()


@pytest.mark.parametrize("end", [fail_in_a_worker, lambda blocker: chains.cancel(blocker)], ids=["fails", "cancelled"])
def test_a_job_that_fails_with_its_blocker_is_an_error(caplog, end):
    blocker = NEEDED.enqueue("fails")
    job = DEPENDENT.enqueue(blockers=[blocker]).current_job
    end(blocker)
    (record,) = failed_with_blocker(caplog)
    fields = record.jobchains
    assert record.levelname == "ERROR"
    assert (fields["job_id"], fields["chain_id"], fields["type_name"]) == (job.id, job.chain_id, "shop.dependent")
    assert fields["error"] == Job.objects.get(pk=job.pk).last_error


def test_a_failure_with_a_blocker_is_logged_only_after_the_commit(caplog):
    blocker = NEEDED.enqueue()
    DEPENDENT.enqueue(blockers=[blocker])
    with transaction.atomic():
        chains.cancel(blocker)
        transaction.set_rollback(True)
    assert not failed_with_blocker(caplog)
    with transaction.atomic():
        chains.cancel(blocker)
        assert not failed_with_blocker(caplog)
    assert len(failed_with_blocker(caplog)) == 1


def test_a_continuation_that_fails_with_its_blocker_is_logged(run, caplog):
    blocker = NEEDED.enqueue()
    chains.cancel(blocker)

    def go_on(job: RunningJob[Any]) -> Continuation:
        with job.complete():
            return job.continue_with(DEPENDENT, None, blockers=[blocker])

    (attempt,) = run(go_on, None)
    (record,) = failed_with_blocker(caplog)
    assert record.jobchains["chain_id"] == attempt.jobchains["chain_id"]
