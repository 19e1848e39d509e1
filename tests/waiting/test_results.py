"""What waiting for a chain gives: its output, or an error that says how it ended."""

import itertools
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from django_jobchains import chains, waiting
from django_jobchains.chains import Chain, ChainCancelled, ChainFailed, ChainNotFound, ChainTimeout
from django_jobchains.models import Job
from django_jobchains.processors import FailJob, JobType, Processors, RunningJob
from tests.attempts.work import committed, elsewhere
from tests.waiting.waiters import Ask, Looks, Waiting, approval, each_ask, each_function, finish, until_waiting
from tests.worker.fixtures import StartWorker
from tests.worker.waiting import until

pytestmark = committed


OUTPUTS = [None, 0, "done", {"a": [1.5, None]}]


@each_ask
def test_the_output_of_a_chain_that_has_ended(ask: Ask) -> None:
    ended = [approval.enqueue() for _ in OUTPUTS]
    for chain, output in zip(ended, OUTPUTS, strict=True):
        finish(chain, output)
    assert [ask(chain.id, 30) for chain in ended] == OUTPUTS


@each_ask
def test_the_output_of_a_chain_that_ends_later(ask: Ask) -> None:
    chain = approval.enqueue()
    patient, endless = Waiting(chain.id, 30, ask), Waiting(chain.id, None, ask)
    until_waiting(2)
    finish(chain, "done")
    assert (patient.output(), endless.output()) == ("done", "done")


@each_ask
def test_a_timeout_is_an_error_and_the_chain_goes_on(ask: Ask) -> None:
    chain = approval.enqueue()
    with pytest.raises(ChainTimeout, match=rf"Chain {chain.id} did not end within 0\.2 seconds") as caught:
        ask(chain.id, 0.2)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.chain_id == chain.id
    assert chain.refresh().status == "pending"
    finish(chain, "done")
    assert ask(chain.id, 30) == "done"


@each_function
def test_a_timeout_says_how_the_chain_stands_and_what_to_do(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 30)
    pending = approval.enqueue()
    blocked = approval.enqueue(blockers=[pending])
    for chain, status, words in (
        (pending, "pending", r"manage\.py run_jobworker.*testing\.run_due_jobs\(\)"),
        (blocked, "blocked", "blocked by other chains"),
    ):
        with pytest.raises(ChainTimeout, match=words) as caught:
            ask(chain.id, 0)
        assert caught.value.status == status


@each_function
def test_without_time_it_says_how_the_chain_stands(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 30)
    chain, ended = approval.enqueue(), approval.enqueue()
    finish(ended, "done")
    for timeout in (0, -1):
        with pytest.raises(ChainTimeout):
            ask(chain.id, timeout)
        assert ask(ended.id, timeout) == "done"


@each_function
def test_a_chain_that_never_was_is_not_found(ask: Ask) -> None:
    id_ = uuid4()
    for timeout in (30, None):
        with pytest.raises(ChainNotFound, match=f"No chain {id_}") as caught:
            ask(id_, timeout)
        assert caught.value.chain_id == id_


@pytest.mark.usefixtures("no_poll")
def test_while_the_database_does_not_answer_the_timeout_holds(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 0.1)
    gate = threading.Event()
    looks.before = lambda: gate.wait(60)
    with pytest.raises(ChainTimeout):
        chains.wait(approval.enqueue().id, 0.2)
    gate.set()


@each_function
def test_a_step_of_a_chain_is_no_chain(ask: Ask) -> None:
    chain = approval.enqueue()
    with chains.complete(chain.id) as current:
        current.continue_with(approval)
    with pytest.raises(ChainNotFound):
        ask(chain.refresh().current_job.id, 30)


@each_function
def test_a_chain_that_is_deleted_meanwhile_is_not_found(ask: Ask) -> None:
    chain = approval.enqueue()
    waiter = Waiting(chain.id, ask=ask)
    until_waiting()
    chains.delete(chain.id)
    with pytest.raises(ChainNotFound, match=str(chain.id)):
        waiter.output()


@each_function
def test_a_chain_that_is_cancelled_is_its_own_error(ask: Ask) -> None:
    chain = approval.enqueue()
    waiter = Waiting(chain.id, ask=ask)
    until_waiting()
    chains.cancel(chain.id)
    for answer in (waiter.output, lambda: ask(chain.id, 30)):
        with pytest.raises(ChainCancelled, match=f"Chain {chain.id} was cancelled") as caught:
            answer()
        assert caught.value.chain_id == chain.id


@each_function
def test_a_chain_that_fails_is_an_error_with_its_last_jobs(
    ask: Ask, processors: Processors, start_worker: StartWorker
) -> None:
    @processors.register("waiting.step")
    def step(job: RunningJob[Any]) -> Any:
        if job.input == "last":
            raise FailJob("the card was refused")
        return job.continue_with("waiting.step", "last")

    chain = step.enqueue("first")
    waiter = Waiting(chain.id, ask=ask)
    start_worker()
    for answer in (waiter.output, lambda: ask(chain.id, 30)):
        with pytest.raises(ChainFailed, match="the card was refused") as caught:
            answer()
        assert (caught.value.chain_id, caught.value.error) == (chain.id, chain.refresh().last_error)


def test_a_failed_chain_that_was_retried_is_waited_for_again() -> None:
    chain = approval.enqueue()
    chains.cancel(chain.id)
    chains.retry(chain.id)
    waiter = Waiting(chain.id)
    until_waiting()
    finish(chain, "after all")
    assert waiter.output() == "after all"


@pytest.mark.usefixtures("quick_poll")
def test_it_waits_for_the_chain_and_not_for_its_first_job(looks: Looks) -> None:
    chain = approval.enqueue()
    waiter = Waiting(chain.id)
    for step in range(3):
        with chains.complete(chain.id) as current:
            current.continue_with(approval, step)
        before = len(looks)
        until(lambda: len(looks) > before + 2)  # noqa: B023
        assert waiter.is_alive()
    finish(chain, "the last")
    assert waiter.output() == "the last"


def test_a_job_that_is_tried_again_has_not_ended(processors: Processors, start_worker: StartWorker) -> None:
    @processors.register("waiting.unsteady")
    def unsteady(job: RunningJob[Any]) -> int:
        if job.attempt < 3:
            raise ValueError("not yet")
        return job.attempt

    chain = unsteady.enqueue()
    waiter = Waiting(chain.id)
    start_worker()
    assert waiter.output() == 3


def test_the_output_is_the_stored_json_and_needs_no_codec_of_its_type() -> None:
    chain = JobType("gone tomorrow").enqueue()
    Job.objects.filter(pk=chain.id).update(status="completed", output={"b": 1})
    assert chain.result(30) == {"b": 1}


def test_many_wait_for_one_chain_and_each_is_told() -> None:
    chain, other = approval.enqueue(), approval.enqueue()
    waiters = [Waiting(chain.id) for _ in range(20)]
    until_waiting(20)
    finish(other)
    finish(chain, "done")
    assert [waiter.output() for waiter in waiters] == ["done"] * 20


@pytest.mark.parametrize("statement", [1, 2])
def test_a_chain_that_is_deleted_during_a_look_has_no_output(statement: int) -> None:
    chain = approval.enqueue()
    finish(chain, "done")
    ending = looked_at(chain, statement, lambda: chains.delete(chain.id))
    assert not ending.is_final or (ending.status, ending.output) in ((None, None), ("completed", "done"))


@pytest.mark.parametrize("statement", [1, 2])
def test_a_chain_that_goes_on_during_a_look_has_not_ended(statement: int) -> None:
    chain = approval.enqueue()
    chains.cancel(chain.id)

    def go_on() -> None:
        chains.retry(chain.id)
        with chains.complete(chain.id) as current:
            current.continue_with(approval)

    assert looked_at(chain, statement, go_on).status != "completed"


def looked_at(chain: Chain, statement: int, meanwhile: Callable[[], object]) -> waiting.Ending:
    """What a look sees when something happens before one of its statements."""
    counted = itertools.count(1)

    def execute(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if next(counted) == statement:
            elsewhere(meanwhile)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(execute):
        return waiting._look([chain.id], "default")[chain.id]
