"""The spans of an attempt that runs in a child process, as its worker sees them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django_jobchains.attempts.outcome import Outcome
from django_jobchains.store import ClaimedJob
from django_jobchains.telemetry.child_processes import telemetry_request
from django_jobchains.telemetry.tracing import OWN_SPANS

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import AttemptSpan, ReadContexts


class IsolatedSpans:
    """Begins and ends the spans of the attempt. The spans inside of it begin and end in the child process."""

    def __init__(self, jobs: Sequence[ClaimedJob], *, is_batch: bool) -> None:
        self._spans = {job.id.hex: span for job in jobs if (span := OWN_SPANS.attempt(job))}
        self._batch = OWN_SPANS.batch(jobs) if is_batch else None

    def request(self) -> dict[str, Any]:
        """Return what the child process needs to continue the spans."""
        return telemetry_request(self._spans, self._batch)

    def end(self, outcomes: Sequence[Outcome], read: "ReadContexts") -> None:
        """Record that the attempt has ended now. The spans of its jobs end when their outcomes are written."""
        if self._batch is not None:
            self._batch.end()
        for outcome in outcomes:
            if (span := self._spans.get(outcome.job.id.hex)) is not None:
                _send_continuation(outcome, span, read)
                outcome.span = span if span.stop() else None


def _send_continuation(outcome: Outcome, span: "AttemptSpan", read: "ReadContexts") -> None:
    """Begin the span of a continuation that this worker writes. The child process has dropped its own."""
    if outcome.effects is None and outcome.finished and outcome.finished.continuation:
        span.send(outcome.finished.continuation, read)
