"""The messages between a worker and the child process that handles a record. They are JSON, in both directions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django_jobchains.attempts.record_attempt import EndedRecord
from django_jobchains.pools import RemoteError
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import RecordEnd, RecordKey
from django_jobchains.text.errors import traceback_of, type_name


def record_request(kind: RecordType, record: Any, key: RecordKey, using: str) -> dict[str, Any]:
    """Return the request to handle a record that the worker has dequeued."""
    id_text = _primary_key(kind).value_to_string(record)
    return {"type_name": kind.name, "id": id_text, "lease_number": key[1], "using": using}


def key_of_request(request: Mapping[str, Any], kind: RecordType) -> RecordKey:
    return _primary_key(kind).to_python(request["id"]), request["lease_number"]


def ended_message(ended: EndedRecord) -> dict[str, Any]:
    """Return how an attempt ended as JSON values. The worker knows the rest."""
    end = ended.end
    return {
        "end": None if end is None else [end.kind, end.process_after and end.process_after.isoformat(), end.message],
        "state": ended.state,
        "seconds": ended.seconds,
        "error": ended.error,
        "error_type": ended.exception and type_name(ended.exception),
        "abandoned_reason": ended.abandoned_reason,
        "traceback": None if ended.exception is None else traceback_of(ended.exception),
    }


def ended_of_message(message: Mapping[str, Any], kind: RecordType, key: RecordKey, attempt: int) -> EndedRecord:
    """Return what a child process has sent."""
    end = message["end"] and _end(key, *message["end"], max_attempts=kind.max_attempts)
    ended = EndedRecord(kind, key, attempt, end, message["state"], message["seconds"], message["error"])
    ended.abandoned_reason = message["abandoned_reason"]
    if message["traceback"]:
        ended.exception = remote_error(message["error"], message["traceback"], message["error_type"])
    return ended


def remote_error(description: str, traceback: str, qualified_type_name: str | None) -> RemoteError:
    """Return an error that stands for the one in the child process, in telemetry."""
    name, _, text = description.partition(": ")
    error = RemoteError(name, text, traceback)
    error.qualified_type_name = qualified_type_name
    error.add_note(traceback)
    return error


def _end(key: RecordKey, kind: Any, process_after: str | None, message: str, *, max_attempts: int) -> RecordEnd:
    time = None if process_after is None else datetime.fromisoformat(process_after)
    return RecordEnd(*key, kind, time, message, max_attempts)


def _primary_key(kind: RecordType) -> Any:
    return kind.model._meta.pk
