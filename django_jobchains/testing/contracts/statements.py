"""The number of statements does not grow with the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext

from django_jobchains.store import ClaimedJob, Effects, Store
from django_jobchains.testing.contracts.jobs import (
    AT_ONCE,
    MAX_CRASHES,
    claim,
    create,
    failed_try,
    finished,
    lease,
    let_leases_end,
    next_job,
    running,
    said,
)
from django_jobchains.testing.contracts.storing import StoreTests

FEW, MANY = 2, 30

Call = Callable[[Store, Sequence[ClaimedJob]], Any]

CALLS: dict[str, Call] = {
    "create": lambda store, jobs: create(store, len(jobs)),
    "create_blocked": lambda store, jobs: create(store, len(jobs), blockers=(jobs[0].chain_id,)),
    "claim": lambda store, jobs: claim(store, len(jobs)),
    "renew": lambda store, jobs: store.renew([lease(job) for job in jobs]),
    "finish": lambda store, jobs: store.finish([finished(job) for job in jobs]),
    "go_on": lambda store, jobs: store.finish([finished(job, None, next_job(job)) for job in jobs]),
    "reschedule": lambda store, jobs: store.reschedule([failed_try(job) for job in jobs]),
    "fail": lambda store, jobs: store.fail([failed_try(job) for job in jobs]),
    "hand_back": lambda store, jobs: store.hand_back([lease(job) for job in jobs]),
    "reap": lambda store, jobs: store.reap(len(jobs), AT_ONCE, MAX_CRASHES),
    "lock_all": lambda store, jobs: store.lock_all([job.id for job in jobs]),
    "cancel": lambda store, jobs: store.cancel([job.chain_id for job in jobs], Effects()),
    "retry": lambda store, jobs: store.retry([job.id for job in jobs], Effects()),
    "say": lambda store, jobs: store.say([said(job, "a", progress=0.5) for job in jobs]) == set(),
    "delete": lambda store, jobs: store.delete([job.chain_id for job in jobs], cascade=False, effects=Effects()),
}


#: What is done to running jobs first.
BEFORE: dict[str, Call] = {
    "claim": lambda store, jobs: store.hand_back([lease(job) for job in jobs]),
    "reap": lambda store, jobs: let_leases_end(store),
    "retry": lambda store, jobs: store.fail([failed_try(job) for job in jobs]),
}


class CountingStatements(StoreTests):
    @pytest.mark.parametrize("name", CALLS)
    def test_many_take_no_more_statements_than_few(self, store: Store, name: str) -> None:
        assert statements(store, name, MANY) <= statements(store, name, FEW)


def statements(store: Store, name: str, number: int) -> int:
    jobs = running(store, number)
    if name in BEFORE:
        BEFORE[name](store, jobs)
    with CaptureQueriesContext(store.connection) as captured:
        assert CALLS[name](store, jobs)
    return len(captured)
