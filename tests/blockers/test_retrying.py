"""Retrying in a graph of chains: a job that is retried looks at its blockers again."""

import pytest

from django_jobchains import chains
from django_jobchains.exceptions import JobNotRunnable
from django_jobchains.store.rows import Effects
from tests.blockers.chains import (
    FAILS,
    RUNS,
    STEP,
    WAITS,
    cancel,
    claim_only,
    complete_by_hand,
    fail,
    links,
    statuses,
)
from tests.blockers.consistency import assert_consistent
from tests.support.jobs import failed_try, finished

pytestmark = pytest.mark.django_db


def complete(store, chain, effects):
    complete_by_hand(chain)


#: The end of a blocker, and the status of a dependent of each kind that had been cancelled and is retried afterwards.
RETRIED = [
    (complete, WAITS, "pending"),
    (complete, FAILS, "pending"),
    (complete, RUNS, "pending"),
    *((end, kind, status) for end in (fail, cancel) for kind, status in ((FAILS, "failed"), (RUNS, "pending"))),
]


@pytest.mark.parametrize(("end", "kind", "status"), RETRIED)
def test_cancelled_job_whose_blocker_ended_meanwhile_is_retried(store, end, kind, status):
    blocker = STEP.enqueue()
    dependent = kind.enqueue(blockers=[blocker])
    chains.cancel(dependent)
    end(store, blocker, Effects())
    assert statuses(dependent) == ["cancelled"]
    effects = Effects()
    assert store.chains.retry([dependent.id], effects) == {dependent.id}
    assert statuses(dependent) == [status]
    assert status == "failed" or effects.due_types == {kind.name}
    assert effects.finished_chains == ({dependent.id} if status == "failed" else set())
    assert_consistent(store)


@pytest.mark.parametrize("kind", [WAITS, FAILS, RUNS], ids=str)
def test_cancelled_job_is_blocked_again_while_a_blocker_is_open(store, kind):
    done, open_ = STEP.enqueue(), STEP.enqueue()
    dependent = kind.enqueue(blockers=[done, open_])
    chains.cancel(dependent)
    complete_by_hand(done)
    chains.retry(dependent.id)
    assert (statuses(dependent), links(dependent)) == (["blocked"], [(done.id, False), (open_.id, True)])
    with pytest.raises(JobNotRunnable):
        chains.run_now(dependent.id)
    complete_by_hand(open_)
    assert statuses(dependent) == ["pending"]
    assert_consistent(store)


def test_jobs_that_failed_with_their_blocker_are_blocked_again_when_all_are_retried(store):
    blocker = STEP.enqueue()
    middle = FAILS.enqueue(blockers=[blocker])
    last = FAILS.enqueue(blockers=[middle])
    for _ in range(2):
        fail(store, blocker, effects := Effects())
        assert effects.finished_chains == {blocker.id, middle.id, last.id}
        assert chains.retry([last.id, middle.id, blocker.id]) == {blocker.id, middle.id, last.id}
        assert statuses(blocker, middle, last) == ["pending", "blocked", "blocked"]
    for chain in (blocker, middle, last):
        [job] = claim_only(store, chain)
        store.attempts.finish([finished(job)])
    assert_consistent(store)


def test_dependents_of_a_retried_job_fail_when_it_fails_at_once(store):
    blocker = STEP.enqueue()
    middle = FAILS.enqueue(blockers=[blocker])
    last = WAITS.enqueue(blockers=[middle])
    fails_too = FAILS.enqueue(blockers=[last])
    fail(store, blocker, Effects())
    assert statuses(middle, last, fails_too) == ["failed", "blocked", "blocked"]
    chains.cancel(last)
    assert statuses(fails_too) == ["failed"]
    chains.retry([last.id, fails_too.id])
    assert statuses(last, fails_too) == ["blocked", "blocked"]
    chains.retry(middle.id)
    assert statuses(middle, last, fails_too) == ["failed", "blocked", "blocked"]
    assert_consistent(store)


def test_job_that_failed_with_its_blocker_becomes_pending_when_the_blocker_has_completed_since(store):
    blocker = STEP.enqueue()
    dependent = FAILS.enqueue(blockers=[blocker])
    fail(store, blocker, Effects())
    chains.retry(blocker.id)
    complete_by_hand(blocker)
    assert statuses(dependent) == ["failed"]
    chains.retry(dependent.id)
    assert statuses(dependent) == ["pending"]
    assert_consistent(store)


def test_job_that_failed_itself_is_pending_when_it_is_retried(store):
    blocker = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    complete_by_hand(blocker)
    [job] = claim_only(store, dependent)
    store.attempts.fail([failed_try(job)])
    chains.retry(dependent.id)
    assert statuses(dependent) == ["pending"]
    assert_consistent(store)
