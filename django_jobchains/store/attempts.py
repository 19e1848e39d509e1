"""The writes of attempts: a job is locked, and then completed, failed, rescheduled or returned to the queue."""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any
from uuid import UUID

from django.db import OperationalError

from django_jobchains.exceptions import JobLocked
from django_jobchains.payloads.codecs import encode_json, encode_text, get_codec
from django_jobchains.statuses import FINAL
from django_jobchains.store.blockers import Blockers
from django_jobchains.store.database import Database, OpenTransaction, Part, ids_json, rows_json, statement
from django_jobchains.store.errors import is_lock_timeout, retried
from django_jobchains.store.jobs import Jobs
from django_jobchains.store.last_jobs import LastJobs
from django_jobchains.store.rates import Rates
from django_jobchains.store.rows import AttemptKey, Effects, FailedTry, FailureKind, FinishedJob, NewJob
from django_jobchains.store.writes import FENCE, FencedWrites, Written

_KEYS = "job_id uuid, n int"
_FINISHED = "job_id uuid, n int, output text"
_FAILED = "job_id uuid, n int, error text, traceback text, run_at timestamptz, delay_seconds float, kind text"
#: SQL of the new number of crashes.
_CRASHES = "crashes = job.crashes + CASE d.kind WHEN 'crash' THEN 1 ELSE 0 END"


class Attempts(Part):
    def __init__(
        self,
        db: Database,
        last_jobs: LastJobs,
        blockers: Blockers,
        jobs: Jobs,
        writes: FencedWrites,
        rates: Rates,
    ) -> None:
        super().__init__(db)
        self._last_jobs = last_jobs
        self._blockers = blockers
        self._jobs = jobs
        self._writes = writes
        self._rates = rates

    def lock(
        self, job_id: UUID, transaction: OpenTransaction | None = None, *, skips: bool = False
    ) -> tuple[str, int] | None:
        """Lock a job's row for the caller's transaction; return its status and lease number, or None if it is gone.

        Fills in ``transaction``, by which ``finish`` and ``renew`` notice that the caller's transaction has ended.
        ``skips``: raises ``JobLocked`` instead of waiting for a lock.
        """
        look = None if skips else self._read_locked
        rows = self.db.fetch_first(self.db.lock_sql(skips=skips), look, job_id)
        for status, lease_number, transaction_id, unawaited_chain_id in rows:
            self.db.mark(transaction, transaction_id)
            if transaction is not None and unawaited_chain_id is not None:
                transaction.unawaited_chain_id = self.db.id(unawaited_chain_id)
            return status, lease_number
        if skips and self._jobs.state_of(job_id):
            raise JobLocked
        return None

    def lock_all(
        self, job_ids: Collection[UUID], transaction: OpenTransaction | None = None, *, skips: bool = False
    ) -> dict[UUID, tuple[str, int]]:
        """``lock`` several jobs, in the order of their ids. Jobs that do not exist are missing from the result."""
        self.db.begin()
        locked = self._last_jobs.lock_jobs(job_ids, skips=skips)
        rows = self.db.fetch(self._look_all, [ids_json(job_ids)])
        for _, _, _, transaction_id in rows[:1]:
            self.db.mark(transaction, transaction_id)
        found = {self.db.id(id_): (status, number) for id_, status, number, _ in rows}
        if skips and not locked.keys() >= found.keys():
            raise JobLocked
        return found

    @retried
    def finish(
        self,
        jobs: Sequence[FinishedJob],
        effects: Effects | None = None,
        *,
        is_locked: bool = False,
        transaction: OpenTransaction | None = None,
        is_last: bool = False,
    ) -> set[AttemptKey]:
        """Complete attempts and create their continuations. Return the attempts that still held their lease.

        Jobs that waited for chains that end here are freed. ``is_locked``: the caller's transaction has locked the jobs
        already, so no job can start to wait for them while this statement runs. Otherwise a job that another
        transaction has locked is skipped: ``check`` distinguishes it from one whose lease is lost. ``transaction``:
        what ``lock`` filled in; raises ``TransactionEnded`` if the caller is in a different transaction now.
        ``is_last``: the caller commits next, so this method may commit already.
        """
        effects = effects or Effects()
        if is_last and transaction and self._is_foreseeable(jobs, transaction):
            return self._finish_and_commit(jobs[0], effects, transaction)
        if is_locked or not self.db.is_impatient:
            return self._finish(jobs, effects, transaction, is_locked=is_locked, skips=not is_locked)
        # Locking a row first, so that locked ones can be skipped, takes as long as writing it.
        try:
            return self._finish(jobs, effects, transaction, is_locked=False, skips=False)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
        return self._finish(jobs, effects, transaction, is_locked=False, skips=True)

    def reschedule(self, tries: Sequence[FailedTry], effects: Effects | None = None) -> dict[AttemptKey, str]:
        """Make the jobs of attempts pending again; return the statuses of the attempts that held their lease.

        Failed attempts are recorded as by ``fail``, other attempts are only counted. Jobs that others have locked are
        skipped.
        """
        effects = effects or Effects()
        failed = [each for each in tries if each.is_failure]
        others = [each for each in tries if not each.is_failure]
        statuses = self._end_failed(failed, self._make_pending, effects) if failed else {}
        return statuses | self._postpone(others, effects) if others else statuses

    def fail(self, tries: Sequence[FailedTry], effects: Effects | None = None) -> dict[AttemptKey, str]:
        """Record failed attempts and fail their jobs; return the statuses of the attempts that held their lease.

        Jobs that other transactions have locked are skipped. If the chain was cancelled before, the attempt is neither
        recorded nor counted, unless its process died.
        """
        return self._end_failed(tries, self._make_failed, effects or Effects())

    @retried
    def has_failed(self, key: AttemptKey, kind: FailureKind = "error") -> bool:
        """Return whether an attempt is recorded as failed by an error of this kind."""
        return bool(self.db.fetch(self._failed_attempt, [key[0].hex, key[1], kind]))

    @retried
    def hand_back(
        self, keys: Sequence[AttemptKey], effects: Effects | None = None, *, has_begun: bool = True
    ) -> set[AttemptKey]:
        """Make unfinished jobs pending again, with their due time and attempt count as before; return those still held.

        ``has_begun``: False if their handlers were not called, so that they can still expire, and are not counted as
        starts. Jobs that other transactions have locked are skipped.
        """
        effects = effects or Effects()
        rows = [(job_id.hex, number) for job_id, number in keys]
        assignments = f"{self._hand_back}, expires_at = NULL" if has_begun else self._hand_back
        with effects.undone_on_error(), self.db.transaction():
            written = self._writes.update(assignments, _KEYS, rows)
            if written and not has_begun:
                self._rates.refund_jobs([row.key[0] for row in written])
            self._writes.follow_up(written, effects)
        return {row.key for row in written}

    def _finish(
        self,
        jobs: Sequence[FinishedJob],
        effects: Effects,
        transaction: OpenTransaction | None,
        *,
        is_locked: bool,
        skips: bool,
    ) -> set[AttemptKey]:
        continuations = {job.key: job.continuation for job in jobs if job.continuation}
        with effects.undone_on_error(), nullcontext() if is_locked else self.db.transaction() as is_own:
            if continuations and not is_locked:
                waiting = [job for job in continuations.values() if job.blockers]
                if waiting:  # In the order of the ids of chains and blockers together, which avoids deadlocks.
                    self._last_jobs.lock({chain_id for job in waiting for chain_id in (job.chain_id, *job.blockers)})
            written = self._writes.update(
                self._complete,
                _FINISHED,
                [(job.job_id.hex, job.lease_number, _output(job)) for job in jobs],
                is_locked=is_locked,
                skips=skips,
                transaction=transaction,
                reads_cancelled=bool(continuations),
            )
            if len(written) < max(len(jobs), 1):
                self.db.check_transaction(transaction)
            ended = written
            if continuations:
                ended = [row for row in written if row.key not in continuations or row.is_cancelled]
                self._continue(written, continuations, effects, is_last=bool(is_own and written and not ended))
            effects.finished_chains.update([row.chain_id for row in ended])
            if awaited := [row.chain_id for row in ended if row.may_be_awaited]:
                self._blockers.resolve(awaited, effects)
        return {row.key for row in written}

    def _is_foreseeable(self, jobs: Sequence[FinishedJob], transaction: OpenTransaction) -> bool:
        """Return whether the transaction can be committed before the result is read."""
        is_end_of_chain = len(jobs) == 1 and jobs[0].continuation is None
        is_alone = transaction.unawaited_chain_id is not None and self.db.is_untouched
        return is_end_of_chain and is_alone and self.db.can_commit

    def _finish_and_commit(self, job: FinishedJob, effects: Effects, transaction: OpenTransaction) -> set[AttemptKey]:
        assert transaction.unawaited_chain_id is not None  # noqa: S101 - for the type checker
        effects.finished_chains.add(transaction.unawaited_chain_id)
        params = [job.job_id.hex, job.lease_number, _output(job), transaction.id, transaction.id]
        return {job.key} if self.db.commit_with(self._complete_last, params) else set()

    def _continue(
        self, written: list[Written], continuations: dict[AttemptKey, NewJob], effects: Effects, *, is_last: bool
    ) -> None:
        """Create the continuations of the attempts that were completed. ``is_last``: a commit follows."""
        continued = [row for row in written if row.key in continuations]
        for row in continued:
            continuations[row.key].is_cancelled = row.is_cancelled
        jobs = [continuations[row.key] for row in continued]
        if is_last and self.db.can_commit and not any(job.blockers for job in jobs):
            self._jobs.create_and_commit(jobs, effects)
        else:
            self._jobs.create(jobs, effects)

    @retried
    def _end_failed(self, tries: Sequence[FailedTry], assignments: str, effects: Effects) -> dict[AttemptKey, str]:
        rows = [self._failed_row(failed) for failed in tries]
        with effects.undone_on_error(), self.db.transaction():
            ids = self.db.by_ids_params(row[0] for row in rows)
            recorded = self.db.fetch(self._record_failures, [rows_json(_FAILED, rows), *ids])
            locked = {self.db.id(job_id).hex for (job_id,) in recorded}
            rows = [row for row in rows if row[0] in locked]
            written = self._writes.update(assignments, _FAILED, rows, is_locked=True)
            if cancelled := [row.key for row in written if row.status == "cancelled"]:
                self.db.execute(
                    self._forget_failures, [rows_json(_KEYS, [(job_id.hex, number) for job_id, number in cancelled])]
                )
            self._writes.follow_up(written, effects)
        return {row.key: row.status for row in written}

    @retried
    def _postpone(self, tries: Sequence[FailedTry], effects: Effects) -> dict[AttemptKey, str]:
        with effects.undone_on_error(), self.db.transaction():
            written = self._writes.update(self._make_postponed, _FAILED, [self._failed_row(each) for each in tries])
            self._writes.follow_up(written, effects)
        return {row.key: row.status for row in written}

    def _failed_row(self, failed: FailedTry) -> tuple[Any, ...]:
        run_at = failed.run_at and self.db.time_text(failed.run_at)
        key = (failed.job_id.hex, failed.lease_number)
        texts = encode_text(failed.error), encode_text(failed.traceback)
        return *key, *texts, run_at, failed.delay_seconds or 0, failed.kind

    # Statements, and their assignments

    @statement
    def _read_locked(self) -> str:
        """The columns of ``lock_sql`` for a job that is locked, the last one with its chain if no job waits for it."""
        link = f"SELECT 1 FROM {self.tables.blocker} AS link WHERE link.blocker_id = chain_id AND link.is_open"
        return f"""
            SELECT status, lease_number, {self.db.transaction_id}, CASE WHEN NOT EXISTS ({link}) THEN chain_id END
            FROM {self.tables.job} WHERE id = {self.db.id_param}
        """

    @statement
    def _complete_last(self) -> str:
        """Raise an error unless the job is completed, so that the COMMIT that is sent with this is not executed.

        Divides by zero in another transaction, and takes the root of a negative number if the job was changed.
        """
        inside, _ = self.db.inside(OpenTransaction())
        return f"""
            WITH completed AS (
                UPDATE {self.tables.job} AS job SET {self._complete} FROM {self.db.row(_FINISHED)}
                CROSS JOIN {self.db.clock} WHERE {FENCE} {inside} RETURNING id
            )
            SELECT CASE WHEN true {inside} THEN sqrt(count(*) - 1) ELSE 1 / count(*) END FROM completed
        """

    @statement
    def _look_all(self) -> str:
        return f"""
            SELECT id, status, lease_number, {self.db.transaction_id} FROM {self.tables.job} WHERE id {self.db.any_id}
        """

    @statement
    def _failed_attempt(self) -> str:
        return f"""
            SELECT 1 FROM {self.tables.failed_attempt}
            WHERE job_id = {self.db.id_param} AND lease_number = %s AND kind = %s
        """

    @statement
    def _record_failures(self) -> str:
        return f"""
            {self._writes.record_failures("d.kind", "d.error", "d.traceback")} FROM {self.tables.job} AS job
            JOIN {self.db.rows(_FAILED)} ON {FENCE} CROSS JOIN {self.db.clock}
            WHERE true {self.db.by_ids} ORDER BY job.id {self.db.skip_lock("job")} RETURNING job_id
        """

    @statement
    def _complete(self) -> str:
        return f"""
            status = 'completed', output = d.output{self.db.json_cast}, finished_at = clock.now,
            completed_by = leased_by, leased_by = NULL, leased_until = NULL, last_error = NULL
        """

    @statement
    def _make_pending(self) -> str:
        return f"""
            {self._unless_cancelled("pending")}, run_at = {self.db.planned}, {_CRASHES}, {self._uncounted},
            leased_by = NULL, leased_until = NULL, last_error = d.error
        """

    @statement
    def _make_postponed(self) -> str:
        return f"""
            {self._unless_cancelled("pending")}, run_at = {self.db.planned}, leased_by = NULL, leased_until = NULL,
            reschedules = COALESCE(job.reschedules, 0) + 1, last_error = COALESCE(NULLIF(d.error, ''), job.last_error)
        """

    @statement
    def _make_failed(self) -> str:
        return f"""
            {self._unless_cancelled("failed")}, {_CRASHES}, {self._uncounted},
            leased_by = NULL, leased_until = NULL, last_error = d.error
        """

    @statement
    def _hand_back(self) -> str:
        return f"{self._unless_cancelled('pending')}, attempt = attempt - 1, leased_by = NULL, leased_until = NULL"

    @statement
    def _forget_failures(self) -> str:
        return f"""
            DELETE FROM {self.tables.failed_attempt} WHERE kind <> 'crash' AND id IN (
                SELECT attempt.id FROM {self.db.rows(_KEYS)} JOIN {self.tables.failed_attempt} AS attempt
                ON attempt.job_id = d.job_id AND attempt.lease_number = d.n
            )
        """

    @property
    def _is_cancelled(self) -> str:
        return f"(job.cancel_requested_at IS NOT NULL OR {self.db.is_to_be_cancelled('job.chain_id')})"

    @property
    def _uncounted(self) -> str:
        """SQL that does not count the attempt if its chain was cancelled: it has not failed, unless it crashed."""
        is_uncounted = f"d.kind <> 'crash' AND {self._is_cancelled}"
        return f"reschedules = CASE WHEN {is_uncounted} THEN COALESCE(job.reschedules, 0) + 1 ELSE job.reschedules END"

    def _unless_cancelled(self, status: str) -> str:
        """SQL that sets the status, or cancels the job if its attempt was asked to stop."""
        otherwise = "clock.now" if status in FINAL else "NULL"
        return f"""
            status = CASE WHEN {self._is_cancelled} THEN 'cancelled' ELSE '{status}' END,
            finished_at = CASE WHEN {self._is_cancelled} THEN clock.now ELSE {otherwise} END
        """


def _output(job: FinishedJob) -> str | None:
    """Only a job that was continued has no output, not even JSON's null. This distinguishes the last job of a chain."""
    if job.continuation:
        return None
    output = job.output or "null"
    return encode_json(output) if get_codec() else output
