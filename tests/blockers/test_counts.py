"""Many dependents of one chain are freed, or fail, in steps of a constant number of statements."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.store.rows import Effects
from tests.blockers.chains import FAILS, STEP, WAITS, claim_only
from tests.support.jobs import failed_try, finished

pytestmark = pytest.mark.django_db

STEPS = 3


@pytest.mark.parametrize(("kind", "at_most", "for_each_step"), [(WAITS, 6, 3), (FAILS, 8, 4)], ids=str)
def test_dependents_of_a_chain_are_resolved_in_steps(store, monkeypatch, kind, at_most, for_each_step):
    monkeypatch.setattr("django_jobchains.store.blockers.RESOLVE_LIMIT", 10)

    def cost(count):
        blocker = STEP.enqueue(priority=9)
        items = [kind.item(blockers=[blocker], delay=60) for _ in range(count)]
        with CaptureQueriesContext(connection) as enqueueing:
            chains.enqueue_many(items)
        [job] = claim_only(store, blocker)
        effects = Effects()
        with CaptureQueriesContext(connection) as resolving:
            if kind is FAILS:
                store.attempts.fail([failed_try(job)], effects)
            else:
                store.attempts.finish([finished(job)], effects)
        assert len(effects.finished_chains) == (count + 1 if kind is FAILS else 1)
        return len(enqueueing), len(resolving)

    costs = [cost(1), cost(10), cost(STEPS * 10)]
    assert costs[0] == costs[1] == (costs[2][0], costs[2][1] - (STEPS - 1) * for_each_step)
    assert costs[0][1] <= at_most
