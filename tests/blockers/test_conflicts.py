"""Deadlocks between chains that wait for each other: whoever owns the transaction tries it again."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.ids import new_id
from django_jobchains.models import Chain
from django_jobchains.store import Store
from tests.blockers.actors import StepActor, stopped_before
from tests.blockers.kinds import STEP, WAITS, started, statuses
from tests.blockers.oracle import assert_sound
from tests.store.connections import committing
from tests.store.jobs import finished

pytestmark = [committing, pytest.mark.postgresql]

Call = Callable[[Store], Any]


class Patient(StepActor):
    """Looks for a deadlock so late that the other one of two has found it."""

    def _prepare(self) -> None:
        super()._prepare()
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '8s'")


@pytest.fixture
def crossed() -> tuple[Chain, Chain]:
    """``early`` waits for ``late``, whose present job is newer: they are locked in opposite orders."""
    late, early = STEP.enqueue(), STEP.enqueue()
    with chains.complete(early.id) as job:
        job.continue_with(STEP, blockers=[late])
    with chains.complete(late.id) as job:
        job.continue_with(STEP)
    return early, late


def test_enqueueing_is_tried_again_after_a_deadlock(store: Store, crossed: tuple[Chain, Chain]) -> None:
    early, late = crossed
    dependent = against_a_completion(store, crossed, lambda store: WAITS.enqueue(blockers=[early, late]))
    assert statuses(late, early, dependent) == ["completed", "pending", "blocked"]
    assert_sound(store)


def test_enqueueing_with_an_id_is_tried_again_after_a_deadlock(store: Store, crossed: tuple[Chain, Chain]) -> None:
    early, late = crossed
    own = new_id()
    dependent = against_a_completion(store, crossed, lambda store: WAITS.enqueue(id=own, blockers=[early, late]))
    assert statuses(late, early, dependent) == ["completed", "pending", "blocked"]
    assert_sound(store)


def test_cancelling_is_tried_again_after_a_deadlock(store: Store, crossed: tuple[Chain, Chain]) -> None:
    cancelled = against_a_completion(store, crossed, lambda store: chains.cancel(crossed))
    assert crossed[0].id in cancelled
    assert statuses(*crossed) == ["cancelled", "completed"]
    assert_sound(store)


def test_deleting_is_tried_again_after_a_deadlock(store: Store, crossed: tuple[Chain, Chain]) -> None:
    deleted = against_a_completion(store, crossed, lambda store: chains.delete(crossed))
    assert deleted == {chain.id for chain in crossed}
    assert_sound(store)


def test_completing_is_tried_again_after_a_deadlock(store: Store, crossed: tuple[Chain, Chain]) -> None:
    """The completion finds the deadlock this time."""
    late = crossed[1]
    [job] = started(store, late)
    completing = stopped_before(2, lambda store: store.finish([finished(job)]))
    cancelling = Patient(lambda store: chains.cancel(crossed))
    cancelling.start().until_blocked_or_ended()
    assert completing.result()
    cancelling.result()
    assert statuses(late) == ["completed"]
    assert_sound(store)


def against_a_completion(store: Store, crossed: tuple[Chain, Chain], call: Call) -> Any:
    """Calls while ``late`` completes: that has locked ``late`` and wants ``early``, the call the other way round."""
    [job] = started(store, crossed[1])
    completing = Patient(lambda store: store.finish([finished(job)]), stops_before=2)
    completing.start().until_stopped()
    calling = StepActor(call)
    calling.start().until_blocked_or_ended()
    completing.go_on()
    result = calling.result()
    assert completing.result()
    return result
