"""Attempts that failed: tried again or given up, with their history."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_jobchains.models import FailedAttempt
from django_jobchains.store import Store
from tests.store.jobs import WORKER, claim, database_now, failed_try, row, running, running_job, stored

pytestmark = pytest.mark.django_db

counts = pytest.mark.parametrize("count", [1, 2, 50])
moves = pytest.mark.parametrize("move", ["reschedule", "fail"])


@counts
def test_reschedule_makes_jobs_due_after_their_delay_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    tries = [failed_try(job, error=f"Boom {n}", delay_seconds=10.5 + n) for n, job in enumerate(jobs)]
    assert store.reschedule(tries) == {job.key: "pending" for job in jobs}
    for number, job in enumerate(jobs):
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        wait = timedelta(seconds=10.5 + number)
        assert start + wait <= changed.pop("run_at") <= database_now() + wait
        assert changed == {"status": "pending", "leased_by": None, "leased_until": None, "last_error": f"Boom {number}"}


@counts
def test_fail_gives_jobs_up_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    assert store.fail([failed_try(job) for job in jobs]) == {job.key: "failed" for job in jobs}
    for job in jobs:
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        assert start <= changed.pop("finished_at") <= database_now()
        assert changed == {"status": "failed", "leased_by": None, "leased_until": None, "last_error": "Boom: no"}


@moves
@counts
def test_each_failed_attempt_keeps_its_error_traceback_worker_and_times(store: Store, move: str, count: int) -> None:
    jobs = running(store, count)
    start = database_now()
    getattr(store, move)([failed_try(job, error=f"Boom {n}", traceback=f"line {n}") for n, job in enumerate(jobs)])
    assert FailedAttempt.objects.count() == count
    for number, job in enumerate(jobs):
        failure = FailedAttempt.objects.get(job_id=job.id)
        values = FailedAttempt.objects.values().get(pk=failure.pk)
        assert start <= values.pop("finished_at") <= database_now()
        assert values == {
            "id": failure.pk,
            "job_id": job.id,
            "attempt": 1,
            "lease_number": 1,
            "kind": "error",
            "error": f"Boom {number}",
            "traceback": f"line {number}",
            "worker": WORKER,
            "started_at": stored(job).last_attempt_at,
        }


def test_the_history_has_a_row_for_each_attempt(store: Store) -> None:
    job = running_job(store)
    for number in (1, 2, 3):
        store.reschedule([failed_try(job, error=f"Boom {number}")])
        [job] = claim(store, worker=f"worker-{number + 1}")
    store.fail([failed_try(job, error="Boom 4")])
    history = FailedAttempt.objects.filter(job_id=job.id).order_by("lease_number")
    assert [(row.attempt, row.error, row.worker) for row in history] == [
        (number, f"Boom {number}", f"worker-{number}") for number in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("others", [0, 3])
def test_a_job_is_tried_again_at_the_date_wanted(store: Store, others: int) -> None:
    job, *rest = running(store, 1 + others)
    wanted = (database_now() + timedelta(days=3)).replace(microsecond=654_321)
    store.reschedule([failed_try(job, run_at=wanted), *(failed_try(other, delay_seconds=1) for other in rest)])
    assert stored(job).run_at == wanted
    assert all(stored(other).run_at < database_now() + timedelta(seconds=2) for other in rest)


@pytest.mark.parametrize(
    "when",
    [{"run_at": datetime(2020, 1, 1, tzinfo=UTC)}, {"delay_seconds": 0}, {}],
    ids=["past date", "no delay", "neither"],
)
@pytest.mark.parametrize("others", [0, 3])
def test_a_job_is_never_due_before_now(store: Store, when: dict[str, Any], others: int) -> None:
    jobs = running(store, 1 + others)
    start = database_now()
    store.reschedule([failed_try(job, **when) for job in jobs])
    for job in jobs:
        assert start <= stored(job).run_at <= database_now()
    assert len(claim(store)) == len(jobs)


@pytest.mark.parametrize("seconds", [0.000_05, 1e-7])
def test_a_wait_of_almost_nothing_is_one(store: Store, seconds: float) -> None:
    job = running_job(store)
    assert store.reschedule([failed_try(job, delay_seconds=seconds)]) == {job.key: "pending"}
    assert stored(job).run_at <= database_now() + timedelta(milliseconds=1)


@moves
def test_a_failure_counts_no_crash(store: Store, move: str) -> None:
    job = running_job(store)
    getattr(store, move)([failed_try(job)])
    assert (stored(job).attempt, stored(job).crashes) == (1, 0)


@moves
def test_a_long_error_with_anything_in_it_is_kept(store: Store, move: str) -> None:
    job = running_job(store)
    error = "é👾'\"\\ %s %% \n\t" * 5_000
    getattr(store, move)([failed_try(job, error=error, traceback=error)])
    failure = FailedAttempt.objects.get()
    assert stored(job).last_error == failure.error == failure.traceback == error


def test_a_rescheduled_job_is_not_claimed_before_its_time(store: Store) -> None:
    store.reschedule([failed_try(running_job(store), delay_seconds=30)])
    assert claim(store) == []
