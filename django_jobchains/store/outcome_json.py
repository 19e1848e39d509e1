"""Outcomes of attempts as JSON: stored until their jobs are free, or sent by the child process that ran the attempt."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from django_jobchains.store.rows import AttemptKey, Effects, EndedAttempt, FailedTry, FailedWaiter, FinishedJob, NewJob


def outcome_json(values: Mapping[str, Any]) -> str:
    """Return the values of outcomes as a JSON text."""
    return json.dumps(values, default=_plain)


def outcome_values(attempt: EndedAttempt) -> dict[str, Any]:
    """Return how an attempt ended, without its key."""
    row = {} if isinstance(attempt.row, tuple) else asdict(attempt.row)
    return {**row, "ending": attempt.ending, "retry_seconds": attempt.retry_seconds}


def ended_attempt(key: AttemptKey, values: Mapping[str, Any]) -> EndedAttempt:
    """Return how the attempt with this key ended, from values that were read from JSON."""
    ending = values["ending"]
    if ending == "completed":
        continuation = values["continuation"] and _new_job(values["continuation"])
        return EndedAttempt(ending, FinishedJob(*key, values["output"], continuation))
    if ending == "handed_back":
        return EndedAttempt(ending, key)
    texts = (values["error"], values["traceback"])
    when = (_time(values["run_at"]), values["delay_seconds"])
    return EndedAttempt(ending, FailedTry(*key, *texts, *when, values["is_failure"], values["kind"]))


def effects_values(effects: Effects) -> dict[str, Any]:
    """Return the values of effects, which are announced after a commit."""
    return {**asdict(effects), "failed_waiters": list(effects.failed_waiters.values())}


def effects_of(values: Mapping[str, Any]) -> Effects:
    """Return effects from values that were read from JSON."""
    waiters = [
        FailedWaiter(UUID(job_id), UUID(chain_id), *rest) for job_id, chain_id, *rest in values["failed_waiters"]
    ]
    return Effects(
        set(values["due_types"]),
        values["due_counts"],
        {UUID(id_) for id_ in values["finished_chains"]},
        {UUID(id_) for id_ in values["stopped_jobs"]},
        {waiter.job_id: waiter for waiter in waiters},
    )


def _plain(value: Any) -> Any:
    match value:
        case UUID():
            return value.hex
        case datetime():
            return value.isoformat()
        case set() | frozenset():
            return sorted(value, key=str)
    raise TypeError(f"{value!r} is not part of an outcome.")


def _new_job(values: Mapping[str, Any]) -> NewJob:
    accepted, slots = values["accepted_blockers"], values["blocker_slots"]
    read = {
        "id": UUID(values["id"]),
        "chain_id": UUID(values["chain_id"]),
        "run_at": _time(values["run_at"]),
        "blockers": tuple(UUID(id_) for id_ in values["blockers"]),
        "accepted_blockers": None if accepted is None else frozenset(accepted),
        "blocker_slots": None if slots is None else tuple(slots),
    }
    known = {field.name for field in fields(NewJob)}  # A worker of a later version may have stored more.
    return NewJob(**{name: value for name, value in {**values, **read}.items() if name in known})


def _time(text: str | None) -> datetime | None:
    return text and datetime.fromisoformat(text)  # type: ignore[return-value]
