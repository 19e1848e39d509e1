"""Attempts at records have spans and metrics like attempts at jobs."""

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone
from opentelemetry.trace import SpanKind, StatusCode

from django_jobchains.records import RecordProcessor
from django_jobchains.telemetry.otel import register_gauges
from tests.records.models import Export, Upload
from tests.support.attempts import committed
from tests.support.tracing import id_of, parent_of
from tests.support.waiting import until

pytestmark = committed

TYPE, QUEUE, OUTCOME, ERROR = (
    "jobchains.job.type",
    "messaging.destination.name",
    "jobchains.job.outcome",
    "error.type",
)


def test_an_attempt_at_a_record_has_a_span(recorded, processors, make_worker):
    @processors.records(Upload, queue="uploads")
    def upload(record, run):
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


def test_metrics_count_the_attempts_by_their_outcomes(recorded, processors, make_worker):
    @processors.records(Upload, max_attempts=1)
    def upload(record, run):
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


def test_an_attempt_that_lost_its_record_says_so(recorded, processors, make_worker):
    @processors.records(Upload)
    def upload(record, run):
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


HOUR = timedelta(hours=1)


def test_hooks_and_the_wait_for_the_first_attempt_are_measured(recorded, processors, make_worker):
    @processors.records(Upload, max_attempts=2, retry_after=0)
    class Convert(RecordProcessor[Upload]):
        def pre_handle(self, record):
            if not record.num_failures:
                raise ValueError("no")

        def handle(self, record, run): ...

        def post_handle(self, record): ...

    Upload.objects.create(queued_at=timezone.now() - 2 * HOUR, process_after=timezone.now() - HOUR)
    make_worker().run_until_idle()
    of_type = {TYPE: "records.upload"}
    hooks = [
        ({**of_type, "jobchains.record.hook": hook}, count) for hook, count in (("pre_handle", 1), ("post_handle", 2))
    ]
    failed = {**of_type, "jobchains.record.hook": "pre_handle", ERROR: "ValueError"}
    assert sorted(recorded.values("jobchains.record.hook.duration"), key=str) == sorted([*hooks, (failed, 1)], key=str)
    [wait] = recorded.metrics()["jobchains.job.wait.duration"].data.data_points
    assert (dict(wait.attributes), wait.count) == ({**of_type, QUEUE: "default"}, 1)
    assert HOUR.total_seconds() <= wait.sum < 2 * HOUR.total_seconds()


def test_the_wait_is_unknown_if_the_queryset_defers_its_times(recorded, processors, make_worker):
    processors.records(Upload, queryset=Upload.objects.defer("queued_at"))(lambda record, run: None)
    Upload.objects.create()
    make_worker().run_until_idle()
    assert recorded.values("messaging.process.duration")
    assert recorded.values("jobchains.job.wait.duration") == []


def test_operations_are_measured(recorded, processors, start_worker, settings):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.05}

    @processors.records(Upload, stalled_after=60, heartbeat_every=0.05)
    def upload(record, run):
        until(lambda: "record_heartbeat" in operations(recorded))

    Upload.objects.create()
    start_worker()
    until(lambda: {"record_dequeue", "record_heartbeat", "record_end", "record_reset"} <= operations(recorded))


def operations(recorded):
    """The operations on records of the type."""
    found = recorded.values("messaging.client.operation.duration")
    return {each["messaging.operation.name"] for each, _ in found if each.get(TYPE) == "records.upload"}


def test_the_most_handlers_at_once_are_reported_by_type(recorded, processors, make_worker):
    together = threading.Barrier(2)

    @processors.records(Upload)
    def upload(record, run):
        if record.pk in pair:
            together.wait(60)

    @processors.records(Export)
    async def export(record, run): ...

    pair = [Upload.objects.create().pk for _ in range(2)]
    Upload.objects.create()
    Export.objects.create()
    peaks(recorded)
    make_worker(slots=2).run_until_idle()
    assert peaks(recorded) == {"records.upload": 2, "records.export": 1}
    assert peaks(recorded) == {"records.upload": 0, "records.export": 0}


def test_hooks_are_not_handlers_that_run_at_once(recorded, processors, make_worker):
    is_in_hook, is_handled = threading.Event(), threading.Event()

    @processors.records(Upload)
    class Convert(RecordProcessor[Upload]):
        def pre_handle(self, record):
            if record == second:
                is_in_hook.wait(60)

        def handle(self, record, run):
            if record == second:
                is_handled.set()

        def post_handle(self, record):
            if record == first:
                is_in_hook.set()
                is_handled.wait(60)

    first, second = Upload.objects.create(), Upload.objects.create()
    peaks(recorded)
    make_worker(slots=2).run_until_idle()
    assert peaks(recorded)["records.upload"] == 1


def peaks(recorded):
    found = {attributes[TYPE]: peak for attributes, peak in recorded.values("jobchains.record.handlers.peak")}
    return {name: found[name] for name in ("records.upload", "records.export") if name in found}


@pytest.mark.usefixtures("_of_project")
def test_gauges_show_the_records_of_each_worker_and_their_age(recorded, processors):
    processors.records(Upload, queue="files", retry_after=60)(lambda record, run: None)
    now = timezone.now()
    for state in ("queued", "processing", "failed", "failed", "completed"):
        Upload.objects.create(state=state, queued_at=now - HOUR)
    Upload.objects.create(process_after=now + HOUR)
    processors.records(Export)(lambda record, run: None)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE records_export RENAME TO not_migrated")
    for ended in (now - HOUR, now):
        Upload.objects.create(state="errored", finished_at=ended)
    gauges = register_gauges(recorded.meters)
    try:
        figures = until(lambda: recorded.values("jobchains.queue.records"))
        [(attributes, age)] = recorded.values("jobchains.queue.oldest_record.age")
    finally:
        gauges.close()
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE not_migrated RENAME TO records_export")
    found = {each.pop("jobchains.job.status"): value for each, value in figures}
    assert found == {"due": 2, "queued": 4, "processing": 1, "errored": 2, "failed": 2}
    assert attributes == figures[0][0] == {QUEUE: "files", TYPE: "records.upload"}
    assert HOUR.total_seconds() <= age < 2 * HOUR.total_seconds()
