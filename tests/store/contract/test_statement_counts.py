"""The number of statements does not depend on the size of the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext

from django_jobchains.store import ClaimedJob, Effects, Store
from tests.support.jobs import (
    AT_ONCE,
    MAX_CRASHES,
    claim,
    create,
    entries,
    failed_try,
    finished,
    lease,
    let_leases_end,
    next_job,
    running,
)

pytestmark = pytest.mark.django_db

FEW, MANY = 2, 30

Call = Callable[[Store, Sequence[ClaimedJob]], Any]

CALLS: dict[str, Call] = {
    "create": lambda store, jobs: create(store, len(jobs)),
    "create_blocked": lambda store, jobs: create(store, len(jobs), blockers=(jobs[0].chain_id,)),
    "claim": lambda store, jobs: claim(store, len(jobs)),
    "renew": lambda store, jobs: store.leases.renew([lease(job) for job in jobs]),
    "finish": lambda store, jobs: store.attempts.finish([finished(job) for job in jobs]),
    "go_on": lambda store, jobs: store.attempts.finish([finished(job, None, next_job(job)) for job in jobs]),
    "reschedule": lambda store, jobs: store.attempts.reschedule([failed_try(job) for job in jobs]),
    "fail": lambda store, jobs: store.attempts.fail([failed_try(job) for job in jobs]),
    "hand_back": lambda store, jobs: store.attempts.hand_back([job.key for job in jobs]),
    "reap": lambda store, jobs: store.leases.reap(len(jobs), AT_ONCE, MAX_CRASHES),
    "lock_all": lambda store, jobs: store.attempts.lock_all([job.id for job in jobs]),
    "cancel": lambda store, jobs: store.chains.cancel([job.chain_id for job in jobs], Effects()),
    "retry": lambda store, jobs: store.chains.retry([job.id for job in jobs], Effects()),
    "log": lambda store, jobs: store.logs.write([entries(job, "a", progress=0.5) for job in jobs]) == set(),
    "delete": lambda store, jobs: store.chains.delete([job.chain_id for job in jobs], cascade=False, effects=Effects()),
}


#: Calls that prepare running jobs.
BEFORE: dict[str, Call] = {
    "claim": lambda store, jobs: store.attempts.hand_back([job.key for job in jobs]),
    "reap": lambda store, jobs: let_leases_end(store),
    "retry": lambda store, jobs: store.attempts.fail([failed_try(job) for job in jobs]),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_number_of_statements_does_not_depend_on_the_batch(store, name):
    assert statements(store, name, MANY) <= statements(store, name, FEW)


def statements(store: Store, name: str, number: int) -> int:
    jobs = running(store, number)
    if name in BEFORE:
        BEFORE[name](store, jobs)
    with CaptureQueriesContext(store.connection) as captured:
        assert CALLS[name](store, jobs)
    return len(captured)
