"""An attempt has an outcome even if something around the handler fails, and its slot continues."""

import math
from collections.abc import Callable

import pytest

from django_jobchains.attempts import outcome as outcomes
from django_jobchains.attempts.transaction import TransactionOwner
from django_jobchains.db import connections
from django_jobchains.db.connections import ThreadConnections
from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.events import JobReaped, ThreadFailed
from tests.support.attempts import committed
from tests.support.scenario import JOBS, RECORDS, complete, kinds, outside

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


every_kind = kinds(*JOBS, *RECORDS)


@pytest.fixture(params=[outside, complete], ids=["outside", "complete"])
def run(scenario, request):
    """Return a function that runs a handler that returns or fails, and returns the states and errors."""

    def run(*, fails):
        def function():
            if fails:
                raise ValueError("no")

        # On an event loop, only a phase uses the connections of the attempt.
        step = complete if scenario.kind.startswith("async") else request.param
        scenario.enqueue(lambda jobs: (yield step(function)))
        scenario.run()
        return scenario.states(), scenario.errors()

    return run


RETURNED = ({"completed"}, {None})
FAILED = ({"retried"}, {"ValueError: no"})


@every_kind
def test_connection_that_cannot_be_prepared_is_closed_and_the_handler_runs(run, failing):
    failing(connections, "ThreadConnections")
    assert run(fails=False) == RETURNED


@every_kind
@pytest.mark.parametrize("error", [RuntimeError, SystemExit, MemoryError])
def test_attempt_that_cannot_start_is_retried(run, failing, error):
    failing(connections, "ThreadConnections", 2 if issubclass(error, Exception) else 1, error)
    assert run(fails=False) == ({"retried"}, {f"{error.__name__}: ThreadConnections failed"})


@every_kind
@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
@pytest.mark.parametrize("fails", [False, True])
def test_error_after_the_handler_does_not_change_the_outcome(run, failing, scenario, work, fails, error):
    failing(ThreadConnections, "clean", math.inf, error)
    following = scenario.processors.register("next")(lambda job: "done").enqueue(priority=-1)
    assert run(fails=fails) == (FAILED if fails else RETURNED)
    assert following.refresh().output == "done"


@every_kind
@pytest.mark.parametrize(("owner", "name"), [(TransactionOwner, "give_up"), (outcomes, "backoff_seconds")])
def test_error_while_a_failure_is_handled_does_not_replace_the_error_of_the_handler(run, failing, owner, name):
    failing(owner, name, math.inf)
    assert run(fails=True) == FAILED
