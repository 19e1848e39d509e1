"""Writes the ends of attempts at records, in one statement per model."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from logging import getLogger
from typing import Any

from django_jobchains.attempts.record_attempt import EndedRecord
from django_jobchains.notifications.base import WarningThrottle
from django_jobchains.payloads.codecs import encode_text
from django_jobchains.records.declarations import RecordType
from django_jobchains.store.errors import is_statement_invalid
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.telemetry import measured, report
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded, OutcomeDelayed
from django_jobchains.text.errors import describe, log_error, log_text
from django_jobchains.text.redaction import redacted_text
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.end_writer import TAKEN, Sink

logger = getLogger("django_jobchains")

#: The states of a record that was written, by the end of its attempt. Without an end, another process may have written
#: any state.
_WRITTEN = {
    "completed": ("completed",),
    "requeued": ("queued", "cancelled"),
    "handed_back": ("queued", "cancelled"),
    "errored": ("errored", "failed", "cancelled"),
    "failed": ("failed", "cancelled"),
}


class RecordSink(Sink[EndedRecord]):
    """Writes the ends of attempts to the tables of record models. ``on_written`` is called with each written one."""

    def __init__(self, context: WorkerContext, on_written: Callable[[EndedRecord], None] = lambda ended: None) -> None:
        self._context = context
        self._store = context.store
        self._worker = context.worker
        self._on_written = on_written
        self._throttle = WarningThrottle()

    def accept(self, ended: EndedRecord) -> bool:
        ended.end = ended.end and _fitting(ended.kind, ended.end)
        return True

    def groups(self, batch: Collection[EndedRecord]) -> Iterable[Sequence[EndedRecord]]:
        return by_kind((ended.kind, ended) for ended in batch).values()

    def has_written(self, ended: EndedRecord) -> bool:
        return ended.state is not None or ended.end is None

    def write(self, ends: Sequence[EndedRecord], uncertain: Collection[int]) -> list[EndedRecord]:
        unwritten = {ended.key: ended for ended in ends if ended.end is not None and ended.state is None}
        if not unwritten:
            return []
        kind = ends[0].kind
        table = kind.table(self._store.using)
        with measured("record_end", self._worker, kind.name):
            states = self._store.records.end(table, [ended.end for ended in unwritten.values() if ended.end])
        for key, state in states.items():
            unwritten.pop(key).state = state
        if not unwritten:
            return []
        found = self._store.records.check(table, list(unwritten))
        for key in found.lost.keys() & unwritten.keys():
            ended = unwritten[key]
            ended.abandoned_reason = found.lost[key]
            if id(ended) in uncertain and ended.end:
                state, number = self._store.records.state_of(table, key[0]) or ("", 0)
                if number == key[1] and state in _WRITTEN[ended.end.kind]:
                    ended.state = state
        return [unwritten[key] for key in found.locked]

    def is_temporary(self, error: Exception) -> bool:
        """Return whether the table lacks a column, for example before a migration."""
        return is_statement_invalid(error)

    def replace(self, ended: EndedRecord, error: Exception) -> bool:
        """Replace an end that is refused: by an error, then by one without a message, and then only release the record.

        The record is then reset when its heartbeats are missing.
        """
        assert ended.end is not None  # noqa: S101 - for the type checker
        if ended.end.kind in ("completed", "requeued"):
            ended.error, ended.exception = describe(error), error
            end = ended.end._replace(kind="errored", message=ended.error, max_attempts=ended.kind.max_attempts)
            ended.end = _fitting(ended.kind, end)
        elif ended.end.message:
            log_error(logger, error, "The failure message of record %s cannot be written: %s", ended.key[0])
            ended.end = ended.end._replace(message="")
        else:
            text = "The end of record %s cannot be written. The record is reset when its heartbeats are missing: %s"
            log_error(logger, error, text, ended.key[0])
            ended.end, ended.abandoned_reason = None, "error"
        return True

    def release(self, ends: Sequence[EndedRecord]) -> None:
        for ended in ends:
            leases = self._context.record_leases[ended.kind.name]
            is_news = bool(leases.release([ended.key]))
            if ended.is_handed_back and ended.exception is not None and self._throttle.allows():
                text = "Record %s of %r could not be loaded, and is queued again: %s"
                logger.warning(text, ended.key[0], ended.kind.name, log_text(ended.exception))
            reason = "" if ended.state is not None else ended.abandoned_reason or TAKEN
            if not reason:
                report(_event(self._worker, ended))
            elif is_news:  # Otherwise the loss was reported when the worker noticed it.
                report(AttemptAbandoned(self._worker, str(ended.key[0]), reason, ended.kind.name, kind="record"))
            if ended.span is not None:
                ended.span.end(ended.ending, ended.exception, reason, ())

    def released(self, ends: Sequence[EndedRecord]) -> None:
        for ended in ends:
            self._on_written(ended)
            ended.mark_written()

    def report_delay(self, ended: EndedRecord, seconds: float, error: str) -> None:
        report(OutcomeDelayed(self._worker, str(ended.key[0]), ended.kind.name, seconds, error, kind="record"))


def by_kind(pairs: Iterable[tuple[RecordType, Any]]) -> dict[RecordType, list[Any]]:
    grouped: dict[RecordType, list[Any]] = defaultdict(list)
    for kind, value in pairs:
        grouped[kind].append(value)
    return grouped


def _fitting(kind: RecordType, end: RecordEnd) -> RecordEnd:
    """Return the end with a message that fits into its column, also encoded. It is redacted before it is cut."""
    limit = kind.model_field("failure_message").max_length
    if limit is None or len(encode_text(end.message)) <= limit:
        return end
    message = redacted_text(end.message)[:limit]
    while len(encode_text(message)) > limit:
        message = message[: len(message) // 2]
    return end._replace(message=message)


def _event(worker: str, ended: EndedRecord) -> AttemptEnded:
    return AttemptEnded(
        worker,
        str(ended.key[0]),
        None,
        ended.kind.name,
        ended.attempt,
        ended.ending,
        ended.seconds,
        ended.error,
        None,
        ended.exception,
        ended.kind.queue,
        wait_seconds=ended.wait_seconds,
        kind="record",
    )
