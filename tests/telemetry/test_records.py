"""Attempts at records have spans and metrics like attempts at jobs."""

from opentelemetry.trace import SpanKind, StatusCode

from django_jobchains.processors import Processors
from django_jobchains.records import RecordRun
from tests.records.models import Upload
from tests.support.attempts import committed
from tests.support.tracing import Recorded, id_of, parent_of
from tests.support.workers import StartWorker

pytestmark = committed

TYPE, QUEUE, OUTCOME, ERROR = (
    "jobchains.job.type",
    "messaging.destination.name",
    "jobchains.job.outcome",
    "error.type",
)


def test_an_attempt_at_a_record_has_a_span(
    recorded: Recorded, processors: Processors, make_worker: StartWorker
) -> None:
    @processors.records(Upload, queue="uploads")
    def upload(record: Upload, run: RecordRun) -> None:
        with run.complete(), recorded.tracer.start_as_current_span("inside"):
            pass

    record = Upload.objects.create()
    make_worker().run_until_idle()
    [attempt] = [span for span in recorded.spans if span.kind is SpanKind.CONSUMER]
    complete = recorded.one("complete")
    assert parent_of(complete) == id_of(attempt)
    assert parent_of(recorded.one("inside")) == id_of(complete)
    name = (attempt.attributes or {})[TYPE]
    assert attempt.name == f"process {name}"
    assert dict(attempt.attributes or {}) == {
        "messaging.system": "django_jobchains",
        QUEUE: "uploads",
        "messaging.message.id": str(record.pk),
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        TYPE: name,
        "jobchains.job.attempt": 1,
        OUTCOME: "completed",
    }


def test_metrics_count_the_attempts_by_their_outcomes(
    recorded: Recorded, processors: Processors, make_worker: StartWorker
) -> None:
    @processors.records(Upload, max_attempts=1)
    def upload(record: Upload, run: RecordRun) -> None:
        if run.attempt == 1 and not record.num_failures:
            raise ValueError("password=hunter2")

    Upload.objects.create()
    make_worker().run_until_idle()
    [attempt] = [span for span in recorded.spans if span.kind is SpanKind.CONSUMER]
    assert attempt.status.status_code is StatusCode.ERROR
    assert "hunter2" not in attempt.to_json()
    assert (attempt.attributes or {})[OUTCOME] == "failed"
    [(attributes, count)] = recorded.values("messaging.process.duration")
    assert (attributes[QUEUE], attributes[OUTCOME], attributes[ERROR], count) == ("default", "failed", "ValueError", 1)
    [(_, consumed)] = recorded.values("messaging.client.consumed.messages")
    assert consumed == 1


def test_an_attempt_that_lost_its_record_says_so(
    recorded: Recorded, processors: Processors, make_worker: StartWorker
) -> None:
    @processors.records(Upload)
    def upload(record: Upload, run: RecordRun) -> None:
        Upload.objects.all().delete()
        with run.complete():
            pass

    Upload.objects.create()
    make_worker().run_until_idle()
    [attempt] = [span for span in recorded.spans if span.kind is SpanKind.CONSUMER]
    assert (attempt.attributes or {})[OUTCOME] == "abandoned"
    assert (attempt.attributes or {})["jobchains.attempt.abandoned_reason"] == "not_found"
    [(attributes, count)] = recorded.values("jobchains.lease.lost")
    assert (attributes["jobchains.reason"], count) == ("not_found", 1)
