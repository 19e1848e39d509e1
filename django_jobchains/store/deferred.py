"""Stores outcomes of attempts at jobs and records, and requests to cancel, until a row is free; applies them later.

Any worker applies them. A lease number fences each outcome, so a late one changes nothing.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from logging import getLogger
from typing import Any

from django_jobchains.payloads.codecs import encode_payloads, encode_text
from django_jobchains.store.attempts import Attempts
from django_jobchains.store.chains import Chains
from django_jobchains.store.database import Database, Part
from django_jobchains.store.errors import is_conflict, is_database_away, is_out_of_time, is_statement_invalid, retried
from django_jobchains.store.last_jobs import LastJobs
from django_jobchains.store.leases import Leases
from django_jobchains.store.record_operations import RecordOperations
from django_jobchains.store.record_tables import RecordEnd, RecordTable
from django_jobchains.store.records import Records, lost_reason
from django_jobchains.store.rows import (
    Effects,
    EndedAttempt,
    FailedTry,
    FinishedJob,
    ended_attempt,
    outcome_json,
    outcome_values,
)
from django_jobchains.store.writes import DeferredRow, DeferredWrites
from django_jobchains.text.errors import describe, log_error, log_text, traceback_of

logger = getLogger("django_jobchains")

NOT_YET = "Deferred write %d cannot be applied yet: %s"
#: Writes a deferred row, or in its place the failure due to an error. Returns False while the row is locked.
Write = Callable[[DeferredRow, Exception | None], bool]


class Deferred(Part):
    def __init__(
        self,
        db: Database,
        writes: DeferredWrites,
        last_jobs: LastJobs,
        attempts: Attempts,
        leases: Leases,
        chains: Chains,
        records: Records,
        record_operations: RecordOperations,
    ) -> None:
        super().__init__(db)
        self._writes = writes
        self._last_jobs = last_jobs
        self._attempts = attempts
        self._leases = leases
        self._chains = chains
        self._records = records
        self._record_operations = record_operations

    @retried
    def defer(self, ended: Sequence[EndedAttempt]) -> None:
        """Store the outcomes of attempts whose jobs are locked. From now on, no worker takes these jobs back."""
        with self.db.transaction():
            self._writes.add_outcomes(
                [(attempt.key, outcome_json(encode_payloads(outcome_values(attempt)))) for attempt in ended]
            )

    def apply(self, limit: int, after: int, effects: Effects) -> int | None:
        """Apply outcomes and requests to cancel whose jobs are no longer locked.

        Reads up to ``limit`` of them with a number above ``after``. Returns the number to continue after, or None at
        the end. Deletes deferred renewals that have expired.
        """
        self._writes.forget_ended_renewals(limit)
        ids = self._writes.to_apply(after, limit)
        for id_ in ids:
            self._apply_safely(id_, partial(self._write, effects), effects)
        return ids[-1] if len(ids) == limit else None

    @retried
    def defer_records(self, table: RecordTable, ends: Sequence[RecordEnd]) -> None:
        """Store the ends of attempts whose records are locked. From now on, no worker resets these records."""
        values = []
        for end in ends:
            stored = end._replace(id=table.ids.to_parameter(end.id), message=encode_text(end.message))
            values.append({**stored._asdict(), "table": table.name})
        with self.db.transaction():
            self._writes.add_record_ends([json.dumps(each, default=str) for each in values])

    def apply_records(self, table: RecordTable) -> list[Any]:
        """Write the ends of records that are no longer locked, and cancel those for which this was requested.

        Return the ids of the records that are to be kept.
        """
        if ids := self._record_ends(table):
            for id_ in ids:
                self._apply_safely(id_, partial(self._write_record, table), Effects())
            ids = self._record_ends(table)
        return list(ids.values())

    def _record_ends(self, table: RecordTable) -> dict[int, Any]:
        ends = [(id_, json.loads(text)) for id_, text in self._writes.record_ends()]
        return {id_: table.ids.from_column(end["id"]) for id_, end in ends if end["table"] == table.name}

    def _apply_safely(self, id: int, write: Write, effects: Effects) -> None:
        """Apply one write, so that its error does not affect the others. One that met a lock is tried again later."""
        try:
            self._apply(id, write, effects)
        except Exception as error:
            if is_database_away(error):
                raise
            if is_out_of_time(error) or is_statement_invalid(error):
                logger.warning(NOT_YET, id, log_text(error))
            elif not is_conflict(error):
                self._fail(id, write, effects, error)

    @retried
    def _apply(self, id: int, write: Write, effects: Effects, error: Exception | None = None) -> None:
        with effects.undone_on_error(), self.db.transaction():
            self.db.write_first()
            row = self._writes.lock(id)
            if row and write(row, error):
                self._writes.forget(id)

    def _fail(self, id: int, write: Write, effects: Effects, error: Exception) -> None:
        """Fail an attempt whose outcome cannot be written. The policy of the job's type decides what follows."""
        try:
            self._apply(id, write, effects, error)
        except Exception as problem:
            if is_database_away(problem):
                raise
            logger.warning(NOT_YET, id, log_text(problem))

    def _write(self, effects: Effects, row: DeferredRow, error: Exception | None) -> bool:
        if error is not None:
            return self._end(_failed_attempt(row, error), effects)
        if row.outcome:
            return self._end(ended_attempt((row.job_id, row.lease_number), json.loads(row.outcome)), effects)
        return self._cancel_if_free(row, effects)

    def _write_record(self, table: RecordTable, row: DeferredRow, error: Exception | None) -> bool:
        values = json.loads(row.outcome or "{}")
        if values["kind"] == "cancel":
            select = f"SELECT {self.db.cast('%s', table.id_type)}"
            _, left = self._record_operations.cancel_unlocked(table, (select, [values["id"]]))
            return not left
        after = values["process_after"]
        values.update(id=table.ids.from_column(values["id"]), process_after=after and datetime.fromisoformat(after))
        # A row of the previous version lacks new fields.
        end = RecordEnd(**{name: values[name] for name in RecordEnd._fields if name in values})
        if error is not None:  # The message may be the reason.
            log_error(logger, error, "The end of record %s cannot be written, so it errored: %s", end.id)
            end = end._replace(kind="errored", message="")
        if self._records.end(table, [end]):
            return True
        found = self._records.state_of(table, end.id)
        return lost_reason(found, end.lease_number) is not None

    def _end(self, attempt: EndedAttempt, effects: Effects) -> bool:
        """Write the outcome. Return False while another transaction has locked the job."""
        match attempt.row:
            case FinishedJob():
                is_written = bool(self._attempts.finish([attempt.row], effects))
            case FailedTry():
                end = self._attempts.fail if attempt.ending == "failed" else self._attempts.reschedule
                is_written = bool(end([attempt.row], effects))
            case _:
                is_written = bool(self._attempts.hand_back([attempt.key], effects, has_begun=attempt.has_begun))
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


def _failed_attempt(row: DeferredRow, error: Exception) -> EndedAttempt:
    """Return the failure that replaces an outcome that cannot be written. That of a request to cancel has no lease."""
    seconds = json.loads(row.outcome or "{}").get("retry_seconds")
    failed = FailedTry(row.job_id, row.lease_number, describe(error), traceback_of(error), delay_seconds=seconds)
    return EndedAttempt("failed" if seconds is None else "retried", failed)
