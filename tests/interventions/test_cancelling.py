"""``cancel``: jobs that do not run are cancelled at once, running jobs are asked to stop, ended jobs do not change."""

from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainCancelled
from django_jobchains.models import FailedAttempt, JobBlocker
from django_jobchains.policies import Backoff
from django_jobchains.processors import JobType
from django_jobchains.store import Effects, Store
from tests.support.chains import (
    attempt,
    backing_off,
    blocked,
    each,
    mail,
    pending,
    running,
    scheduled,
    ship,
    statuses,
)
from tests.support.jobs import claim, database_now, expire, failed_try, finished, next_job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("make", [pending, scheduled, blocked, backing_off])
def test_a_job_that_is_not_running_is_cancelled_at_once(
    store: Store, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = make(store)
    before = database_now()
    assert chains.cancel(chain) == {chain.id}
    job = chain.refresh().current_job
    assert (chain.status, job.status, job.leased_by) == ("cancelled", "cancelled", None)
    assert chain.finished_at is not None
    assert before <= chain.finished_at <= database_now()
    assert job.cancel_requested_at == job.finished_at
    monkeypatch.setattr(store.db, "ahead_seconds", 7_200)
    assert chain.id not in {job.chain_id for job in claim(store)}
    with pytest.raises(ChainCancelled):
        chain.result(1)


def test_a_second_cancel_keeps_the_time_of_the_first(store: Store) -> None:
    chain = running(store)
    chains.cancel(chain)
    first = chain.refresh().current_job.cancel_requested_at
    assert chains.cancel(chain) == {chain.id}
    assert chain.refresh().current_job.cancel_requested_at == first


ENDINGS = {
    "reschedule": lambda store, job: store.attempts.reschedule([failed_try(job, delay_seconds=60)]),
    "fail": lambda store, job: store.attempts.fail([failed_try(job)]),
    "hand_back": lambda store, job: store.attempts.hand_back([job.key]),
    "reap": lambda store, job: store.leases.reap(10, Backoff(), 10),
    "reap for the last time": lambda store, job: store.leases.reap(10, Backoff(), 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_job_asked_to_stop_is_cancelled_however_its_attempt_ends(store: Store, ending: str) -> None:
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    expire(job)
    assert ENDINGS[ending](store, job)
    ended = chain.refresh().current_job
    assert (ended.status, ended.leased_by, ended.leased_until) == ("cancelled", None, None)
    assert ended.finished_at is not None
    assert FailedAttempt.objects.count() == (ending != "hand_back")
    assert ended.attempt == (ending != "hand_back")
    assert claim(store) == []


def test_in_a_batch_of_attempts_only_those_asked_to_stop_are_cancelled(store: Store) -> None:
    made = [ship.enqueue() for _ in range(6)]
    jobs = claim(store)
    chains.cancel(made[::2])
    store.attempts.reschedule([failed_try(job) for job in jobs])
    assert each(Chain.objects.with_status("cancelled")) == each(made[::2])
    assert each(Chain.objects.with_status("pending")) == each(made[1::2])


def test_a_cancelled_continuation_with_blockers_waits_for_them_when_retried(store: Store) -> None:
    blocker = mail.enqueue(delay=3600)
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    store.attempts.finish([finished(job, None, next_job(job, blockers=(blocker.id,)))])
    assert statuses(chain) == ["completed", "cancelled"]
    chains.retry(chain.refresh().current_job_id)
    assert statuses(chain) == ["completed", "blocked"]
    chains.complete(blocker.id)
    assert statuses(chain) == ["completed", "pending"]


def test_a_cancelled_continuation_is_not_started_when_its_blockers_end(store: Store) -> None:
    blocker = mail.enqueue(delay=3600)
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    store.attempts.finish([finished(job, None, next_job(job, blockers=(blocker.id,)))])
    chains.complete(blocker.id)
    assert statuses(chain) == ["completed", "cancelled"]
    assert not JobBlocker.objects.filter(is_open=True).exists()
    chains.retry(chain.refresh().current_job_id)
    assert statuses(chain) == ["completed", "pending"]


def test_a_job_that_waits_for_a_cancelled_chain_stays_blocked(store: Store) -> None:
    blocker = pending(store)
    dependent = mail.enqueue(blockers=[blocker])
    chains.cancel(blocker)
    assert dependent.refresh().status == "blocked"
    chains.retry(blocker.id)
    chains.complete(blocker.id)
    assert dependent.refresh().status == "pending"


def test_a_chain_and_its_blocker_can_be_cancelled_together(store: Store) -> None:
    blocker = pending(store)
    dependent = mail.enqueue(blockers=[blocker])
    assert chains.cancel([dependent, blocker]) == each([dependent, blocker])
    assert [blocker.refresh().status, dependent.refresh().status] == ["cancelled", "cancelled"]


ENDINGS_WITH_CONTINUATION = {
    **ENDINGS,
    "completes with a continuation": lambda store, job: store.attempts.finish([finished(job, None, next_job(job))]),
}


@pytest.mark.parametrize("ending", ENDINGS_WITH_CONTINUATION)
@pytest.mark.parametrize(("policy", "status"), [("wait", "blocked"), ("run", "pending"), ("fail", "failed")])
def test_the_policy_of_a_waiting_job_applies_however_its_blocker_was_cancelled(
    store: Store, ending: str, policy: Any, status: str
) -> None:
    waiting: JobType[Any, Any] = JobType("shop.waiting", on_blocker_failure=policy)
    chain = ship.enqueue()
    job = attempt(store, chain)
    dependent = waiting.enqueue(blockers=[chain])
    chains.cancel(chain)
    assert dependent.status == "blocked"
    expire(job)
    ENDINGS_WITH_CONTINUATION[ending](store, job)
    assert (chain.refresh().status, dependent.refresh().status) == ("cancelled", status)


def test_a_cancelled_continuation_notifies_waiters_and_wakes_no_worker(store: Store) -> None:
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    effects = Effects()
    store.attempts.finish([finished(job, None, next_job(job))], effects)
    assert (effects.finished_chains, effects.due_types) == ({chain.id}, set())
