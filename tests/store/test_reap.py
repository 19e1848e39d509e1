"""The reaper takes back jobs of dead workers, and counts crashes separately from attempts."""

from datetime import timedelta
from uuid import UUID

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, ReapedJob, Store
from tests.support.connections import committing, holding
from tests.support.jobs import (
    SHIP,
    alter,
    claim,
    create,
    database_now,
    expire,
    failed_try,
    finished,
    row,
    running,
    running_job,
    stored,
)

pytestmark = pytest.mark.django_db

BACKOFF = Backoff(initial_seconds=10, multiplier=2, maximum_seconds=35, jitter=0)
#: The wait after the first, second … crash.
WAITS = (10, 20, 35, 35)


def reap(store: Store, limit: int = 100, max_crashes: int = 10, held: tuple[UUID, ...] = ()) -> list[ReapedJob]:
    return store.leases.reap(limit, BACKOFF, max_crashes, held)


def crashed_again(store: Store, job: ClaimedJob) -> ClaimedJob:
    """Claim a job again after it was reaped, and let its lease expire."""
    alter([job], run_at=database_now() - timedelta(seconds=1))
    [job] = claim(store)
    expire(job)
    return job


def test_reaped_job_is_pending_after_a_backoff_and_nothing_else_changed(store: Store) -> None:
    job = running_job(store)
    expire(job)
    before, start = row(job), database_now()
    [reaped] = reap(store)
    assert reaped == (job.id, job.chain_id, SHIP, 1, "pending", 1)
    changed = {name: value for name, value in row(job).items() if value != before[name]}
    assert "worker-1" in changed.pop("last_error")
    assert start + timedelta(seconds=10) <= changed.pop("run_at") <= database_now() + timedelta(seconds=10)
    assert changed == {"status": "pending", "crashes": 1, "leased_by": None, "leased_until": None}


def test_each_crash_backs_off_longer_up_to_the_maximum(store: Store) -> None:
    job = running_job(store)
    expire(job)
    for crash, wait in enumerate(WAITS, start=1):
        start = database_now()
        assert [reaped.crashes for reaped in reap(store)] == [crash]
        assert start + timedelta(seconds=wait) <= stored(job).run_at <= database_now() + timedelta(seconds=wait)
        job = crashed_again(store, job)


def test_each_job_backs_off_by_its_own_crashes(store: Store) -> None:
    jobs = running(store, 4)
    for crashes, job in enumerate(jobs):
        alter([job], crashes=crashes)
    expire(*jobs)
    start = database_now()
    assert {job.id: job.crashes for job in reap(store)} == {job.id: number for number, job in enumerate(jobs, start=1)}
    for job, wait in zip(jobs, WAITS, strict=True):
        assert start + timedelta(seconds=wait) <= stored(job).run_at <= database_now() + timedelta(seconds=wait)


def test_job_with_more_crashes_than_the_current_limit_fails(store: Store) -> None:
    job = running_job(store)
    alter([job], crashes=7)
    expire(job)
    assert [(reaped.status, reaped.crashes) for reaped in reap(store, max_crashes=3)] == [("failed", 8)]


def test_crashes_and_failures_are_counted_separately(store: Store) -> None:
    job = running_job(store)
    store.attempts.reschedule([failed_try(job)])
    [job] = claim(store)
    expire(job)
    reap(store)
    assert (stored(job).attempt, stored(job).crashes) == (2, 1)
    job = crashed_again(store, job)
    reap(store)
    assert (stored(job).attempt, stored(job).crashes) == (3, 2)


def test_each_crash_is_recorded(store: Store) -> None:
    job = running_job(store)
    started_at = stored(job).last_attempt_at
    expire(job)
    start = database_now()
    reap(store)
    failure = FailedAttempt.objects.get()
    values = FailedAttempt.objects.values().get()
    assert start <= values.pop("finished_at") <= database_now()
    assert "worker-1" in values.pop("error")
    assert values == {
        "id": failure.pk,
        "job_id": job.id,
        "attempt": 1,
        "lease_number": 1,
        "kind": "crash",
        "traceback": "",
        "worker": "worker-1",
        "started_at": started_at,
    }
    assert stored(job).last_error == failure.error


def test_worker_name_may_contain_special_characters(store: Store) -> None:
    create(store)
    name = 'wör\'ker "%s" %% \\ 🔧'
    expire(*claim(store, worker=name))
    reap(store)
    assert FailedAttempt.objects.get().worker == name
    assert name in FailedAttempt.objects.get().error


def test_held_jobs_do_not_count_towards_the_limit(store: Store) -> None:
    own, foreign = running(store, 2)
    expire(own, ago=100)
    expire(foreign, ago=1)
    assert [job.id for job in reap(store, limit=1, held=(own.id,))] == [foreign.id]


def test_one_thousand_held_jobs_are_not_reaped(store: Store) -> None:
    jobs = running(store, 1_001)
    expire(*jobs)
    assert [job.id for job in reap(store, 2_000, held=tuple(job.id for job in jobs[1:]))] == [jobs[0].id]


def test_reaped_job_completes_at_its_next_attempt_and_keeps_its_history(store: Store) -> None:
    job = running_job(store)
    expire(job)
    reap(store)
    alter([job], run_at=database_now())
    [again] = claim(store, worker="worker-2")
    assert "worker-1" in (again.last_error or "")
    assert store.attempts.finish([finished(again)]) == {again.key}
    assert FailedAttempt.objects.count() == 1
    assert (stored(job).status, stored(job).crashes, stored(job).completed_by) == ("completed", 1, "worker-2")


@pytest.mark.postgresql
@committing
def test_locked_rows_do_not_count_towards_the_limit(store: Store) -> None:
    completing, dead = running(store, 2)
    expire(completing, ago=100)
    expire(dead, ago=1)
    attempt = holding(lambda store: store.attempts.lock(completing.id))
    assert [job.id for job in reap(store, limit=1)] == [dead.id]
    attempt.result()


@committing
def test_two_concurrent_reapers_take_each_job_once(store: Store) -> None:
    expire(*running(store, 20))
    first = holding(lambda store: reap(store, limit=10))
    second = holding(lambda store: reap(store, limit=20)) if store.connection.vendor == "postgresql" else None
    reaped = first.result() + (second.result() if second else reap(store))
    assert len(reaped) == len({job.id for job in reaped}) == 20
    assert set(Job.objects.values_list("status", "crashes")) == {("pending", 1)}
