"""The error, traceback, worker and times of every failed attempt are recorded."""

from django_jobchains.models import FailedAttempt
from django_jobchains.processors import Backoff, Processors
from tests.support.attempts import committed

pytestmark = committed


def test_each_failed_attempt_has_a_row(work):
    part = Processors(backoff=Backoff(initial_seconds=0))

    @part.register("fails twice")
    def fails_twice(job):
        if job.attempt < 3:
            raise ValueError(f"attempt {job.attempt}")
        return "done"

    chain = fails_twice.enqueue()
    work(part, name="first")
    rows = list(FailedAttempt.objects.order_by("attempt"))
    assert [(row.job_id, row.attempt, row.lease_number, row.kind, row.error) for row in rows] == [
        (chain.id, 1, 1, "error", "ValueError: attempt 1"),
        (chain.id, 2, 2, "error", "ValueError: attempt 2"),
    ]
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.last_error) == ("completed", 3, None)


def test_row_contains_the_worker_and_the_times(processors, work):
    @processors.register("broken")
    def broken(job):
        raise ValueError

    chain = broken.enqueue()
    work(name="mail")
    row, job = FailedAttempt.objects.get(), chain.refresh().current_job
    assert row.worker.startswith("mail:")
    assert row.started_at == job.last_attempt_at
    assert job.created_at <= row.started_at <= row.finished_at
    assert row.started_at.utcoffset() is not None


def test_traceback_shows_causes_notes_and_lines_but_no_local_variables(processors, work):
    def charge(card):
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            error = ValueError("the error")
            error.add_note("the note")
            raise error from cause

    @processors.register("broken")
    def broken(job):
        charge(f"{4000_0000 + job.input}")

    broken.enqueue(1234)
    work()
    text = FailedAttempt.objects.get().traceback
    for words in ("KeyError: 'the cause'", "ValueError: the error", "the note", "in charge", "direct cause", __file__):
        assert words in text
    assert "40001234" not in text
