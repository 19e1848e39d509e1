"""The messages between a worker and the child process that runs an attempt: requests, and how the attempt ended.

They are JSON, in both directions.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.utils.module_loading import import_string

from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.attempts.record_attempt import EndedRecord
from django_jobchains.db.ids import id_of
from django_jobchains.declare.job_types import Processor
from django_jobchains.declare.policies import AttemptPolicy, Backoff, BackoffFunction, Lease, resolve
from django_jobchains.isolation import Isolation
from django_jobchains.pools import RemoteError
from django_jobchains.records.declarations import RecordType
from django_jobchains.store.record_tables import RecordEnd, RecordKey
from django_jobchains.store.rows import (
    AttemptKey,
    ClaimedJob,
    EndedAttempt,
    FailedTry,
    FinishedJob,
    effects_of,
    effects_values,
    ended_attempt,
    outcome_json,
    outcome_values,
)
from django_jobchains.text.errors import traceback_of, type_name

#: Positions of columns in a claimed job.
_ID, _LEASE_NUMBER = map(ClaimedJob._fields.index, ("id", "lease_number"))
_IDS = tuple(map(ClaimedJob._fields.index, ("id", "chain_id")))
_TIMES = tuple(map(ClaimedJob._fields.index, ("run_at", "created_at", "scheduled_for", "last_attempt_at")))
#: The level of a handler that runs in the child itself.
_HERE = Isolation("inline")


def attempt_request(
    jobs: Sequence[ClaimedJob], processor: Processor, policy: AttemptPolicy, using: str, reports_begin: bool
) -> Any:
    """Return the request to run an attempt at these jobs, which are of one type and claimed by one worker.

    ``reports_begin``: whether the child process reports that the attempt begins.
    """
    return {
        "jobs": [_job_values(job) for job in jobs],
        "type_name": processor.job_type.name,
        "using": using,
        "policy": _policy_text(policy),
        "reports_begin": reports_begin,
    }


def jobs_of_request(request: Mapping[str, Any]) -> list[ClaimedJob]:
    return [_job_of(values) for values in request["jobs"]]


def policy_of_request(request: Mapping[str, Any], processor: Processor) -> AttemptPolicy:
    """Return the policy of the attempt. The worker applies its timeout."""
    backoff, lease, max_attempts = _policy_parts(request["policy"])
    return AttemptPolicy(backoff or resolve(*processor.policies).backoff, lease, max_attempts, math.inf, _HERE)


def outcome_message(outcome: Outcome, index: int) -> list[Any]:
    """Return an outcome as JSON values. ``index``: the index of its job in the request."""
    finished, error = outcome.finished, outcome.exception
    if finished is not None and finished.continuation is None:  # This is by far the most common outcome.
        row: Any = finished.output
    else:
        ended = outcome.finished or outcome.failed
        row = ended and _plain(outcome_values(EndedAttempt(outcome.ending.value, ended)))  # type: ignore[arg-type]
    effects = outcome.effects and _plain(effects_values(outcome.effects))
    error_type = None if error is None else type_name(error)
    was_called = outcome.processor is not None
    texts = [outcome.error, error_type, outcome.abandoned_reason]
    return [index, outcome.ending, row, effects, outcome.seconds, *texts, was_called]


def outcome_of_message(
    message: Sequence[Any], jobs: Sequence[ClaimedJob], processor: Processor, policy: AttemptPolicy
) -> Outcome:
    """Return the outcome that a child process has sent."""
    index, ending, values, effects, seconds, error, error_type, abandoned_reason, was_called = message
    job = jobs[index]
    row = _row(job, ending, values)
    failed = row if isinstance(row, FailedTry) else None
    return Outcome(
        job,
        OutcomeKind(ending),
        row if isinstance(row, FinishedJob) else None,
        failed,
        None if effects is None else effects_of(effects),
        seconds,
        error,
        remote_error(failed.error, failed.traceback, error_type) if failed and failed.traceback else None,
        processor if was_called else None,
        policy if was_called else None,
        abandoned_reason=abandoned_reason,
    )


def _row(job: ClaimedJob, ending: str, values: Any) -> FinishedJob | FailedTry | AttemptKey | None:
    if isinstance(values, dict):
        return ended_attempt(job.key, values).row
    return FinishedJob(*job.key, values) if ending == OutcomeKind.COMPLETED else None


def remote_error(description: str, traceback: str, qualified_type_name: str | None) -> RemoteError:
    """Return an error that stands for the one in the child process, in telemetry."""
    name, _, text = description.partition(": ")
    error = RemoteError(name, text, traceback)
    error.qualified_type_name = qualified_type_name
    error.add_note(traceback)
    return error


def is_known_to_children(backoff: Backoff | BackoffFunction, processor: Processor) -> bool:
    """Return whether a child process can find the backoff: by its values, by its name, or in the processor."""
    if isinstance(backoff, Backoff) or _name_of(backoff):
        return True
    return backoff == resolve(*processor.policies).backoff


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values without UUIDs, dates and sets."""
    plain: dict[str, Any] = json.loads(outcome_json(values))
    return plain


def _job_values(job: ClaimedJob) -> list[Any]:
    """Return a claimed job as JSON values, without its key. Its payloads are texts, as they are stored."""
    values: list[Any] = list(job[:-1])
    for position in _IDS:
        values[position] = values[position].hex
    for position in _TIMES:
        values[position] = values[position] and _time_text(values[position])
    return values


def _job_of(values: list[Any]) -> ClaimedJob:
    for position in _IDS:
        values[position] = id_of(int(values[position], 16))  # This is faster than from hex.
    for position in _TIMES:
        values[position] = values[position] and datetime.fromisoformat(values[position])
    return ClaimedJob._make([*values, (values[_ID], values[_LEASE_NUMBER])])


#: A cache, because jobs that are enqueued or claimed together have the same times.
_time_text = lru_cache(maxsize=1000)(datetime.isoformat)


@lru_cache(maxsize=1000)
def _policy_text(policy: AttemptPolicy) -> str:
    """Return what a child process needs of a policy, as JSON. There are as many policies as job types."""
    max_attempts = None if policy.max_attempts == math.inf else policy.max_attempts
    # The values of a backoff, the name of a function, or None for a function of the processor itself.
    backoff = asdict(policy.backoff) if isinstance(policy.backoff, Backoff) else _name_of(policy.backoff)
    return json.dumps([backoff, policy.lease.seconds, max_attempts])


@lru_cache(maxsize=1000)
def _policy_parts(text: str) -> tuple[Backoff | BackoffFunction | None, Lease, float]:
    """Return the backoff (None for the processor's), the lease, and the limit of attempts."""
    backoff, lease_seconds, max_attempts = json.loads(text)
    if backoff is not None:
        backoff = import_string(backoff) if isinstance(backoff, str) else Backoff(**backoff)
    return backoff, Lease(lease_seconds), math.inf if max_attempts is None else max_attempts


def _name_of(function: BackoffFunction) -> str | None:
    """Return the dotted path of a function, or None if it cannot be imported."""
    path = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    try:
        return path if import_string(path) is function else None
    except ImportError:
        return None


# Records


def record_request(kind: RecordType, record: Any, key: RecordKey, using: str) -> dict[str, Any]:
    """Return the request to handle a record that the worker has dequeued."""
    id_text = _primary_key(kind).value_to_string(record)
    return {"type_name": kind.name, "id": id_text, "lease_number": key[1], "using": using}


def key_of_request(request: Mapping[str, Any], kind: RecordType) -> RecordKey:
    return _primary_key(kind).to_python(request["id"]), request["lease_number"]


def ended_message(ended: EndedRecord) -> dict[str, Any]:
    """Return how an attempt ended as JSON values. The worker knows the rest."""
    end = ended.end
    after = end and end.process_after and end.process_after.isoformat()
    return {
        "end": None if end is None else [end.kind, after, end.message, end.delay_seconds],
        "state": ended.state,
        "seconds": ended.seconds,
        "error": ended.error,
        "error_type": ended.exception and type_name(ended.exception),
        "abandoned_reason": ended.abandoned_reason,
        "traceback": None if ended.exception is None else traceback_of(ended.exception),
    }


def ended_of_message(message: Mapping[str, Any], kind: RecordType, key: RecordKey, attempt: int) -> EndedRecord:
    """Return what a child process has sent."""
    end = message["end"] and _end(key, kind.max_attempts, *message["end"])
    ended = EndedRecord(kind, key, attempt, end, message["state"], message["seconds"], message["error"])
    ended.abandoned_reason = message["abandoned_reason"]
    if message["traceback"]:
        ended.exception = remote_error(message["error"], message["traceback"], message["error_type"])
    return ended


def _end(
    key: RecordKey, max_attempts: int, kind: Any, after: str | None, message: str, delay_seconds: float | None
) -> RecordEnd:
    time = None if after is None else datetime.fromisoformat(after)
    return RecordEnd(*key, kind, time, message, max_attempts, delay_seconds)


def _primary_key(kind: RecordType) -> Any:
    return kind.model._meta.pk
