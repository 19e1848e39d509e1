"""``cancel``: what does not run is cancelled at once, what runs is asked to stop, what has ended is left alone."""

from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainCancelled, JobNotCompletable
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.policies import Backoff
from django_jobchains.processors import JobType
from django_jobchains.store import Effects, Store
from tests.interventions.chains_at import (
    STATES,
    attempt,
    backing_off,
    blocked,
    cancelled,
    completed,
    each,
    failed,
    go_on,
    mail,
    pending,
    running,
    scheduled,
    ship,
    statuses,
)
from tests.store.jobs import claim, database_now, expire, failed_try, finished, lease, next_job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("make", [pending, scheduled, blocked, backing_off])
def test_what_does_not_run_is_cancelled_at_once(store: Store, make: Any) -> None:
    chain = make(store)
    before = database_now()
    assert chains.cancel(chain) == {chain.id}
    job = chain.refresh().current_job
    assert (chain.status, job.status, job.leased_by) == ("cancelled", "cancelled", None)
    assert chain.finished_at is not None
    assert before <= chain.finished_at <= database_now()
    assert job.cancel_requested_at == job.finished_at


@pytest.mark.parametrize("make", [pending, scheduled, blocked])
def test_a_cancelled_job_is_not_claimed(store: Store, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = make(store)
    chains.cancel(chain)
    monkeypatch.setattr(store, "ahead_seconds", 7_200)
    assert chain.id not in {job.chain_id for job in claim(store)}
    with pytest.raises(ChainCancelled):
        chain.result(1)


def test_a_running_job_is_asked_to_stop_and_keeps_its_lease(store: Store) -> None:
    chain = ship.enqueue()
    job = attempt(store, chain)
    before = database_now()
    assert chains.cancel(chain) == {chain.id}
    asked = chain.refresh().current_job
    assert (asked.status, asked.lease_number, asked.finished_at) == ("running", job.lease_number, None)
    assert asked.cancel_requested_at is not None
    assert before <= asked.cancel_requested_at <= database_now()
    assert store.renew([lease(job)]).cancelled == store.check([lease(job)]).cancelled == {job.key}
    assert store.renew([lease(job)]).lost == {}


def test_it_may_be_asked_again_and_the_first_time_stays(store: Store) -> None:
    chain = running(store)
    chains.cancel(chain)
    first = chain.refresh().current_job.cancel_requested_at
    assert chains.cancel(chain) == {chain.id}
    assert chain.refresh().current_job.cancel_requested_at == first


ENDINGS = {
    "reschedule": lambda store, job: store.reschedule([failed_try(job, delay_seconds=60)]),
    "fail": lambda store, job: store.fail([failed_try(job)]),
    "hand_back": lambda store, job: store.hand_back([lease(job)]),
    "reap": lambda store, job: store.reap(10, Backoff(), 10),
    "reap for the last time": lambda store, job: store.reap(10, Backoff(), 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_whichever_way_its_attempt_ends_it_is_cancelled(store: Store, ending: str) -> None:
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


def test_only_those_asked_to_stop_are_cancelled_of_a_batch_of_attempts(store: Store) -> None:
    made = [ship.enqueue() for _ in range(6)]
    jobs = claim(store)
    chains.cancel(made[::2])
    store.reschedule([failed_try(job) for job in jobs])
    assert each(Chain.objects.with_status("cancelled")) == each(made[::2])
    assert each(Chain.objects.with_status("pending")) == each(made[1::2])


def test_what_completes_nevertheless_is_completed(store: Store) -> None:
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    assert store.finish([finished(job, '"done"')]) == {job.key}
    assert (chain.refresh().status, chain.output) == ("completed", "done")
    assert chains.cancel(chain) == set()
    assert chain.refresh().status == "completed"


def test_its_continuation_is_created_cancelled_and_the_chain_can_be_retried_from_there(store: Store) -> None:
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    assert store.finish([finished(job, None, next_job(job, input='{"step": 2}'))])
    assert statuses(chain) == ["completed", "cancelled"]
    assert chain.refresh().finished_at is not None
    assert claim(store) == []
    assert chains.retry(chain.current_job_id) == {chain.current_job_id}
    [second] = claim(store)
    assert (second.chain_id, second.chain_index, second.attempt) == (chain.id, 1, 1)
    store.finish([finished(second, '"done"')])
    assert (chain.refresh().status, chain.output) == ("completed", "done")


def test_a_continuation_with_blockers_is_created_cancelled_too_and_waits_when_it_is_retried(store: Store) -> None:
    blocker = mail.enqueue(delay=3600)
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    store.finish([finished(job, None, next_job(job, blockers=(blocker.id,)))])
    assert statuses(chain) == ["completed", "cancelled"]
    chains.retry(chain.refresh().current_job_id)
    assert statuses(chain) == ["completed", "blocked"]
    with chains.complete(blocker.id) as current:
        current.finish()
    assert statuses(chain) == ["completed", "pending"]


def test_a_cancelled_continuation_is_not_freed_by_its_blockers(store: Store) -> None:
    blocker = mail.enqueue(delay=3600)
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    store.finish([finished(job, None, next_job(job, blockers=(blocker.id,)))])
    with chains.complete(blocker.id) as current:
        current.finish()
    assert statuses(chain) == ["completed", "cancelled"]
    assert not JobBlocker.objects.filter(is_open=True).exists()
    chains.retry(chain.refresh().current_job_id)
    assert statuses(chain) == ["completed", "pending"]


def test_a_job_asked_to_stop_that_is_completed_without_a_worker_does_not_go_on(store: Store) -> None:
    chain = running(store)
    chains.cancel(chain)
    go_on(chain)
    assert statuses(chain) == ["completed", "cancelled"]


def test_a_cancelled_chain_is_not_completed_without_a_worker(store: Store) -> None:
    chain = cancelled(store)
    with pytest.raises(JobNotCompletable), chains.complete(chain.id) as current:
        current.finish()
    assert chain.refresh().status == "cancelled"


def test_a_chain_is_cancelled_at_the_job_it_is_at(store: Store) -> None:
    chain = ship.enqueue()
    go_on(chain)
    go_on(chain, delay=60)
    chains.cancel(chain)
    assert statuses(chain) == ["completed", "completed", "cancelled"]


def test_ended_chains_among_others_are_left_alone(store: Store) -> None:
    made = {name: make(store) for name, make in STATES.items()}
    ended = [make(store) for make in (completed, failed, cancelled)]
    before = list(Job.objects.filter(pk__in=each(ended)).order_by("pk").values())
    moved = chains.cancel([*made.values(), *ended])
    assert moved == {chain.id for name, chain in made.items() if name not in ("completed", "failed", "cancelled")}
    assert list(Job.objects.filter(pk__in=each(ended)).order_by("pk").values()) == before


def test_what_waits_for_a_cancelled_chain_stays_blocked(store: Store) -> None:
    blocker = pending(store)
    dependent = mail.enqueue(blockers=[blocker])
    chains.cancel(blocker)
    assert dependent.refresh().status == "blocked"
    chains.retry(blocker.id)
    with chains.complete(blocker.id) as current:
        current.finish()
    assert dependent.refresh().status == "pending"


def test_a_chain_and_the_one_it_waits_for_are_cancelled_together(store: Store) -> None:
    blocker = pending(store)
    dependent = mail.enqueue(blockers=[blocker])
    assert chains.cancel([dependent, blocker]) == each([dependent, blocker])
    assert [blocker.refresh().status, dependent.refresh().status] == ["cancelled", "cancelled"]


WAYS = {
    **ENDINGS,
    "completes with a continuation": lambda store, job: store.finish([finished(job, None, next_job(job))]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("policy", "status"), [("wait", "blocked"), ("run", "pending"), ("fail", "failed")])
def test_what_waits_for_it_goes_by_its_policy_whichever_way_it_was_cancelled(
    store: Store, way: str, policy: Any, status: str
) -> None:
    waiting: JobType[Any, Any] = JobType("shop.waiting", on_blocker_failure=policy)
    chain = ship.enqueue()
    job = attempt(store, chain)
    dependent = waiting.enqueue(blockers=[chain])
    chains.cancel(chain)
    assert dependent.status == "blocked"
    expire(job)
    WAYS[way](store, job)
    assert (chain.refresh().status, dependent.refresh().status) == ("cancelled", status)


def test_a_cancelled_continuation_ends_the_chain_for_those_who_wait_and_wakes_no_worker(store: Store) -> None:
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    effects = Effects()
    store.finish([finished(job, None, next_job(job))], effects)
    assert (effects.finished_chains, effects.due_types) == ({chain.id}, set())
