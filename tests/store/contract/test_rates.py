"""Rates: jobs start no faster than they allow, by the database's clock."""

import random
import time
from datetime import timedelta

import pytest
from django.db import OperationalError, transaction

from django_jobchains.models import Job, RateState
from django_jobchains.store.limits import BEFORE_ALL_KEYS, LimitedTypes, Rotation
from django_jobchains.store.rates import StartRate
from django_jobchains.store.rows import FailedTry
from tests.store.conftest import with_locks
from tests.support.connections import (
    READ_COMMITTED,
    REPEATABLE_READ,
    SERIALIZABLE,
    Actor,
    committing,
    elsewhere,
)
from tests.support.jobs import LEASE_SECONDS, MAIL, SHIP, WORKER, alter, create, database_now

pytestmark = pytest.mark.django_db

#: The seconds between two starts: much longer than a test takes.
INTERVAL = 1_000
HOUR = timedelta(hours=1)


def types(burst=1, concurrency=None, seconds=INTERVAL, names=(SHIP,)):
    rate = StartRate(seconds * 1_000_000, burst)
    return LimitedTypes(
        dict.fromkeys(names, LEASE_SECONDS), dict.fromkeys(names, concurrency), dict.fromkeys(names, rate)
    )


def add(store, key, count=1, type_name=SHIP, *, rate_key="", **changes):
    """Create jobs of a rate key, which take turns by it and are counted together while they run."""
    values = {"limit_key": ord(key), "rate_key": rate_key or f"{type_name} {key}", "concurrency_key": "all"}
    return create(store, count, type_name, **{**values, **changes})


def claim(store, served=None, limit=100, worker=WORKER, **options):
    return store.limits.claim(worker, limit, served or types(), Rotation(BEFORE_ALL_KEYS), **options)


def advance(store, intervals=1.0):
    store.db.ahead_seconds += INTERVAL * intervals


def test_starts_are_an_interval_apart(store):
    add(store, "a", 3)
    first = claim(store)
    assert len(first) == 1
    assert claim(store) == []
    assert INTERVAL - 60 < store.limits.next_due(types()) <= INTERVAL
    advance(store, 0.5)
    assert claim(store) == []
    advance(store, 0.5)
    assert store.limits.next_due(types()) <= 0
    second = claim(store)
    assert len(second) == 1
    assert second[0].last_attempt_at - first[0].last_attempt_at >= timedelta(seconds=INTERVAL)


def test_the_worker_knows_when_it_may_claim_again(store):
    add(store, "a", 9)
    rotation, before = Rotation(BEFORE_ALL_KEYS), time.monotonic()
    store.limits.claim(WORKER, 2, types(3), rotation)
    assert rotation.next_start_at is None
    store.limits.claim(WORKER, 2, types(3), rotation)
    assert rotation.next_start_at - before == pytest.approx(INTERVAL, abs=60)
    advance(store, 2)
    store.limits.claim(WORKER, 1, types(3), rotation)
    assert rotation.next_start_at is None
    claim(store, types(3))
    rotation.next_start_at = before
    assert store.limits.claim(WORKER, 1, types(3), rotation) == []
    assert rotation.next_start_at is None


def test_a_burst_starts_at_once_after_a_pause(store):
    add(store, "a", 20)
    assert len(claim(store, types(3))) == 3
    assert claim(store, types(3)) == []
    advance(store)
    assert len(claim(store, types(3))) == 1
    advance(store, 50)
    assert len(claim(store, types(3))) == 3
    assert claim(store, types(3)) == []


def test_each_key_has_its_own_rate(store):
    for key in "abc":
        add(store, key, 2)
    assert len(claim(store)) == 3
    assert claim(store) == []


def test_types_of_a_group_share_a_rate(store):
    add(store, "a", 3, rate_key="gateway")
    add(store, "a", 3, MAIL, rate_key="gateway")
    served = types(4, names=(SHIP, MAIL))
    found = claim(store, served)
    assert len(found) == 4
    assert {job.type_name for job in found} == {SHIP, MAIL}
    assert claim(store, served) == []


@pytest.mark.parametrize(("burst", "concurrency"), [(2, 5), (5, 2)])
def test_both_limits_hold(store, burst, concurrency):
    for key in "ab":
        add(store, key, 9, rate_key="all")
    served = types(burst, concurrency)
    found = claim(store, served)
    assert len(found) == 2
    assert claim(store, served) == []
    alter(found, status="completed")
    assert len(claim(store, served)) == (0 if burst == 2 else 2)


def test_each_attempt_is_a_start(store):
    add(store, "a")
    [job] = claim(store)
    store.attempts.reschedule([FailedTry(*job.key, "error", "")])
    assert claim(store) == []
    advance(store)
    assert len(claim(store)) == 1


def test_jobs_that_do_not_start_cost_nothing(store):
    add(store, "a", 1)
    assert len(claim(store, types(5))) == 1
    add(store, "a", 9)
    assert len(claim(store, types(5))) == 4


def test_jobs_that_are_not_due_do_not_start(store):
    add(store, "a", run_at=database_now() + HOUR)
    add(store, "b")
    claim(store, types(seconds=7_200))
    add(store, "b")
    assert 3_500 < store.limits.next_due(types(seconds=7_200)) <= 3_600
    alter(Job.objects.filter(limit_key=ord("a")), run_at=database_now() + 3 * HOUR)
    assert 7_100 < store.limits.next_due(types(seconds=7_200)) <= 7_200


def test_a_job_that_was_handed_back_before_it_began_is_refunded(store):
    add(store, "a", 3)
    jobs = claim(store, types(3))
    store.attempts.hand_back([job.key for job in jobs[:2]], has_begun=False)
    assert len(claim(store, types(3))) == 2
    assert claim(store, types(3)) == []


def test_a_job_that_was_handed_back_after_it_began_is_a_start(store):
    add(store, "a")
    [job] = claim(store)
    store.attempts.hand_back([job.key])
    assert claim(store) == []


def test_a_job_is_refunded_once(store):
    add(store, "a", 3)
    [job] = claim(store)
    for _ in range(2):
        store.attempts.hand_back([job.key], has_begun=False)
    assert len(claim(store)) == 1
    assert claim(store) == []


def test_a_start_is_not_refunded_after_a_later_one(store):
    """The second one was possible because of the time since the first one, which cannot be used twice."""
    add(store, "a", 3)
    [early] = claim(store)
    advance(store, 1.5)
    assert len(claim(store)) == 1
    store.attempts.hand_back([early.key], has_begun=False)
    assert claim(store) == []


def test_starts_are_refunded_after_later_ones(store):
    """All of those whose return has not been paid for by the time that passed before the later one."""
    add(store, "a", 9)
    served = types(3)
    early = claim(store, served, 2)
    advance(store, 0.25)
    assert len(claim(store, served, 1)) == 1
    assert claim(store, served) == []
    store.attempts.hand_back([job.key for job in early], has_begun=False)
    # Three tokens at first, of which one was used since, and nothing is returned twice for the time between.
    assert len(claim(store, served)) == 2
    assert 0.7 * INTERVAL - 60 < store.limits.next_due(served) <= 0.75 * INTERVAL + 250


def test_the_time_before_a_later_start_is_not_returned_twice(store):
    """The first start had been made up for by three quarters when the second one came."""
    add(store, "a", 9)
    served = types(2)
    [early] = claim(store, served, 1)
    advance(store, 0.75)
    assert len(claim(store, served, 1)) == 1
    store.attempts.hand_back([early.key], has_begun=False)
    assert len(claim(store, served)) == 1
    assert INTERVAL - 60 < store.limits.next_due(served) <= INTERVAL


def test_a_start_at_another_rate_is_not_refunded(store):
    add(store, "a", 9)
    [early] = claim(store, types(5), 1)
    advance(store, 0.01)  # Otherwise SQLite's clock may show the same millisecond.
    assert len(claim(store, types(5, seconds=INTERVAL // 2), 1)) == 1
    store.attempts.hand_back([early.key], has_begun=False)
    [state] = RateState.objects.all()
    assert state.full_at - state.started_at > 0.9 * INTERVAL * 1_000_000


def test_an_expired_job_is_not_a_start(store):
    add(store, "a", expires_at=database_now() - HOUR)
    expired = []
    assert claim(store, expired=expired) == []
    store.attempts.hand_back([job.key for job in expired], has_begun=False)
    add(store, "a")
    assert len(claim(store)) == 1


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(3, 10))])
def test_no_window_has_more_starts_than_allowed(store, seed):
    """By the times of the claims, whatever comes in between."""
    rng = random.Random(seed)
    burst, limit = rng.choice([1, 2, 3, 5]), rng.choice([1, 4])
    served = types(burst)
    add(store, "a", 120)
    started, waiting = [], []
    for _ in range(80):
        advance(store, rng.choice([0, 0.3, 1, 2.2, burst]))
        waiting += claim(store, served, rng.choice([1, 2, 100]))
        fates = {job: rng.choice(["begins", "waits", "is handed back"]) for job in waiting}
        store.attempts.hand_back([job.key for job in waiting if fates[job] == "is handed back"], has_begun=False)
        started += [job.last_attempt_at for job in waiting if fates[job] == "begins"]
        waiting = [job for job in waiting if fates[job] == "waits"]
    started = sorted(started + [job.last_attempt_at for job in waiting])
    assert len(started) > 15
    most = limit + burst - 1
    for first, last in zip(started, started[most:], strict=False):
        assert last - first >= timedelta(seconds=limit * INTERVAL)


def test_a_rate_that_was_raised_holds_from_the_next_start(store):
    """A day that a job of the old rate would have to wait is not waited for."""
    add(store, "a", 5)
    assert len(claim(store, types(seconds=86_400))) == 1
    assert claim(store) == []
    assert INTERVAL - 60 < store.limits.next_due(types()) <= INTERVAL
    advance(store)
    assert len(claim(store)) == 1
    assert claim(store) == []


def test_a_rate_that_was_lowered_starts_no_second_burst(store):
    add(store, "a", 9)
    assert len(claim(store, types(3, seconds=INTERVAL // 100))) == 3
    assert claim(store, types(3)) == []
    advance(store)
    assert len(claim(store, types(3))) == 1


@pytest.mark.parametrize("seconds", [INTERVAL, INTERVAL // 2, INTERVAL * 2])
def test_the_time_of_the_next_start_is_known_at_another_rate(store, seconds):
    add(store, "a", 4)
    claim(store, types(3))
    advance(store, 0.1)
    served = types(3, seconds=seconds)
    [bucket] = store.rates.recent(10)
    assert bucket.seconds_to_next(served.rates[SHIP]) == pytest.approx(seconds - 0.1 * INTERVAL, abs=60)
    assert store.limits.next_due(served) == pytest.approx(seconds - 0.1 * INTERVAL, abs=60)


@pytest.mark.parametrize("seed", range(4))
def test_workers_with_different_rates_start_no_more_than_the_faster_one_allows(store, seed):
    """Workers read a change at different times, and during a deployment old and new ones run side by side."""
    rng = random.Random(seed)
    add(store, "a", 200)
    started = []
    for _ in range(40):
        advance(store, rng.choice([0, 0.2, 0.5]))
        started += [job.last_attempt_at for job in claim(store, types(3, seconds=INTERVAL * rng.choice([1, 2, 20])))]
    assert len(started) > 5
    for first, last in zip(sorted(started), sorted(started)[3:], strict=False):
        assert last - first >= timedelta(seconds=INTERVAL)


def test_a_type_without_a_rate_is_not_counted(store):
    add(store, "a", 3)
    assert len(claim(store, LimitedTypes({SHIP: LEASE_SECONDS}, {SHIP: None}))) == 3
    assert not RateState.objects.exists()


def test_jobs_without_a_rate_key_do_not_start_under_a_rate(store):
    create(store, limit_key=ord("a"))
    assert claim(store) == []
    assert store.limits.next_due(types()) is None
    [(job_id, *_)], _ = store.limits.without_keys({SHIP: (False, True)}, 10)
    store.limits.set_keys([(job_id, ord("a"), None, "shop.ship")])
    assert len(claim(store)) == 1


def test_full_buckets_are_forgotten(store):
    for key in "abc":
        add(store, key, 2)
    claim(store)
    assert store.rates.forget(10) == 0
    advance(store)
    claim(store, limit=1)
    assert store.rates.forget(1) == 1
    assert store.rates.forget(10) == 1
    assert RateState.objects.get().key == "shop.ship a"


def test_buckets_from_a_clock_that_was_ahead_are_forgotten(store):
    """Otherwise nothing would start for as long as the clock was ahead. A few seconds are not a wrong clock."""
    add(store, "a", 2)
    store.db.ahead_seconds = 5
    assert len(claim(store)) == 1
    store.db.ahead_seconds = 0
    assert store.rates.forget(10) == 0
    store.db.ahead_seconds = -3_600
    add(store, "a", 2)
    assert claim(store) == []
    assert store.rates.forget(10) == 1
    assert len(claim(store)) == 1


@committing
def test_a_claim_that_is_tried_again_counts_once(store, monkeypatch):
    add(store, "a", 5)
    charge, failures = store.rates.charge, [OperationalError("database is locked")]

    def fail_once(*args):
        seconds = charge(*args)
        if failures:
            raise failures.pop()
        return seconds

    monkeypatch.setattr(store.rates, "charge", fail_once)
    monkeypatch.setattr(store.db, "is_conflict", lambda error: True)
    assert len(claim(store, types(3))) == 3
    [state] = RateState.objects.all()
    assert state.full_at - state.started_at == 3 * INTERVAL * 1_000_000


@with_locks
def test_one_claim_at_a_time_decides_about_a_rate_key(store):
    """In both orders: the second claim begins while the first is deciding, and when it has committed."""
    for key in "ab":
        add(store, key, 5)
    with transaction.atomic():
        groups = store.limits.lock_groups(1, types(), Rotation(BEFORE_ALL_KEYS))
        assert [group.limit_key for group in groups] == [ord("a")]
        # Another claim finds the key locked, does not wait, and takes what it may of other keys.
        [other] = elsewhere(lambda other: claim(other, worker="other"))
        assert Job.objects.get(pk=other.id).limit_key == ord("b")
        assert len(store.limits.claim_of(groups, WORKER, 10, types(), Rotation(BEFORE_ALL_KEYS))) == 1
        assert elsewhere(lambda other: claim(other, worker="other")) == []
    assert elsewhere(lambda other: claim(other, worker="other")) == []


@with_locks
@pytest.mark.parametrize(("level", "last_statement"), [(READ_COMMITTED, 2), (REPEATABLE_READ, 3), (SERIALIZABLE, 3)])
def test_a_claim_reads_what_was_charged_before_it_had_the_lock(store, level, last_statement):
    """Between its two statements, a job is charged, as if another claim had committed just before the first."""
    add(store, "a", 5)
    served = types(3)
    actor = Actor(lambda other: len(claim(other, served)), level=level, stops_before=last_statement)
    actor.start().until_stopped()
    with transaction.atomic():
        store.rates.charge([("shop.ship a", served.rates[SHIP])] * 2, database_now())
    assert actor.result() == 1


@with_locks
def test_a_locked_row_delays_only_its_key(store):
    for key in "ab":
        add(store, key, 5)
    assert len(claim(store)) == 2
    advance(store)
    with transaction.atomic():
        RateState.objects.select_for_update().get(key="shop.ship a")
        [job] = elsewhere(lambda other: claim(other))
        assert Job.objects.get(pk=job.id).limit_key == ord("b")
        # Neither waits.
        elsewhere(lambda other: other.attempts.hand_back([job.key], has_begun=False))
        elsewhere(lambda other: other.rates.forget(10))
    assert len(claim(store)) == 2
