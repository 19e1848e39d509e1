"""``retry``: failed and cancelled jobs are due now, for one more attempt at least, and keep their history."""

from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.exceptions import FailJob
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.policies import Backoff
from django_jobchains.processors import Processors, RunningJob
from django_jobchains.store import Store
from tests.attempts.work import WITHOUT_WAKE_UPS, committed
from tests.interventions.chains_at import (
    STATES,
    attempt,
    cancelled,
    completed,
    each,
    failed,
    go_on,
    mail,
    pending,
    ship,
    statuses,
)
from tests.store.jobs import claim, database_now, expire, failed_try, finished
from tests.worker.fixtures import StartWorker

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("make", [failed, cancelled])
def test_a_job_that_failed_or_was_cancelled_is_due_now(store: Store, make: Any) -> None:
    chain = make(store)
    before = database_now()
    assert chains.retry(chain.id) == {chain.id}
    job = chain.refresh().current_job
    assert (job.status, job.finished_at, job.cancel_requested_at, job.crashes) == ("pending", None, None, 0)
    assert before <= job.run_at <= database_now()
    assert chain.finished_at is None
    assert [job.id for job in claim(store)] == [chain.id]


def test_its_date_of_before_is_forgotten(store: Store) -> None:
    chain = ship.enqueue(delay=3600)
    chains.cancel(chain)
    chains.retry(chain.id)
    assert [job.id for job in claim(store)] == [chain.id]


def test_its_history_is_kept_and_goes_on(store: Store) -> None:
    chain = ship.enqueue()
    for number in (1, 2):
        store.fail([failed_try(attempt(store, chain), error=f"Boom: {number}")])
        chains.retry(chain.id)
    assert chain.refresh().current_job.last_error == "Boom: 2"
    [job] = claim(store)
    assert (job.attempt, job.lease_number, job.last_error) == (3, 3, "Boom: 2")
    history = FailedAttempt.objects.order_by("attempt").values_list("attempt", "error")
    assert list(history) == [(1, "Boom: 1"), (2, "Boom: 2")]
    store.finish([finished(job)])
    assert FailedAttempt.objects.count() == 2


def test_the_attempt_before_cannot_write_any_more(store: Store) -> None:
    chain = ship.enqueue()
    stale = attempt(store, chain)
    store.fail([failed_try(stale)])
    chains.retry(chain.id)
    assert store.finish([finished(stale)]) == set()
    [fresh] = claim(store)
    assert store.finish([finished(stale)]) == set()
    assert store.finish([finished(fresh)]) == {fresh.key}


def test_crashes_are_counted_from_the_start_again(store: Store) -> None:
    chain = ship.enqueue()
    for _ in range(2):
        expire(attempt(store, chain))
        store.reap(10, Backoff(0, 1, 0, 0), 2)
    assert (chain.refresh().status, chain.current_job.crashes) == ("failed", 2)
    chains.retry(chain.id)
    expire(attempt(store, chain))
    store.reap(10, Backoff(0, 1, 0, 0), 2)
    assert (chain.refresh().status, chain.current_job.crashes) == ("pending", 1)


def test_a_cancelled_job_that_was_running_is_not_cancelled_by_the_old_request(store: Store) -> None:
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    store.fail([failed_try(job)])
    chains.retry(chain.id)
    store.reschedule([failed_try(attempt(store, chain))])
    assert chain.refresh().status == "pending"


def test_jobs_of_other_statuses_are_left_as_they_are(store: Store) -> None:
    made = {name: make(store) for name, make in STATES.items()}
    untouched = [chain for name, chain in made.items() if name not in ("failed", "cancelled")]
    before = list(Job.objects.filter(pk__in=each(untouched)).order_by("pk").values())
    assert chains.retry(made.values()) == each([made["failed"], made["cancelled"]])
    assert list(Job.objects.filter(pk__in=each(untouched)).order_by("pk").values()) == before


def test_a_job_that_was_retried_just_now_is_left_as_it_is(store: Store) -> None:
    chain = failed(store)
    assert chains.retry(chain.id) == {chain.id}
    assert chains.retry(chain.id) == set()


def test_a_chain_goes_on_from_the_job_that_failed(store: Store) -> None:
    chain = ship.enqueue()
    go_on(chain)
    store.fail([failed_try(attempt(store, chain))])
    chains.retry(chain.refresh().current_job)
    assert statuses(chain) == ["completed", "pending"]
    store.finish([finished(attempt(store, chain), '"at last"')])
    assert (chain.refresh().status, chain.output) == ("completed", "at last")


def test_the_completed_job_before_it_is_not_what_is_retried(store: Store) -> None:
    chain = ship.enqueue()
    go_on(chain)
    chains.cancel(chain)
    assert chains.retry(chain.id) == set(), "the id is that of its first job"
    assert statuses(chain) == ["completed", "cancelled"]


def test_a_job_whose_blocker_has_not_completed_waits_again(store: Store) -> None:
    blocker = mail.enqueue()
    chain = ship.enqueue(blockers=[blocker])
    chains.cancel(chain)
    assert chains.retry(chain.id) == {chain.id}
    assert chain.refresh().status == "blocked"
    with chains.complete(blocker.id) as current:
        current.finish()
    assert chain.refresh().status == "pending"


def test_a_job_whose_blockers_completed_meanwhile_does_not_wait(store: Store) -> None:
    blockers = [mail.enqueue(), mail.enqueue()]
    chain = ship.enqueue(blockers=blockers)
    chains.cancel(chain)
    for blocker in blockers:
        with chains.complete(blocker.id) as current:
            current.finish()
    assert chain.refresh().status == "cancelled"
    chains.retry(chain.id)
    assert chain.refresh().status == "pending"


def test_a_completed_chain_is_not_run_again(store: Store) -> None:
    chain = completed(store)
    assert chains.retry(chain.id) == set()
    assert claim(store) == []


def test_pending_jobs_keep_their_date(store: Store) -> None:
    chain = pending(store)
    chains.reschedule(chain.id, delay=3600)
    before = chain.refresh().current_job.run_at
    assert chains.retry(chain.id) == set()
    assert chain.refresh().current_job.run_at == before


@committed
@pytest.mark.parametrize("max_attempts", [1, 2])
def test_a_job_that_used_up_its_attempts_gets_one_more(
    processors: Processors, make_worker: StartWorker, settings: Any, max_attempts: int
) -> None:
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    seen: list[int] = []

    @processors.register("shop.flaky", max_attempts=max_attempts, backoff=Backoff(0, 1, 0, 0))
    def flaky(job: RunningJob[None]) -> str:
        seen.append(job.attempt)
        if job.attempt <= max_attempts + 1:
            raise OSError("no network")
        return "done"

    chain = flaky.enqueue()
    make_worker().run_until_idle()
    assert chain.refresh().status == "failed"
    chains.retry(chain.id)
    make_worker().run_until_idle()
    assert chain.refresh().status == "failed", "one more, and no endless ones"
    chains.retry(chain.id)
    make_worker().run_until_idle()
    assert (chain.refresh().status, chain.output) == ("completed", "done")
    assert seen == list(range(1, max_attempts + 3))
    assert FailedAttempt.objects.count() == max_attempts + 1


@committed
def test_a_job_whose_handler_gave_up_is_tried_again(
    processors: Processors, make_worker: StartWorker, settings: Any
) -> None:
    settings.JOBCHAINS = WITHOUT_WAKE_UPS

    @processors.register("shop.picky")
    def picky(job: RunningJob[None]) -> str:
        if job.attempt == 1:
            raise FailJob("not like this")
        return f"{job.attempt}: {job.last_error}"

    chain = picky.enqueue()
    make_worker().run_until_idle()
    chains.retry(chain.id)
    make_worker().run_until_idle()
    assert (chain.refresh().status, chain.output) == ("completed", "2: FailJob: not like this")
