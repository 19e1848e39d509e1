"""What ``job.log`` and ``job.set_progress`` accept, and what is stored."""

import logging
from datetime import date
from decimal import Decimal

import pytest
from django.utils.safestring import mark_safe

from django_jobchains.handlers.log_entries import MAX_CHARACTERS, MAX_TEXT_BYTES
from django_jobchains.models import PROGRESS_TEXT_LENGTH
from django_jobchains.processors import Batch, RescheduleJob
from tests.notes.conftest import lines, progress, texts
from tests.shop.models import Effect

pytestmark = pytest.mark.django_db


class Unwritable:
    def __str__(self):
        raise RuntimeError("no")


class Changing(dict):
    def items(self):
        raise RuntimeError("dictionary changed size during iteration")


@pytest.mark.parametrize(
    ("arguments", "fields", "level", "stored"),
    [
        (("a",), {"text": "b"}, 20, {"text": "b"}),
        (("a", "debug"), {}, 10, None),
        (("a", "INFO"), {}, 20, None),
        (("a", logging.ERROR), {}, 40, None),
        (("a", "warning"), {"of": [1, 2.5, None, True], "deep": {"ü": {"a": 1}}}, 30, "the same"),
    ],
)
def test_a_line_has_a_text_a_level_and_fields(run_job, arguments, fields, level, stored):
    [line] = lines(run_job(lambda job: job.log(*arguments, **fields)))
    assert (line.text, line.level, line.position, line.attempt) == ("a", level, 0, 1)
    assert line.fields == (fields if stored == "the same" else stored)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        *((lambda job, level=level: job.log("a", level), "debug, info, warning") for level in ("loud", 15, None, True)),
        *((lambda job, text=text: job.log(text), r"TypeError: job.log\(\) takes a text") for text in (None, 5, b"a")),
        *(
            (lambda job, fraction=fraction: job.set_progress(fraction), "Divide the finished part by the total")
            for fraction in (-0.1, 1.1, 40, float("nan"), float("inf"))
        ),
        *(
            (lambda job, given=given: job.set_progress(*given), r"TypeError: job.set_progress\(\) takes a")
            for given in (("0.4", ""), (None, ""), (0.4, 5))
        ),
    ],
)
def test_invalid_arguments_raise_an_error_that_says_what_is_valid(run_job, call, error):
    with pytest.raises(AssertionError, match=error):
        run_job(call)


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
    [line] = lines(run_job(lambda job: job.log("a", value=value)))
    assert line.fields == {"value": stored}


def test_a_line_is_stored_even_if_its_fields_cannot_be_read(run_job):
    [line] = lines(run_job(lambda job: job.log("a", value=Changing(a=1))))
    assert line.fields == {"…": "<the fields could not be read: RuntimeError>"}


endless = []
endless.append(endless)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("ü" * 100_000, "…"),
        (list(range(100_000)), "…"),
        ({str(n): n for n in range(100_000)}, "…"),
        ([["a" * 50] * 50] * 50, "…"),
        (endless, "[[...]]"),
    ],
    ids=["text", "list", "dict", "nested", "a list that contains itself"],
)
def test_large_fields_are_cut(run_job, value, shown):
    [line] = lines(run_job(lambda job: job.log("a", first=1, value=value, last=1)))
    assert line.fields["first"] == 1
    assert shown in str(line.fields)
    assert len(str(line.fields)) < 3 * MAX_CHARACTERS


def test_fields_are_copied_when_the_line_is_logged(run_job):
    seen = []

    def log_growing_list(job):
        for number in range(3):
            seen.append(number)
            job.log("a", seen=seen)

    found = [line.fields for line in lines(run_job(log_growing_list))]
    assert found == [{"seen": [0]}, {"seen": [0, 1]}, {"seen": [0, 1, 2]}]


@pytest.mark.parametrize(
    ("last", "stored"),
    [
        ((0.4, "page 4 of 10"), (0.4, "page 4 of 10")),
        # Rounding errors of a fraction are accepted, and long texts are cut.
        ((1 + 1e-12, "x" * 500 + "\0"), (1.0, "x" * (PROGRESS_TEXT_LENGTH - 1) + "…")),
    ],
)
def test_the_last_progress_is_stored(run_job, last, stored):
    assert progress(run_job(lambda job: [job.set_progress(0), job.set_progress(*last)])) == stored


def test_async_handlers_log_in_the_same_way(processors, jobchains):
    @processors.register("notes.async")
    async def handler(job):
        job.log("before")
        await job.aprepare(lambda: job.log("prepare"))
        await job.acomplete(lambda: job.log("complete"))
        job.set_progress(1)

    chain = handler.enqueue()
    jobchains.run_due_jobs(raise_errors=True)
    assert (texts(chain), progress(chain)) == (["before", "prepare", "complete"], (1, ""))


def test_each_job_of_a_batch_has_its_own_log(processors, jobchains):
    @processors.register("notes.batch", batch_limit=10)
    def handler(jobs: Batch[int]):
        with jobs.complete():
            for job in jobs:
                job.log(f"I am {job.input}")
                job.set_progress(job.input / 10)

    enqueued = [handler.enqueue(number) for number in range(3)]
    jobchains.run_due_jobs(raise_errors=True)
    assert [(*texts(chain), progress(chain)[0]) for chain in enqueued] == [
        ("I am 0", 0),
        ("I am 1", 0.1),
        ("I am 2", 0.2),
    ]


def test_log_and_progress_survive_the_rollback_of_a_failed_attempt(processors, jobchains):
    @processors.register("notes.failing", max_attempts=1)
    def fail(job):
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
    def again(job):
        job.log(f"try {job.attempt}")
        job.set_progress(job.attempt / 10)
        if job.attempt < 3:
            raise RescheduleJob(delay=0)

    chain = again.enqueue()
    jobchains.run_due_jobs()
    found = [(line.attempt, line.position, line.text) for line in lines(chain)]
    assert found == [(1, 0, "try 1"), (2, 0, "try 2"), (3, 0, "try 3")]
    assert progress(chain)[0] == 0.3
