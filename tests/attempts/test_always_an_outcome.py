"""Whatever fails around the handler, the attempt has an outcome that is written, and the slot goes on."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains.attempts import Attempt
from django_jobchains.models import FailedAttempt
from django_jobchains.phases import AttemptPhases
from django_jobchains.processors import Batch, JobType, Processors, RunningJob
from django_jobchains.telemetry import Event, add_sink, remove_sink
from django_jobchains.telemetry.events import JobReaped, ThreadFailed
from tests.attempts.work import Work, committed

pytestmark = committed

Failing = Callable[..., None]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Lets the first calls of a method raise."""

    def patch(kind: type, name: str, times: float = 1, error: type[BaseException] = RuntimeError) -> None:
        original, left = getattr(kind, name), [times]

        def call(*args: Any, **kwargs: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise error(f"{name} failed")
            return original(*args, **kwargs)

        monkeypatch.setattr(kind, name, call)

    return patch


@pytest.fixture(autouse=True)
def _no_thread_fails() -> Any:
    """Nor is a job taken back: the slot itself ended each attempt."""
    failed: list[Event] = []

    def sink(event: Event) -> None:
        if isinstance(event, ThreadFailed | JobReaped):
            failed.append(event)

    add_sink(sink)
    yield
    remove_sink(sink)
    assert not failed


def plain(job: RunningJob[str]) -> str:
    return act(job.input)


def completing(job: RunningJob[str]) -> str:
    with job.complete():
        return act(job.input)


async def awaiting(job: RunningJob[str]) -> str:
    return str(await job.acomplete(lambda: act(job.input)))


def together(batch: Batch[str]) -> None:
    for job in batch:
        job.finish(act(job.input))


def act(input: str) -> str:
    if input == "fails":
        raise ValueError("by the handler")
    return input


HANDLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (plain, {}),
    "complete": (completing, {}),
    "async": (awaiting, {}),
    "batch": (together, {"batch_limit": 10}),
}


@pytest.fixture(params=HANDLERS)
def job_type(request: Any, processors: Processors) -> JobType[Any, Any]:
    handler, options = HANDLERS[request.param]
    job_type: JobType[Any, Any] = processors.register("outcomes.job", **options)(handler)
    return job_type


def test_a_connection_that_cannot_be_prepared_is_closed_and_the_handler_runs(
    job_type: JobType[Any, Any], work: Work, failing: Failing
) -> None:
    failing(AttemptPhases, "begin")
    chain = job_type.enqueue("fine")
    work(slots=1)
    assert (chain.refresh().status, chain.output, chain.current_job.attempt) == ("completed", "fine", 1)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, MemoryError])
def test_an_attempt_that_cannot_begin_is_tried_again(
    job_type: JobType[Any, Any], work: Work, failing: Failing, error: type[BaseException]
) -> None:
    failing(AttemptPhases, "begin", 2 if issubclass(error, Exception) else 1, error)
    chain = job_type.enqueue("fine")
    work(slots=1)
    chain.refresh()
    assert (chain.status, chain.current_job.attempt) == ("pending", 1)
    assert FailedAttempt.objects.get().error == f"{error.__name__}: begin failed"


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
@pytest.mark.parametrize("input", ["fine", "fails"])
def test_what_fails_after_the_handler_does_not_change_how_it_ended(
    job_type: JobType[Any, Any], work: Work, failing: Failing, input: str, error: type[BaseException]
) -> None:
    failing(AttemptPhases, "end", math.inf, error)
    chain, next_one = job_type.enqueue(input), job_type.enqueue("next")
    work(slots=1)
    chain.refresh()
    assert (chain.status, chain.current_job.attempt) == ("completed" if input == "fine" else "pending", 1)
    assert next_one.refresh().current_job.attempt == 1
    for failed in FailedAttempt.objects.all():
        assert failed.error == "ValueError: by the handler"


@pytest.mark.parametrize(("kind", "name"), [(AttemptPhases, "give_up"), (Attempt, "_next_try")])
def test_a_failure_path_that_fails_keeps_the_error_of_the_handler(
    job_type: JobType[Any, Any], work: Work, failing: Failing, kind: type, name: str
) -> None:
    failing(kind, name, math.inf)
    chain = job_type.enqueue("fails")
    work(slots=1)
    chain.refresh()
    assert (chain.status, chain.current_job.attempt) == ("pending", 1)
    assert FailedAttempt.objects.get().error == "ValueError: by the handler"
