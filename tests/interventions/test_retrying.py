"""``retry``: failed and cancelled jobs become due with at least one attempt left, and keep their failed attempts."""

import pytest

from django_jobchains import chains
from django_jobchains.declare.policies import Backoff
from django_jobchains.models import FailedAttempt
from tests.support.attempts import WITHOUT_WAKE_UPS, committed
from tests.support.chains import attempt, cancelled, failed, scheduled, ship
from tests.support.jobs import claim, database_now, expire, failed_try, finished

pytestmark = pytest.mark.django_db


def cancelled_when_scheduled(store):
    chain = scheduled(store)
    chains.cancel(chain)
    return chain.refresh()


@pytest.mark.parametrize("make", [failed, cancelled, cancelled_when_scheduled])
def test_a_failed_or_cancelled_job_becomes_due(store, make):
    chain = make(store)
    before = database_now()
    assert chains.retry(chain.id) == {chain.id}
    job = chain.refresh().current_job
    assert (job.status, job.finished_at, job.cancel_requested_at) == ("pending", None, None)
    assert before <= job.run_at <= database_now()
    assert chain.finished_at is None
    assert [job.id for job in claim(store)] == [chain.id]


def test_failed_attempts_are_kept_and_numbers_continue(store):
    chain = ship.enqueue()
    for number in (1, 2):
        store.attempts.fail([failed_try(attempt(store, chain), error=f"Boom: {number}")])
        chains.retry(chain.id)
    assert chain.refresh().current_job.last_error == "Boom: 2"
    [job] = claim(store)
    assert (job.attempt, job.lease_number, job.last_error) == (3, 3, "Boom: 2")
    history = FailedAttempt.objects.order_by("attempt").values_list("attempt", "error")
    assert list(history) == [(1, "Boom: 1"), (2, "Boom: 2")]
    store.attempts.finish([finished(job)])
    assert FailedAttempt.objects.count() == 2


def crash(store, chain, max_crashes=10):
    expire(attempt(store, chain))
    store.leases.reap(10, Backoff(0, 1, 0, 0), max_crashes)


def test_earlier_crashes_are_not_counted_as_failures_afterwards(store):
    chain = ship.enqueue()
    for _ in range(2):
        crash(store, chain)
    store.attempts.fail([failed_try(attempt(store, chain))])
    chains.retry(chain.id)
    job = attempt(store, chain)
    assert (job.attempt, job.crashes, job.failures) == (4, 2, 2)


def test_a_job_that_failed_by_crashes_has_one_more_attempt(store):
    chain = ship.enqueue()
    for status in ("pending", "failed"):
        crash(store, chain, max_crashes=2)
        assert chain.refresh().status == status
    chains.retry(chain.id)
    crash(store, chain, max_crashes=2)
    assert (chain.refresh().status, chain.current_job.crashes) == ("failed", 3)


def test_an_earlier_cancel_request_does_not_cancel_the_retried_job(store):
    chain = ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    store.attempts.fail([failed_try(job)])
    chains.retry(chain.id)
    store.attempts.reschedule([failed_try(attempt(store, chain))])
    assert chain.refresh().status == "pending"


@committed
@pytest.mark.parametrize("max_attempts", [1, 2])
def test_a_job_without_attempts_left_gets_one_more(processors, make_worker, settings, max_attempts):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    seen = []

    @processors.register("shop.flaky", max_attempts=max_attempts, backoff=Backoff(0, 1, 0, 0))
    def flaky(job):
        seen.append(job.attempt)
        if job.attempt <= max_attempts + 1:
            raise OSError("no network")
        return "done"

    chain = flaky.enqueue()
    for status in ("failed", "failed", "completed"):
        make_worker().run_until_idle()
        assert chain.refresh().status == status
        chains.retry(chain.id)
    assert chain.output == "done"
    assert seen == list(range(1, max_attempts + 3))
    assert FailedAttempt.objects.count() == max_attempts + 1
