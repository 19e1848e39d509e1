"""The two races of fan-in at each isolation level of PostgreSQL.

The store's own transactions are tried again after a conflict; the caller's fails with it, and has changed nothing.
"""

from typing import Any

import pytest
from django.db import OperationalError

from django_jobchains.deduplication import Deduplicate
from django_jobchains.models import Chain
from django_jobchains.store import Effects, Store
from tests.blockers.actors import READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE, StepActor, stopped_before, waiting
from tests.blockers.kinds import STEP, WAITS, goes_on, started, statuses
from tests.blockers.oracle import assert_sound
from tests.store.connections import committing, is_conflict
from tests.store.jobs import finished

pytestmark = [committing, pytest.mark.postgresql, pytest.mark.slow]

levels = pytest.mark.parametrize("level", [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
#: The statements before which a move is held: all that one of them has.
statements = pytest.mark.parametrize(
    "statement", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
is_going_on = pytest.mark.parametrize("goes_on_", [True, False], ids=["goes on", "ends"])


@levels
@statements
def test_the_last_two_blockers_that_end_together_free_their_job(store: Store, level: str, statement: int) -> None:
    blockers = [STEP.enqueue(), STEP.enqueue()]
    dependent = WAITS.enqueue(blockers=blockers)
    one, two = started(store, *blockers)
    slow = stopped_before(statement, lambda store: store.finish([finished(one)]), level)
    quick = waiting(lambda store: store.finish([finished(two)]), level)
    assert slow.result()
    assert quick.result()
    assert statuses(*blockers, dependent) == ["completed", "completed", "pending"]
    assert_sound(store)


@levels
@statements
@is_going_on
def test_a_job_is_enqueued_while_its_blocker_is_completing(
    store: Store, level: str, statement: int, goes_on_: bool
) -> None:
    blocker = STEP.enqueue()
    [job] = started(store, blocker)
    slow = stopped_before(statement, lambda store: store.finish([goes_on(job) if goes_on_ else finished(job)]), level)
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker]), level)
    assert slow.result()
    assert_waits_for(store, quick.result(), goes_on_)


@levels
@statements
@is_going_on
def test_a_blocker_completes_while_a_job_that_waits_for_it_is_enqueued(
    store: Store, level: str, statement: int, goes_on_: bool
) -> None:
    blocker = STEP.enqueue()
    [job] = started(store, blocker)
    slow = stopped_before(statement, lambda store: WAITS.enqueue(blockers=[blocker]), level)
    quick = waiting(lambda store: store.finish([goes_on(job) if goes_on_ else finished(job)]), level)
    dependent = slow.result()
    if not quick.result():  # it skipped the blocker, which was locked
        assert store.finish([goes_on(job) if goes_on_ else finished(job)])
    assert_waits_for(store, dependent, goes_on_)


@levels
@is_going_on
def test_a_blocker_is_completed_in_its_handlers_transaction_while_a_job_that_waits_for_it_is_enqueued(
    store: Store, level: str, goes_on_: bool
) -> None:
    """Where the caller's transaction cannot go on, nothing of it stays."""

    def complete(store: Store) -> Any:
        with store.transaction():
            if store.lock(job.id) != ("running", job.lease_number):
                return None
            return store.finish([goes_on(job) if goes_on_ else finished(job)], Effects(), is_locked=True)

    blocker = STEP.enqueue()
    [job] = started(store, blocker)
    slow = stopped_before(3, lambda store: WAITS.enqueue(blockers=[blocker]), level)
    quick = waiting(complete, level)
    dependent = slow.result()
    if conflict(quick):
        assert level != READ_COMMITTED
        assert (statuses(blocker), statuses(dependent)) == (["running"], ["blocked"])
        complete(store)
    assert_waits_for(store, dependent, goes_on_)


@levels
def test_a_callers_transaction_that_conflicts_changes_nothing(store: Store, level: str) -> None:
    blockers = [STEP.enqueue(), STEP.enqueue()]
    dependent = WAITS.enqueue(blockers=blockers)
    one, two = started(store, *blockers)
    first = StepActor(lambda store: store.finish([finished(one)]), level=level, holds=True)
    first.start().until_stopped()
    second = StepActor(lambda store: store.finish([finished(two)]), level=level, holds=True)
    second.start().until_blocked_or_ended()
    assert first.result()
    if conflict(second):
        assert level != READ_COMMITTED
        assert statuses(*blockers, dependent) == ["completed", "running", "blocked"]
        store.finish([finished(two)])
    assert statuses(*blockers, dependent) == ["completed", "completed", "pending"]
    assert_sound(store)


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
    assert_sound(store)


@levels
@pytest.mark.parametrize("statement", [2, 3])
def test_two_jobs_enqueued_for_one_blocker_do_not_deadlock(store: Store, level: str, statement: int) -> None:
    blocker = STEP.enqueue()
    slow = stopped_before(statement, lambda store: WAITS.enqueue(blockers=[blocker]), level)
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker]), level)
    slow.go_on()
    assert statuses(quick.result(), slow.result()) == ["blocked", "blocked"]
    assert not [error for error in (*slow.conflicts, *quick.conflicts) if "deadlock" in error]


@levels
def test_a_keyed_job_with_blockers_waits_for_them(store: Store, level: str) -> None:
    blocker = STEP.enqueue()
    [job] = started(store, blocker)
    slow = stopped_before(2, lambda store: store.finish([finished(job)]), level)
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker], deduplicate=Deduplicate("key")), level)
    assert slow.result()
    assert statuses(quick.result()) == ["pending"]
    assert_sound(store)


@pytest.mark.parametrize("between", [READ_COMMITTED, SERIALIZABLE])
@pytest.mark.parametrize("statement", [2, 3])
def test_the_level_of_one_threads_transaction_is_not_taken_for_that_of_another(between: str, statement: int) -> None:
    """Threads share the store. At REPEATABLE READ a lock that is shared first would let two enqueues deadlock."""
    blocker, other = STEP.enqueue(), STEP.enqueue()
    slow = stopped_before(statement, lambda store: WAITS.enqueue(blockers=[blocker]), REPEATABLE_READ)
    waiting(lambda store: WAITS.enqueue(blockers=[other]), between).result()
    quick = waiting(lambda store: WAITS.enqueue(blockers=[blocker]), REPEATABLE_READ)
    slow.go_on()
    assert statuses(quick.result(), slow.result()) == ["blocked", "blocked"]
    assert not [error for error in (*slow.conflicts, *quick.conflicts) if "deadlock" in error]
