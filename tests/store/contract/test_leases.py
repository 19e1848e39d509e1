"""Leases can be renewed and lost, and the reaper takes back jobs whose leases have expired."""

from datetime import timedelta

import pytest

from django_jobchains.policies import Backoff
from django_jobchains.store import Effects
from tests.store.conftest import locks_rows
from tests.support.connections import committing, elsewhere, holding
from tests.support.jobs import (
    AT_ONCE,
    LEASE_SECONDS,
    MAX_CRASHES,
    SHIP,
    WORKER,
    claim,
    finished,
    history,
    lease,
    let_leases_end,
    running,
    running_job,
    statuses,
    stored,
    taken_over,
)

pytestmark = pytest.mark.django_db


def test_expired_leases_are_listed_with_their_types_and_crashes(store):
    own, lapsed = running(store, 2)
    let_leases_end(store)
    running_job(store)
    assert store.leases.expired(10, [own.id]) == [(lapsed.type_name, 0)]
    assert statuses(own, lapsed) == ["running", "running"]


def test_a_lease_is_prolonged(store):
    job = running_job(store)
    until = stored(job).leased_until
    store.db.ahead_seconds = LEASE_SECONDS / 2
    assert not store.leases.check([job.key]).lost
    assert stored(job).leased_until == until
    renewal = store.leases.renew([lease(job)])
    assert (renewal.lost, renewal.cancelled) == ({}, set())
    assert until is not None
    assert (stored(job).leased_until or until) - until > timedelta(seconds=LEASE_SECONDS / 3)


def test_the_reason_of_a_lost_lease_is_returned(store):
    gone, done, cancelled, taken = running(store, 4)
    store.chains.delete([gone.chain_id], cascade=False, effects=Effects())
    store.attempts.finish([finished(done)])
    store.attempts.hand_back([cancelled.key])
    store.chains.cancel([cancelled.chain_id], Effects())
    taken_over(store, taken)
    reasons = {
        gone.key: "not_found",
        done.key: "already_completed",
        cancelled.key: "cancelled",
        taken.key: "taken_by_another_worker",
    }
    leases = [lease(job) for job in (gone, done, cancelled, taken)]
    keys = [lease.key for lease in leases]
    assert (store.leases.check(keys).lost, store.leases.renew(leases).lost) == (reasons, reasons)


def test_attempts_that_should_stop_are_returned(store):
    job, other = running(store, 2)
    store.chains.cancel([job.chain_id], Effects())
    leases = [lease(job), lease(other)]
    assert store.leases.check([job.key, other.key]).cancelled == store.leases.renew(leases).cancelled == {job.key}
    assert not store.leases.renew(leases).lost


def test_a_job_whose_lease_ran_out_is_taken_back(store):
    job, effects = running_job(store), Effects()
    let_leases_end(store)
    (reaped,) = store.leases.reap(10, Backoff(600, 1, 600, 0), MAX_CRASHES, (), effects)
    assert reaped == (job.id, job.chain_id, SHIP, 1, "pending", 1)
    saved = stored(job)
    assert (saved.status, saved.crashes, saved.leased_by, saved.leased_until) == ("pending", 1, None, None)
    assert [(id_, attempt, kind) for id_, attempt, kind, _ in history()] == [(job.id, 1, "crash")]
    assert WORKER in (saved.last_error or "")
    assert effects.due_types == {SHIP}
    assert claim(store) == []
    store.db.ahead_seconds += 601
    assert [again.attempt for again in claim(store)] == [2]


def test_a_job_that_crashed_too_often_has_failed(store):
    job = running_job(store)
    for _ in range(MAX_CRASHES):
        let_leases_end(store)
        (reaped,) = store.leases.reap(10, AT_ONCE, MAX_CRASHES)
        claim(store)
    assert (reaped.status, reaped.crashes) == ("failed", MAX_CRASHES)
    assert statuses(job) == ["failed"]
    assert len(history()) == MAX_CRASHES


def test_running_leases_and_the_callers_own_are_not_reaped(store):
    own, lapsed = running(store, 2)
    let_leases_end(store)
    live = running_job(store)
    assert [reaped.id for reaped in store.leases.reap(10, AT_ONCE, MAX_CRASHES, [own.id])] == [lapsed.id]
    assert statuses(own, live) == ["running", "running"]


def test_the_leases_that_expired_first_are_reaped_first(store):
    ids = [running_job(store, priority=number).id for number in range(3)]
    let_leases_end(store)
    assert [reaped.id for reaped in store.leases.reap(1, Backoff(), MAX_CRASHES)] == ids[:1]
    assert [reaped.id for reaped in store.leases.reap(5, Backoff(), MAX_CRASHES)] == ids[1:]


@committing
@locks_rows
def test_the_reaper_skips_a_job_that_its_attempt_has_locked(store):
    locked, lapsed = running(store, 2)
    let_leases_end(store)
    holding(lambda store: store.attempts.lock(locked.id))
    reaped = elsewhere(lambda store: store.leases.reap(10, AT_ONCE, MAX_CRASHES))
    assert [job.id for job in reaped] == [lapsed.id]
