"""Operations are retried after a deadlock between chains that wait for each other."""

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.db.ids import new_id
from tests.blockers.chains import STEP, WAITS, claim_only, statuses
from tests.blockers.consistency import assert_consistent
from tests.support.connections import Actor, committing, stopped_before
from tests.support.jobs import finished

pytestmark = [committing, pytest.mark.postgresql]


class Detector(Actor):
    """An actor that gets the error of a deadlock. It checks once, so the other transaction must be waiting by then."""

    deadlock_timeout = "6s"

    def _prepare(self):
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


#: Calls that lock ``early`` first, and what remains of the two chains.
CALLS = {
    "enqueue": (lambda crossed: WAITS.enqueue(blockers=crossed), ["pending", "completed"]),
    "enqueue with an id": (lambda crossed: WAITS.enqueue(id=new_id(), blockers=crossed), ["pending", "completed"]),
    "cancel": (chains.cancel, ["cancelled", "completed"]),
    "delete": (chains.delete, []),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_is_retried_after_a_deadlock_with_a_completion(store, crossed, name):
    """The completion has locked ``late``, and waits for ``early``."""
    call, expected = CALLS[name]
    [job] = claim_only(store, crossed[1])
    completing = LateDetector(lambda store: store.attempts.finish([finished(job)]), stops_before=2)
    completing.start().until_stopped()
    calling = Detector(lambda store: call(crossed))
    calling.start().until_blocked_or_ended()
    completing.go_on()
    calling.result()
    assert completing.result()
    assert statuses(*(chain for chain in crossed if expected)) == expected
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
