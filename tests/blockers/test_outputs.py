"""A handler reads the chains that its job waited for and their outputs from ``job.blockers``."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.exceptions import FailJob
from django_jobchains.models import Chain
from django_jobchains.processors import Continuation, RunningJob
from tests.blockers.chains import STEP, WAITS, claim_only
from tests.support.attempts import committed
from tests.support.costs import cost_of
from tests.support.jobs import finished
from tests.support.plans import use_plans

pytestmark = committed


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_blockers_have_the_order_in_which_they_were_enqueued(processors, work, mode):
    @processors.register("part")
    def part(job: RunningJob[int]) -> Any:
        return {"square": job.input**2}

    @processors.register("sum", mode=mode)
    def total(job: RunningJob[None]) -> Any:
        return [chain.output["square"] for chain in job.blockers]

    parts = chains.enqueue_many([part.item(number) for number in range(10)])
    shuffled = [parts[position] for position in (3, 0, 9, 1, 8, 2, 7, 4, 6, 5)]
    chain = total.enqueue(blockers=shuffled)
    work()
    assert chain.refresh().output == [9, 0, 81, 1, 64, 4, 49, 16, 36, 25]


def test_output_of_a_blocker_is_that_of_its_last_job(processors, work):
    @processors.register("count")
    def count(job: RunningJob[int]) -> Any:
        return job.continue_with("count", job.input - 1) if job.input else "end"

    @processors.register("after")
    def after(job: RunningJob[None]) -> Any:
        return [[chain.type_name, chain.input, chain.output, chain.status] for chain in job.blockers]

    blocker = count.enqueue(4)
    chain = after.enqueue(blockers=[blocker.id])
    work()
    assert chain.refresh().output == [["count", 4, "end", "completed"]]


def test_job_without_blockers_has_none(processors, work):
    @processors.register("alone")
    def alone(job: RunningJob[None]) -> Any:
        return list(job.blockers)

    chain = alone.enqueue()
    work()
    assert chain.refresh().output == []


@dataclass(frozen=True)
class Square:
    area: int


def test_outputs_of_blockers_are_values_of_the_output_types_of_their_last_jobs(processors, work):
    seen: list[Any] = []

    @processors.register("square")
    def square(job: RunningJob[int]) -> Square:
        return Square(job.input**2)

    @processors.register("grow", continues_with=[square])
    def grow(job: RunningJob[int]) -> Continuation:
        return job.continue_with(square, job.input + 1)

    @processors.register("sum")
    def total(job: RunningJob[None, tuple[Chain[Square], Chain[Square]]]) -> int:
        seen.extend(chain.output for chain in job.blockers)
        return job.blockers[0].output.area + job.blockers[1].output.area

    chain = total.enqueue(blockers=[square.enqueue(2), grow.enqueue(4)])
    work()
    assert chain.refresh().output == 29
    assert seen == [Square(4), Square(25)]


def test_blockers_of_a_job_can_be_read_outside_its_handler(processors, work):
    seen: list[Any] = []

    @processors.register("part")
    def part(job: RunningJob[int]) -> int:
        return job.input

    @processors.register("after")
    def after(job: RunningJob[None]) -> None:
        seen.extend(job.blockers)

    parts = chains.enqueue_many([part.item(number) for number in (1, 2, 3)])
    chain = after.enqueue(blockers=[parts[2], parts[0], parts[1]])
    before = chain.current_job.blockers
    work()
    job = chain.refresh().current_job
    assert job.blockers == seen == before
    assert [blocker.output for blocker in job.blockers] == [3, 1, 2]
    assert [blocker.status for blocker in before] == ["pending"] * 3
    assert parts[0].current_job.blockers == []


@pytest.mark.parametrize("place", ["returned", "complete"])
def test_handler_fans_out_and_continues_with_the_results(processors, work, place):
    @processors.register("part")
    def part(job: RunningJob[int]) -> Any:
        return job.input * 10

    @processors.register("fan_out")
    def fan_out(job: RunningJob[int]) -> Any:
        if place == "returned":
            return job.continue_with("fan_in", blockers=chains.enqueue_many(items(job.input)))
        with job.complete():
            return job.continue_with("fan_in", blockers=chains.enqueue_many(items(job.input)))

    def items(count: int) -> Any:
        return [part.item(number) for number in range(count)]

    @processors.register("fan_in")
    def fan_in(job: RunningJob[None]) -> Any:
        return sum(chain.output for chain in job.blockers)

    chain = fan_out.enqueue(20)
    none = fan_out.enqueue(0)
    work()
    assert (chain.refresh().status, chain.output) == ("completed", 1900)
    assert (none.refresh().status, none.output) == ("completed", 0)


def test_blockers_of_a_continuation_are_its_own(processors, work):
    @processors.register("part")
    def part(job: RunningJob[str]) -> Any:
        return job.input

    @processors.register("first")
    def first(job: RunningJob[None]) -> Any:
        return job.continue_with("second", [chain.output for chain in job.blockers], blockers=[part.enqueue("late")])

    @processors.register("second")
    def second(job: RunningJob[list[str]]) -> Any:
        return [job.input, [chain.output for chain in job.blockers]]

    chain = first.enqueue(blockers=[part.enqueue("early")])
    work()
    assert chain.refresh().output == [["early"], ["late"]]


def test_job_that_runs_after_failed_blockers_reads_their_statuses(processors, work):
    @processors.register("part")
    def part(job: RunningJob[int]) -> Any:
        if job.input == 1:
            raise FailJob("one")
        return job.input

    @processors.register("after", on_blocker_failure="run")
    def after(job: RunningJob[None]) -> Any:
        return [[chain.status, chain.output] for chain in job.blockers]

    chain = after.enqueue(blockers=[part.enqueue(0), part.enqueue(1), part.enqueue(2)])
    work()
    assert chain.refresh().output == [["completed", 0], ["failed", None], ["completed", 2]]


def test_retried_job_reads_its_blockers_again(processors, work):
    seen: list[list[UUID]] = []

    @processors.register("part")
    def part(job: RunningJob[None]) -> Any:
        return None

    @processors.register("after")
    def after(job: RunningJob[None]) -> Any:
        seen.append([chain.id for chain in job.blockers])
        raise FailJob

    blockers = [part.enqueue(), part.enqueue()]
    chain = after.enqueue(blockers=blockers)
    work()
    chains.retry(chain.id)
    work()
    assert seen == [[blocker.id for blocker in blockers]] * 2


def test_one_thousand_blockers_are_read_in_order(processors, work, store):
    @processors.register("after")
    def after(job: RunningJob[None]) -> Any:
        return [chain.output for chain in job.blockers]

    blockers = chains.enqueue_many([STEP.item() for _ in range(1_000)])[::-1]
    chain = after.enqueue(blockers=blockers)
    jobs = claim_only(store, *blockers)
    store.attempts.finish([finished(job, str(number)) for number, job in enumerate(jobs)])
    work()
    assert chain.refresh().output == list(range(1_000))


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_handler_may_enqueue_a_job_that_waits_for_its_own_chain(processors, work, mode):
    @processors.register("after")
    def after(job: RunningJob[None]) -> Any:
        return [chain.output for chain in job.blockers]

    @processors.register("first", mode=mode)
    def first(job: RunningJob[None]) -> Any:
        if mode == "staged":
            with job.complete():
                after.enqueue(blockers=[job.chain_id])
        else:
            after.enqueue(blockers=[job.chain_id])
        return "done"

    chain = first.enqueue()
    work()
    [dependent] = Chain.objects.blocked_by(chain)
    assert (dependent.status, dependent.output) == ("completed", ["done"])


def test_cost_of_reading_a_blocker_does_not_depend_on_the_length_of_its_chain():
    def cost(steps: int) -> int:
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

    blockers = chains.enqueue_many([count.item(2) for _ in range(5)])
    dependent = WAITS.enqueue(blockers=blockers)
    work()
    job = dependent.refresh().current_job
    with django_assert_num_queries(2):
        outputs = [chain.output for chain in job.blockers]
    assert outputs == [7] * 5
