"""Outcomes of attempts, and requests to cancel, that wait for a row to be free: stored, and applied later.

Any worker applies them. A lease number fences each outcome, so one that comes too late changes nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import Error

from django_jobchains.store.ending import Ending
from django_jobchains.store.errors import blames_statement, retried
from django_jobchains.store.interventions import Interventions
from django_jobchains.store.leases import Leases
from django_jobchains.store.rows import (
    AttemptKey,
    Effects,
    EndedAttempt,
    FailedTry,
    FinishedJob,
    HeldLease,
    NewJob,
)
from django_jobchains.texts import describe, traceback_of


class DeferredOutcomes(Ending, Leases, Interventions):
    @retried
    def defer(self, ended: Sequence[EndedAttempt]) -> None:
        """Stores how attempts ended whose jobs someone else has locked. From now on nobody takes their jobs back."""
        with self.transaction():
            self._defer_outcomes([(attempt.key, _as_json(attempt)) for attempt in ended])

    def apply_deferred(self, limit: int, effects: Effects) -> int:
        """Applies outcomes and requests to cancel whose jobs are no longer locked; returns how many it has done with.

        Deletes prolonged leases that have run out.
        """
        self._forget_ended_renewals()
        return self._apply_outcomes(limit, effects) + self._apply_cancelling(limit, effects)

    def _apply_outcomes(self, limit: int, effects: Effects) -> int:
        deferred = [
            (key, _ended_attempt(key, json.loads(text or "{}"))) for key, text in self._deferred("outcome", limit)
        ]
        if not deferred:
            return 0
        for _, attempt in deferred:
            self._end_if_free(attempt, effects)
        found = self.check([HeldLease(*key, 0) for key, _ in deferred])
        done = [key for key, _ in deferred if key in found.lost]  # by us, or by someone who was earlier
        if done:
            self._forget_deferred("outcome", done)
        return len(done)

    def _end_if_free(self, attempt: EndedAttempt, effects: Effects) -> None:
        """Whatever is wrong with one outcome does not keep the others waiting."""
        try:
            self._end(attempt, effects)
        except Error as error:
            if not blames_statement(error):
                raise  # the next round tries again, as it does after a time limit
        except Exception as error:  # a blocker of the continuation is gone, for example
            failed = FailedTry(*attempt.key, describe(error), traceback_of(error))
            self._end(EndedAttempt("failed", failed), effects)

    def _end(self, attempt: EndedAttempt, effects: Effects) -> None:
        match attempt.row:
            case FinishedJob():
                self.finish([attempt.row], effects)
            case FailedTry():
                (self.fail if attempt.ending == "failed" else self.reschedule)([attempt.row], effects)
            case HeldLease():
                self.hand_back([attempt.row], effects)

    def _apply_cancelling(self, limit: int, effects: Effects) -> int:
        done = [key for key, _ in self._deferred("cancel", limit) if self._cancel_if_free(key[0], effects)]
        if done:
            self._forget_deferred("cancel", done)
        return len(done)

    @retried
    def _cancel_if_free(self, chain_id: UUID, effects: Effects) -> bool:
        """False while its last job runs and someone has it locked."""
        with self.transaction():
            self._write_first()
            tail = self.tails([chain_id]).get(chain_id)
            if tail and tail.status == "running" and not self._lock_running([tail.job_id]):
                return False
            self._cancel_jobs([tail.job_id for tail in self.lock_tails([chain_id]).values()], effects)
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


def _ended_attempt(key: AttemptKey, values: dict[str, Any]) -> EndedAttempt:
    ending = values["ending"]
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
    return NewJob(**{**values, **read})


def _time(text: str | None) -> datetime | None:
    return text and datetime.fromisoformat(text)  # type: ignore[return-value]
