"""Two operations, or an operation and an attempt, on two connections, stepped in both orders."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, ChainReferenced, JobNotRunnable
from django_jobchains.declare.policies import Backoff
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.store import Store, get_store
from django_jobchains.store.leases import lost_reason
from django_jobchains.store.rows import ClaimedJob
from tests.support.chains import attempt, each, failed, go_on, mail, scheduled, ship, statuses
from tests.support.connections import Actor, committing, holding, stopped_before, waiting
from tests.support.jobs import claim, expire, failed_try, finished, next_job

pytestmark = [committing, pytest.mark.slow]

#: More statements than any of these calls has.
STEPS = range(1, 7)

End = Callable[[Store, ClaimedJob], Any]


def complete(store: Store, job: ClaimedJob) -> Any:
    """Complete the job as ``job.complete()`` does in a handler: lock the job, check the lease, continue the chain."""
    with store.db.transaction():
        if lost_reason(store.attempts.lock(job.id), job.lease_number):
            return set()
        return store.attempts.finish([finished(job, None, next_job(job))], is_locked=True)


def complete_without_a_worker(store: Store, job: ClaimedJob) -> Any:
    with chains.current_job(job.chain_id) as current:
        current.continue_with(mail)
        current.continue_with(mail)
    return {job.key}


CONTINUING: dict[str, End] = {
    "finish": lambda store, job: store.attempts.finish([finished(job, None, next_job(job))]),
    "complete": complete,
}
NOT_COMPLETING: dict[str, End] = {
    "reschedule": lambda store, job: store.attempts.reschedule([failed_try(job)]),
    "fail": lambda store, job: store.attempts.fail([failed_try(job)]),
    "hand_back": lambda store, job: store.attempts.hand_back([job.key]),
    "reap": lambda store, job: store.leases.reap(10, Backoff(0, 1, 0, 0), 10),
}

continuing = pytest.mark.parametrize("end", CONTINUING)
not_completing = pytest.mark.parametrize("end", NOT_COMPLETING)


@pytest.fixture
def chain():
    return ship.enqueue()


@pytest.fixture
def job(store, chain):
    return attempt(store, chain)


def call(end: Callable[..., Any], *args: Any) -> Callable[[Store], Any]:
    return lambda store: end(store, *args)


def cancel(chain: Chain) -> Callable[[Store], Any]:
    return lambda store: chains.cancel(chain.id)


@pytest.fixture(autouse=True)
def _patient_cancels(monkeypatch):
    """Wait for a lock for as long as a slow machine may need to release it."""
    monkeypatch.setattr("django_jobchains.store.chains.CANCEL_SECONDS", 20)


class Again:
    """The end of an attempt as a worker writes it: a row that was locked is skipped, and written again later."""

    def __init__(self, end: End, job: ClaimedJob) -> None:
        self._end, self._job = end, job

    def __call__(self, store: Store) -> Any:
        return self._end(store, self._job)


def result_of(actor: Actor, call: Callable[[Store], Any]) -> Any:
    result = actor.result()
    return call(get_store()) if not result and isinstance(call, Again) else result


def in_order(first: Callable[[Store], Any], second: Callable[[Store], Any]) -> tuple[Any, Any]:
    """Run the second call while the first holds its locks, then release them; return both results."""
    actors = holding(first), waiting(second)
    actors[0].go_on()
    results = actors[0].result(), result_of(actors[1], second)
    assert_no_conflict(*actors)
    return results


def assert_no_conflict(*actors: Actor) -> None:
    assert [actor.conflicts for actor in actors] == [[] for _ in actors]


class TestCancelAgainstACompletionWithAContinuation:
    """The chain ends cancelled at some job, and never continues after ``cancel`` returned."""

    def assert_cancelled(self, store: Store, chain: Chain, *expected: str) -> None:
        assert statuses(chain) == list(expected)
        assert chain.refresh().status == "cancelled"
        assert claim(store) == []

    @continuing
    def test_completion_first(self, store, chain, job, end):
        written, cancelled = in_order(call(CONTINUING[end], job), cancel(chain))
        assert written
        assert cancelled == {chain.id}
        self.assert_cancelled(store, chain, "completed", "cancelled")

    @continuing
    def test_cancel_first(self, store, chain, job, end):
        cancelled, written = in_order(cancel(chain), Again(CONTINUING[end], job))
        assert written
        assert cancelled == {chain.id}
        self.assert_cancelled(store, chain, "completed", "cancelled")

    def test_completion_of_several_steps_first(self, store, chain, job):
        _, cancelled = in_order(call(complete_without_a_worker, job), cancel(chain))
        assert cancelled == {chain.id}
        self.assert_cancelled(store, chain, "completed", "completed", "cancelled")

    @continuing
    @pytest.mark.parametrize("step", STEPS)
    def test_completion_before_any_statement_of_the_cancel(self, store, chain, job, end, step):
        cancelling = stopped_before(step, cancel(chain))
        ending = waiting(call(CONTINUING[end], job))
        cancelling.go_on()
        assert cancelling.result() == {chain.id}
        assert result_of(ending, Again(CONTINUING[end], job))
        self.assert_cancelled(store, chain, "completed", "cancelled")
        assert_no_conflict(cancelling, ending)

    @continuing
    @pytest.mark.parametrize("step", STEPS)
    def test_cancel_before_any_statement_of_the_completion(self, store, chain, job, end, step):
        ending = stopped_before(step, call(CONTINUING[end], job))
        cancelling = waiting(cancel(chain))
        ending.go_on()
        assert ending.result()
        assert cancelling.result() == {chain.id}
        self.assert_cancelled(store, chain, "completed", "cancelled")
        assert_no_conflict(cancelling, ending)

    @pytest.mark.postgresql
    @pytest.mark.parametrize("step", STEPS)
    def test_chain_that_continues_twice_before_any_statement_of_the_cancel(self, store, chain, job, step):
        """While the cancel waits for the first job, the second one is completed too."""
        ending = holding(call(CONTINUING["finish"], job))
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
        ending = waiting(call(CONTINUING[end], job))
        cancelling.go_on(roll_back=True)
        cancelling.result()
        assert result_of(ending, Again(CONTINUING[end], job))
        assert statuses(chain) == ["completed", "pending"]


class TestCancelAgainstAnAttemptThatEnds:
    @not_completing
    @pytest.mark.parametrize("cancels_first", [True, False])
    def test_the_chain_is_cancelled_in_either_order(self, store, chain, job, end, cancels_first):
        expire(job)
        calls = cancel(chain), Again(NOT_COMPLETING[end], job)
        in_order(*(calls if cancels_first else calls[::-1]))
        assert chain.refresh().status == ("failed" if end == "fail" and not cancels_first else "cancelled")
        assert FailedAttempt.objects.count() == (end != "hand_back")
        assert claim(store) == []

    @pytest.mark.parametrize("cancels_first", [True, False])
    def test_a_last_job_that_completes_stays_completed(self, chain, job, cancels_first):
        calls = cancel(chain), Again(lambda store, job: store.attempts.finish([finished(job, '"done"')]), job)
        results = in_order(*(calls if cancels_first else calls[::-1]))
        assert (chain.refresh().status, chain.output) == ("completed", "done")
        assert results[not cancels_first] == ({chain.id} if cancels_first else set())


class TestDeleteAgainstACompletion:
    def delete(self, chain: Chain) -> Callable[[Store], Any]:
        return lambda store: chains.delete(chain.id)

    @continuing
    def test_completion_first(self, chain, job, end):
        written, deleted = in_order(call(CONTINUING[end], job), self.delete(chain))
        assert written
        assert deleted == {chain.id}
        assert not Job.objects.exists()

    @continuing
    def test_delete_first(self, chain, job, end):
        deleted, written = in_order(self.delete(chain), call(CONTINUING[end], job))
        assert deleted == {chain.id}
        assert not written
        assert not Job.objects.exists()

    @not_completing
    @pytest.mark.parametrize("deletes_first", [True, False])
    def test_an_attempt_that_does_not_complete(self, chain, job, end, deletes_first):
        expire(job)
        calls = self.delete(chain), call(NOT_COMPLETING[end], job)
        in_order(*(calls if deletes_first else calls[::-1]))
        assert not Job.objects.exists()
        assert not FailedAttempt.objects.exists()

    @continuing
    @pytest.mark.parametrize("step", STEPS)
    def test_completion_before_any_statement_of_the_delete(self, chain, job, end, step):
        deleting = stopped_before(step, self.delete(chain))
        ending = waiting(call(CONTINUING[end], job))
        deleting.go_on()
        assert deleting.result() == {chain.id}
        ending.result()
        assert not Job.objects.exists()
        assert_no_conflict(deleting, ending)

    @pytest.mark.parametrize("step", STEPS)
    def test_a_delete_beside_a_new_job_that_waits_for_the_chain(self, chain, step):
        deleting = stopped_before(step, self.delete(chain))
        enqueueing = waiting(lambda store: mail.enqueue(blockers=[chain]))
        deleting.go_on()
        outcomes = [outcome(deleting), outcome(enqueueing)]
        if isinstance(outcomes[0], ChainReferenced):
            assert JobBlocker.objects.get().job_id == outcomes[1].id
            assert chain.refresh().status == "pending"
        else:
            assert outcomes[0] == {chain.id}
            assert isinstance(outcomes[1], ChainNotFound)
            assert not Job.objects.exists()


def outcome(actor: Actor) -> Any:
    """Return what the call returned or raised."""
    try:
        return actor.result()
    except (ChainNotFound, ChainReferenced) as error:
        return error


@dataclass(frozen=True)
class Moving:
    """A call that moves the current job of a chain, and a function that continues the chain with another such job."""

    make: Callable[[Store], Chain]
    call: Callable[[Any], Any]
    go_on: Callable[[Chain], Any]


def fail_again(chain: Chain) -> None:
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

    def assert_moved(self, chain: Chain, result: Any) -> None:
        current = chain.refresh().current_job
        assert (current.chain_index, current.status) == (1, "pending")
        assert current.run_at < current.created_at + timedelta(seconds=1800)
        assert result in (None, {current.id})

    def test_continuation_first(self, store, moving):
        chain = moving.make(store)
        _, result = in_order(lambda store: moving.go_on(chain), lambda store: moving.call(chain.id))
        self.assert_moved(chain, result)

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

    def test_several_chains_of_which_some_continue(self, store, moving):
        made = [moving.make(store) for _ in range(4)]
        _, result = in_order(
            lambda store: [moving.go_on(chain) for chain in made[1:3]], lambda store: moving.call(each(made))
        )
        current = [chain.refresh().current_job for chain in made]
        assert [(job.chain_index, job.status) for job in current] == [
            (0, "pending"),
            *[(1, "pending")] * 2,
            (0, "pending"),
        ]
        assert result in (None, {job.id for job in current})

    @pytest.mark.postgresql
    def test_continuation_before_the_move_locks(self, store, moving):
        chain = moving.make(store)
        call = stopped_before(1, lambda store: moving.call(chain.id))
        Actor(lambda store: moving.go_on(chain)).start().result()
        self.assert_moved(chain, call.result())

    @pytest.mark.parametrize("step", range(2, 4))
    def test_continuation_after_the_move_has_locked(self, store, moving, step):
        chain = moving.make(store)
        call = stopped_before(step, lambda store: moving.call(chain.id))
        continuing = waiting(lambda store: moving.go_on(chain))
        call.go_on()
        assert call.result() in (None, {chain.id})
        continuing.result()
        assert statuses(chain)[0] == "completed"
        assert_no_conflict(call, continuing)


class TestTheSameOperationTwice:
    def test_of_two_retries_only_one_moves_the_job(self, store):
        chain = failed(store)
        both = in_order(lambda store: chains.retry(chain.id), lambda store: chains.retry(chain.id))
        assert both == ({chain.id}, set())
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

    def test_of_two_deletes_the_second_finds_nothing(self, chain):
        first = holding(lambda store: chains.delete(chain.id))
        second = waiting(lambda store: chains.delete(chain.id))
        first.go_on()
        assert first.result() == {chain.id}
        with pytest.raises(ChainNotFound):
            second.result()

    def test_the_second_of_two_cancels_skips_the_chain(self, chain):
        assert in_order(cancel(chain), cancel(chain)) == ({chain.id}, set())

    @pytest.mark.parametrize("verb", [chains.run_now, lambda ids: chains.reschedule(ids, delay=60)])
    def test_a_job_that_is_claimed_meanwhile_is_not_moved(self, store, chain, verb):
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

    def wait_for_late_blocker(store: Store) -> None:
        go_on(chain, blockers=[late])

    continuing = holding(wait_for_late_blocker)
    deleting = waiting(lambda store: chains.delete(chain.id, cascade=True))
    continuing.go_on()
    continuing.result()
    assert deleting.result() == each([chain, blocker, late])
    assert not Job.objects.exists()
