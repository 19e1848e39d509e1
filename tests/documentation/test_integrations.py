"""The examples of the page *Integrations* work with the libraries that they are about."""

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog
from asgiref.sync import async_to_sync
from django.db import transaction
from django.http import HttpRequest, StreamingHttpResponse
from django.test import RequestFactory
from django.urls import path, reverse

from django_jobchains import Processors, RunningJob, chains, monitoring, testing
from django_jobchains.exceptions import ChainCancelled, ChainFailed, ChainNotFound, ChainTimeout, JobTypeMismatch
from django_jobchains.middleware import Middleware
from django_jobchains.processors import FailJob
from tests.support.attempts import on_own_connection
from tests.support.worker_rows import worker

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "integrations.md"
EXAMPLES = dict(re.findall(r"^```python\n# (.*?)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))

#: What the examples import.
IMPORTED = {
    "Any": Any,
    "AsyncIterator": AsyncIterator,
    "ChainCancelled": ChainCancelled,
    "ChainFailed": ChainFailed,
    "ChainNotFound": ChainNotFound,
    "ChainTimeout": ChainTimeout,
    "HttpRequest": HttpRequest,
    "Iterator": Iterator,
    "JobTypeMismatch": JobTypeMismatch,
    "Middleware": Middleware,
    "Processors": Processors,
    "RunningJob": RunningJob,
    "StreamingHttpResponse": StreamingHttpResponse,
    "UUID": UUID,
    "chains": chains,
    "contextmanager": contextmanager,
    "dataclasses": dataclasses,
    "json": json,
    "monitoring": monitoring,
    "reverse": reverse,
    "structlog": structlog,
    "transaction": transaction,
    "__name__": __name__,
}

pytestmark = [pytest.mark.slow, pytest.mark.django_db]
#: The views of the example, as the project's.
urlpatterns: list[Any] = []


def example(title: str, **names: Any) -> dict[str, Any]:
    offered = {**IMPORTED, **names}
    exec(compile(EXAMPLES[title], str(PAGE), "exec"), offered)
    return offered


@pytest.fixture
def slice_(registry: Any) -> Processors:
    processors = Processors()
    registry.add(processors)
    return processors


@pytest.fixture
def import_lines(slice_: Processors) -> Any:
    @slice_.register("docs.import_lines")
    def import_lines(job: RunningJob[int]) -> str:
        return f"{job.input} lines"

    @slice_.register("docs.secret")
    def secret(job: RunningJob[None]) -> str:
        return "secret"

    return import_lines


@pytest.fixture
def rest(settings: Any, import_lines: Any) -> Any:
    """The client of a project with the views of the example."""
    decorators, views = import_module("rest_framework.decorators"), import_module("rest_framework.response")
    found = example(
        "Django REST framework",
        serializers=import_module("rest_framework.serializers"),
        api_view=decorators.api_view,
        Request=import_module("rest_framework.request").Request,
        Response=views.Response,
        import_lines=import_lines,
    )
    urlpatterns[:] = [
        path("imports/", found["start_import"]),
        path("imports/<uuid:chain_id>/", found["import_status"], name="import-status"),
    ]
    settings.ROOT_URLCONF = __name__
    return import_module("rest_framework.test").APIClient()


def test_a_rest_endpoint(rest: Any) -> None:
    started = rest.post("/imports/", {"lines": 3}, format="json")
    assert (started.status_code, rest.get(started["Location"]).json()["status"]) == (202, "pending")
    testing.run_due_jobs()
    assert rest.get(started["Location"]).json() == {
        "id": started.json()["id"], "status": "completed", "output": "3 lines",
    }  # fmt: skip


def test_a_rest_endpoint_cancels_and_hides_other_types(rest: Any) -> None:
    assert rest.post("/imports/", {"lines": 0}, format="json").status_code == 400
    started = rest.post("/imports/", {"lines": 3}, format="json")
    assert rest.delete(started["Location"]).json()["status"] == "cancelled"
    other = chains.enqueue("docs.secret", None)
    assert rest.get(reverse("import-status", args=[other.id])).status_code == 404


@pytest.mark.django_db(transaction=True)
def test_server_sent_events_do_not_use_the_connection_of_the_request(
    import_lines: Any, django_assert_num_queries: Any
) -> None:
    follow = example("Server-sent events")["follow"]
    chain = import_lines.enqueue(2)

    async def received() -> list[bytes]:
        response = await follow(RequestFactory().get("/"), chain.id)
        lines = []
        async for line in response:
            lines.append(line)
            if len(lines) == 1:
                await asyncio.to_thread(on_own_connection, testing.run_due_jobs)
        return lines

    with django_assert_num_queries(0):
        lines = async_to_sync(received)()
    assert lines == [b'data: {"status": "pending"}\n\n', b'data: {"status": "completed"}\n\n']


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_server_sent_events_end_with_the_chain(status: str, slice_: Processors) -> None:
    @slice_.register("docs.fail")
    def fail(job: RunningJob[None]) -> None:
        raise FailJob("no such file")

    chain = fail.enqueue()
    if status == "cancelled":
        chains.cancel(chain)
    testing.run_due_jobs()
    follow = example("Server-sent events")["follow"]

    async def received() -> list[bytes]:
        return [line async for line in await follow(RequestFactory().get("/"), chain.id)]

    assert async_to_sync(received)() == [f'data: {{"status": "{status}"}}\n\n'.encode()]


def test_a_health_check(store: Any, import_lines: Any) -> None:
    health, errors = import_module("health_check.base"), import_module("health_check.exceptions")
    found = example("django-health-check", HealthCheck=health.HealthCheck, ServiceUnavailable=errors.ServiceUnavailable)
    check = found["JobsAreRun"]()
    worker(store, "maintenance", slots=0)
    with pytest.raises(errors.ServiceUnavailable, match="No worker"):
        check.run()
    worker(store)
    import_lines.enqueue(1)
    check.run()
    with testing.clock() as clock, pytest.raises(errors.ServiceUnavailable, match="too long"):
        clock.advance(301)
        worker(store)
        check.run()


def test_lines_of_structlog_name_the_job(registry: Any) -> None:
    processors = example("structlog")["processors"]
    registry.add(processors)

    @processors.register("docs.log")
    def log(job: RunningJob[None]) -> None:
        structlog.get_logger().info("works")

    chain = chains.enqueue("docs.log", None)
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        testing.run_due_jobs(raise_errors=True)
    assert [(line["event"], line["job_id"], line["type_name"]) for line in lines] == [
        ("works", str(chain.id), "docs.log")
    ]


def test_resources_of_the_prometheus_operator() -> None:
    yaml = import_module("yaml")
    rules, monitor = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    alerts = yaml.safe_load((PAGE.parents[1] / "monitoring" / "alerts.yml").read_text())
    assert alerts.keys() == rules["spec"].keys()
    manifests = (PAGE.parents[1] / "operate" / "files" / "kubernetes.yaml").read_text()
    deployment = next(found for found in yaml.safe_load_all(manifests) if found["kind"] == "Deployment")
    pod = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
