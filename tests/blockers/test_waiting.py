"""A job with blockers becomes pending when all its blockers are completed, and not before."""

import pytest

from django_jobchains import chains
from django_jobchains.store.rows import Effects
from tests.blockers.chains import STEP, WAITS, claim_only, complete_by_hand, links, statuses
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
    complete_by_hand(middle)
    assert statuses(blocker, middle, last) == ["pending", "completed", "pending"]
    complete_by_hand(blocker)
    assert statuses(blocker, middle, last) == ["completed", "completed", "pending"]
    assert_consistent(store)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("continues", "status"), [(True, "blocked"), (False, "pending")])
def test_continuation_waits_for_a_chain_of_the_same_batch_if_that_continues(store, is_first, continues, status):
    """A worker writes the outcomes of its slots together."""
    one, blocker = running(store, 2)
    batch = [
        finished(one, None, waiting := next_job(one, blockers=(blocker.chain_id,))),
        finished(blocker, None, next_job(blocker)) if continues else finished(blocker),
    ]
    store.attempts.finish(batch if is_first else batch[::-1])
    assert stored(waiting.id).status == status
    assert_consistent(store)


def test_deduplication_does_not_change_the_blockers_of_the_existing_chain(store):
    one, two = STEP.enqueue(), STEP.enqueue()
    first, again = (WAITS.enqueue(blockers=[blocker], deduplicate=chains.Deduplicate("key")) for blocker in (one, two))
    assert (again.id, again.deduplicated, links(again)) == (first.id, True, [(one.id, True)])
    assert_consistent(store)
