"""A job with blockers becomes pending when all its blockers are completed, and not before."""

from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from django_jobchains.store.rows import Effects
from tests.blockers.chains import (
    STEP,
    WAITS,
    claim_only,
    complete_by_hand,
    links,
    statuses,
)
from tests.blockers.consistency import assert_consistent
from tests.support.jobs import finished, next_job, running, stored

pytestmark = pytest.mark.django_db


def test_one_completion_frees_every_job_that_waits(store):
    blocker, other = STEP.enqueue(), STEP.enqueue(delay=60)
    free = chains.enqueue_many([kind.item(blockers=[blocker]) for kind in (WAITS, STEP, WAITS)])
    held = WAITS.enqueue(blockers=[blocker, other])
    [job] = claim_only(store, blocker)
    store.attempts.finish([finished(job)], effects := Effects())
    assert statuses(*free, held) == ["pending", "pending", "pending", "blocked"]
    assert effects.due_types == {WAITS.name, STEP.name}
    assert_consistent(store)


def test_blocked_job_completed_by_hand_frees_its_dependents(store):
    blocker = STEP.enqueue()
    middle = WAITS.enqueue(blockers=[blocker])
    last = WAITS.enqueue(blockers=[middle])
    complete_by_hand(middle, "by hand")
    assert statuses(blocker, middle, last) == ["pending", "completed", "pending"]
    complete_by_hand(blocker)
    assert statuses(blocker, middle, last) == ["completed", "completed", "pending"]
    assert_consistent(store)


@pytest.mark.parametrize("is_first", [True, False])
def test_continuation_waits_for_a_chain_that_continues_in_the_same_batch(store, is_first):
    """A worker writes the outcomes of its slots together."""
    one, blocker = running(store, 2)
    batch = [
        finished(one, None, waiting := next_job(one, blockers=(blocker.chain_id,))),
        finished(blocker, None, next_job(blocker)),
    ]
    store.attempts.finish(batch if is_first else batch[::-1])
    assert stored(waiting.id).status == "blocked"
    assert_consistent(store)


@pytest.mark.parametrize("is_first", [True, False])
def test_continuation_does_not_wait_for_a_chain_that_ends_in_the_same_batch(store, is_first):
    one, blocker = running(store, 2)
    batch = [finished(one, None, waiting := next_job(one, blockers=(blocker.chain_id,))), finished(blocker)]
    store.attempts.finish(batch if is_first else batch[::-1])
    assert stored(waiting.id).status == "pending"
    assert_consistent(store)


def test_dependents_of_a_chain_can_be_queried():
    blocker, other = STEP.enqueue(), STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    WAITS.enqueue(blockers=[other])
    assert list(Chain.objects.blocked_by(blocker)) == [dependent]
    assert [job.chain_id for job in Job.objects.blocked_by(blocker.id)] == [dependent.id]
    complete_by_hand(blocker)
    assert list(Chain.objects.blocked_by(blocker)) == [dependent]


def test_deduplication_does_not_change_the_blockers_of_the_existing_chain(store):
    one, two = STEP.enqueue(), STEP.enqueue()
    options: dict[str, Any] = {"deduplicate": chains.Deduplicate("key")}
    first = WAITS.enqueue(blockers=[one], **options)
    again = WAITS.enqueue(blockers=[two], **options)
    assert (again.id, again.deduplicated, links(again)) == (first.id, True, [(one.id, True)])
    assert_consistent(store)
