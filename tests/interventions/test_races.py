"""Two verbs, or a verb and an attempt, on two connections, stepped in both orders."""

from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, ChainReferenced, JobNotRunnable
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, Store, get_store
from django_jobchains.store.leases import lost_reason
from tests.interventions.chains_at import attempt, each, failed, go_on, mail, ship, statuses
from tests.store.connections import Actor, committing, holding, stopped_before, waiting
from tests.store.jobs import claim, expire, failed_try, finished, lease, next_job

pytestmark = [committing, pytest.mark.slow]

#: More statements than any of these calls has.
STEPS = range(1, 7)

End = Callable[[Store, ClaimedJob], Any]


def complete(store: Store, job: ClaimedJob) -> Any:
    """What an attempt does whose handler wrote in ``complete()``: lock, look, finish with a continuation."""
    with store.transaction():
        if lost_reason(store.lock(job.id), job.lease_number):
            return set()
        return store.finish([finished(job, None, next_job(job))], is_locked=True)


def complete_without_a_worker(store: Store, job: ClaimedJob) -> Any:
    with chains.complete(job.chain_id) as current:
        current.continue_with(mail)
        current.continue_with(mail)
    return {job.key}


CONTINUING: dict[str, End] = {
    "finish": lambda store, job: store.finish([finished(job, None, next_job(job))]),
    "complete": complete,
}
NOT_COMPLETING: dict[str, End] = {
    "reschedule": lambda store, job: store.reschedule([failed_try(job)]),
    "fail": lambda store, job: store.fail([failed_try(job)]),
    "hand_back": lambda store, job: store.hand_back([lease(job)]),
    "reap": lambda store, job: store.reap(10, Backoff(0, 1, 0, 0), 10),
}

continuing = pytest.mark.parametrize("end", CONTINUING)
not_completing = pytest.mark.parametrize("end", NOT_COMPLETING)


@pytest.fixture
def chain() -> Chain:
    return ship.enqueue()


@pytest.fixture
def job(store: Store, chain: Chain) -> ClaimedJob:
    return attempt(store, chain)


def call(end: Callable[..., Any], *args: Any) -> Callable[[Store], Any]:
    return lambda store: end(store, *args)


def cancel(chain: Chain) -> Callable[[Store], Any]:
    return lambda store: chains.cancel(chain.id)


@pytest.fixture(autouse=True)
def _patient_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a lock that is about to be released is waited for."""
    monkeypatch.setattr("django_jobchains.store.interventions.CANCEL_SECONDS", 20)


class Again:
    """An end of an attempt, as a worker writes it: if it has skipped the row, which was locked, it comes again."""

    def __init__(self, end: End, job: ClaimedJob) -> None:
        self._end, self._job = end, job

    def __call__(self, store: Store) -> Any:
        return self._end(store, self._job)


def result_of(actor: Actor, call: Callable[[Store], Any]) -> Any:
    result = actor.result()
    return call(get_store()) if not result and isinstance(call, Again) else result


def in_order(first: Callable[[Store], Any], second: Callable[[Store], Any]) -> tuple[Any, Any]:
    """The first holds what it wrote, the second waits for it; the results of both."""
    actors = holding(first), waiting(second)
    actors[0].go_on()
    results = actors[0].result(), result_of(actors[1], second)
    assert_no_conflict(*actors)
    return results


def assert_no_conflict(*actors: Actor) -> None:
    assert [actor.conflicts for actor in actors] == [[] for _ in actors]


class TestCancelAgainstACompletionWithAContinuation:
    """The chain ends cancelled, at whatever job, and never goes on after ``cancel`` returned."""

    def assert_cancelled(self, store: Store, chain: Chain, *expected: str) -> None:
        assert statuses(chain) == list(expected)
        assert chain.refresh().status == "cancelled"
        assert claim(store) == []

    @continuing
    def test_the_completion_first(self, store: Store, chain: Chain, job: ClaimedJob, end: str) -> None:
        written, cancelled = in_order(call(CONTINUING[end], job), cancel(chain))
        assert written
        assert cancelled == {chain.id}
        self.assert_cancelled(store, chain, "completed", "cancelled")

    @continuing
    def test_the_cancel_first(self, store: Store, chain: Chain, job: ClaimedJob, end: str) -> None:
        cancelled, written = in_order(cancel(chain), Again(CONTINUING[end], job))
        assert written
        assert cancelled == {chain.id}
        self.assert_cancelled(store, chain, "completed", "cancelled")

    def test_a_completion_of_several_steps_first(self, store: Store, chain: Chain, job: ClaimedJob) -> None:
        _, cancelled = in_order(call(complete_without_a_worker, job), cancel(chain))
        assert cancelled == {chain.id}
        self.assert_cancelled(store, chain, "completed", "completed", "cancelled")

    @continuing
    @pytest.mark.parametrize("step", STEPS)
    def test_a_cancel_overtaken_before_any_of_its_statements(
        self, store: Store, chain: Chain, job: ClaimedJob, end: str, step: int
    ) -> None:
        cancelling = stopped_before(step, cancel(chain))
        ending = waiting(call(CONTINUING[end], job))
        cancelling.go_on()
        assert cancelling.result() == {chain.id}
        assert result_of(ending, Again(CONTINUING[end], job))
        self.assert_cancelled(store, chain, "completed", "cancelled")
        assert_no_conflict(cancelling, ending)

    @continuing
    @pytest.mark.parametrize("step", STEPS)
    def test_a_completion_overtaken_before_any_of_its_statements(
        self, store: Store, chain: Chain, job: ClaimedJob, end: str, step: int
    ) -> None:
        ending = stopped_before(step, call(CONTINUING[end], job))
        cancelling = waiting(cancel(chain))
        ending.go_on()
        assert ending.result()
        assert cancelling.result() == {chain.id}
        self.assert_cancelled(store, chain, "completed", "cancelled")
        assert_no_conflict(cancelling, ending)

    @pytest.mark.postgresql
    @pytest.mark.parametrize("step", STEPS)
    def test_a_chain_that_goes_on_again_before_any_of_its_statements(
        self, store: Store, chain: Chain, job: ClaimedJob, step: int
    ) -> None:
        """It has waited for the first job, and meanwhile the second one is done too."""
        ending = holding(call(CONTINUING["finish"], job))
        cancelling = Actor(cancel(chain), stops_before=step).start()
        if step > 2:  # it reads the last job, and then locks it
            cancelling.until_blocked_or_ended()
        ending.go_on()
        assert ending.result()
        cancelling.until_stopped()
        for second in claim(store):
            store.finish([finished(second, None, next_job(second))])
        assert cancelling.result() == {chain.id}
        assert statuses(chain)[-1] == "cancelled"
        assert claim(store) == []

    @continuing
    def test_a_cancel_that_is_rolled_back_leaves_the_chain_going_on(
        self, chain: Chain, job: ClaimedJob, end: str
    ) -> None:
        cancelling = holding(cancel(chain))
        ending = waiting(call(CONTINUING[end], job))
        cancelling.go_on(roll_back=True)
        cancelling.result()
        assert result_of(ending, Again(CONTINUING[end], job))
        assert statuses(chain) == ["completed", "pending"]


class TestCancelAgainstAnAttemptThatEnds:
    @not_completing
    @pytest.mark.parametrize("cancels_first", [True, False])
    def test_in_any_order_the_chain_is_cancelled(
        self, store: Store, chain: Chain, job: ClaimedJob, end: str, cancels_first: bool
    ) -> None:
        expire(job)
        calls = cancel(chain), Again(NOT_COMPLETING[end], job)
        in_order(*(calls if cancels_first else calls[::-1]))
        assert chain.refresh().status == ("failed" if end == "fail" and not cancels_first else "cancelled")
        assert FailedAttempt.objects.count() == (end != "hand_back")
        assert claim(store) == []

    @pytest.mark.parametrize("cancels_first", [True, False])
    def test_a_last_job_that_completes_stays_completed(
        self, chain: Chain, job: ClaimedJob, cancels_first: bool
    ) -> None:
        calls = cancel(chain), Again(lambda store, job: store.finish([finished(job, '"done"')]), job)
        results = in_order(*(calls if cancels_first else calls[::-1]))
        assert (chain.refresh().status, chain.output) == ("completed", "done")
        assert results[not cancels_first] == ({chain.id} if cancels_first else set())

    def test_a_claim_first_is_asked_to_stop(self, store: Store, chain: Chain) -> None:
        [[job], cancelled] = in_order(claim, cancel(chain))
        assert cancelled == {chain.id}
        assert store.check([lease(job)]).cancelled == {job.key}

    def test_a_cancel_first_is_not_claimed(self, store: Store, chain: Chain) -> None:
        cancelled, claimed = in_order(cancel(chain), claim)
        assert (cancelled, claimed) == ({chain.id}, [])
        assert chain.refresh().status == "cancelled"


class TestDeleteAgainstACompletion:
    def delete(self, chain: Chain) -> Callable[[Store], Any]:
        return lambda store: chains.delete(chain.id)

    @continuing
    def test_the_completion_first(self, chain: Chain, job: ClaimedJob, end: str) -> None:
        written, deleted = in_order(call(CONTINUING[end], job), self.delete(chain))
        assert written
        assert deleted == {chain.id}
        assert not Job.objects.exists()

    @continuing
    def test_the_delete_first(self, chain: Chain, job: ClaimedJob, end: str) -> None:
        deleted, written = in_order(self.delete(chain), call(CONTINUING[end], job))
        assert deleted == {chain.id}
        assert not written
        assert not Job.objects.exists()

    @not_completing
    @pytest.mark.parametrize("deletes_first", [True, False])
    def test_an_attempt_that_ends_otherwise(self, chain: Chain, job: ClaimedJob, end: str, deletes_first: bool) -> None:
        expire(job)
        calls = self.delete(chain), call(NOT_COMPLETING[end], job)
        in_order(*(calls if deletes_first else calls[::-1]))
        assert not Job.objects.exists()
        assert not FailedAttempt.objects.exists()

    @continuing
    @pytest.mark.parametrize("step", STEPS)
    def test_a_delete_overtaken_before_any_of_its_statements(
        self, chain: Chain, job: ClaimedJob, end: str, step: int
    ) -> None:
        deleting = stopped_before(step, self.delete(chain))
        ending = waiting(call(CONTINUING[end], job))
        deleting.go_on()
        assert deleting.result() == {chain.id}
        ending.result()
        assert not Job.objects.exists()
        assert_no_conflict(deleting, ending)

    @pytest.mark.parametrize("step", STEPS)
    def test_a_delete_beside_a_job_that_begins_to_wait_for_it(self, chain: Chain, step: int) -> None:
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
    """What the call returned or raised."""
    try:
        return actor.result()
    except (ChainNotFound, ChainReferenced) as error:
        return error


class TestAVerbTwice:
    def test_of_two_retries_one_moves_the_job(self, store: Store) -> None:
        chain = failed(store)
        both = in_order(lambda store: chains.retry(chain.id), lambda store: chains.retry(chain.id))
        assert both == ({chain.id}, set())
        [job] = claim(store)
        assert (job.attempt, job.lease_number) == (2, 2)

    def test_a_second_retry_moves_it_when_the_first_is_rolled_back(self, store: Store) -> None:
        chain = failed(store)
        first = holding(lambda store: chains.retry(chain.id))
        second = waiting(lambda store: chains.retry(chain.id))
        first.go_on(roll_back=True)
        first.result()
        assert second.result() == {chain.id}

    def test_a_retry_beside_the_attempt_after_another_retry_changes_nothing(self, store: Store) -> None:
        chain = failed(store)
        chains.retry(chain.id)
        [job], moved = in_order(claim, lambda store: chains.retry(chain.id))
        assert moved == set()
        assert store.finish([finished(job)]) == {job.key}

    def test_of_two_deletes_the_second_finds_nothing(self, chain: Chain) -> None:
        first = holding(lambda store: chains.delete(chain.id))
        second = waiting(lambda store: chains.delete(chain.id))
        first.go_on()
        assert first.result() == {chain.id}
        with pytest.raises(ChainNotFound):
            second.result()

    def test_of_two_cancels_the_second_finds_it_cancelled(self, chain: Chain) -> None:
        assert in_order(cancel(chain), cancel(chain)) == ({chain.id}, set())

    @pytest.mark.parametrize("verb", [chains.run_now, lambda ids: chains.reschedule(ids, delay=60)])
    def test_a_job_that_is_claimed_meanwhile_is_not_moved(self, store: Store, chain: Chain, verb: Any) -> None:
        claiming = holding(claim)
        moving = waiting(lambda store: verb(chain.id))
        claiming.go_on()
        [job] = claiming.result()
        with pytest.raises(JobNotRunnable, match="running"):
            moving.result()
        assert Job.objects.get().run_at == job.run_at


def test_a_cascade_beside_a_chain_that_gets_another_blocker_takes_that_too() -> None:
    chain, blocker, late = ship.enqueue(), mail.enqueue(), mail.enqueue()
    go_on(chain, blockers=[blocker])

    def wait_for_the_late_one(store: Store) -> None:
        go_on(chain, blockers=[late])

    continuing = holding(wait_for_the_late_one)
    deleting = waiting(lambda store: chains.delete(chain.id, cascade=True))
    continuing.go_on()
    continuing.result()
    assert deleting.result() == each([chain, blocker, late])
    assert not Job.objects.exists()
