"""Two calls about one attempt on two connections, in both orders. Only one of them has an effect.

The second call waits for the lock, or skips the row. There is no deadlock.
"""

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.store.leases import lost_reason
from tests.store.contract.ends import ENDS, chosen
from tests.support.connections import committing, holding, stopped_before, waiting
from tests.support.jobs import AT_ONCE, claim, expire, history, lease, lost, row, running_job, stored, tables

pytestmark = committing

#: All calls that end attempts. The reaper finds attempts by their expired leases.
ALL_ENDS = chosen(*ENDS, "reap")
#: Ends of several statements, between which another call can take effect.
LONG_ENDS = ("continue", "finish_locked", "reschedule", "fail", "reap")
#: Pairs of ends, the first of which holds its locks while the second one is called.
CONFLICTS = (
    ("finish", "finish"),
    ("finish", "finish_locked"),
    ("finish", "reap"),
    ("reap", "finish"),
    ("reap", "finish_locked"),
    ("finish_locked", "reap"),
    ("continue", "continue"),
    ("fail", "continue"),
    ("continue", "fail"),
    ("reschedule", "hand_back"),
    ("hand_back", "reschedule"),
)
#: Ends that record a failed attempt.
FAILURES = {"reschedule": "error", "fail": "error", "reap": "crash"}
STATUSES = dict.fromkeys(("reschedule", "reschedule_as_asked", "hand_back", "reap"), "pending") | {"fail": "failed"}


@pytest.fixture
def job(store):
    """An attempt whose lease has expired, but whose worker still runs."""
    job = running_job(store)
    expire(job)
    return job


@pytest.mark.parametrize("second", ALL_ENDS)
@pytest.mark.parametrize("first", LONG_ENDS)
def test_end_interrupted_between_its_statements_wins_or_changes_nothing(store, job, first, second):
    slow = stopped_before(2, lambda store: ALL_ENDS[first](store, [job]))
    quick = waiting(lambda store: ALL_ENDS[second](store, [job]))
    slow.go_on()
    assert bool(slow.result()) is not bool(quick.result())
    assert_only_effect_is_of(first if slow.result() else second, job)
    assert slow.conflicts == quick.conflicts == []


@pytest.mark.parametrize(("first", "second"), CONFLICTS)
def test_the_first_end_of_an_attempt_wins_and_the_second_changes_nothing(store, job, first, second):
    winner = holding(lambda store: (ALL_ENDS[first](store, [job]), tables()))
    loser = waiting(lambda store: ALL_ENDS[second](store, [job]))
    winner.go_on()
    ended, after = winner.result()
    assert ended
    assert not loser.result()
    assert tables() == after


@pytest.mark.parametrize(("first", "second"), CONFLICTS)
def test_an_end_that_is_rolled_back_changes_nothing(store, job, first, second):
    undone = holding(lambda store: ALL_ENDS[first](store, [job]))
    other = waiting(lambda store: ALL_ENDS[second](store, [job]))
    undone.go_on(roll_back=True)
    undone.result()
    # Most methods skip a locked job, and are called again later.
    assert other.result() or ALL_ENDS[second](store, [job])
    assert len(history()) == (second in ("reschedule", "fail", "reap"))


def assert_only_effect_is_of(winner, job):
    saved = stored(job)
    assert saved.status == STATUSES.get(winner, "completed")
    assert (saved.leased_by, saved.leased_until) == (None, None)
    assert (saved.attempt, saved.crashes) == (0 if winner == "hand_back" else 1, 1 if winner == "reap" else 0)
    assert Job.objects.filter(chain_id=job.chain_id).count() == (2 if winner == "continue" else 1)
    kinds = [FAILURES[winner]] if winner in FAILURES else []
    assert list(FailedAttempt.objects.values_list("kind", flat=True)) == kinds


@pytest.mark.parametrize("end", ALL_ENDS)
def test_renewal_delays_the_end_only_for_its_transaction(store, job, end):
    renewing = holding(lambda store: store.leases.renew([lease(job)]))
    ending = waiting(lambda store: ALL_ENDS[end](store, [job]))
    renewing.go_on()
    assert renewing.result() == lost({})
    if end == "reap":
        assert ending.result() == []
        assert stored(job).status == "running"
    else:
        assert ending.result() or ALL_ENDS[end](store, [job])  # it may have skipped the locked row
        assert_only_effect_is_of(end, job)
    assert renewing.conflicts == ending.conflicts == []


@pytest.mark.parametrize("end", ALL_ENDS)
def test_renewal_after_the_end_changes_nothing(job, end):
    ending = holding(lambda store: (ALL_ENDS[end](store, [job]), tables()))
    renewing = waiting(lambda store: store.leases.renew([lease(job)]))
    ending.go_on()
    _, after = ending.result()
    reason = lost_reason((stored(job).status, job.lease_number), job.lease_number)
    assert renewing.result().lost in ({}, {job.key: reason})  # the renewal does not wait for the row on PostgreSQL
    assert tables() == after


@pytest.mark.parametrize("end", ALL_ENDS)
def test_renewal_interrupted_before_it_reads_the_reasons_returns_the_correct_reason(job, end):
    stale = lease(job)._replace(lease_number=0)
    renewing = stopped_before(2, lambda store: store.leases.renew([stale]))
    ending = waiting(lambda store: ALL_ENDS[end](store, [job]))
    assert ending.result()
    assert renewing.result() == lost({stale.key: lost_reason((stored(job).status, 1), 0)})


def test_claim_before_the_reaper_commits_does_not_see_the_job(store, job):
    reaping = holding(lambda store: store.leases.reap(10, AT_ONCE, 10))
    claiming = waiting(lambda store: claim(store, worker="worker-2"))
    reaping.go_on()
    reaping.result()
    claimed = claiming.result() or claim(store, worker="worker-2")
    assert [(job.attempt, job.lease_number) for job in claimed] == [(2, 2)]
    assert row(job)["leased_by"] == "worker-2"


def test_end_of_the_old_attempt_during_the_next_claim_changes_nothing(store, job):
    store.leases.reap(10, AT_ONCE, 10)
    for end in ENDS.values():
        claiming = holding(lambda store: claim(store, worker="worker-2"))
        stale = waiting(lambda store, end=end: end(store, [job]))
        claiming.go_on()
        [fresh] = claiming.result()
        assert not stale.result()
        assert (stored(job).status, stored(job).leased_by) == ("running", "worker-2")
        store.attempts.hand_back([fresh.key])
