"""The interface of spans: the protocols that a tracing system implements, and the tracing system in use.

Without one, the only cost for callers is a comparison. Implementations raise no errors, because tracing must not change
an outcome.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol
from uuid import UUID

from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import AttemptStarted

_NOTHING: AbstractContextManager[None] = nullcontext()

#: Reads the stored contexts of the first jobs of chains.
ReadContexts = Callable[[Collection[UUID]], Iterable[str | None]]


class Sent(Protocol):
    """The spans of new jobs."""

    def end(self, created: Collection[UUID]) -> None:
        """End the spans of the jobs that were created, after the commit. The other spans are dropped."""
        ...


class AttemptSpan(Protocol):
    """The span of an attempt at one job. It is exported when the outcome of the attempt is written."""

    def carrier(self) -> dict[str, str]:
        """Return the trace context of the span, which lets a child process continue it."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which other spans become children of this one."""
        ...

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return a context that is a child span, for ``prepare`` or ``complete``."""
        ...

    def send(self, job: Any, read: ReadContexts) -> None:
        """Begin the span of a continuation, a ``NewJob``, and store its trace context with it."""
        ...

    def stop(self) -> bool:
        """Record that the attempt has ended now. Return whether ``end`` must be called."""
        ...

    def end(self, outcome: str, error: BaseException | None, abandoned_reason: str, created: Collection[UUID]) -> None:
        """End the span when the outcome is known. ``created``: the continuation, if it was created."""
        ...


class BatchSpan(Protocol):
    """The span of an attempt at a batch. Each of its jobs has an ``AttemptSpan`` too."""

    def carrier(self) -> dict[str, str]: ...
    def active(self) -> AbstractContextManager[object]: ...
    def phase(self, name: str) -> AbstractContextManager[object]: ...
    def end(self) -> None: ...


class CompletionSpan(Protocol):
    """The span of a completion without a worker."""

    def active(self) -> AbstractContextManager[object]: ...

    def end(self) -> None:
        """End the span after the commit."""
        ...


class WaitSpan(Protocol):
    """The span of a wait for the end of a chain."""

    def link(self, chain_id: UUID, read: ReadContexts) -> None:
        """Link the span to the one that created the chain."""
        ...

    def active(self) -> AbstractContextManager[object]: ...


class Tracing(Protocol):
    """A tracing system. Its methods take ``NewJob``, ``ClaimedJob`` and ``LastJob``. None: no span is needed."""

    def send(self, jobs: Sequence[Any], read: ReadContexts) -> Sent | None: ...
    def attempt(self, job: Any) -> AttemptSpan | None: ...
    def batch(self, jobs: Sequence[Any]) -> BatchSpan | None: ...
    def record(self, type_name: str, queue: str, record: str, attempt: int) -> AttemptSpan | None:
        """Begin the span of an attempt at a record, with its primary key as text."""
        ...

    def continued(self, carrier: Mapping[str, str]) -> AttemptSpan | None:
        """Return a span that another process has begun, and will end, from its ``carrier``."""
        ...

    def continued_batch(self, carrier: Mapping[str, str]) -> BatchSpan | None: ...
    @staticmethod
    def set_up_child() -> None:
        """Set up tracing in a child process of a process that uses this system, unless this is done already."""
        ...

    def completion(self, job: Any) -> CompletionSpan | None: ...
    def wait(self, chain_id: UUID, type_name: str) -> WaitSpan | None: ...
    def flush(self, seconds: float) -> None:
        """Export the ended spans before the process ends."""
        ...


_tracing: Tracing | None = None
#: The thread of the last export that was waited for.
_flushing: threading.Thread | None = None


def set_tracing(tracing: Tracing | None) -> None:
    """Use a tracing system from now on, or none."""
    global _tracing
    _tracing = tracing


def get_tracing() -> Tracing | None:
    return _tracing


def start_sending(jobs: Sequence[Any], read: ReadContexts) -> Sent | None:
    """Begin the spans of new jobs, and store their trace contexts with the jobs."""
    return None if _tracing is None else _tracing.send(jobs, read)


def start_attempt(job: Any) -> AttemptSpan | None:
    """Report that an attempt begins, and begin its span."""
    if observes(AttemptStarted):
        report(
            AttemptStarted(job.worker, job.id, job.chain_id, job.type_name, job.queue, job.attempt, job.wait_seconds)
        )
    return None if _tracing is None else _tracing.attempt(job)


def start_batch(jobs: Sequence[Any]) -> BatchSpan | None:
    return None if _tracing is None else _tracing.batch(jobs)


class AttemptSpans(Protocol):
    """Begins the spans of attempts."""

    def attempt(self, job: Any) -> AttemptSpan | None: ...
    def batch(self, jobs: Sequence[Any]) -> BatchSpan | None: ...
    def record(self, type_name: str, queue: str, record: str, attempt: int) -> AttemptSpan | None: ...


class OwnSpans:
    """Begins new spans, in the process that has claimed the jobs."""

    def attempt(self, job: Any) -> AttemptSpan | None:
        return start_attempt(job)

    def batch(self, jobs: Sequence[Any]) -> BatchSpan | None:
        return start_batch(jobs)

    def record(self, type_name: str, queue: str, record: str, attempt: int) -> AttemptSpan | None:
        return None if _tracing is None else _tracing.record(type_name, queue, record, attempt)


OWN_SPANS = OwnSpans()


def start_completion(job: Any) -> CompletionSpan | None:
    return None if _tracing is None else _tracing.completion(job)


def start_wait(chain_id: UUID, type_name: str) -> WaitSpan | None:
    return None if _tracing is None else _tracing.wait(chain_id, type_name)


def active(span: AttemptSpan | BatchSpan | CompletionSpan | WaitSpan | None) -> AbstractContextManager[object]:
    """Return the context of a span, or one that does nothing."""
    return _NOTHING if span is None else span.active()


def phase(span: AttemptSpan | BatchSpan | None, name: str) -> AbstractContextManager[object]:
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
