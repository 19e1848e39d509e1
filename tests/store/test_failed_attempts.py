"""Failed attempts are recorded, and their jobs are rescheduled or fail."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_jobchains.models import FailedAttempt
from django_jobchains.store import Store
from tests.support.jobs import WORKER, claim, database_now, failed_try, row, running, running_job, stored

pytestmark = pytest.mark.django_db

counts = pytest.mark.parametrize("count", [1, 3])
moves = pytest.mark.parametrize("move", ["reschedule", "fail"])


@counts
def test_reschedule_makes_jobs_due_after_their_delay_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    tries = [failed_try(job, error=f"Boom {n}", delay_seconds=10.5 + n) for n, job in enumerate(jobs)]
    assert store.attempts.reschedule(tries) == {job.key: "pending" for job in jobs}
    for number, job in enumerate(jobs):
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        wait = timedelta(seconds=10.5 + number)
        assert start + wait <= changed.pop("run_at") <= database_now() + wait
        assert changed == {"status": "pending", "leased_by": None, "leased_until": None, "last_error": f"Boom {number}"}


@counts
def test_fail_marks_jobs_as_failed_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    assert store.attempts.fail([failed_try(job) for job in jobs]) == {job.key: "failed" for job in jobs}
    for job in jobs:
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        assert start <= changed.pop("finished_at") <= database_now()
        assert changed == {"status": "failed", "leased_by": None, "leased_until": None, "last_error": "Boom: no"}


@moves
@counts
def test_error_traceback_worker_and_times_of_each_failed_attempt_are_recorded(
    store: Store, move: str, count: int
) -> None:
    jobs = running(store, count)
    start = database_now()
    getattr(store.attempts, move)(
        [failed_try(job, error=f"Boom {n}", traceback=f"line {n}") for n, job in enumerate(jobs)]
    )
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


@moves
@counts
def test_crashes_are_counted_and_timeouts_are_not(store: Store, move: str, count: int) -> None:
    crashed, late = running(store, count), running(store, count)
    tries = [failed_try(job, kind="crash") for job in crashed] + [failed_try(job, kind="timeout") for job in late]
    getattr(store.attempts, move)(tries)
    assert {(stored(job).attempt, stored(job).crashes) for job in crashed} == {(1, 1)}
    assert {(stored(job).attempt, stored(job).crashes) for job in late} == {(1, 0)}
    kinds = FailedAttempt.objects.values_list("job_id", "kind")
    assert set(kinds) == {(job.id, "crash") for job in crashed} | {(job.id, "timeout") for job in late}


@pytest.mark.parametrize("others", [0, 3])
def test_job_is_retried_at_the_given_date(store: Store, others: int) -> None:
    job, *rest = running(store, 1 + others)
    wanted = (database_now() + timedelta(days=3)).replace(microsecond=654_321)
    store.attempts.reschedule([failed_try(job, run_at=wanted), *(failed_try(other, delay_seconds=1) for other in rest)])
    assert stored(job).run_at == wanted
    assert all(stored(other).run_at < database_now() + timedelta(seconds=20) for other in rest)


@pytest.mark.parametrize(
    "when",
    [{"run_at": datetime(2020, 1, 1, tzinfo=UTC)}, {"delay_seconds": 0}, {}],
    ids=["past date", "no delay", "neither"],
)
@pytest.mark.parametrize("others", [0, 3])
def test_job_is_never_due_before_now(store: Store, when: dict[str, Any], others: int) -> None:
    jobs = running(store, 1 + others)
    start = database_now()
    store.attempts.reschedule([failed_try(job, **when) for job in jobs])
    for job in jobs:
        assert start <= stored(job).run_at <= database_now()
    assert len(claim(store)) == len(jobs)


@pytest.mark.parametrize("seconds", [0.000_05, 1e-7])
def test_tiny_delay_is_accepted(store: Store, seconds: float) -> None:
    job = running_job(store)
    assert store.attempts.reschedule([failed_try(job, delay_seconds=seconds)]) == {job.key: "pending"}
    assert stored(job).run_at <= database_now() + timedelta(milliseconds=1)


@moves
def test_long_error_with_special_characters_is_stored_unchanged(store: Store, move: str) -> None:
    job = running_job(store)
    error = "é👾'\"\\ %s %% \n\t" * 5_000
    getattr(store.attempts, move)([failed_try(job, error=error, traceback=error)])
    failure = FailedAttempt.objects.get()
    assert stored(job).last_error == failure.error == failure.traceback == error
