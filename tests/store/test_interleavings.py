"""Two calls about one attempt on two connections, in both orders. Only one of them has an effect.

The second call waits for the lock, or skips the row. There is no deadlock.
"""

from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, Store
from django_jobchains.store.leases import lost_reason
from tests.support.connections import committing, holding, stopped_before, waiting
from tests.support.jobs import (
    Tables,
    claim,
    expire,
    failed_try,
    finished,
    lease,
    lost,
    next_job,
    row,
    running_job,
    stored,
    tables,
)

pytestmark = committing

End = Callable[[Store, ClaimedJob], Any]


def complete(store: Store, job: ClaimedJob) -> Any:
    """Finish the attempt as ``job.complete()`` does in a handler: lock the row, check the lease, finish."""
    if lost_reason(store.attempts.lock(job.id), job.lease_number):
        return set()
    return store.attempts.finish([finished(job)])


#: All calls that end an attempt. Each returns a true value if it did.
ENDS: dict[str, End] = {
    "finish": lambda store, job: store.attempts.finish([finished(job)]),
    "continue": lambda store, job: store.attempts.finish([finished(job, None, next_job(job))]),
    "complete": lambda store, job: with_transaction(store, lambda: complete(store, job)),
    "reschedule": lambda store, job: store.attempts.reschedule([failed_try(job, delay_seconds=60)]),
    "fail": lambda store, job: store.attempts.fail([failed_try(job)]),
    "hand_back": lambda store, job: store.attempts.hand_back([job.key]),
    "reap": lambda store, job: store.leases.reap(10, Backoff(), 10),
}
#: Ends of several statements, between which another call can take effect.
LONG_ENDS = ("continue", "complete", "reschedule", "fail", "reap")
#: Ends that record a failed attempt.
FAILURES = {"reschedule": "error", "fail": "error", "reap": "crash"}

STATUSES = {"reschedule": "pending", "fail": "failed", "hand_back": "pending", "reap": "pending"}


def with_transaction(store: Store, call: Callable[[], Any]) -> Any:
    with store.db.transaction():
        return call()


@pytest.fixture
def job(store: Store) -> ClaimedJob:
    """An attempt whose lease has expired, but whose worker still runs."""
    job = running_job(store)
    expire(job)
    return job


def and_tables(end: End, job: ClaimedJob) -> Callable[[Store], tuple[Any, Tables]]:
    """Return a call that also returns the tables as its transaction sees them afterwards."""
    return lambda store: (end(store, job), tables())


@pytest.mark.parametrize("second", ENDS)
@pytest.mark.parametrize("first", LONG_ENDS)
def test_end_interrupted_between_its_statements_wins_or_changes_nothing(
    store: Store, job: ClaimedJob, first: str, second: str
) -> None:
    slow = stopped_before(2, lambda store: ENDS[first](store, job))
    quick = waiting(lambda store: ENDS[second](store, job))
    slow.go_on()
    results = {first: slow.result(), second: quick.result()} if first != second else {}
    if results:
        [winner] = [name for name, ended in results.items() if ended]
    else:
        assert bool(slow.result()) is not bool(quick.result())
        winner = first
    assert_only_effect_is_of(winner, job)
    assert slow.conflicts == quick.conflicts == []


def assert_only_effect_is_of(winner: str, job: ClaimedJob) -> None:
    saved = stored(job)
    assert saved.status == STATUSES.get(winner, "completed")
    assert (saved.leased_by, saved.leased_until) == (None, None)
    assert (saved.attempt, saved.crashes) == (0 if winner == "hand_back" else 1, 1 if winner == "reap" else 0)
    assert Job.objects.filter(chain_id=job.chain_id).count() == (2 if winner == "continue" else 1)
    kinds = [FAILURES[winner]] if winner in FAILURES else []
    assert list(FailedAttempt.objects.values_list("kind", flat=True)) == kinds


@pytest.mark.parametrize("end", ENDS)
def test_renewal_delays_the_end_only_for_its_transaction(store: Store, job: ClaimedJob, end: str) -> None:
    renewing = holding(lambda store: store.leases.renew([lease(job)]))
    ending = waiting(lambda store: ENDS[end](store, job))
    renewing.go_on()
    assert renewing.result() == lost({})
    if end == "reap":
        assert ending.result() == []
        assert stored(job).status == "running"
    else:
        assert ending.result() or ENDS[end](store, job)  # it may have skipped the locked row
        assert_only_effect_is_of(end, job)
    assert renewing.conflicts == ending.conflicts == []


@pytest.mark.parametrize("end", ENDS)
def test_renewal_after_the_end_changes_nothing(job: ClaimedJob, end: str) -> None:
    ending = holding(and_tables(ENDS[end], job))
    renewing = waiting(lambda store: store.leases.renew([lease(job)]))
    ending.go_on()
    _, after = ending.result()
    reason = lost_reason((stored(job).status, job.lease_number), job.lease_number)
    assert renewing.result().lost in ({}, {job.key: reason})  # the renewal does not wait for the row on PostgreSQL
    assert tables() == after


@pytest.mark.parametrize("end", ENDS)
def test_renewal_interrupted_before_it_reads_the_reasons_returns_the_correct_reason(job: ClaimedJob, end: str) -> None:
    stale = lease(job)._replace(lease_number=0)
    renewing = stopped_before(2, lambda store: store.leases.renew([stale]))
    ending = waiting(lambda store: ENDS[end](store, job))
    assert ending.result()
    assert renewing.result() == lost({stale.key: lost_reason((stored(job).status, 1), 0)})


def test_claim_before_the_reaper_commits_does_not_see_the_job(store: Store, job: ClaimedJob) -> None:
    reaping = holding(lambda store: store.leases.reap(10, Backoff(0, 1, 0, 0), 10))
    claiming = waiting(lambda store: claim(store, worker="worker-2"))
    reaping.go_on()
    reaping.result()
    claimed = claiming.result() or claim(store, worker="worker-2")
    assert [(job.attempt, job.lease_number) for job in claimed] == [(2, 2)]
    assert row(job)["leased_by"] == "worker-2"


def test_two_claims_of_one_job_give_it_to_one_worker(store: Store) -> None:
    job = running_job(store)
    store.attempts.hand_back([job.key])
    first = holding(lambda store: claim(store, worker="worker-2"))
    second = waiting(lambda store: claim(store, worker="worker-3"))
    first.go_on()
    assert len(first.result()) == 1
    assert second.result() == []
    assert row(job)["leased_by"] == "worker-2"


def test_end_of_the_old_attempt_during_the_next_claim_changes_nothing(store: Store, job: ClaimedJob) -> None:
    store.leases.reap(10, Backoff(0, 1, 0, 0), 10)
    for name, end in ENDS.items():
        if name == "reap":
            continue
        claiming = holding(lambda store: claim(store, worker="worker-2"))
        stale = waiting(lambda store, end=end: end(store, job))
        claiming.go_on()
        [fresh] = claiming.result()
        assert not stale.result()
        assert (stored(job).status, stored(job).leased_by) == ("running", "worker-2")
        store.attempts.hand_back([fresh.key])
