"""A handler reads the chains that its job waited for and their outputs from ``job.blockers``."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.exceptions import FailJob
from django_jobchains.models import Chain
from django_jobchains.processors import Continuation, RunningJob
from tests.blockers.chains import STEP, WAITS, claim_only
from tests.support.attempts import committed
from tests.support.jobs import finished
from tests.support.plans import cost_of, use_plans

pytestmark = committed


@pytest.fixture
def part(processors):
    """A type whose jobs return their input, or fail if it is None."""

    @processors.register("part")
    def part(job):
        if job.input is None:
            raise FailJob("none")
        return job.input

    return part


@pytest.fixture
def after(processors):
    """A type whose jobs return the outputs of their blockers, also of those that failed."""

    @processors.register("after", on_blocker_failure="run")
    def after(job):
        return [chain.output for chain in job.blockers]

    return after


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_blockers_have_the_order_in_which_they_were_enqueued(processors, work, part, mode):
    seen = []

    @processors.register("reads", mode=mode)
    def reads(job):
        seen.extend(job.blockers)

    parts = chains.enqueue_many([part.item(number) for number in range(5)])
    shuffled = [parts[position] for position in (3, 0, 4, 1, 2)]
    chain, alone = reads.enqueue(blockers=shuffled), reads.enqueue()
    before = chain.current_job.blockers
    work()
    assert seen == before == chain.refresh().current_job.blockers == shuffled
    assert [blocker.output for blocker in seen] == [3, 0, 4, 1, 2]
    assert [blocker.status for blocker in before] == ["pending"] * 5
    assert alone.refresh().current_job.blockers == []


def test_output_of_a_blocker_is_that_of_its_last_job(processors, work):
    @processors.register("count")
    def count(job):
        return job.continue_with("count", job.input - 1) if job.input else "end"

    @processors.register("reads")
    def reads(job):
        return [[chain.type_name, chain.input, chain.output, chain.status] for chain in job.blockers]

    chain = reads.enqueue(blockers=[count.enqueue(4).id])
    work()
    assert chain.refresh().output == [["count", 4, "end", "completed"]]


@dataclass(frozen=True)
class Square:
    area: int


def test_outputs_of_blockers_are_values_of_the_output_types_of_their_last_jobs(processors, work):
    seen = []

    @processors.register("square")
    def square(job: RunningJob[int]) -> Square:
        return Square(job.input**2)

    @processors.register("grow", continues_with=[square])
    def grow(job: RunningJob[int]) -> Continuation:
        return job.continue_with(square, job.input + 1)

    @processors.register("sum")
    def total(job: RunningJob[None, tuple[Chain[Square], Chain[Square]]]) -> Any:
        seen.extend(chain.output for chain in job.blockers)

    total.enqueue(blockers=[square.enqueue(2), grow.enqueue(4)])
    work()
    assert seen == [Square(4), Square(25)]


@pytest.mark.parametrize("place", ["returned", "complete"])
def test_handler_fans_out_and_continues_with_the_results(processors, work, part, place):
    @processors.register("fan_out")
    def fan_out(job):
        with job.complete() if place == "complete" else nullcontext():
            parts = chains.enqueue_many([part.item(number) for number in range(job.input)])
            return job.continue_with("fan_in", blockers=parts)

    @processors.register("fan_in")
    def fan_in(job):
        return sum(chain.output for chain in job.blockers)

    made = [fan_out.enqueue(count) for count in (20, 0)]
    work(slots=4)
    assert [(chain.refresh().status, chain.output) for chain in made] == [("completed", 190), ("completed", 0)]


def test_blockers_of_a_continuation_are_its_own(processors, work, part, after):
    @processors.register("first")
    def first(job):
        assert [chain.output for chain in job.blockers] == ["early"]
        return job.continue_with(after, blockers=[part.enqueue("late")])

    chain = first.enqueue(blockers=[part.enqueue("early")])
    work()
    assert chain.refresh().output == ["late"]


def test_job_that_runs_after_failed_blockers_reads_their_statuses(work, part, after):
    chain = after.enqueue(blockers=[part.enqueue(0), part.enqueue(None), part.enqueue(2)])
    work()
    assert chain.refresh().output == [0, None, 2]
    assert [blocker.status for blocker in chain.current_job.blockers] == ["completed", "failed", "completed"]


def test_retried_job_reads_its_blockers_again(processors, work, part):
    seen = []

    @processors.register("fails")
    def fails(job):
        seen.append([chain.id for chain in job.blockers])
        raise FailJob

    blockers = [part.enqueue(1), part.enqueue(2)]
    chain = fails.enqueue(blockers=blockers)
    work()
    chains.retry(chain.id)
    work()
    assert seen == [[blocker.id for blocker in blockers]] * 2


def test_one_thousand_blockers_are_read_in_order(work, after, store):
    blockers = chains.enqueue_many([STEP.item() for _ in range(1_000)])[::-1]
    chain = after.enqueue(blockers=blockers)
    jobs = claim_only(store, *blockers)
    store.attempts.finish([finished(job, str(number)) for number, job in enumerate(jobs)])
    work()
    assert chain.refresh().output == list(range(1_000))


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_handler_may_enqueue_a_job_that_waits_for_its_own_chain(processors, work, after, mode):
    @processors.register("first", mode=mode)
    def first(job):
        with job.complete() if mode == "staged" else nullcontext():
            after.enqueue(blockers=[job.chain_id])
        return "done"

    chain = first.enqueue()
    work()
    [dependent] = Chain.objects.blocked_by(chain)
    assert (dependent.status, dependent.output) == ("completed", ["done"])


def test_cost_of_reading_a_blocker_does_not_depend_on_the_length_of_its_chain():
    def cost(steps):
        chain = STEP.enqueue()
        for _ in range(steps):
            with chains.current_job(chain.id) as current:
                current.continue_with(STEP)
        dependent = WAITS.enqueue(blockers=[chain])
        [found] = Chain.blockers_of([dependent.id], "default")[dependent.id]
        assert found.current_job.chain_index == steps
        with transaction.atomic():
            if connection.vendor == "postgresql":
                use_plans("auto")
            return cost_of(lambda: Chain.blockers_of([dependent.id], "default"))

    short = cost(2)
    assert short
    assert cost(200) <= 3 * short  # an index may have grown by a level


def test_outputs_of_chains_with_several_jobs_are_read_together(processors, work, django_assert_num_queries):
    @processors.register("count")
    def count(job: RunningJob[int]) -> int | Continuation:
        return job.continue_with("count", job.input - 1) if job.input else 7

    dependent = WAITS.enqueue(blockers=chains.enqueue_many([count.item(2) for _ in range(5)]))
    work()
    job = dependent.refresh().current_job
    with django_assert_num_queries(2):
        outputs = [chain.output for chain in job.blockers]
    assert outputs == [7] * 5
