"""Stores outcomes of attempts, and requests to cancel, until a row is free, and applies them later.

Any worker applies them. A lease number fences each outcome, so a late one changes nothing.
"""

import json
from collections.abc import Sequence
from logging import getLogger

from django_jobchains.payload_codecs import encode_payloads
from django_jobchains.policies import Backoff
from django_jobchains.store.attempts import Attempts
from django_jobchains.store.chains import Chains
from django_jobchains.store.database import Database
from django_jobchains.store.deferred_writes import DeferredRow, DeferredWrites
from django_jobchains.store.errors import is_conflict, is_database_away, retried
from django_jobchains.store.last_jobs import LastJobs
from django_jobchains.store.leases import Leases
from django_jobchains.store.outcome_json import ended_attempt, outcome_json, outcome_values
from django_jobchains.store.rows import Effects, EndedAttempt, FailedTry, FinishedJob
from django_jobchains.store.statements import Part
from django_jobchains.text.errors import describe, log_text, traceback_of

logger = getLogger("django_jobchains")


class Deferred(Part):
    def __init__(
        self,
        db: Database,
        writes: DeferredWrites,
        last_jobs: LastJobs,
        attempts: Attempts,
        leases: Leases,
        chains: Chains,
    ) -> None:
        super().__init__(db)
        self._writes = writes
        self._last_jobs = last_jobs
        self._attempts = attempts
        self._leases = leases
        self._chains = chains

    @retried
    def defer(self, ended: Sequence[EndedAttempt]) -> None:
        """Store the outcomes of attempts whose jobs others have locked. From now on nobody takes these jobs back."""
        with self.db.transaction():
            self._writes.add_outcomes([(attempt.key, _as_json(attempt)) for attempt in ended])

    def apply(self, limit: int, after: int, effects: Effects) -> int | None:
        """Apply outcomes and requests to cancel whose jobs are no longer locked.

        Reads up to ``limit`` of them with a number above ``after``. Returns the number to continue after, or None at
        the end. Deletes deferred renewals that have expired.
        """
        self._writes.forget_ended_renewals(limit)
        ids = self._writes.to_apply(after, limit)
        for id_ in ids:
            self._apply_safely(id_, effects)
        return ids[-1] if len(ids) == limit else None

    def _apply_safely(self, id: int, effects: Effects) -> None:
        """Apply one write, so that its error does not affect the others. One that met a lock is tried again later."""
        try:
            self._apply(id, effects)
        except Exception as error:
            if is_database_away(error):
                raise
            if not is_conflict(error):
                self._fail(id, error, effects)

    @retried
    def _apply(self, id: int, effects: Effects) -> None:
        with self.db.transaction():
            self.db.write_first()
            row = self._writes.lock(id)
            if row is None:
                return
            is_done = self._end(_ended_attempt(row), effects) if row.outcome else self._cancel_if_free(row, effects)
            if is_done:
                self._writes.forget(id)

    def _fail(self, id: int, error: Exception, effects: Effects) -> None:
        """Fail an attempt whose outcome cannot be written. The policy of the job's type decides what follows."""
        try:
            with self.db.transaction():
                self.db.write_first()
                row = self._writes.lock(id)
                if row and self._end(_failed_attempt(row, error), effects):
                    self._writes.forget(id)
        except Exception as problem:
            if is_database_away(problem):
                raise
            logger.warning("Deferred write %d cannot be applied yet: %s", id, log_text(problem))

    def _end(self, attempt: EndedAttempt, effects: Effects) -> bool:
        """Write the outcome. Return False while another transaction has locked the job."""
        match attempt.row:
            case FinishedJob():
                is_written = bool(self._attempts.finish([attempt.row], effects))
            case FailedTry():
                end = self._attempts.fail if attempt.ending == "failed" else self._attempts.reschedule
                is_written = bool(end([attempt.row], effects))
            case _:
                is_written = bool(self._attempts.hand_back([attempt.key], effects))
        return is_written or bool(self._leases.check([attempt.key]).lost)

    def _cancel_if_free(self, row: DeferredRow, effects: Effects) -> bool:
        """Cancel a chain. Return False if others have locked its last job, or it is no longer the last."""
        last_job = self._last_jobs.read([row.job_id]).get(row.job_id)
        if last_job is None:
            return True
        is_locked = self._last_jobs.lock_unlocked([last_job.job_id])
        if not is_locked or self._last_jobs.read([row.job_id])[row.job_id].job_id != last_job.job_id:
            return False
        self._chains.cancel_jobs([last_job.job_id], effects)
        return True


def _as_json(attempt: EndedAttempt) -> str:
    return outcome_json(encode_payloads(outcome_values(attempt)))


def _ended_attempt(row: DeferredRow) -> EndedAttempt:
    return ended_attempt((row.job_id, row.lease_number), json.loads(row.outcome or "{}"))


def _failed_attempt(row: DeferredRow, error: Exception) -> EndedAttempt:
    """Return the failure that replaces an outcome that cannot be written."""
    # Workers of earlier versions did not store the wait.
    seconds = json.loads(row.outcome or "{}").get("retry_seconds", Backoff().initial_seconds)
    failed = FailedTry(row.job_id, row.lease_number, describe(error), traceback_of(error), delay_seconds=seconds)
    return EndedAttempt("failed" if seconds is None else "retried", failed)
