"""Jobs that a stopping worker gives back at once: a deploy costs no attempt."""

from datetime import timedelta

import pytest

from django_jobchains.models import FailedAttempt
from django_jobchains.store import Store
from tests.store.jobs import claim, create, failed_try, finished, lease, lost, row, running, running_job, stored, tables

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("count", [1, 2, 50])
def test_hand_back_returns_the_attempt_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    before = {job.id: row(job) for job in jobs}
    assert store.hand_back([lease(job) for job in jobs]) == {job.key for job in jobs}
    for job in jobs:
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        assert changed == {"status": "pending", "attempt": 0, "leased_by": None, "leased_until": None}


def test_a_job_handed_back_is_claimed_at_once_as_the_same_attempt_with_a_new_lease(store: Store) -> None:
    job = running_job(store)
    store.hand_back([lease(job)])
    [again] = claim(store, worker="worker-2")
    assert (again.attempt, again.lease_number) == (1, 2)


def test_a_job_handed_back_keeps_its_place(store: Store) -> None:
    first, second = create(store, 2)
    store.hand_back([lease(job) for job in claim(store, 1)])
    assert [job.id for job in claim(store)] == [first, second]


def test_run_at_is_kept_to_the_microsecond(store: Store) -> None:
    [job] = running(store)
    due = stored(job).run_at
    store.hand_back([lease(job)])
    assert stored(job).run_at == due


def test_the_last_error_and_the_history_are_kept(store: Store) -> None:
    job = running_job(store)
    store.reschedule([failed_try(job)])
    [job] = claim(store)
    store.hand_back([lease(job)])
    assert (stored(job).last_error, stored(job).attempt) == ("Boom: no", 1)
    assert FailedAttempt.objects.count() == 1


def test_an_attempt_handed_back_writes_nothing_any_more(store: Store) -> None:
    job = running_job(store)
    store.hand_back([lease(job)])
    before = tables()
    assert store.finish([finished(job)]) == set()
    assert store.renew([lease(job)]) == lost({job.key: "taken_by_another_worker"})
    assert tables() == before


def test_many_deploys_cost_no_attempt(store: Store) -> None:
    create(store)
    for number in range(1, 8):
        [job] = claim(store)
        assert (job.attempt, job.lease_number) == (1, number)
        store.hand_back([lease(job, seconds=0)])
    assert stored(job).attempt == 0


def test_a_job_handed_back_is_told_as_due_for_as_long_as_before(store: Store) -> None:
    job = running_job(store)
    store.hand_back([lease(job)])
    [again] = claim(store)
    assert again.run_at - job.run_at == timedelta(0)
