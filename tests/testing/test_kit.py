"""The testing kit as a project uses it, with pytest fixtures and in a TestCase."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.apps import apps
from django.db import IntegrityError, connection
from django.test import TestCase

from django_jobchains import chains
from django_jobchains.exceptions import ChainTimeout, FailJob, RescheduleJob
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Processors, Registry, RunningJob
from django_jobchains.store import get_store
from django_jobchains.testing import assert_enqueued, clock, run_due_jobs
from tests.shop.models import Effect


@pytest.fixture
def double(processors):
    @processors.register("kit.double")
    def double(job: RunningJob[int]) -> int:
        return job.input * 2

    return double


def test_due_jobs_run_in_the_thread_and_transaction_of_the_test(jobchains, double):
    chain = double.enqueue(4)
    (outcome,) = jobchains.run_due_jobs()
    assert (outcome.job.id, outcome.ending, outcome.error) == (chain.id, "completed", "")
    assert chain.result(timeout=0) == 8
    assert connection.in_atomic_block


@dataclass(frozen=True)
class Parcel:
    order_id: int


@pytest.fixture
def pack(processors):
    @processors.register("kit.pack")
    def pack(job: RunningJob[Parcel]) -> int:
        return job.input.order_id

    return pack


def test_outcomes_contain_the_stored_job_with_its_decoded_input(jobchains, pack):
    chain = pack.enqueue(Parcel(7))
    (outcome,) = jobchains.run_due_jobs()
    assert isinstance(outcome.job, Job)
    assert outcome.job.input == Parcel(7)
    assert (outcome.job.chain_id, outcome.job.status, outcome.job.output) == (chain.id, "completed", 7)


def test_the_outcome_of_an_invalid_input_contains_the_stored_value(jobchains, pack):
    Job.objects.filter(pk=pack.enqueue(Parcel(7)).id).update(input={"order": 7})
    (outcome,) = jobchains.run_due_jobs()
    assert (outcome.ending, outcome.job.status, outcome.job.input) == ("failed", "failed", {"order": 7})


def test_the_outcome_of_a_job_that_its_handler_deletes_contains_the_job(jobchains, processors):
    chain = processors.register("kit.delete")(lambda job: chains.delete(job.chain_id)).enqueue(7)
    (outcome,) = jobchains.run_due_jobs()
    assert (outcome.job.id, outcome.job.input) == (chain.id, 7)


def test_jobs_that_become_due_meanwhile_run_too(jobchains, processors, double):
    @processors.register("kit.first")
    def first(job: RunningJob[None]) -> Any:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="first")
            return job.continue_with(double, 1, blockers=[double.enqueue(5)])

    chain = first.enqueue()
    ended = [(outcome.job.type_name, outcome.ending) for outcome in jobchains.run_due_jobs()]
    assert ended == [("kit.first", "continued"), *[("kit.double", "completed")] * 2]
    assert (chain.status, chain.output, Effect.objects.count()) == ("completed", 2, 1)


def test_the_number_of_attempts_can_be_limited(jobchains, double):
    chains.enqueue_many([double.item(number) for number in range(5)])
    assert len(jobchains.run_due_jobs(limit=2)) == 2
    assert len(jobchains.run_due_jobs()) == 3


def test_jobs_of_a_batch_are_handled_together_and_the_limit_counts_jobs(jobchains, processors):
    sizes = []

    @processors.register("kit.batch", batch_limit=3)
    def batch(jobs):
        sizes.append(len(jobs))
        with jobs.complete():
            for job in jobs:
                job.finish(job.input)

    for limit, expected in ((None, [3, 2]), (4, [3, 1])):
        chains.enqueue_many([batch.item(number) for number in range(5)])
        assert len(jobchains.run_due_jobs(limit=limit)) == sum(expected)
        assert sizes == expected
        sizes.clear()
    assert sorted(Job.objects.with_status("completed").values_list("output", flat=True)) == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_an_endless_chain_is_an_error(jobchains, processors, monkeypatch):
    monkeypatch.setattr("django_jobchains.testing.runner.ATTEMPTS_LIMIT", 20)
    processors.register("kit.for_ever")(lambda job: job.continue_with("kit.for_ever")).enqueue()
    with pytest.raises(AssertionError, match="Jobs are still due after 20 attempts"):
        jobchains.run_due_jobs()


def test_after_an_error_the_clock_starts_the_next_attempt(jobchains, processors):
    @processors.register("kit.second_time")
    def second_time(job: RunningJob[None]) -> int:
        if job.attempt == 1:
            raise RuntimeError("not yet")
        return job.attempt

    chain = second_time.enqueue()
    (outcome,) = jobchains.run_due_jobs()
    assert (outcome.ending, outcome.error) == ("retried", "RuntimeError: not yet")
    assert jobchains.run_due_jobs() == []
    jobchains.clock.advance(timedelta(seconds=11))
    assert len(jobchains.run_due_jobs()) == 1
    assert chain.result(timeout=0) == 2
    assert FailedAttempt.objects.count() == 1


def test_errors_can_be_raised(jobchains, processors):
    @processors.register("kit.broken")
    def broken(job: RunningJob[None]) -> None:
        raise FailJob("no use")

    chain = broken.enqueue()
    with pytest.raises(AssertionError, match=r"(?s)kit\.broken .* was not completed.*FailJob: no use"):
        jobchains.run_due_jobs(raise_errors=True)
    assert chain.status == "failed"


def test_a_database_error_of_a_handler_does_not_break_the_transaction_of_the_test(jobchains, processors):
    @processors.register("kit.twice")
    def twice(job: RunningJob[None]) -> None:
        Effect.objects.create(id=1, job_id=job.id, label="a")
        Effect.objects.create(id=1, job_id=job.id, label="a")

    twice.enqueue()
    (outcome,) = jobchains.run_due_jobs()
    assert outcome.error.startswith(IntegrityError.__name__)
    assert Job.objects.get().status == "pending"


def test_a_scheduled_job_runs_after_the_clock_was_advanced(jobchains, double):
    chain = double.enqueue(1, delay=timedelta(days=30))
    assert jobchains.run_due_jobs() == []
    with pytest.raises(ChainTimeout):
        chain.result(timeout=0)
    jobchains.clock.advance(timedelta(days=30))
    assert len(jobchains.run_due_jobs()) == 1


def test_the_clock_is_reset_after_the_block_and_cannot_go_back():
    with clock() as moved:
        moved.advance(100)
        assert get_store().db.ahead_seconds == 100
        with pytest.raises(ValueError, match="by=-1 is not a duration"):
            moved.advance(-1)
        with pytest.raises(TypeError, match="by='5x' is not a duration"):
            moved.advance("5x")
        with clock() as inner:
            inner.advance(1)
        assert get_store().db.ahead_seconds == 100
    assert get_store().db.ahead_seconds == 0


def test_enqueued_jobs_are_found_by_type_and_input(jobchains, double):
    chains.enqueue_many([double.item(number) for number in (1, 2, 2)])
    jobchains.assert_enqueued(double, count=3)
    jobchains.assert_enqueued("kit.double", input=1)
    assert [job.input for job in jobchains.assert_enqueued(double, input=2, count=2)] == [2, 2]
    jobchains.assert_enqueued(double, input=9, count=0)


def test_a_failed_assertion_lists_the_existing_jobs(jobchains, double):
    double.enqueue(7)
    message = r"Jobs of 'kit\.double' with input 8: expected 1, found 0\. All jobs of the type:\n  pending: 7"
    with pytest.raises(AssertionError, match=message):
        jobchains.assert_enqueued(double, input=8)


def test_rescheduled_jobs_can_be_tested(jobchains, processors):
    @processors.register("kit.poll")
    def poll(job: RunningJob[None]) -> str:
        if job.attempt < 3:
            raise RescheduleJob(delay=3600)
        return "there"

    chain = poll.enqueue()
    for _ in range(3):
        jobchains.run_due_jobs()
        jobchains.clock.advance(timedelta(hours=1, seconds=1))
    assert chain.result(timeout=0) == "there"


class InATestCase(TestCase):
    """A Django TestCase needs no fixture."""

    def setUp(self):
        config = apps.get_app_config("django_jobchains")
        self.enterContext(patch.object(config, "registry", Registry()))
        config.registry.add(processors := Processors())

        @processors.register("tests.echo")
        def echo(job):
            return job.input

    def test_it_works(self):
        chain = chains.enqueue("tests.echo", {"a": 1})
        with clock() as moved:
            moved.advance(1)
            assert [outcome.ending for outcome in run_due_jobs()] == ["completed"]
        assert_enqueued("tests.echo", {"a": 1})
        assert chain.output == {"a": 1}
