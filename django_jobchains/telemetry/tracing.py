"""The tracing of this process, if any. Without it, the only cost for callers is a comparison."""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import AttemptStarted

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import (
        AttemptSpan,
        CompletionSpan,
        ReadContexts,
        SentSpans,
        Tracing,
        WaitSpan,
    )

_NOTHING: AbstractContextManager[None] = nullcontext()

_tracing: "Tracing | None" = None
#: The thread of the last export that was waited for.
_flushing: threading.Thread | None = None


def set_tracing(tracing: "Tracing | None") -> None:
    """Trace from now on, or no longer."""
    global _tracing
    _tracing = tracing


def get_tracing() -> "Tracing | None":
    return _tracing


def start_sending(jobs: Sequence[Any], read: "ReadContexts") -> "SentSpans | None":
    """Begin the spans of new jobs, and store their trace contexts with the jobs."""
    return None if _tracing is None else _tracing.send(jobs, read)


class AttemptSpans:
    """Begins the spans of attempts, in the process that has claimed the jobs. None: no span is needed."""

    def attempt(self, job: Any) -> "AttemptSpan | None":
        """Report that an attempt begins, and begin its span."""
        if observes(AttemptStarted):
            facts = job.worker, job.id, job.chain_id, job.type_name, job.queue, job.attempt, job.wait_seconds
            report(AttemptStarted(*facts))
        return None if _tracing is None else _tracing.attempt(job)

    def batch(self, jobs: Sequence[Any]) -> "AttemptSpan | None":
        return None if _tracing is None else _tracing.batch(jobs)

    def record(self, type_name: str, queue: str, record: str, attempt: int) -> "AttemptSpan | None":
        return None if _tracing is None else _tracing.record(type_name, queue, record, attempt)


OWN_SPANS = AttemptSpans()


def start_completion(job: Any) -> "CompletionSpan | None":
    return None if _tracing is None else _tracing.completion(job)


def start_wait(chain_id: UUID, type_name: str) -> "WaitSpan | None":
    return None if _tracing is None else _tracing.wait(chain_id, type_name)


def active(span: "AttemptSpan | CompletionSpan | WaitSpan | None") -> AbstractContextManager[object]:
    """Return the context of a span, or one that does nothing."""
    return _NOTHING if span is None else span.active()


def phase(span: "AttemptSpan | None", name: str) -> AbstractContextManager[object]:
    return _NOTHING if span is None else span.phase(name)


def flush(seconds: float) -> None:
    """Export the spans that have ended, unless an earlier call still does so. Return after this time at the latest.

    Exporters may exceed their time limit, so they run on a thread.
    """
    global _flushing
    if _tracing is not None and (_flushing is None or not _flushing.is_alive()):
        _flushing = threading.Thread(target=_tracing.flush, args=[seconds], name="jobchains-flush", daemon=True)
        _flushing.start()
        _flushing.join(seconds)
