"""Errors of jobs and records in Sentry: once, when the job or record ends as failed, with the scope of the attempt.

Chains of schedules check in.
"""

from datetime import timedelta
from uuid import uuid4

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from django_jobchains import chains, schedules
from django_jobchains.contrib import sentry as contrib
from django_jobchains.contrib.sentry import SentryMiddleware
from django_jobchains.pools import RemoteError
from django_jobchains.processors import Backoff, Processors, RescheduleJob
from django_jobchains.telemetry import remove_sink, report
from django_jobchains.telemetry.events import AttemptEnded
from django_jobchains.testing import clock, fire_schedules, run_due_jobs
from tests.records.models import Upload
from tests.support.attempts import committed

pytestmark = committed

SECRET = "c4n4ry"


class Kept(Transport):
    """A transport that keeps the events instead of sending them."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.check_ins = []

    def capture_envelope(self, envelope):
        if (event := envelope.get_event()) is not None:
            self.events.append(event)
        self.check_ins += [item.payload.json for item in envelope.items if item.type == "check_in"]


@pytest.fixture
def transport():
    transport = Kept()
    sentry_sdk.init(dsn="http://key@127.0.0.1/1", transport=transport, auto_enabling_integrations=False)
    yield transport
    remove_sink(contrib._on_event)
    remove_sink(contrib._check_in)
    contrib._monitor_config.cache_clear()
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.init()


@pytest.fixture
def sent(transport):
    return transport.events


@pytest.fixture
def slice_of(registry):
    def slice_of(**options):
        part = Processors(middleware=[SentryMiddleware(**options)], backoff=Backoff(0.02, 1, 0.02, 0))
        registry.add(part)
        return part

    return slice_of


def check(event, type_name, queue, attempt, ids, **tags):
    """Check an event of an attempt, and return its error."""
    assert event["transaction"] == type_name
    tags |= {"job.type": type_name, "job.queue": queue, "job.attempt": attempt}
    assert {name: event["tags"][name] for name in tags} == tags
    assert event["contexts"]["job"] == ids
    assert SECRET not in str(event)
    return event["exception"]["values"][-1]


def test_a_job_that_ends_as_failed_is_sent_once(sent, slice_of, make_worker):
    @slice_of().register("ship", queue="parcels")
    def ship(job):
        sentry_sdk.set_tag("order", "7")
        raise ValueError(f"password={SECRET}")

    chain = ship.enqueue({"password": SECRET}, max_attempts=2)
    while chain.refresh().status == "pending":
        make_worker().run_until_idle()
    [event] = sent
    error = check(event, "ship", "parcels", 2, {"id": str(chain.id), "chain_id": str(chain.id)}, order="7")
    assert error["type"] == "ValueError"
    [crumb] = [crumb for crumb in event["breadcrumbs"]["values"] if crumb["category"] == "job"]
    assert (crumb["level"], crumb["message"].partition("=")[0]) == ("warning", "ValueError: password")


def test_a_record_that_ends_as_failed_is_sent_once(sent, slice_of, make_worker):
    @slice_of().records(Upload, queue="uploads", retry_after=0.01, max_attempts=2)
    def convert(upload, run):
        sentry_sdk.set_tag("size", upload.size)
        raise ValueError(f"password={SECRET}")

    upload = Upload.objects.create(size=7)
    while Upload.objects.get().state != "failed":
        make_worker(poll_seconds=0.02).run_until_idle()
    [event] = sent
    error = check(event, "records.upload", "uploads", 2, {"id": str(upload.pk)}, size=7)
    assert error["type"] == "ValueError"
    assert not contrib._scopes


ID, CHAIN_ID = uuid4(), uuid4()


@pytest.mark.parametrize(
    ("ids", "kind", "context"),
    [((ID, CHAIN_ID), "job", {"id": str(ID), "chain_id": str(CHAIN_ID)}), (("a/b", None), "record", {"id": "a/b"})],
)
def test_error_of_a_child_process_is_sent_by_its_worker(sent, ids, kind, context):
    SentryMiddleware()
    error = RemoteError("Declined", f"password={SECRET}", "Traceback of the child")
    report(AttemptEnded("w", *ids, "ship", 3, "failed", 0.1, "", None, error, "parcels", kind=kind))
    [event] = sent
    value = check(event, "ship", "parcels", 3, context)
    assert value["type"] == "Declined"
    assert "Traceback of the child" in value["value"]


def test_retries_are_sent_on_request(sent, slice_of, make_worker):
    part = slice_of(capture_retries=True)

    @part.register("ship")
    def ship(job):
        if job.attempt == 1:
            raise ValueError("no")

    @part.records(Upload)
    def convert(upload, run):
        raise ValueError("no")

    ship.enqueue()
    Upload.objects.create()
    make_worker().run_until_idle()
    found = {(event["level"], event["tags"]["job.type"]) for event in sent}
    assert found == {("warning", "ship"), ("warning", "records.upload")}


def test_what_was_to_be_expected_is_not_sent(sent, slice_of, make_worker):
    @slice_of().register("ship")
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


def test_each_failed_job_of_a_batch_is_sent(sent, slice_of, make_worker):
    @slice_of().register("ship", batch_limit=10)
    def ship(batch):
        for job in batch:
            if job.input:
                job.retry(ValueError("no"))

    made = chains.enqueue_many([ship.item(fails, max_attempts=1) for fails in (0, 1, 1)])
    make_worker().run_until_idle()
    assert {event["contexts"]["job"]["id"] for event in sent} == {str(chain.id) for chain in made[1:]}


def fire():
    """Fire the schedules that are due in an hour, and run their chains."""
    with clock() as moving:
        fire_schedules()
        moving.advance(3600)
        [chain] = fire_schedules()
        run_due_jobs()
        moving.advance(60)
        run_due_jobs()
    return chain


CRON = {"schedule": {"type": "crontab", "value": "0 * * * *"}, "timezone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("rule", "config"),
    [
        ({"cron": "0 * * * *", "timezone": "Europe/Berlin"}, CRON),
        ({"every": timedelta(minutes=45)}, {"schedule": {"type": "interval", "value": 45, "unit": "minute"}}),
        ({"every": 3600}, {"schedule": {"type": "interval", "value": 1, "unit": "hour"}}),
        ({"every": 3599}, None),
    ],
)
def test_the_chain_of_a_schedule_checks_in_when_it_starts_and_when_it_has_ended(transport, slice_of, rule, config):
    part = slice_of(monitor_schedules=True)

    @part.register("ship")
    def ship(job):
        if job.attempt == 1:
            raise ValueError("no")
        return job.continue_with("bill") if "cron" in rule else None

    part.register("bill", entry=False)(lambda job: None)
    part.schedule("Ship: Größe", ship, **rule)
    ship.enqueue()
    chain = fire()
    assert chain.refresh().status == "completed"
    assert [check_in["status"] for check_in in transport.check_ins] == ["in_progress", "ok"]
    for check_in in transport.check_ins:
        assert check_in["monitor_slug"] == "ship-gr-e"
        assert check_in["check_in_id"] == chain.id.hex
        assert check_in.get("monitor_config") == config


@pytest.mark.parametrize("ends", ["failed", "cancelled"])
def test_a_chain_that_does_not_complete_checks_in_with_an_error(transport, slice_of, ends):
    @slice_of(monitor_schedules=True).register("ship", max_attempts=1)
    def ship(job):
        if ends == "cancelled":
            chains.cancel(job.chain_id)
        raise ValueError("no")

    schedules.create("x" * 60, ship, every=3600)
    assert fire().refresh().status == ends
    assert [check_in["status"] for check_in in transport.check_ins] == ["in_progress", "error"]
    assert {(check_in["monitor_slug"], check_in.get("monitor_config")) for check_in in transport.check_ins} == {
        ("x" * 50, None)
    }


def test_chains_check_in_only_on_request(transport, slice_of):
    """Sentry bills for each monitor."""
    part = slice_of()
    ship = part.register("ship")(lambda job: None)
    part.schedule("ship", ship, every=3600)
    assert fire().refresh().status == "completed"
    assert transport.check_ins == []
