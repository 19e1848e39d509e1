"""A job that has not started when it expires never starts, and its chain ends as if it was cancelled."""

from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest
from django.apps import apps
from django.test.utils import CaptureQueriesContext

from django_jobchains.db.times import Times
from django_jobchains.models import Job
from django_jobchains.models.jobs import ShownStatus, shown_status
from django_jobchains.store import errors
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.rows import Effects, EndedAttempt, FinishedJob
from tests.store.conftest import with_locks
from tests.store.planned_calls import AlertingRegistry
from tests.support.connections import committing, elsewhere, holding, waiting
from tests.support.jobs import (
    AT_ONCE,
    LEASE_SECONDS,
    MAIL,
    SHIP,
    WORKER,
    claim,
    create,
    database_now,
    failed_try,
    history,
    new_job,
    next_job,
    row,
    running_job,
    statuses,
    stored,
)

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
FAR = datetime(2091, 2, 3, tzinfo=UTC)
LEASES = {SHIP: LEASE_SECONDS, MAIL: LEASE_SECONDS}


def late(store, count=1, type_name=SHIP, **changes):
    """Create jobs that have just expired."""
    return create(store, count, type_name, expires_at=database_now() - MINUTE, **changes)


def claim_all(store, limit=10_000):
    """Return the ids of the jobs that were claimed, and the jobs that have expired."""
    expired = []
    claimed = store.jobs.claim(WORKER, limit, LEASES, expired=expired)
    return [job.id for job in claimed], expired


def end(store, expired, effects=None):
    return store.attempts.hand_back([job.key for job in expired], effects, has_begun=False)


def assert_expired(job_id):
    job = stored(job_id)
    assert (job.status, job.is_expired, job.cancel_requested_at) == ("cancelled", True, job.expires_at)
    assert shown_status(job, Times("default")) == ShownStatus.EXPIRED
    assert job.finished_at >= job.expires_at
    assert (job.leased_by, job.leased_until, job.output) == (None, None, None)


# The claim


@pytest.mark.parametrize("has_others", [False, True])
def test_an_expired_job_does_not_start_and_is_cancelled_by_handing_it_back(store, has_others):
    others = create(store, 2) if has_others else []
    [job_id] = late(store, priority=1)
    claimed, [expired] = claim_all(store)
    assert sorted(claimed) == others
    assert (expired.id, expired.chain_id, expired.type_name) == (job_id, job_id, SHIP)
    effects = Effects()
    assert end(store, [expired], effects) == {expired.key}
    assert_expired(job_id)
    assert (stored(job_id).attempt, stored(job_id).last_attempt_at, history()) == (0, None, [])
    assert effects.finished_chains == {job_id}
    assert claim_all(store) == ([], [])


def test_a_claim_that_ignores_expired_jobs_does_not_start_them(store):
    late(store)
    assert claim(store) == []


def test_a_job_that_has_not_expired_starts(store):
    [job_id] = create(store, expires_at=database_now() + MINUTE)
    assert claim_all(store) == ([job_id], [])
    assert stored(job_id).cancel_requested_at is None


def test_the_limit_of_a_claim_includes_expired_jobs(store):
    late(store, 3, priority=1)
    create(store, 1)
    claimed, expired = claim_all(store, 2)
    assert (claimed, len(expired)) == ([], 2)
    claimed, expired = claim_all(store, 2)
    assert (len(claimed), len(expired)) == (1, 1)


@committing
def test_the_time_when_the_claim_takes_the_job_counts_and_not_when_its_statement_was_sent(store):
    """The claim waits for a lock on the table, or on SQLite for the other transaction, while the job expires."""
    limit = database_now() + timedelta(seconds=0.6)
    create(store, expires_at=limit)

    def lock(store):
        if store.db.locks_rows:
            store.db.execute(f"LOCK TABLE {store.db.tables.job} IN ACCESS EXCLUSIVE MODE", [])
        else:
            store.db.write_first()

    locking = holding(lock)
    claiming = waiting(claim_all)
    while database_now() < limit:
        pass
    locking.go_on()
    claimed, expired = claiming.result()
    assert (claimed, len(expired)) == ([], 1)


# A job that has started


def test_an_attempt_that_began_in_time_keeps_its_retries(store):
    job = running_job(store, expires_at=database_now() + MINUTE)
    store.db.ahead_seconds = 3600
    store.attempts.reschedule([failed_try(job)])
    assert store.chains.expire(10, Effects()) == []
    assert claim_all(store) == ([job.id], [])


def test_a_job_whose_worker_died_keeps_its_retries(store):
    job = running_job(store, expires_at=database_now() + MINUTE)
    store.db.ahead_seconds = 3600
    assert [reaped.status for reaped in store.leases.reap(10, AT_ONCE, 10)] == ["pending"]
    assert store.chains.expire(10, Effects()) == []
    assert claim_all(store) == ([job.id], [])


@pytest.mark.parametrize("is_deferred", [False, True])
def test_a_job_that_is_handed_back_after_it_has_begun_does_not_expire(store, is_deferred):
    job = running_job(store, expires_at=database_now() + MINUTE)
    hand_back(store, job, has_begun=True, is_deferred=is_deferred)
    store.db.ahead_seconds = 3600
    assert store.chains.expire(10, Effects()) == []
    assert claim_all(store) == ([job.id], [])


@pytest.mark.parametrize("is_deferred", [False, True])
def test_a_job_that_is_handed_back_before_it_has_begun_expires(store, is_deferred):
    job = running_job(store, expires_at=database_now() + MINUTE)
    hand_back(store, job, has_begun=False, is_deferred=is_deferred)
    assert stored(job).attempt == 0
    store.db.ahead_seconds = 3600
    claimed, expired = claim_all(store)
    assert (claimed, [each.id for each in expired]) == ([], [job.id])
    end(store, expired)
    assert_expired(job.id)
    assert stored(job).last_attempt_at is None


def hand_back(store, job, *, has_begun, is_deferred):
    if is_deferred:
        store.deferred.defer([EndedAttempt("handed_back", job.key, has_begun=has_begun)])
        store.deferred.apply(10, 0, Effects())
    else:
        store.attempts.hand_back([job.key], has_begun=has_begun)
    assert statuses(job) == ["pending"]


# After the claim, before the end


def test_an_expired_job_whose_worker_dies_is_cancelled_by_the_reaper(store):
    [job_id] = late(store)
    _, [expired] = claim_all(store)
    store.db.ahead_seconds += LEASE_SECONDS + 1
    assert [reaped.status for reaped in store.leases.reap(10, AT_ONCE, 10)] == ["cancelled"]
    assert_expired(job_id)
    assert end(store, [expired]) == set()


def test_a_person_may_complete_an_expired_job_before_it_is_cancelled(store):
    [job_id] = late(store)
    _, expired = claim_all(store)
    store.chains.complete(store.last_jobs.lock([job_id])[job_id], '"done"', None, Effects())
    assert end(store, expired) == set()
    assert (stored(job_id).status, stored(job_id).is_expired) == ("completed", False)


@committing
@pytest.mark.parametrize("roll_back", [False, True])
def test_a_claim_during_the_cancellation_of_the_job_does_not_start_it(store, roll_back):
    [job_id] = late(store)
    cancelling = holding(lambda store: store.chains.cancel([job_id], Effects()))
    claiming = waiting(claim_all)
    cancelling.go_on(roll_back=roll_back)
    cancelling.result()
    claimed, expired = claiming.result()
    assert claimed == []
    if not expired and roll_back:  # It skipped the locked row.
        claimed, expired = claim_all(store)
        assert claimed == []
    end(store, expired)
    assert (stored(job_id).status, stored(job_id).is_expired) == ("cancelled", roll_back)


@committing
def test_a_cancellation_during_the_claim_leaves_the_job_expired(store):
    [job_id] = late(store)
    claiming = holding(claim_all)
    cancelling = waiting(lambda store: store.chains.cancel([job_id], Effects()))
    claiming.go_on()
    _, expired = claiming.result()
    cancelling.result()
    end(store, expired)
    store.deferred.apply(10, 0, Effects())
    assert_expired(job_id)


@committing
def test_a_claim_during_the_retry_starts_the_job_afterwards(store):
    [job_id] = late(store)
    store.chains.expire(10, Effects())
    retrying = holding(lambda store: store.chains.retry([job_id], Effects()))
    claiming = waiting(claim_all)
    retrying.go_on()
    retrying.result()
    claimed, expired = claiming.result()
    assert expired == []
    assert (claimed or claim_all(store)[0]) == [job_id]


@committing
def test_a_retry_during_the_end_of_an_expired_job_makes_it_due_without_a_limit(store):
    [job_id] = late(store)
    _, expired = claim_all(store)
    ending = holding(lambda store: end(store, expired))
    retrying = waiting(lambda store: store.chains.retry([job_id], Effects()))
    ending.go_on()
    ending.result()
    assert retrying.result() == {job_id}
    assert claim_all(store) == ([job_id], [])


@committing
def test_a_claim_and_maintenance_end_a_job_once(store):
    [job_id] = late(store)
    claiming = holding(claim_all)
    expiring = waiting(lambda store: store.chains.expire(10, Effects()))
    claiming.go_on()
    _, [expired] = claiming.result()
    assert expiring.result() == []
    end(store, [expired])
    assert_expired(job_id)


@committing
def test_a_claim_does_not_find_a_job_that_maintenance_is_ending(store):
    [job_id] = late(store)
    expiring = holding(lambda store: store.chains.expire(10, Effects()))
    claiming = waiting(claim_all)
    expiring.go_on()
    assert [job.id for job in expiring.result()] == [job_id]
    assert claiming.result() == ([], [])
    assert_expired(job_id)


# Maintenance


def test_maintenance_cancels_expired_jobs_that_no_worker_claims(store):
    blocker, *_ = create(store, 1, MAIL)
    [blocked] = late(store, blockers=(blocker,))
    [unserved] = late(store, type_name="shop.unserved")
    [scheduled] = late(store, delay_seconds=3600)
    effects = Effects()
    expired = store.chains.expire(10, effects)
    assert sorted(job.id for job in expired) == sorted([blocked, unserved, scheduled])
    for job in expired:
        assert_expired(job.id)
        assert (job.chain_id, job.type_name) == (job.id, stored(job.id).type_name)
    assert effects.finished_chains == {blocked, unserved, scheduled}
    assert statuses(blocker) == ["pending"]


def test_maintenance_changes_no_other_job(store):
    started = running_job(store, expires_at=database_now() + MINUTE)
    tried = running_job(store, expires_at=database_now() + MINUTE)
    store.attempts.reschedule([failed_try(tried)])
    ended = running_job(store, expires_at=database_now() + MINUTE)
    store.attempts.fail([failed_try(ended)])
    others = [started.id, tried.id, ended.id, *create(store), *create(store, expires_at=database_now() + 90 * MINUTE)]
    store.db.ahead_seconds = 3600
    before = [row(id_) for id_ in others]
    assert store.chains.expire(10, Effects()) == []
    assert [row(id_) for id_ in others] == before


def test_maintenance_cancels_the_longest_expired_jobs_first(store):
    now = database_now()
    ids = [create(store, expires_at=now - minutes * MINUTE)[0] for minutes in (1, 3, 2)]
    ended = [{job.id for job in store.chains.expire(2, Effects())} for _ in range(3)]
    assert ended == [{ids[1], ids[2]}, {ids[0]}, set()]


@with_locks
def test_maintenance_skips_locked_jobs(store):
    locked, free = late(store, 2)
    holding(lambda store: store.attempts.lock(locked))
    assert [job.id for job in elsewhere(lambda store: store.chains.expire(10, Effects()))] == [free]


@with_locks
def test_maintenance_skips_jobs_that_locked_jobs_wait_for(store):
    ids = late(store, 3)
    [dependent] = create(store, blockers=(ids[1],))
    holding(lambda store: store.attempts.lock(dependent))
    with store.db.waits_at_most(0.02):
        effects = Effects()
        assert {job.id for job in store.chains.expire(10, effects)} == {ids[0], ids[2]} == effects.finished_chains
    assert statuses(*ids) == ["cancelled", "pending", "cancelled"]


@with_locks
def test_maintenance_continues_after_jobs_that_it_could_not_cancel(store, monkeypatch):
    monkeypatch.setattr(errors, "MAX_PARTS_SECONDS", -1)  # Each call ends after the first failure.
    *locked, other = (create(store, expires_at=database_now() - minutes * MINUTE)[0] for minutes in (4, 3, 2))
    [dependent] = create(store, blockers=tuple(locked))
    holding(lambda store: store.attempts.lock(dependent))
    failed = {}
    with store.db.waits_at_most(0.02):
        ended = [[job.id for job in store.chains.expire(2, Effects(), failed)] for _ in range(3)]
    assert ended == [[], [], [other]]
    assert list(failed) == locked


# What follows


ENDS = {
    "claimed": lambda store, effects: end(store, claim_all(store)[1], effects),
    "by maintenance": lambda store, effects: store.chains.expire(10, effects),
}
ends = pytest.mark.parametrize("end_late", ENDS.values(), ids=ENDS)


@ends
@pytest.mark.parametrize(("policy", "status"), [("wait", "blocked"), ("fail", "failed"), ("run", "pending")])
def test_jobs_that_wait_for_the_chain_are_treated_as_after_a_cancellation(store, end_late, policy, status):
    [job_id] = late(store)
    [dependent] = create(store, 1, MAIL, blockers=(job_id,), on_blocker_failure=policy)
    end_late(store, Effects())
    assert statuses(job_id, dependent) == ["cancelled", status]
    assert store.blockers.sweep(10, None, Effects()) == ([], None)


@ends
def test_on_failure_does_not_fire(store, end_late):
    late(store)
    with patch.object(apps.get_app_config("django_jobchains"), "registry", AlertingRegistry()):
        effects = Effects()
        end_late(store, effects)
    assert Job.objects.count() == 1
    assert effects.failure_jobs == {}


@ends
def test_the_key_is_free_before_and_after_the_end(store, end_late):
    key = {"deduplicate": Deduplicate("order-1"), "deduplication_key": "order-1"}
    [job_id] = late(store, **key)
    [other] = create(store, run_at=FAR, **key)
    assert other != job_id
    end_late(store, Effects())
    assert create(store, **key) == [other]


@ends
def test_a_retry_clears_the_limit(store, end_late):
    [job_id] = late(store)
    end_late(store, Effects())
    assert store.chains.retry([job_id], Effects()) == {job_id}
    job = stored(job_id)
    assert (job.status, job.expires_at, job.is_expired, job.cancel_requested_at) == ("pending", None, False, None)
    assert store.chains.expire(10, Effects()) == []
    assert claim_all(store) == ([job_id], [])


@ends
def test_the_end_of_the_chain_says_that_it_has_expired(store, end_late):
    [job_id] = late(store)
    end_late(store, Effects())
    chain_end = store.chains.ends([job_id])[job_id]
    assert (chain_end.status, bool(chain_end.is_expired)) == ("cancelled", True)
    assert [lifetime.status for lifetime in store.chains.lifetimes([job_id])] == ["expired"]


def test_a_chain_that_was_cancelled_has_not_expired(store):
    [job_id] = create(store, expires_at=database_now() + MINUTE)
    store.chains.cancel([job_id], Effects())
    chain_end = store.chains.ends([job_id])[job_id]
    assert (chain_end.status, bool(chain_end.is_expired)) == ("cancelled", False)
    assert [lifetime.status for lifetime in store.chains.lifetimes([job_id])] == ["cancelled"]
    assert not stored(job_id).is_expired


def test_a_chain_that_was_asked_to_stop_after_the_time_has_not_expired(store):
    job = running_job(store, expires_at=database_now() + MINUTE)
    store.db.ahead_seconds = 3600
    store.chains.cancel([job.id], Effects())
    store.attempts.reschedule([failed_try(job)])
    assert (stored(job).status, stored(job).is_expired) == ("cancelled", False)


# When a job expires


@pytest.mark.parametrize(
    ("when", "seconds"),
    [({}, 0), ({"delay_seconds": 3600}, 3600), ({"run_at": "past"}, 0), ({"run_at": "future"}, 7200)],
)
def test_a_length_of_time_counts_from_when_the_job_is_due(store, when, seconds):
    now = database_now()
    run_at = {"past": now - 60 * MINUTE, "future": now + 120 * MINUTE}.get(when.get("run_at"))
    job = stored(*create(store, **{**when, **({"run_at": run_at} if run_at else {})}, expires_seconds=300.0))
    assert abs((job.expires_at - job.run_at).total_seconds() - 300) < 0.01
    assert abs((job.expires_at - job.created_at).total_seconds() - 300 - seconds) < 20


@pytest.mark.parametrize(
    "limit", [{"expires_at": datetime(2091, 2, 3, tzinfo=UTC)}, {"expires_seconds": 60.0}], ids=str
)
def test_a_deferred_end_keeps_the_limit_of_the_next_job(store, limit):
    job = running_job(store)
    continuation = next_job(job, **limit)
    store.deferred.defer([EndedAttempt("completed", FinishedJob(*job.key, None, continuation))])
    store.deferred.apply(10, 0, Effects())
    saved = stored(continuation.id)
    assert saved.expires_at == limit.get("expires_at", saved.run_at + MINUTE)


def test_each_job_of_a_batch_has_its_own_limit(store):
    now = database_now()
    limits = [{}, {"expires_at": now + MINUTE}, {"expires_seconds": 60.0}, {"expires_at": now}]
    jobs = [stored(created.id) for created in store.jobs.create([new_job(**limit) for limit in limits])]
    assert [job.expires_at is None for job in jobs] == [True, False, False, False]
    assert (jobs[1].expires_at, jobs[3].expires_at) == (now + MINUTE, now)


@pytest.mark.parametrize("count", [1, 2])
def test_jobs_without_a_limit_are_stored_without_its_columns(store, count):
    for limits in ([{}] * count, [{"expires_seconds": 60.0}, *[{}] * (count - 1)]):
        with CaptureQueriesContext(store.connection) as captured:
            store.jobs.create([new_job(**limit) for limit in limits])
        [query] = captured
        assert ("expires" in query["sql"]) is (limits[0] != {})
