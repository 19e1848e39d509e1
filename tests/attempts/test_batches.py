"""A batch has one transaction, which commits the writes and the outcomes of all jobs, or nothing."""

import threading
from dataclasses import dataclass

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.exceptions import PhaseError, RegistryError
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, Batch, JobType, RescheduleJob, RunningJob
from django_jobchains.telemetry.events import AttemptEnded
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection
from tests.support.fixtures import only_slice
from tests.support.scenario import effect, write
from tests.support.waiting import until, until_completed

pytestmark = committed


processors = only_slice(backoff=Backoff(0, 1, 0, 0))


@pytest.fixture
def run(processors, make_worker):
    """Return a function that runs jobs with these inputs in batches, and returns their chains."""

    def run(handler, inputs=(0, 1, 2), **options):
        job_type = processors.register("batches.scenario", **{"batch_limit": 5, **options})(handler)
        made = chains.enqueue_many([job_type.item(given) for given in inputs])
        make_worker(slots=1).run_until_idle()
        return made

    return run


def outputs(made):
    return [chain.refresh().output for chain in made]


def statuses(made):
    return [chain.refresh().status for chain in made]


def attempts(made):
    return [chain.jobs.first().attempt for chain in made]


def written_by():
    return set(Effect.objects.values_list("job_id", flat=True))


# Outcomes


def test_handler_gets_at_most_batch_limit_jobs(run):
    sizes = []

    def double(jobs):
        sizes.append(len(jobs))
        for job in jobs:
            job.finish(job.input * 2)

    made = run(double, range(25), batch_limit=10)
    assert outputs(made) == [number * 2 for number in range(25)]
    assert sizes == [10, 10, 5]


def test_each_job_has_the_outcome_that_the_handler_gave_it(run, processors, events):
    following = processors.register("batches.next")(lambda job: f"after {job.input}")

    def mixed(jobs):
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

    names = ["finish", "continue", "fail", "reschedule", "retry", "nothing"]
    made = run(mixed, names, continues_with=[following])
    assert outputs(made) == ["finished", "after continue", None, None, None, None]
    assert statuses(made) == ["completed", "completed", "failed", "pending", "completed", "completed"]
    assert attempts(made) == [1, 1, 1, 1, 2, 1]
    job = made[3].current_job
    assert (job.run_at - job.created_at).total_seconds() > 3500
    assert made[2].last_error == "FailJob: no good"
    assert FailedAttempt.objects.get(job_id=made[4].id).error == "ValueError: not yet"
    endings = {(event.job_id, event.ending) for event in events.of(AttemptEnded)}
    assert endings >= {(made[2].id, "failed"), (made[0].id, "completed"), (made[3].id, "rescheduled")}


def test_error_of_the_handler_fails_only_the_jobs_without_an_outcome(run):
    def broken(jobs):
        for job in jobs:
            if job.input == 2 and job.attempt == 1:
                raise ValueError("in the middle")
            job.finish(job.attempt)

    made = run(broken, range(4))
    assert outputs(made) == [1, 1, 2, 2]
    failed = set(FailedAttempt.objects.values_list("job_id", "error"))
    assert failed == {(chain.id, "ValueError: in the middle") for chain in made[2:]}


def test_handler_may_reschedule_the_whole_batch(run):
    def later(jobs):
        if jobs[0].attempt == 1:
            raise RescheduleJob(delay=0)

    made = run(later)
    assert (statuses(made), attempts(made)) == (["completed"] * 3, [2] * 3)


def test_attempts_are_counted_for_each_job(processors, make_worker):
    @processors.register("batches.broken", batch_limit=5, max_attempts=2)
    def broken(jobs):
        raise ValueError("always")

    made = [broken.enqueue(max_attempts=1), broken.enqueue()]
    make_worker().run_until_idle()
    assert (statuses(made), attempts(made)) == (["failed"] * 2, [1, 2])


@dataclass(frozen=True)
class Mail:
    to: str


def test_invalid_input_fails_only_its_own_job(processors, make_worker):
    @processors.register(JobType("batches.mail", input=Mail, output=str), batch_limit=5)
    def mail(jobs):
        for job in jobs:
            job.finish(job.input.to)

    made = chains.enqueue_many([mail.item(Mail(to)) for to in "abc"])
    Job.objects.filter(pk=made[1].id).update(input={"from": "b"})
    make_worker().run_until_idle()
    assert outputs(made) == ["a", None, "c"]
    assert (statuses(made)[1], attempts(made)[1]) == ("failed", 1)


def test_invalid_output_raises_in_finish(run):
    def strict(jobs):
        for job in jobs:
            job.finish(job.input if job.attempt == 1 else 7)

    assert outputs(run(strict, [1, "not a number", 3], output=int)) == [1, 7, 7]


def test_job_without_the_output_that_its_type_requires_fails(run):
    made = run(lambda jobs: jobs[0].finish(1), [1, 2], output=int, max_attempts=1)
    assert statuses(made) == ["completed", "failed"]
    assert "InvalidOutput" in made[1].last_error


def test_job_can_get_one_outcome(run):
    def twice(jobs):
        job = jobs[0]
        job.finish("first")
        for again in (job.finish, job.fail, job.retry, job.prepare, job.complete):
            with pytest.raises(PhaseError):
                again()

    assert outputs(run(twice, [1])) == ["first"]


@pytest.mark.parametrize("error", ["404", "", ValueError])
def test_job_is_retried_with_an_exception_only(run, error):
    made = run(lambda jobs: jobs[0].retry(error), [1, 2], max_attempts=1)
    assert statuses(made) == ["failed", "failed"]
    assert made[0].last_error.startswith(f"TypeError: error={error!r} is not an exception")


def test_handler_must_not_return_a_value(run):
    [chain] = run(lambda jobs: ["something"], [1], max_attempts=1)
    assert "job.finish(output)" in chain.refresh().last_error


def test_annotation_of_a_handler_must_match_batch_limit(processors):
    def one(job: RunningJob[int]): ...

    def many(jobs: Batch[int]): ...

    for handler, options, words in (
        (one, {"batch_limit": 5}, "takes a Batch"),
        (many, {}, "batch_limit=N"),
        (many, {"batch_limit": 0}, "whole number from 1"),
    ):
        with pytest.raises(RegistryError, match=words):
            processors.register("batches.wrong", **options)(handler)


def test_blockers_of_all_jobs_are_read_together(processors, make_worker):
    counts, seen = [], []
    wanted = processors.register("batches.wanted")(lambda job: job.input)

    @processors.register("batches.waiting", batch_limit=9)
    def waiting(jobs):
        with CaptureQueriesContext(connection) as queries:
            seen.extend([blocker.output for blocker in job.blockers] for job in jobs)
        counts.append(len(queries))

    parts = [wanted.enqueue(name) for name in "abcd"]
    blockers = [[parts[1], parts[0]], parts[2:], []]
    chains.enqueue_many([waiting.item(number, blockers=given) for number, given in enumerate(blockers)])
    make_worker(slots=1).run_until_idle()
    assert sorted(seen) == [[], ["b", "a"], ["c", "d"]]
    assert max(counts) == 2


# Slots


def test_batches_and_single_jobs_share_the_slots(processors, make_worker):
    """Neither backlog delays the other until its end."""
    order = []
    many = processors.register("batches.many", batch_limit=2)(lambda jobs: order.append("many"))
    single = processors.register("batches.single")(lambda job: order.append("single"))
    chains.enqueue_many([*(many.item(n) for n in range(40)), *(single.item(n) for n in range(400))])
    make_worker(slots=1).run_until_idle()
    assert (order.count("many"), order.count("single")) == (20, 400)
    assert order.index("many") < 200
    assert order.index("single") < 30


def test_worker_runs_batches_at_the_same_time(processors, make_worker):
    meeting = threading.Barrier(3, timeout=20)
    meet = processors.register("batches.meeting", batch_limit=4)(lambda jobs: meeting.wait() < 0 or None)
    made = chains.enqueue_many([meet.item(number) for number in range(12)])
    make_worker(slots=3).run_until_idle()
    assert set(statuses(made)) == {"completed"}


def test_max_jobs_limits_the_last_batch(processors, make_worker):
    sizes = []
    count = processors.register("batches.count", batch_limit=10)(lambda jobs: sizes.append(len(jobs)))
    chains.enqueue_many([count.item(number) for number in range(20)])
    assert make_worker(max_jobs=13).run() == 0
    assert sum(sizes) == 13


# The transaction


def test_effects_and_outcomes_commit_together(run, processors):
    following = processors.register("batches.next")(lambda job: "end")

    def handler(jobs):
        with jobs.complete():
            write(jobs, "written")()
            jobs[0].continue_with(following)
            jobs[1].finish("second")

    made = run(handler)
    assert outputs(made) == ["end", "second", None]
    assert written_by() == {chain.id for chain in made}


@pytest.mark.parametrize("where", ["inside", "after", "database"])
def test_error_undoes_the_outcomes_of_the_whole_batch(run, where):
    def handler(jobs):
        first = jobs[0].attempt == 1
        with jobs.complete():
            for job in jobs:
                effect(job)
                job.finish("done")
            if first and where == "inside":
                raise ValueError(where)
            if first and where == "database":
                copy = Job(id=jobs[0].id, chain_id=jobs[0].id, chain_index=0, run_at=jobs[0].run_at)
                Job.objects.bulk_create([copy])
        if first and where == "after":
            raise ValueError(where)

    made = run(handler)
    assert (statuses(made), attempts(made)) == (["completed"] * 3, [2] * 3)
    assert (Effect.objects.count(), FailedAttempt.objects.count()) == (3, 3)


def test_job_that_fails_in_a_savepoint_does_not_affect_the_others(run):
    def savepoints(jobs):
        with jobs.complete():
            for job in jobs:
                try:
                    with transaction.atomic():
                        effect(job)
                        if job.input == 1:
                            raise IntegrityError("bad")
                except IntegrityError as error:
                    job.fail(str(error))

    made = run(savepoints)
    assert statuses(made) == ["completed", "failed", "completed"]
    assert written_by() == {made[0].id, made[2].id}


def take_over(job_id):
    Job.objects.filter(pk=job_id).update(lease_number=1000, leased_by="another worker")


@pytest.mark.parametrize("completes", [True, False])
def test_lost_lease_hands_back_the_other_jobs_or_affects_only_its_own(run, completes):
    def handler(jobs):
        if len(jobs) == 3:
            on_own_connection(take_over, jobs[1].id)
        if completes:
            with jobs.complete():
                write(jobs, "written")()

    made = run(handler)
    assert statuses(made) == ["completed", "running", "completed"]
    assert attempts(made) == [1, 1, 1]
    assert Job.objects.get(pk=made[1].id).lease_number == 1000
    assert written_by() == ({made[0].id, made[2].id} if completes else set())
    assert not FailedAttempt.objects.exists()


def test_number_of_statements_does_not_depend_on_the_batch(run):
    counts = {}

    def counted(jobs):
        with CaptureQueriesContext(connection) as queries, jobs.complete():
            pass
        counts[len(jobs)] = len(queries)

    run(counted, range(101), batch_limit=100)
    assert counts[1] == counts[100]


# Signals


def test_cancelling_one_job_costs_the_others_no_attempt(processors, start_worker, settings):
    settings.JOBCHAINS = {}

    @processors.register("batches.checks_signals", batch_limit=5)
    def checks_signals(jobs):
        write(jobs, "started")()
        while jobs[0].attempt == 1 and len(jobs) == 3:
            for job in jobs:
                job.signal.raise_if_aborted()
            jobs.signal.wait(0.02)

    made = chains.enqueue_many([checks_signals.item() for _ in range(3)])
    start_worker()
    until(lambda: len(written_by()) == 3)
    chains.cancel(made[1])
    until_completed(made[0])
    until_completed(made[2])
    assert (statuses(made), attempts(made)) == (["completed", "cancelled", "completed"], [1, 1, 1])
