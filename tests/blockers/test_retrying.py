"""Retrying in a graph of chains: a blocker frees its dependents later, and a dependent reads its blockers again."""

import pytest

from django_jobchains import chains
from django_jobchains.exceptions import ChainReferenced, JobNotRunnable
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

either_failure = pytest.mark.parametrize("end", [fail, cancel])
kinds = pytest.mark.parametrize("kind", [WAITS, FAILS, RUNS], ids=str)


def test_blocker_that_fails_again_leaves_its_dependents_blocked(store):
    blocker = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    for _ in range(2):
        fail(store, blocker, Effects())
        chains.retry(blocker.id)
    assert statuses(blocker, dependent) == ["pending", "blocked"]
    assert_consistent(store)


@kinds
def test_cancelled_dependent_whose_blockers_completed_meanwhile_becomes_pending(store, kind):
    blockers = [STEP.enqueue(), STEP.enqueue()]
    dependent = kind.enqueue(blockers=blockers)
    chains.cancel(dependent)
    for blocker in blockers:
        complete_by_hand(blocker)
        assert statuses(dependent) == ["cancelled"]
    effects = Effects()
    assert store.chains.retry([dependent.id], effects) == {dependent.id}
    assert (statuses(dependent), effects.due_types) == (["pending"], {kind.name})
    assert_consistent(store)


@kinds
def test_cancelled_dependent_is_blocked_again_while_a_blocker_is_open(store, kind):
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


@either_failure
def test_cancelled_dependent_that_runs_anyway_becomes_pending_when_its_blocker_failed_meanwhile(store, end):
    blocker = STEP.enqueue()
    dependent = RUNS.enqueue(blockers=[blocker])
    chains.cancel(dependent)
    end(store, blocker, Effects())
    chains.retry(dependent.id)
    assert statuses(dependent) == ["pending"]
    assert_consistent(store)


def test_job_that_failed_with_its_blocker_is_blocked_again_when_both_are_retried(store):
    blocker = STEP.enqueue()
    middle = FAILS.enqueue(blockers=[blocker])
    last = FAILS.enqueue(blockers=[middle])
    fail(store, blocker, Effects())
    assert chains.retry([last.id, middle.id, blocker.id]) == {blocker.id, middle.id, last.id}
    assert statuses(blocker, middle, last) == ["pending", "blocked", "blocked"]
    for chain in (blocker, middle, last):
        [job] = claim_only(store, chain)
        store.attempts.finish([finished(job)])
    assert statuses(blocker, middle, last) == ["completed"] * 3
    assert_consistent(store)


def test_job_that_failed_with_its_blocker_fails_with_it_again(store):
    blocker = STEP.enqueue()
    dependent = FAILS.enqueue(blockers=[blocker])
    for _ in range(2):
        fail(store, blocker, effects := Effects())
        assert statuses(dependent) == ["failed"]
        assert effects.finished_chains == {blocker.id, dependent.id}
        chains.retry([blocker.id, dependent.id])
    assert_consistent(store)


@either_failure
def test_job_that_failed_with_its_blocker_fails_at_once_when_it_is_retried_first(store, end):
    blocker = STEP.enqueue()
    middle = FAILS.enqueue(blockers=[blocker])
    last = FAILS.enqueue(blockers=[middle])
    chains.cancel([last, middle])
    end(store, blocker, Effects())
    effects = Effects()
    assert store.chains.retry([middle.id], effects) == {middle.id}
    assert statuses(blocker, middle, last)[1:] == ["failed", "cancelled"]
    assert effects.finished_chains == {middle.id}
    chains.retry(last.id)
    assert statuses(last) == ["failed"]
    assert_consistent(store)


def test_dependent_of_a_retried_job_fails_when_that_fails_at_once(store):
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


def test_dependent_that_failed_itself_is_pending_when_it_is_retried(store):
    blocker = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    complete_by_hand(blocker)
    [job] = claim_only(store, dependent)
    store.attempts.fail([failed_try(job)])
    chains.retry(dependent.id)
    assert statuses(dependent) == ["pending"]
    assert_consistent(store)


@kinds
def test_blocker_cannot_be_deleted_as_long_as_a_job_may_need_it(store, kind):
    blocker = STEP.enqueue()
    dependent = kind.enqueue(blockers=[blocker])
    chains.cancel(dependent)
    with pytest.raises(ChainReferenced, match=str(dependent.id)):
        chains.delete(blocker)
    assert chains.delete([blocker, dependent]) == {blocker.id, dependent.id}
    assert_consistent(store)


def test_blocker_may_be_deleted_once_its_dependents_are_completed(store):
    blocker = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    complete_by_hand(dependent)
    assert chains.delete(blocker) == {blocker.id}
    assert (statuses(dependent), links(dependent)) == (["completed"], [])
    assert_consistent(store)
