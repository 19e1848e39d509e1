"""A stopping worker hands back its jobs, which uses no attempt."""

import pytest

from django_jobchains.models import FailedAttempt
from django_jobchains.store import Store
from tests.support.jobs import (
    claim,
    create,
    failed_try,
    row,
    running,
    running_job,
    stored,
)

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("count", [1, 3])
def test_hand_back_reduces_the_attempts_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    before = {job.id: row(job) for job in jobs}
    assert store.attempts.hand_back([job.key for job in jobs]) == {job.key for job in jobs}
    for job in jobs:
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        assert changed == {"status": "pending", "attempt": 0, "leased_by": None, "leased_until": None}


def test_job_that_was_handed_back_keeps_its_place(store: Store) -> None:
    first, second = create(store, 2)
    store.attempts.hand_back([job.key for job in claim(store, 1)])
    assert [job.id for job in claim(store)] == [first, second]


def test_last_error_and_the_history_are_kept(store: Store) -> None:
    job = running_job(store)
    store.attempts.reschedule([failed_try(job)])
    [job] = claim(store)
    store.attempts.hand_back([job.key])
    assert (stored(job).last_error, stored(job).attempt) == ("Boom: no", 1)
    assert FailedAttempt.objects.count() == 1
