"""Async handlers behave in the same way on the event loops of workers and of child processes."""

import os

import pytest

from django_jobchains import chains, context
from tests.isolation.app import async_jobs
from tests.isolation.ends import ended, failures, labels, output
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("worker")


def test_a_returned_value_completes_the_job_with_it() -> None:
    assert [output(async_jobs.async_double.enqueue(number)) for number in (1, 2)] == [2, 4]


def test_phases_commit_their_writes() -> None:
    chain = async_jobs.async_complete.enqueue()
    assert output(chain) == "committed"
    assert labels(chain) == ["prepared", "completed"]


def test_an_error_rolls_the_writes_of_acomplete_back_and_the_job_is_retried() -> None:
    chain = async_jobs.async_error.enqueue()
    assert output(chain) == 2
    assert labels(chain) == ["attempt 2"]
    assert failures(chain) == [("error", "ValueError: the first attempt")]


def test_queries_of_the_async_orm_work() -> None:
    assert output(async_jobs.async_queries.enqueue()) == 1


def test_a_cancelled_handler_can_clean_up() -> None:
    chain = async_jobs.async_heeds.enqueue()
    until(lambda: "started" in labels(chain), 20)
    chains.cancel(chain)
    assert ended(chain).status == "cancelled"
    assert labels(chain) == ["started", "aborted cancelled"]


def test_tasks_that_a_handler_leaves_do_not_delay_its_end() -> None:
    pid = output(async_jobs.async_leaves_task.enqueue())
    assert isinstance(pid, int)
    assert pid != os.getpid()
    assert output(async_jobs.async_double.enqueue(1)) == 2


def test_middleware_context_and_log_surround_the_handler() -> None:
    with context.bound(tenant="acme"):
        chain = async_jobs.async_wrapped.enqueue()
    found = output(chain)
    assert found["context"] == {"tenant": "acme", "added": "by middleware"}
    assert found["provided"] == "by middleware"
    assert found["fields"]["job_id"] == str(chain.id)
    assert labels(chain) == ["awaited around handler", "around complete"]
    until(lambda: [line.text for line in chain.jobs.get().log_lines.all()] == ["from a coroutine"], 10)
