"""Two operations, or an operation and an attempt, on two connections, stepped in both orders."""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import ChainNotFound, ChainReferenced, JobNotRunnable
from django_jobchains.declare.policies import Backoff
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.store import get_store
from django_jobchains.store.leases import lost_reason
from tests.support.chains import attempt, each, failed, go_on, mail, scheduled, ship, statuses
from tests.support.connections import (
    REPEATABLE_READ,
    SERIALIZABLE,
    Actor,
    committing,
    holding,
    stopped_before,
    waiting,
)
from tests.support.jobs import claim, expire, failed_try, finished, next_job

pytestmark = [committing, pytest.mark.slow]

#: More statements than any of these calls has.
STEPS = range(1, 7)


def complete(store, job):
    """Complete the job as ``job.complete()`` does in a handler: lock the job, check the lease, continue the chain."""
    with store.db.transaction():
        if lost_reason(store.attempts.lock(job.id), job.lease_number):
            return set()
        return store.attempts.finish([finished(job, None, next_job(job))], is_locked=True)


CONTINUING = {
    "finish": lambda store, job: store.attempts.finish([finished(job, None, next_job(job))]),
    "complete": complete,
}
NOT_COMPLETING = {
    "reschedule": lambda store, job: store.attempts.reschedule([failed_try(job)]),
    "fail": lambda store, job: store.attempts.fail([failed_try(job)]),
    "hand_back": lambda store, job: store.attempts.hand_back([job.key]),
    "reap": lambda store, job: store.leases.reap(10, Backoff(0, 1, 0, 0), 10),
}

continuing = pytest.mark.parametrize("end", CONTINUING.values(), ids=CONTINUING)
not_completing = pytest.mark.parametrize("end", NOT_COMPLETING)
each_step = pytest.mark.parametrize("step", STEPS)
both_orders = pytest.mark.parametrize("turned", [False, True], ids=["first", "second"])
#: None: the level that Django uses.
LEVELS = [None, *(pytest.param(level, marks=pytest.mark.postgresql) for level in (REPEATABLE_READ, SERIALIZABLE))]
levels = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture
def chain():
    return ship.enqueue()


@pytest.fixture
def job(store, chain):
    return attempt(store, chain)


@pytest.fixture(autouse=True)
def _patient_cancels(monkeypatch):
    """Wait for a lock for as long as a slow machine may need to release it."""
    monkeypatch.setattr("django_jobchains.store.chains.CANCEL_SECONDS", 20)


def cancel(chain):
    return lambda store: chains.cancel(chain.id)


def delete(chain):
    return lambda store: chains.delete(chain.id)


class Again:
    """The end of an attempt as a worker writes it: a row that was locked is skipped, and written again later."""

    def __init__(self, end, job):
        self._end, self._job = end, job

    def __call__(self, store):
        return self._end(store, self._job)


def result_of(actor, call):
    result = actor.result()
    return call(get_store()) if not result and isinstance(call, Again) else result


def in_order(first, second, turned=False, level=None):
    """Run one call while the other holds its locks, then release them. Return the results in the order of the calls."""
    before, after = (second, first) if turned else (first, second)
    actors = holding(before, level), waiting(after, level)
    actors[0].go_on()
    results = actors[0].result(), result_of(actors[1], after)
    if level is None:
        assert_no_conflict(*actors)
    return results[::-1] if turned else results


def assert_no_conflict(*actors):
    assert [actor.conflicts for actor in actors] == [[] for _ in actors]


class TestCancelAgainstACompletionWithAContinuation:
    """The chain ends cancelled at some job, and never continues after ``cancel`` returned."""

    def assert_cancelled(self, store, chain, *expected):
        assert statuses(chain) == list(expected)
        assert chain.refresh().status == "cancelled"
        assert claim(store) == []

    @levels
    @both_orders
    def test_one_after_the_other(self, store, chain, job, turned, level):
        cancelled, written = in_order(cancel(chain), Again(CONTINUING["finish"], job), turned, level)
        assert written
        assert cancelled == {chain.id}
        self.assert_cancelled(store, chain, "completed", "cancelled")

    def test_completion_of_several_steps_first(self, store, chain, job):
        def continue_twice(store):
            with chains.current_job(chain.id) as current:
                current.continue_with(mail)
                current.continue_with(mail)

        _, cancelled = in_order(continue_twice, cancel(chain))
        assert cancelled == {chain.id}
        self.assert_cancelled(store, chain, "completed", "completed", "cancelled")

    @continuing
    @each_step
    @both_orders
    def test_one_before_any_statement_of_the_other(self, store, chain, job, end, step, turned):
        calls = [cancel(chain), Again(end, job)][:: -1 if turned else 1]
        slow = stopped_before(step, calls[0])
        quick = waiting(calls[1])
        slow.go_on()
        results = slow.result(), result_of(quick, calls[1])
        assert {chain.id} in results
        assert all(results)
        self.assert_cancelled(store, chain, "completed", "cancelled")
        assert_no_conflict(slow, quick)

    @pytest.mark.postgresql
    @each_step
    def test_chain_that_continues_twice_before_any_statement_of_the_cancel(self, store, chain, job, step):
        """While the cancel waits for the first job, the second one is completed too."""
        ending = holding(Again(CONTINUING["finish"], job))
        cancelling = Actor(cancel(chain), stops_before=step).start()
        if step > 2:  # only then has it locked the last job, which it reads first
            cancelling.until_blocked_or_ended()
        ending.go_on()
        assert ending.result()
        cancelling.until_stopped()
        for second in claim(store):
            store.attempts.finish([finished(second, None, next_job(second))])
        assert cancelling.result() == {chain.id}
        assert statuses(chain)[-1] == "cancelled"
        assert claim(store) == []

    @continuing
    def test_a_cancel_that_is_rolled_back_does_not_stop_the_chain(self, chain, job, end):
        cancelling = holding(cancel(chain))
        ending = waiting(Again(end, job))
        cancelling.go_on(roll_back=True)
        cancelling.result()
        assert result_of(ending, Again(end, job))
        assert statuses(chain) == ["completed", "pending"]


class TestCancelAgainstAnAttemptThatEnds:
    @not_completing
    @both_orders
    def test_the_chain_is_cancelled_in_either_order(self, store, chain, job, end, turned):
        expire(job)
        in_order(cancel(chain), Again(NOT_COMPLETING[end], job), turned)
        assert chain.refresh().status == ("failed" if end == "fail" and turned else "cancelled")
        # Cancelling is not failing, but a crash is always recorded.
        assert FailedAttempt.objects.count() == (end == "reap" or (turned and end != "hand_back"))
        assert claim(store) == []

    @both_orders
    def test_a_last_job_that_completes_stays_completed(self, chain, job, turned):
        end = Again(lambda store, job: store.attempts.finish([finished(job, '"done"')]), job)
        cancelled, _ = in_order(cancel(chain), end, turned)
        assert (chain.refresh().status, chain.output) == ("completed", "done")
        assert cancelled == (set() if turned else {chain.id})


class TestDeleteAgainstAnAttemptThatEnds:
    @levels
    @both_orders
    def test_completion(self, chain, job, turned, level):
        deleted, written = in_order(delete(chain), partial(CONTINUING["finish"], job=job), turned, level)
        assert deleted == {chain.id}
        assert bool(written) is turned
        assert not Job.objects.exists()

    @not_completing
    @both_orders
    def test_an_attempt_that_does_not_complete(self, chain, job, end, turned):
        expire(job)
        in_order(delete(chain), partial(NOT_COMPLETING[end], job=job), turned)
        assert not Job.objects.exists()
        assert not FailedAttempt.objects.exists()

    @continuing
    @each_step
    def test_completion_before_any_statement_of_the_delete(self, chain, job, end, step):
        deleting = stopped_before(step, delete(chain))
        ending = waiting(partial(end, job=job))
        deleting.go_on()
        assert deleting.result() == {chain.id}
        ending.result()
        assert not Job.objects.exists()
        assert_no_conflict(deleting, ending)


@each_step
def test_a_delete_beside_a_new_job_that_waits_for_the_chain(chain, step):
    deleting = stopped_before(step, delete(chain))
    enqueueing = waiting(lambda store: mail.enqueue(blockers=[chain]))
    deleting.go_on()
    deleted, enqueued = outcome(deleting), outcome(enqueueing)
    if isinstance(deleted, ChainReferenced):
        assert JobBlocker.objects.get().job_id == enqueued.id
        assert chain.refresh().status == "pending"
    else:
        assert deleted == {chain.id}
        assert isinstance(enqueued, ChainNotFound)
        assert not Job.objects.exists()


def outcome(actor):
    """Return what the call returned or raised."""
    try:
        return actor.result()
    except (ChainNotFound, ChainReferenced) as error:
        return error


@dataclass(frozen=True)
class Moving:
    """A call that moves the current job of a chain, and a function that continues the chain with another such job."""

    make: Any
    call: Any
    go_on: Any


def fail_again(chain):
    chains.retry(chain)
    go_on(chain)
    chains.cancel(chain)


MOVING = {
    "retry": Moving(failed, chains.retry, fail_again),
    "run_now": Moving(scheduled, chains.run_now, partial(go_on, delay=3600)),
    "reschedule": Moving(scheduled, partial(chains.reschedule, delay=60), partial(go_on, delay=3600)),
}


@pytest.mark.parametrize("moving", MOVING.values(), ids=MOVING)
class TestAMoveAgainstAChainThatContinues:
    """The id of a chain stands for its current job at the time of the lock."""

    def assert_moved(self, result, *made):
        current = [chain.refresh().current_job for chain in made]
        for job in current:
            assert (job.chain_index, job.status) == (1, "pending")
            assert job.run_at < job.created_at + timedelta(seconds=1800)
        assert result is None or result >= {job.id for job in current}

    def test_continuation_first(self, store, moving):
        made = [moving.make(store) for _ in range(4)]
        _, result = in_order(
            lambda store: [moving.go_on(chain) for chain in made[1:3]], lambda store: moving.call(each(made))
        )
        self.assert_moved(result, *made[1:3])
        assert result is None or result >= each([made[0], made[3]])
        assert [statuses(chain) for chain in (made[0], made[3])] == [["pending"]] * 2

    def test_move_first(self, store, moving):
        chain = moving.make(store)
        result, _ = in_order(lambda store: moving.call(chain.id), lambda store: moving.go_on(chain))
        assert result in (None, {chain.id})
        assert [job.status for job in chain.jobs][:1] == ["completed"]

    def test_a_continuation_that_is_rolled_back(self, store, moving):
        chain = moving.make(store)
        continuing = holding(lambda store: moving.go_on(chain))
        call = waiting(lambda store: moving.call(chain.id))
        continuing.go_on(roll_back=True)
        continuing.result()
        assert call.result() in (None, {chain.id})
        assert statuses(chain) == ["pending"]
        assert_no_conflict(continuing, call)

    @pytest.mark.parametrize("step", range(1, 4))
    def test_continuation_before_any_statement_of_the_move(self, store, moving, step):
        if step == 1 and connection.vendor == "sqlite":
            pytest.skip("the transaction of the move excludes others from its beginning")
        chain = moving.make(store)
        call = stopped_before(step, lambda store: moving.call(chain.id))
        continuing = waiting(lambda store: moving.go_on(chain))
        if step == 1:
            continuing.result()
            self.assert_moved(call.result(), chain)
        else:
            assert call.result() in (None, {chain.id})
            continuing.result()
            assert statuses(chain)[0] == "completed"
        assert_no_conflict(call, continuing)


@levels
def test_a_chain_that_continues_meanwhile_is_retried_at_its_current_job(store, level):
    chain = failed(store)
    _, retried = in_order(lambda store: fail_again(chain), lambda store: chains.retry(chain.id), level=level)
    assert retried == {chain.refresh().current_job_id}
    assert statuses(chain) == ["completed", "pending"]


class TestTheSameOperationTwice:
    @levels
    def test_of_two_retries_only_one_moves_the_job(self, store, level):
        chain = failed(store)
        retry = partial(chains.retry, chain.id)
        assert in_order(lambda store: retry(), lambda store: retry(), level=level) == ({chain.id}, set())
        [job] = claim(store)
        assert (job.attempt, job.lease_number) == (2, 2)

    def test_a_second_retry_moves_the_job_if_the_first_is_rolled_back(self, store):
        chain = failed(store)
        first = holding(lambda store: chains.retry(chain.id))
        second = waiting(lambda store: chains.retry(chain.id))
        first.go_on(roll_back=True)
        first.result()
        assert second.result() == {chain.id}

    def test_a_retry_during_the_next_attempt_changes_nothing(self, store):
        chain = failed(store)
        chains.retry(chain.id)
        [job], moved = in_order(claim, lambda store: chains.retry(chain.id))
        assert moved == set()
        assert store.attempts.finish([finished(job)]) == {job.key}

    @levels
    def test_of_two_deletes_the_second_finds_nothing(self, chain, level):
        with pytest.raises(ChainNotFound):
            in_order(delete(chain), delete(chain), level=level)
        assert not Job.objects.exists()

    def test_the_second_of_two_cancels_skips_the_chain(self, chain):
        assert in_order(cancel(chain), cancel(chain)) == ({chain.id}, set())

    @pytest.mark.parametrize("verb", [chains.run_now, lambda ids: chains.reschedule(ids, delay=60)])
    def test_a_job_that_is_claimed_meanwhile_is_not_moved(self, chain, verb):
        claiming = holding(claim)
        moving = waiting(lambda store: verb(chain.id))
        claiming.go_on()
        [job] = claiming.result()
        with pytest.raises(JobNotRunnable, match="running"):
            moving.result()
        assert Job.objects.get().run_at == job.run_at


def test_a_cascade_includes_a_blocker_that_is_added_meanwhile():
    chain, blocker, late = ship.enqueue(), mail.enqueue(), mail.enqueue()
    go_on(chain, blockers=[blocker])
    continuing = holding(lambda store: go_on(chain, blockers=[late]))
    deleting = waiting(lambda store: chains.delete(chain.id, cascade=True))
    continuing.go_on()
    continuing.result()
    assert deleting.result() == each([chain, blocker, late])
    assert not Job.objects.exists()
