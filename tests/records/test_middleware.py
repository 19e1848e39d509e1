"""The middleware of a slice wraps the handlers of its records."""

from contextlib import contextmanager

import pytest
from django.db import connection

from django_jobchains.middleware import ActorContext, Middleware, QueryBudget
from django_jobchains.processors import Processors
from tests.records.models import Repository, Upload

pytestmark = pytest.mark.django_db(transaction=True)


class Steps(Middleware):
    """Records its steps, and passes a value to the handler."""

    def __init__(self):
        self.steps = []

    @contextmanager
    def around_handler(self, job):
        job.context["tenant"] = job.record.repository.name
        self.steps.append(job.type_name)
        yield

    @contextmanager
    def around_complete(self, job):
        self.steps.append(f"complete, in a transaction: {connection.in_atomic_block}")
        yield


@pytest.fixture
def middleware():
    """The middleware of the only slice. Tests that need some give it as a parameter."""
    return []


@pytest.fixture
def processors(registry, middleware):
    part = Processors(middleware=middleware)
    registry.add(part)
    return part


def with_middleware(*middleware):
    return pytest.mark.parametrize("middleware", [middleware], ids=lambda each: type(each[0]).__name__)


@with_middleware(Steps())
def test_hooks_wrap_the_handler_and_its_transaction(handled, middleware):
    steps, tenants = middleware[0].steps, []

    def handle(record, run):
        with run.complete():
            tenants.append(run.context["tenant"])

    options = {"queryset": Upload.objects.select_related("repository")}
    repository = Repository.objects.create(name="acme")
    assert handled(handle, options, repository=repository).state == "completed"
    assert tenants == ["acme"]
    assert steps == ["records.upload", "complete, in a transaction: True"]


@with_middleware(QueryBudget(1, action="fail"))
def test_a_query_budget_counts_the_queries_of_the_handler(handled):
    def handle(record, run):
        Repository.objects.count()
        run.add_log("own", "statements do not count")
        if record.size:
            Repository.objects.count()

    assert handled(handle).state == "completed"
    assert handled(size=1).failure_message.startswith("QueryBudgetExceeded")


@with_middleware(ActorContext(require=["tenant"]))
def test_a_required_context_fails_the_record(handled):
    upload = handled(lambda record, run: None, {"retry_after": 0})
    assert (upload.state, upload.num_failures) == ("failed", 1)
    assert "Records store no context" in (upload.failure_message or "")
