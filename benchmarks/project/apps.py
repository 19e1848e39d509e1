import os
from contextlib import ExitStack

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    """With ``BENCH_OTEL``, OpenTelemetry records what the process does."""

    name = "benchmarks.project"

    def ready(self) -> None:
        if "BENCH_OTEL" in os.environ:
            from benchmarks.project.tracing import instrumented

            self.recording = ExitStack()
            self.recording.enter_context(instrumented())
