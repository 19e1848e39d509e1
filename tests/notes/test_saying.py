"""What may be said by ``job.log`` and ``job.set_progress``, and what of it is stored."""

import logging
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from django.apps import apps
from django.utils.safestring import mark_safe

from django_jobchains.models import PROGRESS_TEXT_LENGTH
from django_jobchains.processors import Batch, Processors, Registry, RescheduleJob, RunningJob
from django_jobchains.pytest_plugin import Jobchains
from django_jobchains.saying import MOST_CHARACTERS, MOST_TEXT_BYTES
from tests.notes.reading import lines, progress, texts
from tests.shop.models import Effect

pytestmark = pytest.mark.django_db

Say = Callable[[Callable[[RunningJob[Any]], object]], Any]


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("no")


class Changing(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> Processors:
    registry = Registry()
    part = Processors()
    registry.add(part)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    return part


@pytest.fixture
def say(processors: Processors, jobchains: Jobchains) -> Say:
    """Runs a job that says something, and returns its chain."""

    def run(speak: Callable[[RunningJob[Any]], object]) -> Any:
        @processors.register("notes.speak")
        def handler(job: RunningJob[Any]) -> None:
            speak(job)

        chain = handler.enqueue()
        jobchains.run_due_jobs(raise_errors=True)
        return chain

    return run


def test_a_line_has_a_text_a_level_and_fields(say: Say) -> None:
    chain = say(
        lambda job: job.log("Page read", level="warning", page=4, of=[1, 2.5, None, True], deep={"ü": {"a": 1}})
    )
    (line,) = lines(chain)
    assert (line.text, line.level, line.position, line.attempt) == ("Page read", logging.WARNING, 0, 1)
    assert line.fields == {"page": 4, "of": [1, 2.5, None, True], "deep": {"ü": {"a": 1}}}


@pytest.mark.parametrize(
    ("level", "number"),
    [("debug", 10), ("INFO", 20), ("warning", 30), ("error", 40), ("critical", 50), (logging.ERROR, 40)],
)
def test_levels_are_those_of_logging(say: Say, level: str | int, number: int) -> None:
    (line,) = lines(say(lambda job: job.log("a", level)))
    assert (line.level, line.fields) == (number, None)


def test_without_a_level_it_is_info_and_a_field_may_be_called_text(say: Say) -> None:
    (line,) = lines(say(lambda job: job.log("a", text="b")))
    assert (line.level, line.text, line.fields) == (20, "a", {"text": "b"})


@pytest.mark.parametrize("level", ["loud", 15, None, True])
def test_an_unknown_level_is_an_error_that_names_the_known(say: Say, level: Any) -> None:
    with pytest.raises(AssertionError, match=r"debug, info, warning, error, critical"):
        say(lambda job: job.log("a", level))


@pytest.mark.parametrize("text", [None, 5, b"a"])
def test_only_texts_are_said(say: Say, text: Any) -> None:
    with pytest.raises(AssertionError, match=r"TypeError: job.log\(\) takes a text"):
        say(lambda job: job.log(text))


def test_what_cannot_be_stored_is_replaced_and_long_texts_are_cut(say: Say) -> None:
    chain = say(lambda job: [job.log(text) for text in ("a\0b", "x\ud800y", "ü" * 100_000, mark_safe("<b>"))])
    nul, surrogate, long, safe = texts(chain)
    assert (nul, surrogate, safe) == ("a\ufffdb", "x\ufffdy", "<b>")
    assert len(long.encode()) <= MOST_TEXT_BYTES
    assert "characters left out" in long


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Decimal("1.50"), "1.50"),
        (date(2030, 1, 2), "2030-01-02"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (2**63, str(2**63)),
        (-(2**63), -(2**63)),
        (1e300, "1e+300"),
        (1e15, 1e15),
        (b"\0", "b'\\x00'"),
        ("a\0\ud800", "a\ufffd\ufffd"),
        ((1, 2), [1, 2]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        (Unwritable(), "<Unwritable that could not be written: RuntimeError>"),
        (10**5000, "<int that could not be written: ValueError>"),
        (ValueError("no"), "no"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_json_is_written_as_text(say: Say, value: Any, stored: Any) -> None:
    (line,) = lines(say(lambda job: job.log("a", value=value)))
    assert line.fields == {"value": stored}


def test_fields_that_cannot_be_read_keep_nobody_from_saying_something(say: Say) -> None:
    (line,) = lines(say(lambda job: job.log("a", value=Changing(a=1))))
    assert line.fields == {"…": "<the fields could not be read: RuntimeError>"}


@pytest.mark.parametrize(
    "value",
    ["ü" * 100_000, list(range(100_000)), {str(n): n for n in range(100_000)}, [["a" * 50] * 50] * 50],
    ids=["text", "list", "dict", "nested"],
)
def test_large_fields_are_cut(say: Say, value: Any) -> None:
    (line,) = lines(say(lambda job: job.log("a", first=1, value=value, last=1)))
    assert line.fields["first"] == 1
    assert "…" in str(line.fields)
    assert len(str(line.fields)) < 3 * MOST_CHARACTERS


def test_values_that_hold_themselves_are_cut_too(say: Say) -> None:
    endless: list[Any] = []
    endless.append(endless)
    (line,) = lines(say(lambda job: job.log("a", value=endless)))
    assert "[[...]]" in str(line.fields)


def test_fields_are_those_of_the_moment(say: Say) -> None:
    seen: list[int] = []

    def speak(job: RunningJob[Any]) -> None:
        for number in range(3):
            seen.append(number)
            job.log("a", seen=seen)

    assert [line.fields for line in lines(say(speak))] == [{"seen": [0]}, {"seen": [0, 1]}, {"seen": [0, 1, 2]}]


def test_progress_is_what_was_said_last(say: Say) -> None:
    chain = say(lambda job: [job.set_progress(0), job.set_progress(0.4, "page 4 of 10")])
    assert progress(chain) == (0.4, "page 4 of 10")


def test_sums_of_parts_and_long_texts_are_taken_for_what_they_mean(say: Say) -> None:
    chain = say(lambda job: job.set_progress(1 + 1e-12, "x" * 500 + "\0"))
    assert progress(chain) == (1.0, "x" * (PROGRESS_TEXT_LENGTH - 1) + "…")


@pytest.mark.parametrize("fraction", [-0.1, 1.1, 40, float("nan"), float("inf")])
def test_progress_is_from_0_to_1(say: Say, fraction: float) -> None:
    with pytest.raises(AssertionError, match=r"ValueError: job\.set_progress.*Divide what is done by all there is"):
        say(lambda job: job.set_progress(fraction))


@pytest.mark.parametrize(("fraction", "text"), [("0.4", ""), (None, ""), (0.4, 5)])
def test_progress_is_a_number_and_a_text(say: Say, fraction: Any, text: Any) -> None:
    with pytest.raises(AssertionError, match=r"TypeError: job.set_progress\(\) takes a"):
        say(lambda job: job.set_progress(fraction, text))


def test_async_handlers_say_the_same(processors: Processors, jobchains: Jobchains) -> None:
    @processors.register("notes.async")
    async def speak(job: RunningJob[Any]) -> None:
        job.log("before")
        await job.aprepare(lambda: job.log("prepare"))
        await job.acomplete(lambda: job.log("complete"))
        job.set_progress(1)

    chain = speak.enqueue()
    jobchains.run_due_jobs(raise_errors=True)
    assert (texts(chain), progress(chain)) == (["before", "prepare", "complete"], (1, ""))


def test_each_job_of_a_batch_speaks_for_itself(processors: Processors, jobchains: Jobchains) -> None:
    @processors.register("notes.batch", batch_limit=10)
    def speak(jobs: Batch[int]) -> None:
        with jobs.complete():
            for job in jobs:
                job.log(f"I am {job.input}")
                job.set_progress(job.input / 10)

    enqueued = [speak.enqueue(number) for number in range(3)]
    jobchains.run_due_jobs(raise_errors=True)
    assert [texts(chain) for chain in enqueued] == [["I am 0"], ["I am 1"], ["I am 2"]]
    assert [progress(chain)[0] for chain in enqueued] == [0, 0.1, 0.2]


def test_what_is_said_stays_when_all_else_is_undone(processors: Processors, jobchains: Jobchains) -> None:
    @processors.register("notes.failing", max_attempts=1)
    def fail(job: RunningJob[Any]) -> None:
        job.log("before")
        with job.prepare():
            job.log("prepare")
        with job.complete():
            Effect.objects.create(job_id=job.id, label="undone")
            job.log("complete")
            raise ValueError("no")

    chain = fail.enqueue()
    jobchains.run_due_jobs()
    assert (chain.refresh().status, Effect.objects.count()) == ("failed", 0)
    assert texts(chain) == ["before", "prepare", "complete"]


def test_the_lines_of_earlier_attempts_stay(processors: Processors, jobchains: Jobchains) -> None:
    @processors.register("notes.again")
    def again(job: RunningJob[Any]) -> None:
        job.log(f"try {job.attempt}")
        job.set_progress(job.attempt / 10)
        if job.attempt < 3:
            raise RescheduleJob(delay=0)

    chain = again.enqueue()
    jobchains.run_due_jobs()
    assert [(line.attempt, line.position, line.text) for line in lines(chain)] == [
        (1, 0, "try 1"),
        (2, 0, "try 2"),
        (3, 0, "try 3"),
    ]
    assert progress(chain)[0] == 0.3
