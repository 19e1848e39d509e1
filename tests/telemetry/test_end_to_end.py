"""From a Django view to the statements of a handler in a worker process: one trace, exported over HTTP."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.django import DjangoInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.telemetry.otel import JobchainsInstrumentor
from tests.isolation.app import traced_jobs
from tests.isolation.conftest import SETTINGS as ISOLATED_SETTINGS
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.telemetry.otlp_receiver import Receiver

pytestmark = committed

INSTRUMENT = str(Path(sys.executable).with_name("opentelemetry-instrument"))


def buy(request):
    return HttpResponse(str(jobs.write.enqueue(0).id))


urlpatterns = [path("buy", buy, name="buy")]


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def exporting(receiver):
    """This process, instrumented as a web server is, exports to the receiver."""
    provider, meters = TracerProvider(), MeterProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    JobchainsInstrumentor().instrument(tracer_provider=provider, meter_provider=meters)
    yield provider
    JobchainsInstrumentor().uninstrument()
    provider.shutdown()
    meters.shutdown()


@pytest.fixture
def run_worker(receiver, start_process):
    """Run an instrumented worker to its end, and return its output."""

    def run(*options, url=receiver.url, **environment):
        exporter = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "20",
        }
        process = start_process("--burst", *options, within=[INSTRUMENT], **{**exporter, **environment})
        assert process.wait(90) == 0, process.output
        return process.output

    return run


def ancestry(spans, span):
    """Return the names of a span, its parent, and so on."""
    by_id = {each.span_id: each for each in spans}
    line = [span]
    while line[-1].parent_span_id:
        line.append(by_id[line[-1].parent_span_id])
    assert len({each.trace_id for each in line}) == 1
    return [each.name for each in line]


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.urls("tests.telemetry.test_end_to_end")
def test_a_view_a_worker_and_its_statements_are_one_trace(exporting, receiver, run_worker, settings):
    settings.MIDDLEWARE = []
    DjangoInstrumentor().instrument(tracer_provider=exporting)
    try:
        chain_id = Client().get("/buy").content.decode()
    finally:
        DjangoInstrumentor().uninstrument()
    exporting.force_flush()
    run_worker("--slots", "1")
    assert Job.objects.get(pk=chain_id).status == "completed"
    until(lambda: "complete" in receiver.names, 20, lambda: receiver.names)
    insert = next(span for span in receiver.spans if span.name == "INSERT" and is_of_effects(span))
    names = ["INSERT", "complete", "process chaos.write", "send chaos.write", "GET buy"]
    assert ancestry(receiver.spans, insert) == names


def is_of_effects(span):
    return any(Effect._meta.db_table in attribute.value.string_value for attribute in span.attributes)


ON_SQLITE = pytest.mark.skipif(connection.vendor != "sqlite", reason="about processes: run on SQLite")


@pytest.mark.slow
@ON_SQLITE
def test_child_processes_of_an_instrumented_worker_are_instrumented_too(exporting, receiver, run_worker):
    traced_jobs.traced_first.enqueue()
    exporting.force_flush()
    output = run_worker(jobchains={"ISOLATION": "process"}, **ISOLATED_SETTINGS)
    [last] = [span for span in receiver.spans if span.name == "process isolation.traced_next"]
    assert ancestry(receiver.spans, last) == [
        "process isolation.traced_next",
        "send isolation.traced_next",
        "complete",
        "process isolation.traced_first",
        "send isolation.traced_first",
    ]
    assert {"prepare", "inside", "inside other"} <= receiver.names
    assert "fresh interpreters" not in output


@pytest.mark.slow
@ON_SQLITE
def test_a_dead_collector_affects_no_job(run_worker):
    made = chains.enqueue_many([jobs.write.item(0.02) for _ in range(50)])
    output = run_worker(
        "--slots=2",
        url="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_TIMEOUT="2",
        OTEL_BSP_SCHEDULE_DELAY="20",
        OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="logging",
    )
    assert Job.objects.with_status("completed").count() == len(made)
    assert len([line for line in output.splitlines() if "export" in line.lower()]) == 1, output
    assert "Traceback" not in output


def test_importing_the_instrumentation_needs_no_settings():
    """``opentelemetry-instrument`` imports it before ``manage.py`` has chosen the settings."""
    code = (
        "from importlib.metadata import entry_points\n"
        "[found] = entry_points(group='opentelemetry_instrumentor', name='django_jobchains')\n"
        "found.load()().instrument(skip_dep_check=False)\n"
        "from django.conf import settings\n"
        "assert not settings.configured\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
