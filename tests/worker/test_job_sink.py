"""Several outcomes of jobs in one batch of the outcome writer: which of them are written, reported and counted."""

import time

import pytest
from django.db import OperationalError

from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded
from django_jobchains.worker.end_writer import JobSink
from tests.support.jobs import failed_try, finished, running, statuses, taken_over
from tests.support.workers import context_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def context(store):
    return context_for(store)


@pytest.fixture
def jobs(store, context):
    jobs = running(store, 2)
    for job in jobs:
        context.leases.hold(job.key, 60, time.monotonic(), job.queue)
    return jobs


def completed(job):
    return Outcome(job, OutcomeKind.COMPLETED, finished(job))


@pytest.mark.parametrize("was_noticed", [True, False])
def test_a_lost_job_among_others_is_abandoned_reported_once_and_not_counted(store, context, jobs, events, was_noticed):
    taken_over(store, jobs[0])
    if was_noticed:  # by the renewal of leases, which reports it
        assert list(context.leases.check()) == [jobs[0].key]
    sink, outcomes = JobSink(context), [completed(job) for job in jobs]
    assert sink.write(outcomes, set()) == []
    sink.release(outcomes)
    assert [event.ending for event in events.of(AttemptEnded)] == ["abandoned", "completed"]
    assert len(events.of(AttemptAbandoned)) == (0 if was_noticed else 1)
    assert [sums.completed for sums in context.counter._sums.values()] == [1]
    assert len(context.leases) == 0


def test_what_is_written_before_an_error_is_not_written_again(store, context, jobs, events, monkeypatch):
    sink, calls = JobSink(context), []
    outcomes = [completed(jobs[0]), Outcome(jobs[1], OutcomeKind.RETRIED, failed=failed_try(jobs[1]))]
    finish = store.attempts.finish
    monkeypatch.setattr(store.attempts, "finish", lambda *args: calls.append(args) or finish(*args))
    with monkeypatch.context() as patched, pytest.raises(OperationalError):
        patched.setattr(store.attempts, "reschedule", lambda *args: (_ for _ in ()).throw(OperationalError("away")))
        sink.write(outcomes, set())
    assert [sink.has_written(outcome) for outcome in outcomes] == [True, False]
    assert sink.write(outcomes, set()) == []
    sink.release(outcomes)
    assert len(calls) == 1
    assert statuses(*jobs) == ["completed", "pending"]
    assert [event.ending for event in events.of(AttemptEnded)] == ["completed", "retried"]
