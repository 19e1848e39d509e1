"""Fan-in and fan-out of any width take a constant number of statements."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.models import Chain, Job, JobBlocker
from django_jobchains.store.blockers import RESOLVE_LIMIT
from django_jobchains.store.rows import Effects
from tests.blockers.chains import FAILS, STEP, WAITS, claim_only, continued
from tests.blockers.consistency import assert_consistent
from tests.support.jobs import failed_try, finished

pytestmark = pytest.mark.django_db

WIDE = 1_000
MANY = 10_000


def counted(call: Callable[[], Any]) -> int:
    """Return the number of statements that a call sends."""
    with CaptureQueriesContext(connection) as captured:
        call()
    return len(captured)


def several(count: int, **options: Any) -> list[Chain]:
    return chains.enqueue_many([STEP.item(**options) for _ in range(count)])


def costs_up_to(count: int, cost: Callable[[int], int]) -> tuple[int, int, int]:
    return cost(1), cost(10), cost(count)


def assert_constant(costs: tuple[int, int, int], at_most: int) -> None:
    assert len(set(costs)) == 1, f"The calls sent {costs} statements."
    assert costs[0] <= at_most


def assert_in_steps(costs: tuple[int, int, int], at_most: int, more: int) -> None:
    """Check that each further ``RESOLVE_LIMIT`` jobs take ``more`` statements."""
    steps = MANY // RESOLVE_LIMIT
    assert_constant((*costs[:2], costs[2] - (steps - 1) * more), at_most)


def test_job_with_a_thousand_blockers_is_enqueued_in_a_constant_number_of_statements():
    def cost(width: int) -> int:
        blockers = several(width)
        return counted(lambda: WAITS.enqueue(blockers=blockers))

    assert_constant(costs_up_to(WIDE, cost), at_most=8)
    assert JobBlocker.objects.count() == 1 + 10 + WIDE


@pytest.mark.slow
def test_ten_thousand_dependents_are_enqueued_in_a_constant_number_of_statements():
    blocker = STEP.enqueue()

    def cost(count: int) -> int:
        items = [WAITS.item(blockers=[blocker]) for _ in range(count)]
        return counted(lambda: chains.enqueue_many(items))

    assert_constant(costs_up_to(MANY, cost), at_most=8)
    assert Job.objects.with_status("blocked").count() == 1 + 10 + MANY


def test_job_with_a_thousand_blockers_is_freed_in_a_constant_number_of_statements(store):
    def cost(width: int) -> int:
        blockers = several(width)
        dependent = WAITS.enqueue(blockers=blockers)
        jobs = claim_only(store, *blockers)
        cost = counted(lambda: store.attempts.finish([finished(job) for job in jobs]))
        [freed] = claim_only(store, dependent)
        store.attempts.finish([finished(freed)])
        return cost

    assert_constant(costs_up_to(WIDE, cost), at_most=5)
    assert_consistent(store)


def test_last_of_a_thousand_blockers_ends_in_as_many_statements_as_the_last_of_one(store):
    def cost(width: int) -> int:
        blockers = several(width)
        dependent = WAITS.enqueue(blockers=blockers)
        *others, last = claim_only(store, *blockers)
        store.attempts.finish([finished(job) for job in others])
        cost = counted(lambda: store.attempts.finish([finished(last)]))
        [freed] = claim_only(store, dependent)
        store.attempts.finish([finished(freed)])
        return cost

    assert_constant(costs_up_to(WIDE, cost), at_most=5)


@pytest.mark.slow
def test_ten_thousand_dependents_are_freed_in_steps_of_a_constant_number_of_statements(store):
    def cost(count: int) -> int:
        blocker = STEP.enqueue(priority=9)
        chains.enqueue_many([WAITS.item(blockers=[blocker], delay=60) for _ in range(count)])
        [job] = claim_only(store, blocker)
        return counted(lambda: store.attempts.finish([finished(job)]))

    assert_in_steps(costs_up_to(MANY, cost), at_most=6, more=3)
    assert Job.objects.with_status("pending").count() == 1 + 10 + MANY


@pytest.mark.slow
def test_ten_thousand_dependents_fail_in_steps_of_a_constant_number_of_statements(store):
    def cost(count: int) -> int:
        blocker = STEP.enqueue()
        chains.enqueue_many([FAILS.item(blockers=[blocker]) for _ in range(count)])
        [job] = claim_only(store, blocker)
        effects = Effects()
        cost = counted(lambda: store.attempts.fail([failed_try(job)], effects))
        assert len(effects.finished_chains) == count + 1
        return cost

    assert_in_steps(costs_up_to(MANY, cost), at_most=8, more=4)


def test_batch_of_continuations_takes_as_many_statements_as_one(store):
    """Each job of the batch waits for different chains."""

    def cost(count: int) -> int:
        blockers = several(count * 10, delay=60)
        jobs = claim_only(store, *several(count))
        parts = [tuple(blocker.id for blocker in blockers[start::count]) for start in range(count)]
        batch = [continued(job, blockers=part) for job, part in zip(jobs, parts, strict=True)]
        return counted(lambda: store.attempts.finish(batch))

    assert_constant((cost(1), cost(10), cost(200)), at_most=12)


def test_chain_without_dependents_ends_in_two_statements(store):
    [job] = claim_only(store, STEP.enqueue())
    assert counted(lambda: store.attempts.finish([finished(job)])) <= 2
