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
from django_jobchains.store import get_store
from django_jobchains.store.rows import Effects
from tests.support.attempts import committed
from tests.support.jobs import claim, expire
from tests.support.waiting import until
from tests.waiting.waiters import (
    BROKEN,
    DISCONNECTED,
    DROPPING,
    IN_PROCESS,
    NULL,
    WaitingThread,
    approval,
    finish,
    sync_and_async,
    waited_for,
    waiter_count,
)

pytestmark = committed


def output_or_error(waiter):
    try:
        return waiter.output()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("backend", [None, IN_PROCESS])
@sync_and_async
@pytest.mark.usefixtures("no_poll")
def test_hint_wakes_the_waiter(settings, queries, backend, wait):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": backend}} if backend else {}
    chain, waiter = waited_for(wait)
    queries.until_idle()
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.parametrize(
    ("backend", "is_broken"),
    [(NULL, False), (DROPPING, False), (DISCONNECTED, False), (BROKEN, True), ("tests.nowhere.Notifier", True)],
)
@sync_and_async
def test_end_is_polled_without_hints(settings, monkeypatch, caplog, backend, is_broken, wait):
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.3 if backend == DROPPING else 1_000)
    chain = approval.enqueue()
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": backend}}
    waiter = WaitingThread(chain.id, wait=wait)
    until(lambda: waiter_count() and is_broken == ("so they are polled" in caplog.text))
    if is_broken:
        settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": NULL}}
    finish(chain, "done")
    assert waiter.output() == "done"


# Each way to end a chain sends a hint


def complete(job):
    with job.complete():
        return "done"


def fail(job):
    raise FailJob("no")


def stop(job):
    assert job.signal.wait(30)
    job.signal.raise_if_aborted()


@pytest.mark.parametrize(
    ("end", "result"),
    [(lambda job: "done", "done"), (complete, "done"), (fail, ChainFailed), (stop, ChainCancelled)],
    ids=["returns", "completes", "fails", "is cancelled"],
)
@pytest.mark.usefixtures("no_poll", "in_process")
def test_end_by_a_handler_wakes_the_waiter(processors, start_worker, queries, end, result):
    gate = threading.Event()
    gated = processors.register("waiting.gated")(lambda job: gate.wait(30) and end(job))
    start_worker()
    chain = gated.enqueue()
    waiter = WaitingThread(chain.id)
    queries.until_idle()
    gate.set()
    if end is stop:
        chains.cancel(chain.id)
    assert output_or_error(waiter) == result


def crash(chain):
    store, effects = get_store(), Effects()
    expire(*claim(store, types=[approval.name]))
    store.leases.reap(10, Backoff(), 1, effects=effects)
    publish("default", effects)


@pytest.mark.parametrize(
    ("end", "error"), [(chains.cancel, ChainCancelled), (chains.delete, ChainNotFound), (crash, ChainFailed)]
)
@pytest.mark.usefixtures("no_poll", "in_process")
def test_end_without_a_handler_wakes_the_waiter(queries, end, error):
    chain, waiter = waited_for()
    queries.until_idle()
    end(chain)
    assert output_or_error(waiter) is error


@pytest.mark.usefixtures("no_poll", "in_process")
def test_failure_of_a_blocker_wakes_the_waiter(queries):
    blocker = approval.enqueue()
    waiter = WaitingThread(JobType("waiting.strict", on_blocker_failure="fail").enqueue(blockers=[blocker]).id)
    queries.until_idle()
    chains.cancel(blocker.id)
    assert output_or_error(waiter) is ChainFailed


# Hints only cause queries


@pytest.mark.usefixtures("no_poll", "in_process")
def test_forged_or_repeated_hint_only_causes_queries(queries):
    chain, waiter = waited_for()
    before = queries.until_idle()
    get_notifier("default").send([chain_finished(chain.id)] * 5 + [chain_finished(EVERY)])
    until(lambda: len(queries) > before)
    assert waiter.is_alive()
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll", "in_process")
def test_hints_about_other_chains_cause_no_query(queries):
    (chain, waiter), other = waited_for(), approval.enqueue()
    before = queries.until_idle()
    unrelated = [job_scheduled(EVERY), job_scheduled(approval.name), chain_finished("junk"), chain_finished("")]
    get_notifier("default").send(unrelated)
    finish(other)
    assert queries.until_idle() == before
    finish(chain)
    waiter.output()


@pytest.mark.usefixtures("no_poll", "in_process")
def test_hint_is_followed_by_a_second_query(monkeypatch, queries):
    """Senders leave out repeated hints, so a hint that arrives during a query is followed by another query too."""
    monkeypatch.setattr(waiting, "REQUERY_SECONDS", 0.3)
    chain, waiter = waited_for()
    queries.until_idle()
    received_at = []

    def hint():
        received_at.append(time.monotonic())
        get_notifier("default").send([chain_finished(EVERY)])

    queries.before_next = hint
    hint()
    until(lambda: len(received_at) == 2 and queries.times[-1] >= received_at[1] + 0.3)
    finish(chain)
    waiter.output()
