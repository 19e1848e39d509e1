"""Each job of a batch has its own outcome: completed, failed, rescheduled or continued."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.exceptions import PhaseError, RegistryError
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.processors import Batch, JobType, RescheduleJob, RunningJob
from django_jobchains.telemetry.events import AttemptEnded
from tests.shop.models import Effect


def outputs(enqueued: list[Chain]) -> list[Any]:
    return [chain.refresh().output for chain in enqueued]


def jobs_of(enqueued: list[Chain]) -> list[Job]:
    return [chain.jobs.first() for chain in enqueued]


def test_handler_gets_at_most_batch_limit_jobs(processors, make_worker):
    sizes: list[int] = []

    @processors.register("batches.double", batch_limit=10)
    def double(jobs: Batch[int]) -> None:
        sizes.append(len(jobs))
        for job in jobs:
            job.finish(job.input * 2)

    enqueued = chains.enqueue_many([double.item(number) for number in range(25)])
    make_worker(slots=1).run_until_idle()
    assert outputs(enqueued) == [number * 2 for number in range(25)]
    assert sizes == [10, 10, 5]


def test_batch_does_not_wait_until_it_is_full(processors, make_worker):
    @processors.register("batches.count", batch_limit=100)
    def count(jobs: Batch[None]) -> None:
        for job in jobs:
            job.finish(len(jobs))

    chain = count.enqueue()
    make_worker().run_until_idle()
    assert chain.refresh().output == 1


def test_handler_that_returns_completes_the_jobs_without_an_outcome(processors, make_worker):
    @processors.register("batches.partial", batch_limit=5)
    def partial(jobs: Batch[int]) -> None:
        jobs[0].finish("first")

    enqueued = chains.enqueue_many([partial.item(number) for number in range(3)])
    make_worker().run_until_idle()
    assert outputs(enqueued) == ["first", None, None]
    assert {chain.status for chain in enqueued} == {"completed"}


def test_each_job_has_the_outcome_that_the_handler_gave_it(processors, make_worker):
    @processors.register("batches.next")
    def following(job: RunningJob[str]) -> str:
        return f"after {job.input}"

    @processors.register("batches.mixed", batch_limit=9, continues_with=[following])
    def mixed(jobs: Batch[str]) -> None:
        for job in jobs:
            if job.input == "finish":
                job.finish("finished")
            elif job.input == "continue":
                job.continue_with(following, job.input)
            elif job.input == "fail":
                job.fail("no good")
            elif job.input == "reschedule":
                job.reschedule(delay=3600)
            elif job.input == "retry" and job.attempt == 1:
                job.retry(ValueError("not yet"))

    names = ["finish", "continue", "fail", "reschedule", "retry"]
    finished, continued, failed, rescheduled, retried = chains.enqueue_many([mixed.item(name) for name in names])
    make_worker().run_until_idle()
    assert finished.refresh().output == "finished"
    assert continued.refresh().output == "after continue"
    assert (failed.refresh().status, failed.last_error) == ("failed", "FailJob: no good")
    job = rescheduled.refresh().current_job
    assert (job.status, (job.run_at - job.created_at).total_seconds() > 3500) == ("pending", True)
    assert (retried.refresh().status, retried.current_job.attempt) == ("completed", 2)
    assert FailedAttempt.objects.get(job_id=retried.id).error == "ValueError: not yet"


def test_error_of_the_handler_fails_only_the_jobs_without_an_outcome(processors, make_worker):
    @processors.register("batches.broken", batch_limit=5)
    def broken(jobs: Batch[int]) -> None:
        for job in jobs:
            if job.input == 2 and job.attempt == 1:
                raise ValueError("in the middle")
            job.finish(job.attempt)

    enqueued = chains.enqueue_many([broken.item(number) for number in range(4)])
    make_worker().run_until_idle()
    assert outputs(enqueued) == [1, 1, 2, 2]
    assert set(FailedAttempt.objects.values_list("job_id", "error")) == {
        (chain.id, "ValueError: in the middle") for chain in enqueued[2:]
    }


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError(), RescheduleJob(delay=0)])
def test_slot_continues_after_any_error_of_a_handler(processors, make_worker, error):
    @processors.register("batches.broken", batch_limit=5)
    def broken(jobs: Batch[int]) -> None:
        if jobs[0].attempt == 1:
            raise error

    enqueued = chains.enqueue_many([broken.item(number) for number in range(3)])
    make_worker(slots=1).run_until_idle()
    assert {job.attempt for job in jobs_of(enqueued)} == {2}
    assert {job.status for job in jobs_of(enqueued)} == {"completed"}


def test_attempts_are_counted_for_each_job(processors, make_worker):
    @processors.register("batches.broken", batch_limit=5, max_attempts=2)
    def broken(jobs: Batch[int]) -> None:
        raise ValueError("always")

    first = broken.enqueue(1, max_attempts=1)
    second = broken.enqueue(2)
    make_worker().run_until_idle()
    assert [job.attempt for job in jobs_of([first, second])] == [1, 2]
    assert {job.status for job in jobs_of([first, second])} == {"failed"}


@dataclass(frozen=True)
class Mail:
    to: str


def test_invalid_input_fails_only_its_own_job(processors, make_worker):
    @processors.register("batches.mail", batch_limit=5)
    def mail(jobs: Batch[Mail]) -> None:
        for job in jobs:
            job.finish(job.input.to)

    enqueued = chains.enqueue_many([mail.item(Mail("a")), mail.item(Mail("b")), mail.item(Mail("c"))])
    Job.objects.filter(pk=enqueued[1].id).update(input={"from": "b"})
    make_worker().run_until_idle()
    assert outputs(enqueued) == ["a", None, "c"]
    assert (enqueued[1].status, enqueued[1].current_job.attempt) == ("failed", 1)


def test_invalid_output_raises_in_finish(processors, make_worker):
    @processors.register("batches.strict", batch_limit=5, output=int)
    def strict(jobs: Batch[Any]) -> None:
        for job in jobs:
            job.finish(job.input if job.attempt == 1 else 7)

    enqueued = chains.enqueue_many([strict.item(1), strict.item("not a number"), strict.item(3)])
    make_worker().run_until_idle()
    assert outputs(enqueued) == [1, 7, 7]


def test_job_without_the_output_that_its_type_requires_fails(processors, make_worker):
    @processors.register("batches.strict", batch_limit=5, output=int, max_attempts=1)
    def strict(jobs: Batch[Any]) -> None:
        jobs[0].finish(1)

    enqueued = chains.enqueue_many([strict.item(), strict.item()])
    make_worker().run_until_idle()
    assert [chain.refresh().status for chain in enqueued] == ["completed", "failed"]
    assert "InvalidOutput" in str(enqueued[1].last_error)


def test_job_can_get_one_outcome(processors, make_worker):
    errors: list[Exception] = []

    @processors.register("batches.twice", batch_limit=5)
    def twice(jobs: Batch[Any]) -> None:
        jobs[0].finish("first")
        for again in (jobs[0].finish, jobs[0].fail, jobs[0].retry, jobs[0].prepare, jobs[0].complete):
            with pytest.raises(PhaseError) as caught:
                again()
            errors.append(caught.value)

    chain = twice.enqueue()
    make_worker().run_until_idle()
    assert (chain.refresh().output, len(errors)) == ("first", 5)


def test_handler_must_not_return_a_value(processors, make_worker):
    @processors.register("batches.returning", batch_limit=5, max_attempts=1)
    def returning(jobs: Batch[Any]) -> Any:
        return ["something"]

    chain = returning.enqueue()
    make_worker().run_until_idle()
    assert "job.finish(output)" in str(chain.refresh().last_error)


def test_blockers_of_all_jobs_are_read_together(processors, make_worker):
    counts: list[int] = []
    seen: list[list[Any]] = []

    @processors.register("batches.wanted")
    def wanted(job: RunningJob[str]) -> str:
        return job.input

    @processors.register("batches.waiting", batch_limit=9)
    def waiting(jobs: Batch[int]) -> None:
        with CaptureQueriesContext(connection) as queries:
            seen.extend([blocker.output for blocker in job.blockers] for job in jobs)
        counts.append(len(queries))

    parts = [wanted.enqueue(name) for name in "abcd"]
    chains.enqueue_many(
        [waiting.item(1, blockers=[parts[1], parts[0]]), waiting.item(2, blockers=parts[2:]), waiting.item(3)]
    )
    make_worker(slots=1).run_until_idle()
    assert sorted(seen) == [[], ["b", "a"], ["c", "d"]]
    assert max(counts) == 2


def test_batches_and_single_jobs_share_the_slots(processors, make_worker):
    """Neither backlog delays the other until its end."""
    order: list[str] = []

    @processors.register("batches.many", batch_limit=2)
    def many(jobs: Batch[int]) -> None:
        order.append("many")

    @processors.register("batches.single")
    def single(job: RunningJob[int]) -> None:
        order.append("single")

    chains.enqueue_many([*(many.item(n) for n in range(40)), *(single.item(n) for n in range(400))])
    make_worker(slots=1).run_until_idle()
    assert (order.count("many"), order.count("single")) == (20, 400)
    assert order.index("many") < 200
    assert order.index("single") < 30


def test_worker_runs_batches_at_the_same_time(processors, make_worker):
    meeting = threading.Barrier(3, timeout=20)

    @processors.register("batches.meeting", batch_limit=4)
    def meet(jobs: Batch[int]) -> None:
        meeting.wait()

    enqueued = chains.enqueue_many([meet.item(number) for number in range(12)])
    make_worker(slots=3).run_until_idle()
    assert {chain.refresh().status for chain in enqueued} == {"completed"}


def test_max_jobs_limits_the_last_batch(processors, make_worker):
    sizes: list[int] = []

    @processors.register("batches.count", batch_limit=10)
    def count(jobs: Batch[int]) -> None:
        sizes.append(len(jobs))

    chains.enqueue_many([count.item(number) for number in range(20)])
    assert make_worker(max_jobs=13).run() == 0
    assert sum(sizes) == 13


def test_event_is_reported_for_each_job(processors, make_worker, events):
    @processors.register("batches.mixed", batch_limit=9)
    def mixed(jobs: Batch[int]) -> None:
        with jobs.complete():
            for job in jobs:
                Effect.objects.create(job_id=job.id, label="written")
            jobs[0].fail("no good")

    enqueued = chains.enqueue_many([mixed.item(number) for number in range(3)])
    make_worker().run_until_idle()
    assert {(event.job_id, event.ending) for event in events.of(AttemptEnded)} == {
        (enqueued[0].id, "failed"), (enqueued[1].id, "completed"), (enqueued[2].id, "completed")
    }  # fmt: skip


def test_annotation_of_a_handler_must_match_batch_limit(processors):
    with pytest.raises(RegistryError, match="takes a Batch"):

        @processors.register("batches.wrong", batch_limit=5)
        def wrong(job: RunningJob[int]) -> None: ...

    with pytest.raises(RegistryError, match="batch_limit=N"):

        @processors.register("batches.wrong")
        def wrong_too(jobs: Batch[int]) -> None: ...

    with pytest.raises(RegistryError, match="whole number from 1"):
        processors.register("batches.wrong", batch_limit=0)


def test_declared_type_may_be_handled_in_batches(processors, make_worker):
    declared: JobType[Mail, str] = JobType("batches.declared", input=Mail, output=str)

    @processors.register(declared, batch_limit=5)
    def handle(jobs: Any) -> None:
        for job in jobs:
            job.finish(job.input.to)

    chain = declared.enqueue(Mail("a"))
    make_worker().run_until_idle()
    assert chain.refresh().output == "a"
