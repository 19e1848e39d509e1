"""Every failed attempt keeps its error, traceback, worker and times; success costs no row."""

from typing import Any

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, FailJob, Processors, RescheduleJob, RunningJob
from tests.attempts.work import Work, committed

pytestmark = committed


def test_success_costs_no_row(processors: Processors, work: Work) -> None:
    @processors.register("fine")
    def fine(job: RunningJob[Any]) -> None: ...

    fine.enqueue()
    work()
    assert not FailedAttempt.objects.exists()


def test_each_failed_attempt_is_a_row_of_its_own(work: Work) -> None:
    part = Processors(backoff=Backoff(initial_seconds=0))

    @part.register("third time lucky")
    def lucky(job: RunningJob[Any]) -> str:
        if job.attempt < 3:
            raise ValueError(f"attempt {job.attempt}")
        return "luck"

    chain = lucky.enqueue()
    work(part, name="first")
    rows = list(FailedAttempt.objects.order_by("attempt"))
    assert [(row.job_id, row.attempt, row.lease_number, row.kind, row.error) for row in rows] == [
        (chain.id, 1, 1, "error", "ValueError: attempt 1"),
        (chain.id, 2, 2, "error", "ValueError: attempt 2"),
    ]
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.last_error) == ("completed", 3, None)


def test_a_row_says_which_worker_and_when(processors: Processors, work: Work) -> None:
    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        raise ValueError

    chain = broken.enqueue()
    work(name="mail")
    row, job = FailedAttempt.objects.get(), chain.refresh().current_job
    assert row.worker.startswith("mail:")
    assert row.started_at == job.last_attempt_at
    assert job.created_at <= row.started_at <= row.finished_at
    assert row.started_at.utcoffset() is not None


@pytest.mark.parametrize("error", [FailJob("no"), RescheduleJob(delay=60), ValueError("no")])
def test_every_way_to_fail_is_recorded(processors: Processors, work: Work, error: Exception) -> None:
    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        raise error

    chain = broken.enqueue()
    work()
    row = FailedAttempt.objects.get()
    assert (row.error, row.kind) == (chain.refresh().current_job.last_error, "error")


def test_the_traceback_shows_causes_notes_and_lines_but_no_local_variables(processors: Processors, work: Work) -> None:
    def charge(card: str) -> None:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            error = ValueError("the error")
            error.add_note("the note")
            raise error from cause

    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        charge(f"{4000_0000 + job.input}")

    broken.enqueue(1234)
    work()
    text = FailedAttempt.objects.get().traceback
    for words in ("KeyError: 'the cause'", "ValueError: the error", "the note", "in charge", "direct cause", __file__):
        assert words in text
    assert "40001234" not in text


def test_the_input_is_not_in_the_record_of_an_error(processors: Processors, work: Work) -> None:
    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        raise ValueError

    broken.enqueue({"card": "4000 1234"})
    work()
    row = FailedAttempt.objects.get()
    assert "4000" not in row.error + row.traceback


def test_rows_go_with_their_job(processors: Processors, work: Work) -> None:
    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        raise ValueError

    broken.enqueue()
    work()
    Job.objects.all().delete()
    assert not FailedAttempt.objects.exists()
