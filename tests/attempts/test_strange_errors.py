"""Whatever a handler raises, its job is rescheduled, its neighbours run, and the worker lives."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains.models import FailedAttempt
from django_jobchains.processors import Processors, RunningJob
from tests.attempts.work import Work, committed
from tests.shop.models import Effect

pytestmark = committed

MOST_BYTES = 64 * 1024


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Wordy(str):
    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise ValueError("no format")


class SaysWordy(Exception):
    def __str__(self) -> str:
        return Wordy("words")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("kept")
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("never")


class NoNotes(Exception):
    def add_note(self, note: str) -> None:
        raise TypeError("never")


@pytest.fixture
def run_with_neighbours(processors: Processors, work: Work) -> Callable[[Any], FailedAttempt]:
    """Runs a handler between jobs that are fine; returns the record of its one failed attempt."""

    @processors.register("neighbour")
    def neighbour(job: RunningJob[Any]) -> str:
        return "fine"

    def run(handler: Callable[[RunningJob[Any]], Any]) -> FailedAttempt:
        strange = processors.register("strange")(handler)
        before = [neighbour.enqueue(priority=1) for _ in range(3)]
        chain = strange.enqueue()
        after = [neighbour.enqueue(priority=-1) for _ in range(3)]
        work()
        (job,) = chain.refresh().jobs
        (failed,) = job.failed_attempts.all()
        assert [neighbour.refresh().output for neighbour in before + after] == ["fine"] * 6
        assert (job.status, job.attempt, job.leased_by) == ("pending", 1, None)
        assert job.last_error == failed.error
        return failed

    return run


@pytest.mark.parametrize("place", ["handler", "prepare", "complete", "after complete"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        MemoryError,
        StopIteration,
        asyncio.CancelledError,
        BaseException,
    ],
)
def test_what_is_no_exception_ends_the_attempt_and_not_the_worker(
    run_with_neighbours: Callable[[Any], FailedAttempt], error: type[BaseException], place: str
) -> None:
    def handler(job: RunningJob[Any]) -> None:
        if place == "handler":
            raise error
        phase = job.prepare() if place == "prepare" else job.complete()
        with phase:
            Effect.objects.create(job_id=job.id, label="half")
            if place != "after complete":
                raise error
        raise error

    failed = run_with_neighbours(handler)
    assert failed.error == error.__name__
    assert not Effect.objects.exists()


def test_endless_recursion_ends_the_attempt(run_with_neighbours: Callable[[Any], FailedAttempt]) -> None:
    def deeper(job: RunningJob[Any]) -> None:
        deeper(job)

    assert run_with_neighbours(deeper).error.startswith("RecursionError: maximum recursion depth")


def test_endless_recursion_in_complete_ends_the_attempt(run_with_neighbours: Callable[[Any], FailedAttempt]) -> None:
    def deeper(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="half")
        deeper(job)

    def handler(job: RunningJob[Any]) -> None:
        with job.complete():
            deeper(job)

    assert run_with_neighbours(handler).error.startswith("RecursionError")
    assert not Effect.objects.exists()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unspeakable(), "Unspeakable: <its message could not be read: ValueError>"),
        (Deadly(), "Deadly: <its message could not be read: SystemExit>"),
        (Unpicklable(), "Unpicklable: kept"),
        (NoNotes("noted"), "NoNotes: noted"),
        (ValueError("before\0after"), "ValueError: before\ufffdafter"),
        (ValueError("half \ud83d a pair"), "ValueError: half \ufffd a pair"),
        (ValueError("whole \U0001f642 ä 你"), "ValueError: whole \U0001f642 ä 你"),
        (ValueError("many\nlines\r\nand \x1b[31mcolours"), "ValueError: many\nlines\r\nand \x1b[31mcolours"),
        (ExceptionGroup("several", [ValueError("one"), KeyError("two")]), "ExceptionGroup: several (2 sub-exceptions)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_message_is_recorded(
    run_with_neighbours: Callable[[Any], FailedAttempt], error: BaseException, text: str
) -> None:
    def handler(job: RunningJob[Any]) -> None:
        raise error

    failed = run_with_neighbours(handler)
    assert failed.error == text
    assert "in handler" in failed.traceback
    assert "\0" not in failed.traceback


def test_a_message_of_a_strange_text_class_is_recorded(
    run_with_neighbours: Callable[[Any], FailedAttempt],
) -> None:
    def handler(job: RunningJob[Any]) -> None:
        raise SaysWordy

    assert run_with_neighbours(handler).error.startswith("SaysWordy")


@pytest.mark.parametrize("letter", ["x", "ä", "\U0001f642", "\0"])
def test_a_message_of_10_mb_is_cut_in_the_middle(
    run_with_neighbours: Callable[[Any], FailedAttempt], letter: str
) -> None:
    def handler(job: RunningJob[Any]) -> None:
        raise ValueError("the head" + letter * 10_000_000 + "the tail")

    failed = run_with_neighbours(handler)
    for text in (failed.error, failed.traceback):
        assert len(text.encode()) <= MOST_BYTES
        assert text.rstrip().endswith("the tail")
    assert failed.error.startswith("ValueError: the head")
    assert "characters left out" in failed.error


def test_an_error_with_a_cause_that_is_itself_is_recorded(run_with_neighbours: Callable[[Any], FailedAttempt]) -> None:
    def handler(job: RunningJob[Any]) -> None:
        error = ValueError("round and round")
        error.__cause__ = error
        raise error

    assert run_with_neighbours(handler).error == "ValueError: round and round"
