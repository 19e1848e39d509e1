"""The middleware of a slice wraps the handlers of its records."""

import logging
from contextlib import contextmanager
from datetime import timedelta

import pytest
import sentry_sdk
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.utils import timezone

from django_jobchains.contrib.sentry import SentryMiddleware
from django_jobchains.middleware import ActorContext, LogContext, Middleware, QueryBudget
from django_jobchains.processors import FailJob, Processors, RescheduleJob
from tests.records.models import Repository, Upload

pytestmark = pytest.mark.django_db(transaction=True)


class Steps(Middleware):
    """Records its steps, and passes a value to the handler."""

    def __init__(self):
        self.steps = []

    @contextmanager
    def around_handler(self, job):
        job.context["tenant"] = job.record.repository.name
        with self._noted(f"handler of {job.type_name}"):
            yield

    @contextmanager
    def around_complete(self, job):
        with self._noted(f"complete, in a transaction: {connection.in_atomic_block}"):
            yield

    @contextmanager
    def _noted(self, name):
        self.steps.append(f"before {name}")
        try:
            yield
        except BaseException as error:
            self.steps.append(f"{type(error).__name__} in {name}")
            raise
        self.steps.append(f"after {name}")


class Raising(Middleware):
    def __init__(self, error):
        self.error = error

    @contextmanager
    def around_handler(self, job):
        try:
            yield
        except KeyError as error:
            raise self.error from error


def slice_with(registry, *middleware):
    part = Processors(middleware=middleware)
    registry.add(part)
    return part


def run(make_worker):
    make_worker(poll_seconds=0.05).run_until_idle(timeout=20)
    return Upload.objects.get()


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_wrap_the_handler_and_its_transaction(registry, make_worker, is_async):
    steps = Steps()
    part = slice_with(registry, steps)
    tenants = []

    def handle(record, run):
        with run.complete():
            tenants.append(run.context["tenant"])

    async def ahandle(record, run):
        await run.acomplete(lambda: tenants.append(run.context["tenant"]))

    part.records(Upload, queryset=Upload.objects.select_related("repository"))(ahandle if is_async else handle)
    Upload.objects.create(repository=Repository.objects.create(name="acme"))
    assert run(make_worker).state == "completed"
    assert tenants == ["acme"]
    handler, complete = "handler of records.upload", "complete, in a transaction: True"
    assert steps.steps == [f"before {handler}", f"before {complete}", f"after {complete}", f"after {handler}"]


def test_log_records_have_the_fields_of_the_record(registry, make_worker):
    part = slice_with(registry, LogContext("tenant"))
    fields = []

    @part.records(Upload)
    def handle(record, run):
        made = logging.getLogRecordFactory()("name", logging.INFO, "path", 1, "message", (), None)
        fields.append((made.job_id, made.job_type, str(made.attempt), made.chain_id, made.tenant))

    upload = Upload.objects.create()
    run(make_worker)
    assert fields == [(str(upload.pk), "records.upload", "1", "", "")]


def test_a_query_budget_counts_the_queries_of_the_handler(registry, make_worker):
    part = slice_with(registry, QueryBudget(1, action="fail"))

    @part.records(Upload)
    def handle(record, run):
        Repository.objects.count()
        run.add_log("own", "statements do not count")
        Repository.objects.count()

    Upload.objects.create()
    assert (run(make_worker).failure_message or "").startswith("QueryBudgetExceeded")


def test_a_required_context_fails_the_record(registry, make_worker):
    part = slice_with(registry, ActorContext(require=["tenant"]))
    part.records(Upload, retry_after=0)(lambda record, run: None)
    Upload.objects.create()
    upload = run(make_worker)
    assert (upload.state, upload.num_failures) == ("failed", 1)
    assert "Records store no context" in (upload.failure_message or "")


def test_sentrys_scope_has_the_record(registry, make_worker):
    part = slice_with(registry, SentryMiddleware())
    seen = []

    @part.records(Upload)
    def handle(record, run):
        scope = sentry_sdk.get_isolation_scope()
        seen.append((scope._tags["job.type"], scope._contexts["job"]))

    upload = Upload.objects.create()
    assert run(make_worker).state == "completed"
    assert seen == [("records.upload", {"id": str(upload.pk)})]


@pytest.mark.parametrize(
    ("error", "state", "failures"),
    [
        (FailJob("closed"), "failed", 1),
        (ValueError("closed"), "errored", 1),
        (RescheduleJob(delay=3600), "queued", 0),
        (RescheduleJob(run_at=timezone.now() + timedelta(hours=1)), "queued", 0),
    ],
)
def test_errors_of_middleware_end_the_attempt_as_for_jobs(registry, make_worker, error, state, failures):
    part = slice_with(registry, Raising(error))

    @part.records(Upload)
    def handle(record, run):
        raise KeyError("gateway")

    Upload.objects.create()
    upload = run(make_worker)
    assert (upload.state, upload.num_failures) == (state, failures)
    if state == "queued":
        assert upload.process_after is not None
        assert upload.process_after > timezone.now() + timedelta(minutes=50)


def test_a_worker_refuses_records_whose_slice_lacks_required_middleware(registry, make_worker):
    slice_with(registry).records(Upload)(lambda record, run: None)
    with pytest.raises(ImproperlyConfigured, match=r"lacks .*Steps"):
        make_worker(required_middleware=[Steps])
