"""The result of waiting for a chain: its output, or the error for how it ended."""

import itertools
import threading
import time
from uuid import uuid4

import pytest
from django.db import connection, transaction

from django_jobchains import chains, queues, testing
from django_jobchains.chains import ChainCancelled, ChainFailed, ChainNotFound, ChainTimeout
from django_jobchains.models import Job, TaskName
from django_jobchains.notifications import waiting
from django_jobchains.processors import FailJob, JobType, Processors
from django_jobchains.store import get_store
from django_jobchains.store.chains import Chains
from tests.support.attempts import committed, on_own_connection
from tests.support.tracing import recording
from tests.support.waiting import until
from tests.support.worker_rows import worker
from tests.waiting.waiters import (
    WaitingThread,
    approval,
    every_wait_call,
    finish,
    sync_and_async,
    until_waiting,
    waited_for,
)

pytestmark = committed

OUTPUTS = [None, 0, "done", {"a": [1.5, None]}]


def continued():
    """Return a chain at its third job."""
    chain = approval.enqueue()
    with chains.current_job(chain.id) as current:
        current.continue_with(approval)
        current.continue_with(approval)
    return chain


@every_wait_call
def test_ended_chain_returns_its_output(wait):
    ended = [approval.enqueue() for _ in OUTPUTS]
    for chain, output in zip(ended, OUTPUTS, strict=True):
        finish(chain, output)
    assert [wait(chain.id, 30) for chain in ended] == OUTPUTS


@every_wait_call
def test_chain_that_ends_later_returns_its_output(wait):
    chain = approval.enqueue()
    waiters = [WaitingThread(chain.id, timeout, wait) for timeout in (30, None)]
    until_waiting(2)
    finish(chain, "done")
    assert [waiter.output() for waiter in waiters] == ["done"] * 2


@every_wait_call
def test_timeout_raises_and_does_not_affect_the_chain(wait):
    chain = approval.enqueue()
    with pytest.raises(ChainTimeout, match=rf"Chain {chain.id} did not end within 0\.2 seconds") as caught:
        wait(chain.id, 0.2)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.chain_id == chain.id
    assert chain.refresh().status == "pending"
    finish(chain, "done")
    assert wait(chain.id, 30) == "done"


@pytest.fixture
def waits(processors, registry):
    """Chains that have not ended, each with what it waits for."""
    charge, approve = processors.register("waits.charge")(lambda job: None), JobType("waits.approve")
    registry.declared = {approve.name: approve}
    queues.pause("paused")
    pending = charge.enqueue()
    return {
        pending: r"no worker is running\. Start one with manage\.py run_jobworker; .*testing\.run_due_jobs\(\) first",
        approval.enqueue(): "no worker is running",
        approve.enqueue(): r"'waits\.approve' is completed from outside, by a person or .* chains\.complete\(\)",
        charge.enqueue(blockers=[pending]): "it is blocked by other chains",
        charge.enqueue(queue="paused"): ".* Resume it with manage.py jobchains resume paused",
        charge.enqueue(delay=7230): r"its job 'waits\.charge' is due in 2 h",
        charge.enqueue(delay=7230, queue="paused"): ".* is due in 2 h",
    }


@sync_and_async
def test_timeout_error_has_the_status_and_what_the_chain_waits_for(wait, waits):
    for chain, reason in waits.items():
        with pytest.raises(ChainTimeout, match=rf"within 0 seconds: {reason}.*\. Waiting changed nothing") as caught:
            wait(chain.id, 0)
        assert caught.value.status == chain.refresh().status


@pytest.mark.parametrize(("failures", "text"), [(1, "1 failed attempt"), (2, "2 failed attempts")])
def test_timeout_error_counts_the_failed_attempts_of_a_job_that_is_tried_again(processors, failures, text):
    @processors.register("waits.push", backoff=lambda count, error: 7230 if count == failures else 0)
    def push(job):
        raise ValueError("no luck")

    chain = push.enqueue()
    testing.run_due_jobs()
    with pytest.raises(ChainTimeout, match=rf"its job 'waits\.push' is due in 2 h, after {text}\. Waiting"):
        chain.result(timeout=0)


def test_timeout_error_differs_while_workers_run(store, waits):
    chain = next(iter(waits))
    worker(store, "maintenance:1:a", slots=0)
    with pytest.raises(ChainTimeout, match="no worker is running"):
        chain.result(0)
    worker(store)
    with pytest.raises(ChainTimeout, match="is due, but all workers are busy, or run other types or queues"):
        chain.result(0)
    Job.objects.filter(chain_id=chain.id).update(status="running")
    with pytest.raises(ChainTimeout, match=r"its job 'waits\.charge' is running\."):
        chain.result(0)


def test_timeout_error_of_a_type_outside_the_jobs_modules_names_the_cause(store):
    chain = Processors().register("waits.elsewhere")(lambda job: None).enqueue()
    worker(store)
    with pytest.raises(ChainTimeout, match=r"know its type, which no jobs module of an app in INSTALLED_APPS declares"):
        chain.result(0)


def test_timeout_error_of_a_task_that_this_process_has_not_used_does_not_mention_jobs_modules(store):
    TaskName.objects.create(name="waits.elsewhere")
    chain = Processors().register("waits.elsewhere")(lambda job: None).enqueue()
    worker(store)
    with pytest.raises(ChainTimeout, match=r"all workers are busy, or run other types or queues\. Waiting"):
        chain.result(0)


@sync_and_async
@pytest.mark.parametrize("timeout", [0, -1])
def test_timeout_of_zero_queries_once(wait, timeout):
    chain, ended = approval.enqueue(), approval.enqueue()
    finish(ended, "done")
    with pytest.raises(ChainTimeout):
        wait(chain.id, timeout)
    assert wait(ended.id, timeout) == "done"


@sync_and_async
@pytest.mark.parametrize("stalled", ["ends", "contexts", "wait_of"])
def test_timeout_applies_while_the_database_does_not_respond(monkeypatch, wait, stalled):
    monkeypatch.setattr(waiting, "FIRST_QUERY_SECONDS", 0.1)
    query, gate, chain = getattr(Chains, stalled), threading.Event(), approval.enqueue()

    def stall(*arguments):
        gate.wait(10)
        return query(*arguments)

    monkeypatch.setattr(Chains, stalled, stall)
    with recording(), pytest.raises(ChainTimeout):
        started = time.monotonic()
        try:
            wait(chain.id, 0.2)
        finally:
            assert time.monotonic() - started < 5
            gate.set()


@sync_and_async
@pytest.mark.parametrize("timeout", [30, None])
def test_unknown_chain_raises_not_found(wait, timeout):
    id_ = uuid4()
    with pytest.raises(ChainNotFound, match=f"No chain {id_}") as caught:
        wait(id_, timeout)
    assert caught.value.chain_id == id_


@sync_and_async
@pytest.mark.parametrize(
    ("end", "error", "message"),
    [(chains.cancel, ChainCancelled, "Chain {} was cancelled"), (chains.delete, ChainNotFound, "No chain {}")],
)
def test_chain_that_ends_otherwise_raises(wait, end, error, message):
    chain, waiter = waited_for(wait)
    end(chain.id)
    for get_output in (waiter.output, lambda: wait(chain.id, 30)):
        with pytest.raises(error, match=message.format(chain.id)) as caught:
            get_output()
        assert caught.value.chain_id == chain.id


@sync_and_async
def test_failed_chain_raises_chain_failed_with_the_last_error(wait, processors, start_worker):
    @processors.register("waiting.step")
    def step(job):
        if job.input == "last":
            raise FailJob("the card was refused")
        return job.continue_with("waiting.step", "last")

    chain = step.enqueue("first")
    waiter = WaitingThread(chain.id, wait=wait)
    start_worker()
    for get_output in (waiter.output, lambda: wait(chain.id, 30)):
        with pytest.raises(ChainFailed, match="the card was refused") as caught:
            get_output()
        assert (caught.value.chain_id, caught.value.error) == (chain.id, chain.refresh().last_error)


@sync_and_async
def test_id_of_a_later_job_waits_for_its_chain(wait):
    ended, cancelled, open_chain = continued(), continued(), continued()
    finish(ended, "done")
    chains.cancel(cancelled.id)
    assert [wait(job.id, 30) for job in ended.jobs] == ["done"] * 3
    with pytest.raises(ChainCancelled) as caught:
        wait(cancelled.jobs[1].id, 30)
    assert caught.value.chain_id == cancelled.id
    with pytest.raises(ChainTimeout) as timeout:
        wait(open_chain.jobs[1].id, 0)
    assert (timeout.value.chain_id, timeout.value.status) == (open_chain.id, "pending")


@pytest.mark.usefixtures("no_poll")
@sync_and_async
def test_waiter_for_a_later_job_is_woken_by_the_hint_for_its_chain(wait, queries):
    chain = continued()
    waiters = [WaitingThread(job.id, wait=wait) for job in chain.jobs]
    until_waiting(3)
    until(lambda: queries.ids and set(queries.ids[-1]) == {chain.id})
    queries.until_idle()
    finish(chain, "done")
    assert [waiter.output() for waiter in waiters] == ["done"] * 3


def test_id_of_a_later_job_works_in_the_transaction_that_ends_the_chain():
    chain = continued()
    with transaction.atomic():
        finish(chain, "done")
        assert chains.wait(chain.jobs[1].id, 0) == "done"


@pytest.mark.usefixtures("quick_poll")
def test_wait_continues_through_every_job_of_the_chain(queries):
    chain, waiter = waited_for()
    for step in range(3):
        with chains.current_job(chain.id) as current:
            current.continue_with(approval, step)
        before = len(queries)
        until(lambda: len(queries) > before + 2)  # noqa: B023
        assert waiter.is_alive()
    finish(chain, "the last")
    assert waiter.output() == "the last"


def retry_and_continue(chain):
    chains.retry(chain.id)
    with chains.current_job(chain.id) as current:
        current.continue_with(approval)


@pytest.mark.parametrize("statement", [1, 2])
@pytest.mark.parametrize(
    ("end", "meanwhile", "possible"),
    [
        (lambda chain: finish(chain, "done"), chains.delete, {(None, None), ("completed", "done")}),
        (chains.cancel, retry_and_continue, {("cancelled", None)}),
    ],
    ids=["deleted", "continued"],
)
def test_chain_that_changes_between_the_statements_of_a_query_has_one_end_or_none(end, meanwhile, possible, statement):
    chain = approval.enqueue()
    end(chain)
    statements = itertools.count(1)

    def execute(execute, sql, params, many, context):
        if next(statements) == statement:
            on_own_connection(meanwhile, chain)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(execute):
        found = get_store().chains.ends([chain.id])[chain.id]
    assert not found.is_final or (found.status, found.output) in possible
