"""Outcomes of locked jobs that a stopping worker stores: if they cannot be written, the type's policy applies."""

from datetime import UTC, datetime
from typing import Any

import pytest

from django_jobchains.models import DeferredWrite, FailedAttempt, Job
from django_jobchains.payloads.codecs import encode_payloads
from django_jobchains.processors import Backoff, FailJob, RescheduleJob, RunningJob
from django_jobchains.store import deferred
from tests.support.waiting import until
from tests.worker.test_locked_rows import gate, lock, raising_when_completed

__all__ = ("gate",)

pytestmark = pytest.mark.postgresql

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("max_attempts", [None, 1])
def test_unwritable_deferred_result_fails_by_the_policy_of_its_type(
    processors, gate, start_worker, settings, max_attempts
):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1}

    @processors.register("worker.refused", backoff=Backoff(7000, 1, 7000, 0), max_attempts=max_attempts)
    def refused(job: RunningJob[Any]) -> str:
        gate.wait(15)
        return "done"

    worker = start_worker(poll_seconds=0.2)
    chain = refused.enqueue()
    until(lambda: worker.running == 1)
    other = lock(chain)
    gate.set()
    until(lambda: worker.running == 0)
    worker.stop()
    with raising_when_completed("worker.refused", "54000"):
        other.result()
        start_worker(poll_seconds=0.2)
        until(lambda: FailedAttempt.objects.exists())
    job, failed = Job.objects.get(), FailedAttempt.objects.get()
    assert job.status == ("failed" if max_attempts else "pending")
    assert max_attempts or (job.run_at - failed.finished_at).total_seconds() == pytest.approx(7000, abs=60)


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (None, 7000),
        (ValueError(), 7000),
        (RescheduleJob(delay=60), 60),
        (RescheduleJob(run_at=LATER), 7000),
        (FailJob(), None),
    ],
    ids=repr,
)
def test_deferred_outcome_stores_the_backoff_of_its_type(processors, gate, start_worker, error, wait):
    @processors.register("worker.backed_off", backoff=Backoff(7000, 1, 7000, 0))
    def backed_off(job: RunningJob[Any]) -> None:
        gate.wait(15)
        if error is not None:
            raise error

    worker = start_worker(poll_seconds=0.2)
    chain = backed_off.enqueue()
    until(lambda: worker.running == 1)
    other = lock(chain)
    gate.set()
    until(lambda: worker.running == 0)
    worker.stop()
    other.result()
    stored = until(lambda: DeferredWrite.objects.filter(kind="outcome").first())
    assert stored.outcome["retry_seconds"] == wait


def test_outcome_that_cannot_be_stored_does_not_affect_the_others(processors, gate, start_worker, monkeypatch):
    def encode(row: dict[str, Any]) -> dict[str, Any]:
        if "refused" in row["output"]:
            raise RuntimeError("The codec has no key.")
        return encode_payloads(row)

    @processors.register("worker.returning")
    def returning(job: RunningJob[str]) -> str:
        gate.wait(15)
        return job.input

    monkeypatch.setattr(deferred, "encode_payloads", encode)
    worker = start_worker(slots=3, poll_seconds=0.2)
    enqueued = [returning.enqueue(text) for text in ("one", "refused", "two")]
    until(lambda: worker.running == 3)
    others = [lock(chain) for chain in enqueued]
    gate.set()
    until(lambda: worker.running == 0)
    worker.stop()
    for other in others:
        other.result()
    stored = DeferredWrite.objects.filter(kind="outcome").values_list("job_id", flat=True)
    until(lambda: set(stored.all()) == {enqueued[0].id, enqueued[2].id}, what=stored.all)
