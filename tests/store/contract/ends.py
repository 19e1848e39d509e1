"""Calls about attempts, each of which takes the store and the attempts."""

import pytest

from django_jobchains.declare.policies import Backoff
from django_jobchains.store.rows import Effects
from tests.support.jobs import failed_try, finished, lease, next_job


def finish_locked(store, jobs):
    """End attempts like ``job.complete()``: lock the rows, check the leases, and finish."""
    with store.db.transaction():
        held = [job for job in jobs if store.attempts.lock(job.id) == ("running", job.lease_number)]
        return store.attempts.finish([finished(job) for job in held], is_locked=True)


#: Every method that ends attempts. Each returns the attempts that it ended.
ENDS = {
    "finish": lambda store, jobs: store.attempts.finish([finished(job) for job in jobs]),
    "finish_locked": finish_locked,
    "continue": lambda store, jobs: store.attempts.finish([finished(job, None, next_job(job)) for job in jobs]),
    "reschedule": lambda store, jobs: store.attempts.reschedule([failed_try(job, delay_seconds=600) for job in jobs]),
    "reschedule_as_asked": lambda store, jobs: store.attempts.reschedule(
        [failed_try(job, delay_seconds=600, is_failure=False) for job in jobs]
    ),
    "fail": lambda store, jobs: store.attempts.fail([failed_try(job) for job in jobs]),
    "hand_back": lambda store, jobs: store.attempts.hand_back([job.key for job in jobs]),
}
ends = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
#: The same, with calls that do not end attempts, or find them themselves by their expired leases.
CALLS = {
    **ENDS,
    "renew": lambda store, jobs: store.leases.renew([lease(job) for job in jobs]),
    "check": lambda store, jobs: store.leases.check([job.key for job in jobs]),
    "reap": lambda store, jobs: store.leases.reap(10, Backoff(0, 1, 0, 0), 10),
    "cancel": lambda store, jobs: store.chains.cancel([job.id for job in jobs], Effects()),
}


def chosen(*names):
    return {name: CALLS[name] for name in names}
