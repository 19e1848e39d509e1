"""Leases can be renewed and lost, and the reaper takes back jobs whose leases have expired."""

from datetime import timedelta

import pytest

from django_jobchains.declare.policies import Backoff
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.store.rows import Effects, Renewal
from tests.store.conftest import with_locks
from tests.store.contract.ends import chosen
from tests.support.connections import holding
from tests.support.jobs import (
    SHIP,
    alter,
    changes,
    claim,
    create,
    database_now,
    expire,
    failed_try,
    finished,
    lease,
    lost,
    row,
    running,
    running_job,
    statuses,
    stored,
    tables,
    taken_over,
)

pytestmark = pytest.mark.django_db

QUERIES = chosen("renew", "check")
both = pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
BACKOFF = Backoff(initial_seconds=10, multiplier=2, maximum_seconds=35, jitter=0)
#: The wait after the first, second … crash.
WAITS = (10, 20, 35, 35)


# Renewals


def test_renew_extends_or_shortens_leases_from_now_and_changes_nothing_else(store):
    other, *jobs = running(store, 4)
    expire(*jobs)
    before, untouched, start = [row(job) for job in jobs], row(other), database_now()
    assert store.leases.renew([lease(job, 10 ** (number + 1)) for number, job in enumerate(jobs)]) == lost({})
    for number, old in enumerate(before):
        changed, seconds = changes(old), timedelta(seconds=10 ** (number + 1))
        assert start + seconds <= changed.pop("leased_until") <= database_now() + seconds
        assert changed == {}
    assert changes(untouched) == {}


def test_one_thousand_leases_are_renewed_in_one_call(store):
    jobs = running(store, 1_000)
    expire(*jobs)
    stale = jobs[::100]
    for job in stale:
        Job.objects.filter(pk=job.id).update(lease_number=7)
    assert store.leases.renew([lease(job) for job in jobs]) == lost(
        {job.key: "taken_by_another_worker" for job in stale}
    )
    assert Job.objects.filter(leased_until__gt=database_now()).count() == 990


@pytest.mark.parametrize("turned", [False, True], ids=["stale_first", "fresh_first"])
def test_a_stale_lease_is_lost_while_the_fresh_one_of_its_job_is_kept(store, turned):
    stale = running_job(store)
    fresh = taken_over(store, stale)
    expire(fresh)
    batch = [lease(stale, 500), lease(fresh)]
    renewal = store.leases.renew(batch[::-1] if turned else batch)
    assert renewal == lost({stale.key: "taken_by_another_worker"})
    assert database_now() < stored(fresh).leased_until < database_now() + timedelta(seconds=70)


@both
def test_each_lost_lease_has_its_reason(store, query):
    kept, taken, completed, completed_later, cancelled, deleted, failed, blocked = jobs = running(store, 8)
    taken_over(store, taken)
    store.attempts.finish([finished(completed)])
    store.attempts.finish([finished(taken_over(store, completed_later))])
    store.chains.cancel([cancelled.chain_id], Effects())
    assert store.attempts.reschedule([failed_try(cancelled)]) == {cancelled.key: "cancelled"}
    store.chains.delete([deleted.chain_id], cascade=False, effects=Effects())
    store.attempts.fail([failed_try(failed)])
    alter([blocked], status="blocked")
    expire(kept)
    before = tables()
    reasons = {
        taken.key: "taken_by_another_worker",
        completed.key: "already_completed",
        completed_later.key: "already_completed",
        cancelled.key: "cancelled",
        deleted.key: "not_found",
        failed.key: "taken_by_another_worker",
        blocked.key: "taken_by_another_worker",
    }
    assert query(store, jobs) == lost(reasons, completed.key)
    if query is QUERIES["check"]:
        assert tables() == before
    else:
        assert stored(kept).leased_until > database_now()


@both
def test_an_attempt_that_was_asked_to_stop_is_reported_and_a_stale_one_of_its_job_is_lost(store, query):
    stale, other = running(store, 2)
    fresh = taken_over(store, stale)
    store.chains.cancel([fresh.chain_id], Effects())
    assert query(store, [stale, fresh, other]) == Renewal({stale.key: "taken_by_another_worker"}, {fresh.key})


@with_locks
def test_an_attempt_that_has_locked_its_row_is_asked_to_stop(store):
    job = running_job(store)
    store.chains.cancel([job.chain_id], Effects())
    attempt = holding(lambda store: store.attempts.lock(job.id))
    assert store.leases.renew([lease(job)]) == Renewal({}, {job.key})
    attempt.result()


# The reaper


def reap(store, limit=100, max_crashes=10, held=(), effects=None):
    return store.leases.reap(limit, BACKOFF, max_crashes, held, effects)


def test_a_reaped_job_is_pending_after_a_backoff_and_nothing_else_changed(store):
    job, effects = running_job(store), Effects()
    expire(job)
    before, start = row(job), database_now()
    assert reap(store, effects=effects) == [(job.id, job.chain_id, SHIP, 1, "pending", 1, "default")]
    changed = changes(before)
    assert "worker-1" in changed.pop("last_error")
    assert start + timedelta(seconds=10) <= changed.pop("run_at") <= database_now() + timedelta(seconds=10)
    assert changed == {"status": "pending", "crashes": 1, "leased_by": None, "leased_until": None}
    assert effects.due_types == {SHIP}


def test_each_job_backs_off_by_its_own_crashes(store):
    jobs = running(store, 4)
    for crashes, job in enumerate(jobs):
        alter([job], crashes=crashes)
    expire(*jobs)
    start = database_now()
    assert {job.id: job.crashes for job in reap(store)} == {job.id: number for number, job in enumerate(jobs, start=1)}
    for job, wait in zip(jobs, WAITS, strict=True):
        assert start + timedelta(seconds=wait) <= stored(job).run_at <= database_now() + timedelta(seconds=wait)


def test_each_crash_is_recorded(store):
    create(store)
    name = 'wör\'ker "%s" %% \\ 🔧'
    [job] = claim(store, worker=name)
    started_at = stored(job).last_attempt_at
    expire(job)
    start = database_now()
    reap(store)
    values = FailedAttempt.objects.values().get()
    del values["id"]
    assert start <= values.pop("finished_at") <= database_now()
    error = values.pop("error")
    assert name in error == stored(job).last_error
    assert values == {
        "job_id": job.id,
        "attempt": 1,
        "lease_number": 1,
        "kind": "crash",
        "traceback": "",
        "worker": name,
        "started_at": started_at,
    }


def test_expired_leases_of_others_are_reaped_the_oldest_first(store):
    own, *lapsed = running(store, 4)
    for age, job in zip((100, 10, 30, 20), (own, *lapsed), strict=True):
        expire(job, ago=age)
    live = running_job(store)
    assert store.leases.expired(10, [own.id]) == [(SHIP, 0)] * 3
    assert [reap(store, 1, held=[own.id])[0].id for _ in lapsed] == [lapsed[n].id for n in (1, 2, 0)]
    assert statuses(own, live) == ["running", "running"]
    alter([own], crashes=7)
    assert [(job.status, job.crashes) for job in reap(store, max_crashes=3)] == [("failed", 8)]


@with_locks
def test_locked_rows_do_not_count_towards_the_limit(store):
    completing, dead = running(store, 2)
    expire(completing, ago=100)
    expire(dead, ago=1)
    attempt = holding(lambda store: store.attempts.lock(completing.id))
    assert [job.id for job in reap(store, limit=1)] == [dead.id]
    attempt.result()
