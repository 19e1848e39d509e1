"""Outcomes of attempts, and requests to cancel, that wait for a row to be free: stored, and applied later.

Any worker applies them. A lease number fences each outcome, so one that comes too late changes nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime
from logging import getLogger
from typing import Any
from uuid import UUID

from django_jobchains.policies import Backoff
from django_jobchains.store.deferred_writes import DeferredRow
from django_jobchains.store.ending import Ending
from django_jobchains.store.errors import is_conflict, is_database_away, retried
from django_jobchains.store.interventions import Interventions
from django_jobchains.store.leases import Leases
from django_jobchains.store.rows import Effects, EndedAttempt, FailedTry, FinishedJob, HeldLease, NewJob
from django_jobchains.texts import describe, log_text, traceback_of

logger = getLogger("django_jobchains")


class DeferredOutcomes(Ending, Leases, Interventions):
    @retried
    def defer(self, ended: Sequence[EndedAttempt]) -> None:
        """Stores how attempts ended whose jobs someone else has locked. From now on nobody takes their jobs back."""
        with self.transaction():
            self._defer_outcomes([(attempt.key, _as_json(attempt)) for attempt in ended])

    def apply_deferred(self, limit: int, after: int, effects: Effects) -> int | None:
        """Applies outcomes and requests to cancel whose jobs are no longer locked.

        Looks at the next ``limit`` of them, those with a number above ``after``; returns where to go on, None at the
        end. Deletes prolonged leases that have run out.
        """
        self._forget_ended_renewals(limit)
        ids = self._to_apply(after, limit)
        for id_ in ids:
            self._apply_safely(id_, effects)
        return ids[-1] if len(ids) == limit else None

    def _apply_safely(self, id: int, effects: Effects) -> None:
        """Whatever is wrong with one of them keeps no other waiting. What met a lock is tried again later."""
        try:
            self._apply(id, effects)
        except Exception as error:
            if is_database_away(error):
                raise
            if not is_conflict(error):
                self._fail_deferred(id, error, effects)

    @retried
    def _apply(self, id: int, effects: Effects) -> None:
        with self.transaction():
            self._write_first()
            row = self._lock_deferred(id)
            if row is None:
                return
            is_done = self._end(_ended_attempt(row), effects) if row.outcome else self._cancel_if_free(row, effects)
            if is_done:
                self._forget_deferred(id)

    def _fail_deferred(self, id: int, error: Exception, effects: Effects) -> None:
        """The outcome cannot be written: the job is tried again, as after that error in ``complete()``."""
        try:
            with self.transaction():
                self._write_first()
                if row := self._lock_deferred(id):
                    texts = describe(error), traceback_of(error)
                    failed = FailedTry(row.job_id, row.lease_number, *texts, delay_seconds=Backoff().seconds(1))
                    if self._end(EndedAttempt("rescheduled", failed), effects):
                        self._forget_deferred(id)
        except Exception as problem:
            if is_database_away(problem):
                raise
            logger.warning("Deferred write %d cannot be applied yet: %s", id, log_text(problem))

    def _end(self, attempt: EndedAttempt, effects: Effects) -> bool:
        """False while someone has the job locked."""
        match attempt.row:
            case FinishedJob():
                is_written = bool(self.finish([attempt.row], effects))
            case FailedTry():
                is_written = bool(
                    (self.fail if attempt.ending == "failed" else self.reschedule)([attempt.row], effects)
                )
            case HeldLease():
                is_written = bool(self.hand_back([attempt.row], effects))
        return is_written or bool(self.check([HeldLease(*attempt.key, 0)]).lost)

    def _cancel_if_free(self, row: DeferredRow, effects: Effects) -> bool:
        """False while someone has its last job locked, and when that has changed meanwhile."""
        tail = self.tails([row.job_id]).get(row.job_id)
        if tail is None:
            return True
        if not self._lock_unlocked([tail.job_id]) or self.tails([row.job_id])[row.job_id].job_id != tail.job_id:
            return False
        self._cancel_jobs([tail.job_id], effects)
        return True


def _as_json(attempt: EndedAttempt) -> str:
    row = attempt.row._asdict() if isinstance(attempt.row, HeldLease) else asdict(attempt.row)
    return json.dumps({"ending": attempt.ending, **row}, default=_plain)


def _plain(value: Any) -> Any:
    match value:
        case UUID():
            return value.hex
        case datetime():
            return value.isoformat()
        case frozenset():
            return sorted(value)
    raise TypeError(f"{value!r} is not part of an outcome.")


def _ended_attempt(row: DeferredRow) -> EndedAttempt:
    values = json.loads(row.outcome or "{}")
    key, ending = (row.job_id, row.lease_number), values["ending"]
    if ending == "completed":
        continuation = values["continuation"] and _new_job(values["continuation"])
        return EndedAttempt(ending, FinishedJob(*key, values["output"], continuation))
    if ending == "handed_back":
        return EndedAttempt(ending, HeldLease(*key, values["seconds"]))
    texts = (values["error"], values["traceback"])
    return EndedAttempt(ending, FailedTry(*key, *texts, _time(values["run_at"]), values["delay_seconds"]))


def _new_job(values: dict[str, Any]) -> NewJob:
    accepted = values["accepted_blockers"]
    read = {
        "id": UUID(values["id"]),
        "chain_id": UUID(values["chain_id"]),
        "run_at": _time(values["run_at"]),
        "blockers": tuple(UUID(id_) for id_ in values["blockers"]),
        "accepted_blockers": None if accepted is None else frozenset(accepted),
    }
    known = {field.name for field in fields(NewJob)}  # a worker of a later version may have stored more
    return NewJob(**{name: value for name, value in {**values, **read}.items() if name in known})


def _time(text: str | None) -> datetime | None:
    return text and datetime.fromisoformat(text)  # type: ignore[return-value]
