"""Jobs that make spans and create other jobs."""

import os
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from django_jobchains.processors import Batch, Processors, RunningJob
from django_jobchains.telemetry import tracing

processors = Processors()
#: Spans whose export takes longer are lost with their process, also if only the machine is busy.
tracing.FLUSH_SECONDS = 20.0

#: The environment variable with the URL to export to.
URL = "JOBCHAINS_TEST_TRACES"


def set_up_tracing() -> None:
    """Set up an SDK in a child process, with an exporter that sends nothing for a minute unless it is flushed."""
    provider = TracerProvider()
    exporter = OTLPSpanExporter(os.environ[URL], timeout=20)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
    trace.set_tracer_provider(provider)


class Broken(Exception):
    pass


@processors.register("isolation.traced_first")
def traced_first(job: RunningJob[Any]) -> Any:
    with job.prepare(), trace.get_tracer("tests").start_as_current_span("inside"):
        traced_other.enqueue()
    with job.complete():
        return job.continue_with("isolation.traced_next")


@processors.register("isolation.traced_next")
def traced_next(job: RunningJob[Any]) -> Any:
    return job.continue_with("isolation.traced_last")


@processors.register("isolation.traced_last", max_attempts=1)
def traced_last(job: RunningJob[Any]) -> None:
    raise Broken("password=hunter2")


@processors.register("isolation.traced_other")
async def traced_other(job: RunningJob[Any]) -> None:
    with trace.get_tracer("tests").start_as_current_span("inside other"):
        pass


@processors.register("isolation.traced_batch", batch_limit=5)
def traced_batch(jobs: Batch[Any]) -> None:
    with jobs.complete():
        for job in jobs:
            job.finish(None)
