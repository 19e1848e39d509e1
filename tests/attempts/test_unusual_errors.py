"""Whatever a handler raises, its job is retried, other jobs run, and the worker continues."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains.models import FailedAttempt
from django_jobchains.processors import RunningJob
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed

MAX_BYTES = 64 * 1024


class UnreadableMessage(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class ExitingMessage(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class UnformattableText(str):
    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise ValueError("no format")


class UnformattableMessage(Exception):
    def __str__(self) -> str:
        return UnformattableText("text")


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
def run_beside_others(processors, work):
    """Return a function that runs a handler between jobs that complete, and returns its failed attempt."""

    @processors.register("other")
    def other(job: RunningJob[Any]) -> str:
        return "fine"

    def run(handler: Callable[[RunningJob[Any]], Any]) -> FailedAttempt:
        job_type = processors.register("raises")(handler)
        before = [other.enqueue(priority=1) for _ in range(3)]
        chain = job_type.enqueue()
        after = [other.enqueue(priority=-1) for _ in range(3)]
        work()
        (job,) = chain.refresh().jobs
        (failed,) = job.failed_attempts.all()
        assert [other.refresh().output for other in before + after] == ["fine"] * 6
        assert (job.status, job.attempt, job.leased_by) == ("pending", 1, None)
        assert job.last_error == failed.error
        return failed

    return run


ERRORS = [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, StopIteration, asyncio.CancelledError]


@pytest.mark.parametrize(
    ("error", "place"),
    [
        *((error, "handler") for error in ERRORS),
        *((error, place) for place in ("prepare", "complete", "after complete") for error in (SystemExit, MemoryError)),
    ],
)
def test_error_that_is_not_an_exception_ends_only_the_attempt(run_beside_others, error, place):
    def handler(job: RunningJob[Any]) -> None:
        if place == "handler":
            raise error
        phase = job.prepare() if place == "prepare" else job.complete()
        with phase:
            Effect.objects.create(job_id=job.id, label="half")
            if place != "after complete":
                raise error
        raise error

    failed = run_beside_others(handler)
    assert failed.error == error.__name__
    assert not Effect.objects.exists()


@pytest.mark.parametrize("in_complete", [False, True])
def test_endless_recursion_ends_the_attempt(run_beside_others, in_complete):
    def deeper(job: RunningJob[Any]) -> None:
        deeper(job)

    def handler(job: RunningJob[Any]) -> None:
        if not in_complete:
            deeper(job)
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            deeper(job)

    assert run_beside_others(handler).error.startswith("RecursionError: maximum recursion depth")
    assert not Effect.objects.exists()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnreadableMessage(), "UnreadableMessage: <its message could not be read: ValueError>"),
        (ExitingMessage(), "ExitingMessage: <its message could not be read: SystemExit>"),
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
def test_any_message_is_recorded(run_beside_others, error, text):
    def handler(job: RunningJob[Any]) -> None:
        raise error

    failed = run_beside_others(handler)
    assert failed.error == text
    assert "in handler" in failed.traceback
    assert "\0" not in failed.traceback


def test_message_that_cannot_be_formatted_is_recorded(run_beside_others):
    def handler(job: RunningJob[Any]) -> None:
        raise UnformattableMessage

    assert run_beside_others(handler).error.startswith("UnformattableMessage")


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["x", "ä", "\U0001f642", "\0"])
def test_message_of_10_mb_is_cut_in_the_middle(run_beside_others, letter):
    def handler(job: RunningJob[Any]) -> None:
        raise ValueError("the head" + letter * 10_000_000 + "the tail")

    failed = run_beside_others(handler)
    for text in (failed.error, failed.traceback):
        assert len(text.encode()) <= MAX_BYTES
        assert text.rstrip().endswith("the tail")
    assert failed.error.startswith("ValueError: the head")
    assert "characters omitted" in failed.error


def test_error_that_is_its_own_cause_is_recorded(run_beside_others):
    def handler(job: RunningJob[Any]) -> None:
        error = ValueError("round and round")
        error.__cause__ = error
        raise error

    assert run_beside_others(handler).error == "ValueError: round and round"
