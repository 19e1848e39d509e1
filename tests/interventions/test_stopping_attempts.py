"""Running jobs that are cancelled or deleted, in a real worker: the handler is notified, and its outcome is stored."""

from contextlib import nullcontext

import pytest

from django_jobchains import chains
from django_jobchains.attempts.outcome import OutcomeKind
from django_jobchains.chains import ChainCancelled
from django_jobchains.exceptions import LeaseLost as LeaseLostError
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Lease
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded
from tests.interventions.stopping import STOPS, Handler
from tests.shop.models import Effect
from tests.support.attempts import WITHOUT_WAKE_UPS, committed
from tests.support.chains import statuses
from tests.support.jobs import database_now
from tests.support.waiting import until, until_completed

pytestmark = committed

#: A lease that is renewed only after minutes: a handler that is aborted earlier was notified by a hint.
LONG_LEASE = 600
SHORT_LEASE = 1


@pytest.fixture
def handler():
    handler = Handler()
    yield handler
    handler.gate.set()


@pytest.fixture
def obedient(processors, handler):
    @processors.register("shop.obedient", lease=Lease(LONG_LEASE))
    def obedient(job):
        return handler(job)

    return obedient


@pytest.fixture
def last(processors):
    @processors.register("shop.last")
    def last(job):
        return "the end"

    return last


@pytest.fixture
def chain(obedient, last, start_worker, handler):
    """Return a chain whose handler runs in a worker of both types."""
    start_worker()
    return started(obedient, handler)


def started(job_type, handler):
    chain = job_type.enqueue()
    assert handler.started.wait(15)
    return chain


def until_status(chain, status):
    until(lambda: chain.refresh().status == status, what=lambda: vars(chain.current_job))


def test_a_hint_aborts_the_handler_at_once(chain, handler, events):
    assert chains.cancel(chain) == {chain.id}
    until_status(chain, "cancelled")
    assert handler.reasons == ["cancelled"]
    until(lambda: events.of(AttemptEnded))
    assert [event.ending for event in events.of(AttemptEnded)] == [OutcomeKind.CANCELLED]
    assert events.of(AttemptAbandoned) == []
    with pytest.raises(ChainCancelled):
        chain.result(15)


def test_without_hints_the_handler_is_aborted_at_the_next_renewal(processors, start_worker, handler, settings):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS

    @processors.register("shop.obedient", lease=Lease(SHORT_LEASE))
    def obedient(job):
        return handler(job)

    chain = obedient.enqueue()
    start_worker()
    assert handler.started.wait(15)
    chains.cancel(chain)
    until_status(chain, "cancelled")
    assert handler.reasons == ["cancelled"]
    assert chain.current_job.crashes == 0


@pytest.mark.parametrize("stop", STOPS)
def test_the_job_is_cancelled_however_the_handler_stops(chain, handler, stop):
    handler.stop = STOPS[stop]
    chains.cancel(chain)
    until_status(chain, "cancelled")
    job = chain.current_job
    assert (job.attempt, job.leased_by, job.leased_until, handler.attempts) == (1, None, None, [1])
    assert job.finished_at is not None
    assert job.finished_at <= database_now()
    assert not FailedAttempt.objects.exists()
    assert not Effect.objects.exists()


def test_a_cancelled_job_runs_again_only_after_a_retry(chain, handler):
    handler.stop = STOPS["RescheduleJob"]
    chains.cancel(chain)
    until_status(chain, "cancelled")
    handler.started.clear()
    chains.retry(chain.id)
    assert handler.started.wait(15)
    assert handler.attempts == [1, 2]
    handler.stop = lambda job: "done after all"
    chains.cancel(chain)
    until_completed(chain)


@pytest.mark.parametrize("is_in_complete", [False, True])
def test_a_handler_that_ignores_the_signal_can_complete_its_job(chain, handler, is_in_complete):
    def complete(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="kept")
        return "done"

    handler.stop = complete if is_in_complete else lambda job: "done"
    chains.cancel(chain)
    until_completed(chain)
    assert (handler.reasons, chain.output) == (["cancelled"], "done")
    assert Effect.objects.count() == is_in_complete
    assert chain.result(15) == "done"


@pytest.mark.parametrize("is_in_complete", [False, True])
def test_the_continuation_is_cancelled_and_can_be_retried(chain, handler, last, is_in_complete):
    def go_on(job):
        with job.complete() if is_in_complete else nullcontext():
            return job.continue_with(last)

    handler.stop = go_on
    chains.cancel(chain)
    until_status(chain, "cancelled")
    assert statuses(chain) == ["completed", "cancelled"]
    with pytest.raises(ChainCancelled):
        chain.result(15)
    chains.retry(chain.refresh().current_job)
    until_completed(chain)
    assert (chain.output, handler.attempts) == ("the end", [1])


@pytest.mark.parametrize("is_in_complete", [False, True])
def test_a_handler_may_cancel_its_own_chain(processors, start_worker, last, is_in_complete):
    @processors.register("shop.giving_up", lease=Lease(LONG_LEASE))
    def giving_up(job):
        with job.complete() if is_in_complete else nullcontext():
            chains.cancel(job.chain_id)
            return job.continue_with(last)

    start_worker()
    chain = giving_up.enqueue()
    until_status(chain, "cancelled")
    assert statuses(chain) == ["completed", "cancelled"]


def test_a_handler_may_delete_its_own_chain(processors, start_worker, events):
    @processors.register("shop.forgotten", lease=Lease(LONG_LEASE))
    def forgotten(job):
        chains.delete(job.chain_id)
        return "nobody asks"

    start_worker()
    forgotten.enqueue()
    until(lambda: events.of(AttemptAbandoned))
    assert not Job.objects.exists()


def test_a_job_stays_cancelled_if_its_worker_stops_too(obedient, start_worker, handler):
    worker = start_worker()
    chain = started(obedient, handler)

    def stop(job):
        handler.gate.wait(60)
        job.signal.raise_if_aborted()

    handler.stop = stop
    chains.cancel(chain)
    until(lambda: handler.reasons)
    handler.gate.set()
    worker.stop(timeout=15)
    assert chain.refresh().status == "cancelled"


def test_a_job_that_is_handed_back_is_cancelled_and_its_handler_can_write_nothing(obedient, start_worker, handler):
    worker = start_worker()
    chain = started(obedient, handler)

    def ignore(job):
        handler.gate.wait(60)
        with job.complete():
            Effect.objects.create(job_id=job.id, label="late")
        return "late"

    handler.stop = ignore
    chains.cancel(chain)
    until(lambda: handler.reasons)
    assert worker.stop(timeout=0) == 1
    until_status(chain, "cancelled")
    handler.gate.set()
    assert handler.ended.wait(15)
    assert isinstance(handler.errors[0], LeaseLostError)
    assert handler.errors[0].reason == "cancelled"
    assert (chain.refresh().status, chain.output) == ("cancelled", None)
    assert not Effect.objects.exists()


def test_the_reaper_cancels_the_job_of_a_dead_worker(store, processors, start_worker, settings):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1}

    @processors.register("shop.orphan")
    def orphan(job):
        raise AssertionError("it was cancelled")

    chain = orphan.enqueue()
    assert len(store.jobs.claim("a worker that died", 1, {"shop.orphan": 0.01})) == 1
    chains.cancel(chain)
    start_worker()
    until_status(chain, "cancelled")
    assert chain.current_job.crashes == 1
    assert FailedAttempt.objects.get().kind == "crash"


class TestADeletedJob:
    def test_its_handler_is_aborted_at_once_and_can_write_nothing(self, chain, handler, events):
        def write(job):
            with job.complete():
                Effect.objects.create(job_id=job.id, label="late")
            return "late"

        handler.stop = write
        chains.delete(chain)
        assert handler.ended.wait(15)
        assert handler.reasons == ["not_found"]
        assert isinstance(handler.errors[0], LeaseLostError)
        until(lambda: events.of(AttemptAbandoned))
        assert not Effect.objects.exists()
        assert not Job.objects.exists()
        assert not FailedAttempt.objects.exists()

    @pytest.mark.parametrize("stop", ["returns", "continues", "fails"])
    def test_the_job_does_not_reappear_whatever_its_handler_does(self, chain, handler, last, events, stop):
        stops = {"returns": lambda job: "late", "continues": lambda job: job.continue_with(last)}
        handler.stop = stops.get(stop, STOPS["an error"])
        chains.delete(chain)
        assert handler.ended.wait(15)
        until(lambda: events.of(AttemptAbandoned))
        assert not Job.objects.exists()
        assert not FailedAttempt.objects.exists()
