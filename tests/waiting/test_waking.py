"""Hints wake waiters long before the next poll; without hints, the poll does."""

import threading
import time

import pytest

from django_jobchains import chains
from django_jobchains.chains import ChainCancelled, ChainFailed, ChainNotFound
from django_jobchains.declare.policies import Backoff
from django_jobchains.notifications import EVERY, chain_finished, get_notifier, job_scheduled, waiting
from django_jobchains.notifications.wakeups import publish
from django_jobchains.processors import FailJob, JobType
from django_jobchains.store.rows import Effects
from tests.support.attempts import committed
from tests.support.jobs import claim, expire
from tests.support.waiting import until
from tests.waiting.waiters import (
    DISCONNECTED,
    DROPPING,
    IN_PROCESS,
    NULL,
    WaitingThread,
    approval,
    finish,
    sync_and_async,
    until_waiting,
)

pytestmark = committed

default_and_in_process = pytest.mark.parametrize(
    "settings_of", [{}, {"NOTIFIER": {"BACKEND": IN_PROCESS}}], ids=["default", "in_process"]
)


@default_and_in_process
@sync_and_async
@pytest.mark.usefixtures("no_poll")
def test_hint_wakes_the_waiter(settings, queries, settings_of, wait):
    settings.JOBCHAINS = settings_of
    chain = approval.enqueue()
    waiter = WaitingThread(chain.id, wait=wait)
    queries.until_idle()
    finish(chain, "done")
    assert waiter.output() == "done"


@default_and_in_process
@pytest.mark.usefixtures("no_poll")
def test_completion_by_a_worker_wakes_the_waiter(settings, queries, settings_of, processors, start_worker):
    settings.JOBCHAINS = settings_of
    gate = threading.Event()

    @processors.register("waiting.gated")
    def gated(job):
        assert gate.wait(30)
        return "done"

    start_worker()
    waiter = WaitingThread(gated.enqueue().id)
    queries.until_idle()
    gate.set()
    assert waiter.output() == "done"


@pytest.mark.parametrize("backend", [NULL, DROPPING])
@sync_and_async
def test_end_is_polled_without_hints(settings, monkeypatch, backend, wait):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": backend}}
    if backend == DROPPING:
        monkeypatch.setattr(waiting, "POLL_SECONDS", 0.3)
    chain = approval.enqueue()
    waiter = WaitingThread(chain.id, wait=wait)
    until_waiting()
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll")
@sync_and_async
def test_end_is_polled_while_the_listener_is_disconnected(settings, wait):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": DISCONNECTED}}
    chain = approval.enqueue()
    waiter = WaitingThread(chain.id, wait=wait)
    until_waiting()
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll")
class TestEveryEndOfAChain:
    """Each way to end a chain sends a hint. With in-process hints, no other hint can replace it."""

    @pytest.fixture(autouse=True)
    def _in_process(self, settings):
        settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}, "REAP_SECONDS": 0.05}

    @pytest.fixture
    def gate(self):
        gate = threading.Event()
        yield gate
        gate.set()

    @pytest.fixture
    def ends_by(self, processors, start_worker, gate):
        def ends_by(end):
            def handler(job):
                assert gate.wait(30)
                return end(job)

            job_type = processors.register("waiting.gated")(handler)
            start_worker()
            return job_type

        return ends_by

    def test_handler_returns(self, ends_by, gate, queries):
        waiter = WaitingThread(ends_by(lambda job: "done").enqueue().id)
        queries.until_idle()
        gate.set()
        assert waiter.output() == "done"

    def test_handler_completes_in_its_own_transaction(self, ends_by, gate, queries):
        def complete(job):
            with job.complete():
                return "done"

        waiter = WaitingThread(ends_by(complete).enqueue().id)
        queries.until_idle()
        gate.set()
        assert waiter.output() == "done"

    def test_handler_fails(self, ends_by, gate, queries):
        def fail(job):
            raise FailJob("no")

        waiter = WaitingThread(ends_by(fail).enqueue().id)
        queries.until_idle()
        gate.set()
        with pytest.raises(ChainFailed):
            waiter.output()

    def test_running_handler_is_cancelled(self, processors, start_worker, queries):
        @processors.register("waiting.stoppable")
        def stoppable(job):
            job.signal.wait(30)
            job.signal.raise_if_aborted()

        start_worker()
        chain = stoppable.enqueue()
        waiter = WaitingThread(chain.id)
        queries.until_idle()
        chains.cancel(chain.id)
        with pytest.raises(ChainCancelled):
            waiter.output()

    def test_pending_chain_is_cancelled(self, queries):
        chain = approval.enqueue()
        waiter = WaitingThread(chain.id)
        queries.until_idle()
        chains.cancel(chain.id)
        with pytest.raises(ChainCancelled):
            waiter.output()

    def test_chain_is_deleted(self, queries):
        chain = approval.enqueue()
        waiter = WaitingThread(chain.id)
        queries.until_idle()
        chains.delete(chain.id)
        with pytest.raises(ChainNotFound):
            waiter.output()

    def test_chain_fails_with_its_blocker(self, queries):
        blocker = approval.enqueue()
        strict = JobType("waiting.strict", on_blocker_failure="fail")
        waiter = WaitingThread(strict.enqueue(blockers=[blocker]).id)
        queries.until_idle()
        chains.cancel(blocker.id)
        with pytest.raises(ChainFailed):
            waiter.output()

    def test_job_fails_because_its_worker_crashed(self, store, queries):
        chain = approval.enqueue()
        [job] = claim(store, types=[approval.name])
        waiter = WaitingThread(chain.id)
        queries.until_idle()
        expire(job)
        effects = Effects()
        store.leases.reap(10, Backoff(), 1, effects=effects)
        publish("default", effects)
        with pytest.raises(ChainFailed):
            waiter.output()


@pytest.mark.usefixtures("no_poll")
def test_forged_or_repeated_hint_only_causes_queries(settings, queries):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}
    chain = approval.enqueue()
    waiter = WaitingThread(chain.id)
    before = queries.until_idle()
    send = get_notifier("default").send
    send([chain_finished(chain.id)] * 5 + [chain_finished(EVERY)])
    until(lambda: len(queries) > before)
    assert waiter.is_alive()
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll")
def test_hints_about_other_chains_cause_no_query(settings, queries):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}
    chain, other = approval.enqueue(), approval.enqueue()
    waiter = WaitingThread(chain.id)
    before = queries.until_idle()
    send = get_notifier("default").send
    send([job_scheduled(EVERY), job_scheduled(approval.name), chain_finished("junk"), chain_finished("")])
    finish(other)
    assert queries.until_idle() == before
    finish(chain)
    waiter.output()


@pytest.mark.usefixtures("no_poll")
def test_hint_is_followed_by_a_second_query(settings, monkeypatch, queries):
    """Senders leave out repeated hints, so a hint that arrives during a query is followed by another query too."""
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}
    monkeypatch.setattr(waiting, "REQUERY_SECONDS", 0.3)
    chain = approval.enqueue()
    waiter = WaitingThread(chain.id)
    queries.until_idle()
    send = get_notifier("default").send

    def hint():
        at = time.monotonic()
        send([chain_finished(EVERY)])
        return at

    received_at = []
    queries.before_next = lambda: received_at.append(hint())
    hint()
    until(lambda: received_at and queries.times[-1] >= received_at[0] + 0.3)
    finish(chain)
    waiter.output()
