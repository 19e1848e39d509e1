"""An attempt has an outcome even if something around the handler fails, and its slot continues."""

import math
from collections.abc import Callable

import pytest

from django_jobchains.attempts import outcome as outcomes
from django_jobchains.attempts.transaction import TransactionOwner
from django_jobchains.db import connections
from django_jobchains.db.connections import ThreadConnections
from django_jobchains.models import FailedAttempt
from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.events import JobReaped, ThreadFailed
from tests.support.attempts import committed

pytestmark = committed

Failing = Callable[..., None]


@pytest.fixture
def failing(monkeypatch):
    """Return a function that makes the first calls of a method, or of a module's function, raise errors."""

    def patch(kind, name, times=1, error=RuntimeError):
        original, left = getattr(kind, name), [times]

        def call(*args, **kwargs):
            if left[0]:
                left[0] -= 1
                raise error(f"{name} failed")
            return original(*args, **kwargs)

        monkeypatch.setattr(kind, name, call)

    return patch


@pytest.fixture(autouse=True)
def _no_thread_fails():
    """Check that no thread failed, and that no job had to be reaped."""
    failed = []

    def sink(event):
        if isinstance(event, ThreadFailed | JobReaped):
            failed.append(event)

    add_sink(sink)
    yield
    remove_sink(sink)
    assert not failed


def plain(job):
    return run(job.input)


def completing(job):
    with job.complete():
        return run(job.input)


async def awaiting(job):
    return str(await job.acomplete(lambda: run(job.input)))


def in_batches(batch):
    for job in batch:
        job.finish(run(job.input))


def run(input):
    if input == "fails":
        raise ValueError("no")
    return input


HANDLERS = {
    "plain": (plain, {}),
    "complete": (completing, {}),
    "async": (awaiting, {}),
    "batch": (in_batches, {"batch_limit": 10}),
}


@pytest.fixture(params=HANDLERS)
def job_type(request, processors):
    handler, options = HANDLERS[request.param]
    return processors.register("outcomes.job", **options)(handler)


def test_connection_that_cannot_be_prepared_is_closed_and_the_handler_runs(job_type, work, failing):
    failing(connections, "ThreadConnections")
    chain = job_type.enqueue("fine")
    work(slots=1)
    assert (chain.refresh().status, chain.output, chain.current_job.attempt) == ("completed", "fine", 1)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, MemoryError])
def test_attempt_that_cannot_start_is_retried(job_type, work, failing, error):
    failing(connections, "ThreadConnections", 2 if issubclass(error, Exception) else 1, error)
    chain = job_type.enqueue("fine")
    work(slots=1)
    chain.refresh()
    assert (chain.status, chain.current_job.attempt) == ("pending", 1)
    assert FailedAttempt.objects.get().error == f"{error.__name__}: ThreadConnections failed"


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
@pytest.mark.parametrize("input", ["fine", "fails"])
def test_error_after_the_handler_does_not_change_the_outcome(job_type, work, failing, input, error):
    failing(ThreadConnections, "clean", math.inf, error)
    chain, following = job_type.enqueue(input), job_type.enqueue("next")
    work(slots=1)
    chain.refresh()
    assert (chain.status, chain.current_job.attempt) == ("completed" if input == "fine" else "pending", 1)
    assert following.refresh().current_job.attempt == 1
    for failed in FailedAttempt.objects.all():
        assert failed.error == "ValueError: no"


@pytest.mark.parametrize(("kind", "name"), [(TransactionOwner, "give_up"), (outcomes, "backoff_seconds")])
def test_error_while_a_failure_is_handled_does_not_replace_the_error_of_the_handler(
    job_type, work, failing, kind, name
):
    failing(kind, name, math.inf)
    chain = job_type.enqueue("fails")
    work(slots=1)
    chain.refresh()
    assert (chain.status, chain.current_job.attempt) == ("pending", 1)
    assert FailedAttempt.objects.get().error == "ValueError: no"
