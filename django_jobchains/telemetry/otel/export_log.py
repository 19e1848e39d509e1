"""Limits the logs of OpenTelemetry's exporters. With a dead collector, each of them would log every batch."""

import logging
import time

#: The loggers of the exporters for OTLP. Filters of a logger do not apply to the loggers below it.
LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
)
#: How long an exporter logs nothing after a warning or an error.
QUIET_SECONDS = 600.0


class FirstFailure(logging.Filter):
    """Keeps the first warning or error of a logger, and drops others for the next ten minutes."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + QUIET_SECONDS
        return True


class ExportLog:
    """The filters, between ``open`` and ``close``."""

    def __init__(self) -> None:
        self._filters = {name: FirstFailure() for name in LOGGERS}

    def open(self) -> None:
        for name, first_failure in self._filters.items():
            logging.getLogger(name).addFilter(first_failure)

    def close(self) -> None:
        for name, first_failure in self._filters.items():
            logging.getLogger(name).removeFilter(first_failure)
