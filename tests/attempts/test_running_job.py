"""The attributes of a running job, reasons of a rescheduling, and ids of continuations."""

import math
from typing import Any
from uuid import UUID

import pytest

from django_jobchains import chains
from django_jobchains.chains import DuplicateJobId
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from django_jobchains.processors import Backoff, JobType, Processors, RescheduleJob
from tests.support.attempts import committed

pytestmark = committed

after = JobType("after")


def attributes(job) -> tuple[Any, ...]:
    return job.chain_type_name, job.chain_index, job.type_name, job.attempt, job.worker


def test_job_has_the_attributes_of_its_chain_and_attempt(processors, work):
    seen = []

    @processors.register("first")
    def first(job):
        seen.append((attributes(job), Job.objects.get(pk=job.id).last_attempt_at == job.last_attempt_at))
        return job.continue_with("second")

    @processors.register("second")
    async def second(job):
        seen.append((attributes(job), job.last_attempt_at >= job.created_at))
        return job.continue_with("third")

    @processors.register("third", batch_limit=5)
    def third(jobs):
        seen.extend((attributes(job), job.last_attempt_at.tzinfo is not None) for job in jobs)

    chain = first.enqueue()
    work()
    worker = chain.refresh().current_job.completed_by
    assert worker
    assert seen == [
        (("first", 0, "first", 1, worker), True),
        (("first", 1, "second", 1, worker), True),
        (("first", 2, "third", 1, worker), True),
    ]


@pytest.mark.parametrize(("own", "limit"), [(None, 2), (1, 1), (3, 3)])
@pytest.mark.parametrize("batch_limit", [None, 3])
def test_job_knows_its_limit_and_whether_this_is_its_last_attempt(work, own, limit, batch_limit):
    seen = []
    processors = Processors(backoff=Backoff(initial_seconds=0))

    @processors.register("fails", max_attempts=2, batch_limit=batch_limit)
    def fails(given):
        job = given if batch_limit is None else given[0]
        seen.append((job.max_attempts, job.is_last_attempt))
        raise ValueError("no luck")

    chain = fails.enqueue(max_attempts=own)
    work(processors)
    assert seen == [(limit, number == limit) for number in range(1, limit + 1)]
    assert chain.refresh().status == "failed"


def test_job_without_a_limit_has_no_last_attempt(processors, work):
    seen = []

    @processors.register("endless", max_attempts=math.inf)
    def endless(job):
        seen.append((job.max_attempts, job.is_last_attempt))

    endless.enqueue()
    work()
    assert seen == [(math.inf, False)]


class TestReasons:
    """The reason of a ``RescheduleJob`` is the job's last error, which the next attempt can read."""

    @pytest.mark.parametrize(
        ("options", "cause", "text"),
        [
            ({"reason": "the bank is closed"}, None, "the bank is closed"),
            ({}, ValueError("busy"), "ValueError: busy"),
            ({"reason": "the bank is closed"}, ValueError("busy"), "the bank is closed"),
            ({"reason": "\0"}, None, "\ufffd"),
        ],
    )
    def test_reason_or_cause_becomes_the_last_error(self, processors, work, options, cause, text):
        seen = []

        @processors.register("later")
        def later(job):
            seen.append(job.last_error)
            if job.attempt == 1:
                raise RescheduleJob(delay=0, **options) from cause

        chain = later.enqueue()
        work()
        assert seen == [None, text]
        assert chain.refresh().last_error is None

    def test_jobs_of_a_batch_have_reasons(self, processors, work):
        @processors.register("later", batch_limit=2)
        def later(jobs):
            jobs[0].reschedule(delay=60, reason="not yet")

        chain = later.enqueue()
        work()
        assert chain.refresh().current_job.last_error == "not yet"

    def test_reason_must_be_a_string(self):
        with pytest.raises(TypeError, match="reason=5 is not a string"):
            RescheduleJob(delay=1, reason=5)


class TestIds:
    """``continue_with(id=…)`` in handlers and in ``chains.current_job()``."""

    def test_handler_chooses_the_id_of_the_next_job(self, processors, work):
        ids = [new_id() for _ in range(3)]

        @processors.register("plain")
        def plain(job):
            return job.continue_with(after, id=ids[0])

        @processors.register("completing")
        def completing(job):
            with job.complete():
                return job.continue_with(after, id=ids[1])

        @processors.register("batched", batch_limit=2)
        def batched(jobs):
            jobs[0].continue_with(after, id=ids[2])

        made = [plain.enqueue(), completing.enqueue(), batched.enqueue()]
        work()
        assert [chain.refresh().current_job_id for chain in made] == ids
        assert all(job.lease_number for job in Job.objects.filter(pk__in=ids))

    @pytest.mark.parametrize("is_completing", [False, True])
    def test_id_that_exists_fails_only_its_own_attempt(self, processors, work, is_completing):
        taken = after.enqueue()

        @processors.register("plain")
        def plain(job):
            if is_completing:
                with job.complete():
                    return job.continue_with(after, id=job.input and UUID(job.input))
            return job.continue_with(after, id=job.input and UUID(job.input))

        made = [plain.enqueue(), plain.enqueue(str(taken.id)), plain.enqueue()]
        work()
        assert [chain.refresh().current_job.chain_index for chain in made] == [1, 0, 1]
        failed = made[1].current_job
        assert (failed.status, failed.attempt) == ("pending", 1)
        assert failed.last_error.startswith("DuplicateJobId: ")
        assert Job.objects.get(pk=taken.id).status == "pending"

    @pytest.mark.parametrize("wrong", ["x", 5])
    def test_id_must_be_a_uuid(self, processors, work, wrong):
        @processors.register("plain", fail_on=TypeError)
        def plain(job):
            return job.continue_with(after, id=wrong)

        chain = plain.enqueue()
        work()
        assert (chain.refresh().status, chain.jobs.count()) == ("failed", 1)
        assert "id must be a uuid.UUID" in (chain.last_error or "")

    def test_id_may_be_chosen_without_a_worker(self):
        chain, taken, id_ = after.enqueue(), after.enqueue(), new_id()
        with chains.current_job(chain) as current:
            with pytest.raises(DuplicateJobId):
                current.continue_with(after, id=taken.id)
            current.continue_with(after, id=id_)
            assert current.job.id == id_
        assert [job.status for job in chain.refresh().jobs] == ["completed", "pending"]
