"""Taking back the jobs of workers that died: counted as crashes, apart from attempts."""

from datetime import timedelta
from uuid import UUID

import pytest

from django_jobchains.ids import new_id
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, ReapedJob, Store
from tests.store.connections import committing, holding
from tests.store.jobs import (
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
    tables,
)

pytestmark = pytest.mark.django_db

BACKOFF = Backoff(initial_seconds=10, multiplier=2, maximum_seconds=35, jitter=0)
#: The wait after the first, second … crash.
WAITS = (10, 20, 35, 35)


def reap(store: Store, limit: int = 100, max_crashes: int = 10, held: tuple[UUID, ...] = ()) -> list[ReapedJob]:
    return store.reap(limit, BACKOFF, max_crashes, held)


def crashed_again(store: Store, job: ClaimedJob) -> ClaimedJob:
    """The job, claimed once more after it was reaped, with its lease run out."""
    alter([job], run_at=database_now() - timedelta(seconds=1))
    [job] = claim(store)
    expire(job)
    return job


def test_only_expired_leases_are_taken_back(store: Store) -> None:
    expired, held = running(store, 2)
    create(store)
    expire(expired)
    before = row(held)
    assert [job.id for job in reap(store)] == [expired.id]
    assert row(held) == before
    assert reap(store) == []


def test_nothing_is_reaped_from_an_empty_table(store: Store) -> None:
    assert reap(store) == []


def test_a_reaped_job_is_pending_after_a_backoff_and_nothing_else_changed(store: Store) -> None:
    job = running_job(store)
    expire(job)
    before, start = row(job), database_now()
    [reaped] = reap(store)
    assert reaped == (job.id, SHIP, "pending", 1)
    changed = {name: value for name, value in row(job).items() if value != before[name]}
    assert "worker-1" in changed.pop("last_error")
    assert start + timedelta(seconds=10) <= changed.pop("run_at") <= database_now() + timedelta(seconds=10)
    assert changed == {"status": "pending", "crashes": 1, "leased_by": None, "leased_until": None}


def test_a_reaped_job_is_not_claimed_before_its_backoff(store: Store) -> None:
    expire(running_job(store))
    reap(store)
    assert claim(store) == []


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


@pytest.mark.parametrize("max_crashes", [1, 2, 3])
def test_a_job_fails_after_so_many_crashes(store: Store, max_crashes: int) -> None:
    job = running_job(store)
    expire(job)
    for crash in range(1, max_crashes):
        assert reap(store, max_crashes=max_crashes) == [(job.id, SHIP, "pending", crash)]
        job = crashed_again(store, job)
    start = database_now()
    assert reap(store, max_crashes=max_crashes) == [(job.id, SHIP, "failed", max_crashes)]
    saved = stored(job)
    assert start <= saved.finished_at <= database_now()
    assert (saved.status, saved.leased_by, saved.leased_until) == ("failed", None, None)
    assert reap(store) == claim(store) == []


def test_a_job_with_more_crashes_than_are_allowed_now_fails(store: Store) -> None:
    job = running_job(store)
    alter([job], crashes=7)
    expire(job)
    assert [(reaped.status, reaped.crashes) for reaped in reap(store, max_crashes=3)] == [("failed", 8)]


def test_crashes_and_failures_are_counted_apart(store: Store) -> None:
    job = running_job(store)
    store.reschedule([failed_try(job)])
    [job] = claim(store)
    expire(job)
    reap(store)
    assert (stored(job).attempt, stored(job).crashes) == (2, 1)
    job = crashed_again(store, job)
    reap(store)
    assert (stored(job).attempt, stored(job).crashes) == (3, 2)


def test_each_crash_leaves_a_row_of_history(store: Store) -> None:
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


def test_a_name_of_a_worker_with_anything_in_it_is_told(store: Store) -> None:
    create(store)
    name = 'wör\'ker "%s" %% \\ 🔧'
    expire(*claim(store, worker=name))
    reap(store)
    assert FailedAttempt.objects.get().worker == name
    assert name in FailedAttempt.objects.get().error


def test_the_oldest_leases_go_first_up_to_the_limit(store: Store) -> None:
    jobs = running(store, 5)
    for number, job in enumerate(jobs):
        expire(job, ago=10 + 10 * number)
    assert [job.id for job in reap(store, limit=1)] == [jobs[4].id]
    assert {job.id for job in reap(store, limit=2)} == {jobs[3].id, jobs[2].id}
    assert {job.id for job in reap(store, limit=10)} == {jobs[1].id, jobs[0].id}


def test_held_jobs_are_left_to_their_holder(store: Store) -> None:
    own, foreign = running(store, 2)
    expire(own, foreign)
    before = row(own)
    assert [job.id for job in reap(store, held=(own.id, new_id()))] == [foreign.id]
    assert row(own) == before


def test_held_jobs_do_not_use_up_the_limit(store: Store) -> None:
    own, foreign = running(store, 2)
    expire(own, ago=100)
    expire(foreign, ago=1)
    assert [job.id for job in reap(store, limit=1, held=(own.id,))] == [foreign.id]


def test_a_thousand_held_jobs_are_left_alone(store: Store) -> None:
    jobs = running(store, 1_001)
    expire(*jobs)
    assert [job.id for job in reap(store, 2_000, held=tuple(job.id for job in jobs[1:]))] == [jobs[0].id]


def test_the_attempt_that_was_reaped_writes_nothing_any_more(store: Store) -> None:
    job = running_job(store)
    expire(job)
    reap(store)
    before = tables()
    assert store.finish([finished(job)]) == set()
    assert store.reschedule([failed_try(job)]) == {}
    assert tables() == before


def test_a_reaped_job_completes_at_its_next_attempt_and_keeps_its_history(store: Store) -> None:
    job = running_job(store)
    expire(job)
    reap(store)
    alter([job], run_at=database_now())
    [again] = claim(store, worker="worker-2")
    assert "worker-1" in (again.last_error or "")
    assert store.finish([finished(again)]) == {again.key}
    assert FailedAttempt.objects.count() == 1
    assert (stored(job).status, stored(job).crashes, stored(job).completed_by) == ("completed", 1, "worker-2")


@pytest.mark.postgresql
@committing
def test_a_row_that_a_live_transaction_has_locked_is_left_alone(store: Store) -> None:
    completing, dead = running(store, 2)
    expire(completing, dead)
    before = row(completing)
    attempt = holding(lambda store: store.lock(completing.id))
    assert [job.id for job in reap(store)] == [dead.id]
    assert row(completing) == before
    attempt.result()
    assert [job.id for job in reap(store)] == [completing.id]


@pytest.mark.postgresql
@committing
def test_locked_rows_do_not_use_up_the_limit(store: Store) -> None:
    completing, dead = running(store, 2)
    expire(completing, ago=100)
    expire(dead, ago=1)
    attempt = holding(lambda store: store.lock(completing.id))
    assert [job.id for job in reap(store, limit=1)] == [dead.id]
    attempt.result()


@committing
def test_two_reapers_at_once_take_each_job_once(store: Store) -> None:
    expire(*running(store, 20))
    first = holding(lambda store: reap(store, limit=10))
    second = holding(lambda store: reap(store, limit=20)) if store.connection.vendor == "postgresql" else None
    reaped = first.result() + (second.result() if second else reap(store))
    assert len(reaped) == len({job.id for job in reaped}) == 20
    assert set(Job.objects.values_list("status", "crashes")) == {("pending", 1)}
