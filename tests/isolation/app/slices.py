"""Helpers for the slices of these jobs."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from django_jobchains.middleware import LogContext, Middleware
from django_jobchains.processors import Backoff, RunningJob
from tests.shop.models import Effect

AT_ONCE = Backoff(0.02, 1, 0.02, 0)
#: The log of an attempt is not written if another attempt of the job has begun, so the test waits for it first.
AFTER_LOG_LINES = Backoff(3600, 1, 3600, 0)


@dataclass(frozen=True)
class Added:
    text: str


class Recorded(Middleware[Added]):
    """Records each hook, adds a value to the context, and provides one."""

    @contextmanager
    def around_handler(self, job: RunningJob[Any]) -> Iterator[Added]:
        job.context["added"] = "by middleware"
        yield Added("by middleware")

    @asynccontextmanager
    async def aaround_handler(self, job: RunningJob[Any]) -> AsyncIterator[Added]:
        await Effect.objects.acreate(job_id=job.id, label="awaited around handler")
        with self.around_handler(job) as added:
            yield added

    @contextmanager
    def around_complete(self, job: RunningJob[Any]) -> Iterator[None]:
        note(job, "around complete")
        yield


def note(job: Any, label: str) -> None:
    Effect.objects.create(job_id=job.id, label=label)


def record_fields() -> dict[str, Any]:
    """Return the fields of a log record that is made now."""
    record = logging.getLogRecordFactory()("name", logging.INFO, "path", 1, "message", (), None)
    return {name: str(getattr(record, name)) for name in ("job_id", "job_type", "attempt", "tenant")}


MIDDLEWARE = (LogContext("tenant"), Recorded())
