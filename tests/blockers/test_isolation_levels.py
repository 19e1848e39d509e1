"""The two races of fan-in at each isolation level of PostgreSQL.

After a conflict the store retries its own transactions. A transaction of the caller fails, and changes nothing.
"""

from typing import Any

import pytest
from django.db import OperationalError

from django_jobchains.models import Chain
from django_jobchains.store import Store
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.rows import Effects
from tests.blockers.chains import STEP, WAITS, claim_only, continued, statuses
from tests.blockers.consistency import assert_consistent
from tests.support.connections import committing, is_conflict
from tests.support.isolation_levels import (
    READ_COMMITTED,
    REPEATABLE_READ,
    SERIALIZABLE,
    StepActor,
    stopped_before,
    waiting,
)
from tests.support.jobs import finished

pytestmark = [committing, pytest.mark.postgresql, pytest.mark.slow]

levels = pytest.mark.parametrize("level", [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
#: The statements before which an operation is stopped.
statements = pytest.mark.parametrize("statement", [2, 3, 4])
either_end = pytest.mark.parametrize("continues", [True, False], ids=["continues", "ends"])


@levels
@statements
def test_last_two_blockers_that_end_together_free_their_job(store, level, statement):
    blockers = [STEP.enqueue(), STEP.enqueue()]
    dependent = WAITS.enqueue(blockers=blockers)
    one, two = claim_only(store, *blockers)
    slow = stopped_before(statement, lambda store: store.attempts.finish([finished(one)]), level)
    quick = waiting(lambda store: store.attempts.finish([finished(two)]), level)
    assert slow.result()
    assert quick.result()
    assert statuses(*blockers, dependent) == ["completed", "completed", "pending"]
    assert_consistent(store)


@levels
@statements
@either_end
def test_job_is_enqueued_while_its_blocker_is_completing(store, level, statement, continues):
    blocker = STEP.enqueue()
    [job] = claim_only(store, blocker)
    slow = stopped_before(
        statement, lambda store: store.attempts.finish([continued(job) if continues else finished(job)]), level
    )
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker]), level)
    assert slow.result()
    assert_waits_for(store, quick.result(), continues)


@levels
@statements
@either_end
def test_blocker_completes_while_a_dependent_is_enqueued(store, level, statement, continues):
    blocker = STEP.enqueue()
    [job] = claim_only(store, blocker)
    slow = stopped_before(statement, lambda store: WAITS.enqueue(blockers=[blocker]), level)
    quick = waiting(lambda store: store.attempts.finish([continued(job) if continues else finished(job)]), level)
    dependent = slow.result()
    if not quick.result():  # it skipped the blocker, which was locked
        assert store.attempts.finish([continued(job) if continues else finished(job)])
    assert_waits_for(store, dependent, continues)


@levels
@either_end
def test_blocker_completes_in_the_transaction_of_its_handler_while_a_dependent_is_enqueued(store, level, continues):
    """If the caller's transaction has a conflict, it is rolled back completely."""

    def complete(store: Store) -> Any:
        with store.db.transaction():
            if store.attempts.lock(job.id) != ("running", job.lease_number):
                return None
            return store.attempts.finish([continued(job) if continues else finished(job)], Effects(), is_locked=True)

    blocker = STEP.enqueue()
    [job] = claim_only(store, blocker)
    slow = stopped_before(3, lambda store: WAITS.enqueue(blockers=[blocker]), level)
    quick = waiting(complete, level)
    dependent = slow.result()
    if conflict(quick):
        assert level != READ_COMMITTED
        assert (statuses(blocker), statuses(dependent)) == (["running"], ["blocked"])
        complete(store)
    assert_waits_for(store, dependent, continues)


@levels
def test_transaction_of_the_caller_that_conflicts_changes_nothing(store, level):
    blockers = [STEP.enqueue(), STEP.enqueue()]
    dependent = WAITS.enqueue(blockers=blockers)
    one, two = claim_only(store, *blockers)
    first = StepActor(lambda store: store.attempts.finish([finished(one)]), level=level, holds=True)
    first.start().until_stopped()
    second = StepActor(lambda store: store.attempts.finish([finished(two)]), level=level, holds=True)
    second.start().until_blocked_or_ended()
    assert first.result()
    if conflict(second):
        assert level != READ_COMMITTED
        assert statuses(*blockers, dependent) == ["completed", "running", "blocked"]
        store.attempts.finish([finished(two)])
    assert statuses(*blockers, dependent) == ["completed", "completed", "pending"]
    assert_consistent(store)


def conflict(actor: StepActor) -> bool:
    try:
        actor.result()
    except OperationalError as error:
        if not is_conflict(error):
            raise
        return True
    return False


def assert_waits_for(store: Store, dependent: Chain, is_blocked: bool) -> None:
    assert statuses(dependent) == ["blocked" if is_blocked else "pending"]
    assert_consistent(store)


@levels
@pytest.mark.parametrize("statement", [2, 3])
def test_two_jobs_enqueued_for_one_blocker_do_not_deadlock(store, level, statement):
    blocker = STEP.enqueue()
    slow = stopped_before(statement, lambda store: WAITS.enqueue(blockers=[blocker]), level)
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker]), level)
    slow.go_on()
    assert statuses(quick.result(), slow.result()) == ["blocked", "blocked"]
    assert not [error for error in (*slow.conflicts, *quick.conflicts) if "deadlock" in error]


@levels
def test_keyed_job_with_blockers_waits_for_them(store, level):
    blocker = STEP.enqueue()
    [job] = claim_only(store, blocker)
    slow = stopped_before(2, lambda store: store.attempts.finish([finished(job)]), level)
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker], deduplicate=Deduplicate("key")), level)
    assert slow.result()
    assert statuses(quick.result()) == ["pending"]
    assert_consistent(store)


@pytest.mark.parametrize("between", [READ_COMMITTED, SERIALIZABLE])
@pytest.mark.parametrize("statement", [2, 3])
def test_each_thread_uses_the_isolation_level_of_its_own_transaction(between, statement):
    """Threads share the store. At REPEATABLE READ two enqueues that took a shared lock first would deadlock."""
    blocker, other = STEP.enqueue(), STEP.enqueue()
    slow = stopped_before(statement, lambda store: WAITS.enqueue(blockers=[blocker]), REPEATABLE_READ)
    waiting(lambda store: WAITS.enqueue(blockers=[other]), between).result()
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker]), REPEATABLE_READ)
    slow.go_on()
    assert statuses(quick.result(), slow.result()) == ["blocked", "blocked"]
    assert not [error for error in (*slow.conflicts, *quick.conflicts) if "deadlock" in error]
