"""What ``job.log`` and ``job.set_progress`` accept, and what is stored."""

import logging
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from django.apps import apps
from django.utils.safestring import mark_safe

from django_jobchains.handlers.log_entries import MAX_CHARACTERS, MAX_TEXT_BYTES
from django_jobchains.models import PROGRESS_TEXT_LENGTH
from django_jobchains.processors import Batch, Processors, Registry, RescheduleJob, RunningJob
from tests.notes.log_rows import lines, progress, texts
from tests.shop.models import Effect

pytestmark = pytest.mark.django_db

RunJob = Callable[[Callable[[RunningJob[Any]], object]], Any]


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("no")


class Changing(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


@pytest.fixture
def processors(monkeypatch):
    registry = Registry()
    part = Processors()
    registry.add(part)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    return part


@pytest.fixture
def run_job(processors, jobchains):
    """Run a job that calls a function, and return its chain."""

    def run(function: Callable[[RunningJob[Any]], object]) -> Any:
        @processors.register("notes.logging")
        def handler(job: RunningJob[Any]) -> None:
            function(job)

        chain = handler.enqueue()
        jobchains.run_due_jobs(raise_errors=True)
        return chain

    return run


def test_line_has_a_text_a_level_and_fields(run_job):
    chain = run_job(
        lambda job: job.log("Page read", level="warning", page=4, of=[1, 2.5, None, True], deep={"ü": {"a": 1}})
    )
    (line,) = lines(chain)
    assert (line.text, line.level, line.position, line.attempt) == ("Page read", logging.WARNING, 0, 1)
    assert line.fields == {"page": 4, "of": [1, 2.5, None, True], "deep": {"ü": {"a": 1}}}


@pytest.mark.parametrize(
    ("level", "number"),
    [("debug", 10), ("INFO", 20), (logging.ERROR, 40)],
)
def test_levels_are_the_levels_of_the_logging_module(run_job, level, number):
    (line,) = lines(run_job(lambda job: job.log("a", level)))
    assert (line.level, line.fields) == (number, None)


def test_default_level_is_info_and_a_field_may_be_named_text(run_job):
    (line,) = lines(run_job(lambda job: job.log("a", text="b")))
    assert (line.level, line.text, line.fields) == (20, "a", {"text": "b"})


@pytest.mark.parametrize("level", ["loud", 15, None, True])
def test_unknown_level_raises_an_error_that_lists_the_known_ones(run_job, level):
    with pytest.raises(AssertionError, match=r"debug, info, warning, error, critical"):
        run_job(lambda job: job.log("a", level))


@pytest.mark.parametrize("text", [None, 5, b"a"])
def test_only_strings_can_be_logged(run_job, text):
    with pytest.raises(AssertionError, match=r"TypeError: job.log\(\) takes a text"):
        run_job(lambda job: job.log(text))


def test_unstorable_characters_are_replaced_and_long_texts_are_cut(run_job):
    chain = run_job(lambda job: [job.log(text) for text in ("a\0b", "x\ud800y", "ü" * 100_000, mark_safe("<b>"))])
    nul, surrogate, long, safe = texts(chain)
    assert (nul, surrogate, safe) == ("a\ufffdb", "x\ufffdy", "<b>")
    assert len(long.encode()) <= MAX_TEXT_BYTES
    assert "characters omitted" in long


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
def test_values_that_json_cannot_represent_are_stored_as_text(run_job, value, stored):
    (line,) = lines(run_job(lambda job: job.log("a", value=value)))
    assert line.fields == {"value": stored}


def test_line_is_stored_even_if_its_fields_cannot_be_read(run_job):
    (line,) = lines(run_job(lambda job: job.log("a", value=Changing(a=1))))
    assert line.fields == {"…": "<the fields could not be read: RuntimeError>"}


@pytest.mark.parametrize(
    "value",
    ["ü" * 100_000, list(range(100_000)), {str(n): n for n in range(100_000)}, [["a" * 50] * 50] * 50],
    ids=["text", "list", "dict", "nested"],
)
def test_large_fields_are_cut(run_job, value):
    (line,) = lines(run_job(lambda job: job.log("a", first=1, value=value, last=1)))
    assert line.fields["first"] == 1
    assert "…" in str(line.fields)
    assert len(str(line.fields)) < 3 * MAX_CHARACTERS


def test_list_that_contains_itself_is_cut(run_job):
    endless: list[Any] = []
    endless.append(endless)
    (line,) = lines(run_job(lambda job: job.log("a", value=endless)))
    assert "[[...]]" in str(line.fields)


def test_fields_are_copied_when_the_line_is_logged(run_job):
    seen: list[int] = []

    def log_growing_list(job: RunningJob[Any]) -> None:
        for number in range(3):
            seen.append(number)
            job.log("a", seen=seen)

    assert [line.fields for line in lines(run_job(log_growing_list))] == [
        {"seen": [0]},
        {"seen": [0, 1]},
        {"seen": [0, 1, 2]},
    ]


def test_last_progress_is_stored(run_job):
    chain = run_job(lambda job: [job.set_progress(0), job.set_progress(0.4, "page 4 of 10")])
    assert progress(chain) == (0.4, "page 4 of 10")


def test_rounding_errors_of_a_fraction_are_accepted_and_long_texts_are_cut(run_job):
    chain = run_job(lambda job: job.set_progress(1 + 1e-12, "x" * 500 + "\0"))
    assert progress(chain) == (1.0, "x" * (PROGRESS_TEXT_LENGTH - 1) + "…")


@pytest.mark.parametrize("fraction", [-0.1, 1.1, 40, float("nan"), float("inf")])
def test_fraction_is_between_0_and_1(run_job, fraction):
    with pytest.raises(AssertionError, match=r"ValueError: job\.set_progress.*Divide what is done by all there is"):
        run_job(lambda job: job.set_progress(fraction))


@pytest.mark.parametrize(("fraction", "text"), [("0.4", ""), (None, ""), (0.4, 5)])
def test_progress_takes_a_number_and_a_string(run_job, fraction, text):
    with pytest.raises(AssertionError, match=r"TypeError: job.set_progress\(\) takes a"):
        run_job(lambda job: job.set_progress(fraction, text))


def test_async_handlers_log_in_the_same_way(processors, jobchains):
    @processors.register("notes.async")
    async def handler(job: RunningJob[Any]) -> None:
        job.log("before")
        await job.aprepare(lambda: job.log("prepare"))
        await job.acomplete(lambda: job.log("complete"))
        job.set_progress(1)

    chain = handler.enqueue()
    jobchains.run_due_jobs(raise_errors=True)
    assert (texts(chain), progress(chain)) == (["before", "prepare", "complete"], (1, ""))


def test_each_job_of_a_batch_has_its_own_log(processors, jobchains):
    @processors.register("notes.batch", batch_limit=10)
    def handler(jobs: Batch[int]) -> None:
        with jobs.complete():
            for job in jobs:
                job.log(f"I am {job.input}")
                job.set_progress(job.input / 10)

    enqueued = [handler.enqueue(number) for number in range(3)]
    jobchains.run_due_jobs(raise_errors=True)
    assert [texts(chain) for chain in enqueued] == [["I am 0"], ["I am 1"], ["I am 2"]]
    assert [progress(chain)[0] for chain in enqueued] == [0, 0.1, 0.2]


def test_log_and_progress_survive_the_rollback_of_a_failed_attempt(processors, jobchains):
    @processors.register("notes.failing", max_attempts=1)
    def fail(job: RunningJob[Any]) -> None:
        job.log("before")
        with job.prepare():
            job.log("prepare")
        with job.complete():
            Effect.objects.create(job_id=job.id, label="rolled back")
            job.log("complete")
            raise ValueError("no")

    chain = fail.enqueue()
    jobchains.run_due_jobs()
    assert (chain.refresh().status, Effect.objects.count()) == ("failed", 0)
    assert texts(chain) == ["before", "prepare", "complete"]


def test_lines_of_earlier_attempts_are_kept(processors, jobchains):
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
