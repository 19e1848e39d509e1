"""Errors of jobs and records in Sentry: once, when the job or record ends as failed, with the scope of the attempt."""

from uuid import UUID, uuid4

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from django_jobchains import chains
from django_jobchains.contrib import sentry as contrib
from django_jobchains.contrib.sentry import SentryMiddleware
from django_jobchains.pools import RemoteError
from django_jobchains.processors import Backoff, Processors, RescheduleJob
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptEnded
from tests.records.models import Upload
from tests.support.attempts import committed

pytestmark = committed

SECRET = "c4n4ry"


class Kept(Transport):
    """A transport that keeps the events instead of sending them."""

    def __init__(self):
        super().__init__()
        self.events = []

    def capture_envelope(self, envelope):
        if (event := envelope.get_event()) is not None:
            self.events.append(event)


@pytest.fixture
def sent():
    transport = Kept()
    sentry_sdk.init(dsn="http://key@127.0.0.1/1", transport=transport, auto_enabling_integrations=False)
    yield transport.events
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.init()


def slice_of(registry, **options):
    part = Processors(middleware=[SentryMiddleware(**options)], backoff=Backoff(0.02, 1, 0.02, 0))
    registry.add(part)
    return part


def test_a_job_that_ends_as_failed_is_sent_once(sent, registry, make_worker):
    @slice_of(registry).register("ship", queue="parcels")
    def ship(job):
        sentry_sdk.set_tag("order", "7")
        raise ValueError(f"password={SECRET}")

    chain = ship.enqueue({"password": SECRET}, max_attempts=2)
    make_worker().run_until_idle()
    while chain.refresh().status == "pending":
        make_worker().run_until_idle()
    [event] = sent
    assert event["transaction"] == "ship"
    tags = {"job.type": "ship", "job.queue": "parcels", "job.attempt": 2, "order": "7"}
    assert {name: event["tags"][name] for name in tags} == tags
    assert event["contexts"]["job"] == {"id": str(chain.id), "chain_id": str(chain.id)}
    assert event["exception"]["values"][-1]["type"] == "ValueError"
    assert SECRET not in str(event)


def test_retries_are_sent_on_request(sent, registry, make_worker):
    @slice_of(registry, capture_retries=True).register("ship")
    def ship(job):
        if job.attempt == 1:
            raise ValueError("no")

    ship.enqueue()
    make_worker().run_until_idle()
    assert [event["level"] for event in sent] == ["warning"]


def test_what_was_to_be_expected_is_not_sent(sent, registry, make_worker):
    part = slice_of(registry)

    @part.register("ship")
    def ship(job):
        if job.input == "reschedule" and job.attempt == 1:
            raise RescheduleJob(delay=0)
        if job.input == "cancel":
            chains.cancel(job.chain_id)
            raise ValueError("stopped")
        if job.input == "lose":
            chains.complete(job.chain_id)
            with job.complete():
                pass

    for what in ("reschedule", "cancel", "lose", "none"):
        ship.enqueue(what)
    make_worker().run_until_idle()
    assert sent == []


def test_each_failed_job_of_a_batch_is_sent(sent, registry, make_worker):
    @slice_of(registry).register("ship", batch_limit=10)
    def ship(batch):
        for job in batch:
            if job.input:
                job.retry(ValueError("no"))

    made = chains.enqueue_many([ship.item(fails, max_attempts=1) for fails in (0, 1, 1)])
    make_worker().run_until_idle()
    assert {event["contexts"]["job"]["id"] for event in sent} == {str(chain.id) for chain in made[1:]}


def test_error_of_a_child_process_is_sent_by_its_worker(sent):
    SentryMiddleware()
    error = RemoteError("Declined", f"password={SECRET}", "Traceback of the child")
    ids = {"id": str(uuid4()), "chain_id": str(uuid4())}
    report(
        AttemptEnded(
            "w", UUID(ids["id"]), UUID(ids["chain_id"]), "ship", 3, "failed", 0.1, "", None, error, queue="parcels"
        )
    )
    [event] = sent
    assert event["transaction"] == "ship"
    tags = {"job.type": "ship", "job.queue": "parcels", "job.attempt": 3}
    assert {name: event["tags"][name] for name in tags} == tags
    assert event["contexts"]["job"] == ids
    [value] = event["exception"]["values"]
    assert value["type"] == "Declined"
    assert "Traceback of the child" in value["value"]
    assert SECRET not in str(event)


def test_a_record_that_ends_as_failed_is_sent_once(sent, registry, make_worker):
    @slice_of(registry).records(Upload, queue="uploads", retry_after=0.01, max_attempts=2)
    def convert(upload, run):
        sentry_sdk.set_tag("size", upload.size)
        raise ValueError(f"password={SECRET}")

    upload = Upload.objects.create(size=7)
    while Upload.objects.get().state != "failed":
        make_worker(poll_seconds=0.02).run_until_idle()
    [event] = sent
    assert event["transaction"] == "records.upload"
    tags = {"job.type": "records.upload", "job.queue": "uploads", "job.attempt": 2, "size": 7}
    assert {name: event["tags"][name] for name in tags} == tags
    assert event["contexts"]["job"] == {"id": str(upload.pk)}
    [value] = event["exception"]["values"]
    assert value["type"] == "ValueError"
    assert SECRET not in str(event)
    assert not contrib._scopes


def test_errored_records_are_sent_on_request(sent, registry, make_worker):
    @slice_of(registry, capture_retries=True).records(Upload)
    def convert(upload, run):
        raise ValueError("no")

    Upload.objects.create()
    make_worker().run_until_idle()
    assert [(event["level"], event["tags"]["job.type"]) for event in sent] == [("warning", "records.upload")]


def test_error_of_a_record_in_a_child_process_is_sent_by_its_worker(sent):
    SentryMiddleware()
    error = RemoteError("Declined", f"password={SECRET}", "Traceback of the child")
    ended = AttemptEnded("w", "a/b", None, "records.letter", 3, "failed", 0.1, "", None, error, "post", kind="record")
    report(ended)
    [event] = sent
    assert event["transaction"] == "records.letter"
    tags = {"job.type": "records.letter", "job.queue": "post", "job.attempt": 3}
    assert {name: event["tags"][name] for name in tags} == tags
    assert event["contexts"]["job"] == {"id": "a/b"}
    assert event["exception"]["values"][0]["type"] == "Declined"
    assert SECRET not in str(event)
