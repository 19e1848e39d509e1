"""Operations are retried after a deadlock between chains that wait for each other."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.db.ids import new_id
from django_jobchains.models import Chain
from django_jobchains.store import Store
from tests.blockers.chains import STEP, WAITS, claim_only, statuses
from tests.blockers.consistency import assert_consistent
from tests.support.connections import committing
from tests.support.isolation_levels import StepActor, stopped_before
from tests.support.jobs import finished

pytestmark = [committing, pytest.mark.postgresql]

Call = Callable[[Store], Any]


class Detector(StepActor):
    """An actor that gets the error of a deadlock. It checks once, so the other transaction must be waiting by then."""

    deadlock_timeout = "6s"

    def _prepare(self) -> None:
        super()._prepare()
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('deadlock_timeout', %s, false)", [self.deadlock_timeout])


class LateDetector(Detector):
    """An actor that never detects a deadlock first, so that the other transaction gets the error."""

    deadlock_timeout = "30s"


@pytest.fixture
def crossed():
    """Two chains that are locked in opposite orders: ``early`` waits for ``late``, whose current job is newer."""
    late, early = STEP.enqueue(), STEP.enqueue()
    with chains.current_job(early.id) as job:
        job.continue_with(STEP, blockers=[late])
    with chains.current_job(late.id) as job:
        job.continue_with(STEP)
    return early, late


def test_enqueueing_is_retried_after_a_deadlock(store, crossed):
    early, late = crossed
    dependent = against_a_completion(store, crossed, lambda store: WAITS.enqueue(blockers=[early, late]))
    assert statuses(late, early, dependent) == ["completed", "pending", "blocked"]
    assert_consistent(store)


def test_enqueueing_with_an_id_is_retried_after_a_deadlock(store, crossed):
    early, late = crossed
    own = new_id()
    dependent = against_a_completion(store, crossed, lambda store: WAITS.enqueue(id=own, blockers=[early, late]))
    assert statuses(late, early, dependent) == ["completed", "pending", "blocked"]
    assert_consistent(store)


def test_cancelling_is_retried_after_a_deadlock(store, crossed):
    cancelled = against_a_completion(store, crossed, lambda store: chains.cancel(crossed))
    assert crossed[0].id in cancelled
    assert statuses(*crossed) == ["cancelled", "completed"]
    assert_consistent(store)


def test_deleting_is_retried_after_a_deadlock(store, crossed):
    deleted = against_a_completion(store, crossed, lambda store: chains.delete(crossed))
    assert deleted == {chain.id for chain in crossed}
    assert_consistent(store)


def test_completing_is_retried_after_a_deadlock(store, crossed):
    """The completion gets the error. When it is retried, it may skip the job, which may still be locked."""
    late = crossed[1]
    [job] = claim_only(store, late)
    completing = stopped_before(2, lambda store: store.attempts.finish([finished(job)]))
    cancelling = LateDetector(lambda store: chains.cancel(crossed))
    cancelling.start().until_blocked_or_ended()
    written = completing.result()
    cancelling.result()
    assert written or store.attempts.finish([finished(job)])
    assert statuses(late) == ["completed"]
    assert_consistent(store)


def against_a_completion(store: Store, crossed: tuple[Chain, Chain], call: Call) -> Any:
    """Make a call that locks ``early`` first, while a completion has locked ``late`` and waits for ``early``."""
    [job] = claim_only(store, crossed[1])
    completing = LateDetector(lambda store: store.attempts.finish([finished(job)]), stops_before=2)
    completing.start().until_stopped()
    calling = Detector(call)
    calling.start().until_blocked_or_ended()
    completing.go_on()
    result = calling.result()
    assert completing.result()
    return result
