"""The two races of fan-in at each isolation level of PostgreSQL.

After a conflict the store retries its own transactions. A transaction of the caller fails, and changes nothing.
"""

import pytest
from django.db import OperationalError

from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.rows import Effects
from tests.blockers.chains import STEP, WAITS, claim_only, continued, statuses
from tests.blockers.consistency import assert_consistent
from tests.support.connections import (
    READ_COMMITTED,
    REPEATABLE_READ,
    SERIALIZABLE,
    Actor,
    committing,
    holding,
    is_conflict,
    stopped_before,
    waiting,
)
from tests.support.jobs import finished

pytestmark = [committing, pytest.mark.postgresql, pytest.mark.slow]

levels = pytest.mark.parametrize("level", [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
either_end = pytest.mark.parametrize("continues", [True, False], ids=["continues", "ends"])


def end(job, continues=False):
    return lambda store: store.attempts.finish([continued(job) if continues else finished(job)])


def complete(job, continues):
    """End an attempt in the transaction of its handler."""

    def call(store):
        with store.db.transaction():
            if store.attempts.lock(job.id) != ("running", job.lease_number):
                return None
            return store.attempts.finish([continued(job) if continues else finished(job)], Effects(), is_locked=True)

    return call


def has_conflict(actor):
    try:
        actor.result()
    except OperationalError as error:
        if not is_conflict(error):
            raise
        return True
    return False


def assert_waits_for(store, dependent, is_blocked):
    assert statuses(dependent) == ["blocked" if is_blocked else "pending"]
    assert_consistent(store)


@levels
@either_end
def test_blocker_completes_in_the_transaction_of_its_handler_while_a_dependent_is_enqueued(store, level, continues):
    """If the caller's transaction has a conflict, it is rolled back completely."""
    blocker = STEP.enqueue()
    [job] = claim_only(store, blocker)
    slow = stopped_before(3, lambda store: WAITS.enqueue(blockers=[blocker]), level)
    quick = waiting(complete(job, continues), level)
    dependent = slow.result()
    if has_conflict(quick):
        assert level != READ_COMMITTED
        assert (statuses(blocker), statuses(dependent)) == (["running"], ["blocked"])
        complete(job, continues)(store)
    assert_waits_for(store, dependent, continues)


@levels
def test_transaction_of_the_caller_that_conflicts_changes_nothing(store, level):
    blockers = [STEP.enqueue(), STEP.enqueue()]
    dependent = WAITS.enqueue(blockers=blockers)
    one, two = claim_only(store, *blockers)
    first = holding(end(one), level)
    second = Actor(end(two), level=level, holds=True).start().until_blocked_or_ended()
    assert first.result()
    if has_conflict(second):
        assert level != READ_COMMITTED
        assert statuses(*blockers, dependent) == ["completed", "running", "blocked"]
        end(two)(store)
    assert statuses(*blockers, dependent) == ["completed", "completed", "pending"]
    assert_consistent(store)


@pytest.mark.parametrize(
    ("level", "between"),
    [(READ_COMMITTED, None), (REPEATABLE_READ, READ_COMMITTED), (REPEATABLE_READ, SERIALIZABLE), (SERIALIZABLE, None)],
)
@pytest.mark.parametrize("statement", [2, 3])
def test_two_jobs_enqueued_for_one_blocker_do_not_deadlock(store, level, between, statement):
    """Threads share the store, but not the level: at REPEATABLE READ a shared lock would be taken too early."""
    blocker, other = STEP.enqueue(), STEP.enqueue()
    slow = stopped_before(statement, lambda store: WAITS.enqueue(blockers=[blocker]), level)
    if between:
        waiting(lambda store: WAITS.enqueue(blockers=[other]), between).result()
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker]), level)
    slow.go_on()
    assert statuses(quick.result(), slow.result()) == ["blocked", "blocked"]
    assert not [error for error in (*slow.conflicts, *quick.conflicts) if "deadlock" in error]


@levels
def test_keyed_job_with_blockers_waits_for_them(store, level):
    blocker = STEP.enqueue()
    [job] = claim_only(store, blocker)
    slow = stopped_before(2, end(job), level)
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker], deduplicate=Deduplicate("key")), level)
    assert slow.result()
    assert_waits_for(store, quick.result(), is_blocked=False)
