"""Every method that ends attempts."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from django_jobchains.store import Store
from django_jobchains.store.rows import ClaimedJob
from tests.support.jobs import failed_try, finished, next_job

End = Callable[[Store, Sequence[ClaimedJob]], Any]


def finish_locked(store, jobs):
    """End attempts like ``job.complete()``: lock the rows, check the leases, and finish."""
    with store.db.transaction():
        held = [job for job in jobs if store.attempts.lock(job.id) == ("running", job.lease_number)]
        return store.attempts.finish([finished(job) for job in held], is_locked=True)


#: Each returns the attempts that it ended.
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
