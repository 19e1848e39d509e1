"""How an attempt ends: completed, failed, to be tried again, handed back, or taken from a worker that is gone."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from itertools import starmap
from logging import getLogger
from typing import Any, NamedTuple
from uuid import UUID

from django.db import OperationalError

from django_jobchains.policies import Backoff
from django_jobchains.statuses import FINAL
from django_jobchains.store.creating import Creating
from django_jobchains.store.deferred_writes import FENCE, DeferredWrites
from django_jobchains.store.dialect import ids_json
from django_jobchains.store.errors import blames_statement, is_lock_timeout, retried
from django_jobchains.store.rows import (
    AttemptKey,
    Effects,
    FailedTry,
    FinishedJob,
    HeldLease,
    NewJob,
    OpenTransaction,
    ReapedJob,
)
from django_jobchains.texts import log_text

logger = getLogger("django_jobchains")

_FINISH_COLUMNS = "job_id uuid, n int, output text"


class Ending(Creating, DeferredWrites):
    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._finish_one_sql: dict[tuple[float, str], str] = {}

    @retried
    def finish(
        self,
        jobs: Sequence[FinishedJob],
        effects: Effects | None = None,
        *,
        is_locked: bool = False,
        transaction: OpenTransaction | None = None,
    ) -> set[AttemptKey]:
        """Completes attempts, with the continuations of those that still held their lease, which it returns.

        Jobs that waited for the chains that end by it are freed. ``is_locked``: the caller's transaction has locked the
        jobs already, so nobody can start to wait for them while this statement runs. Otherwise a job that someone else
        has locked is skipped: ``check`` tells it from one whose lease is lost. ``transaction``: what ``lock`` filled
        in; raises ``TransactionEnded`` when the caller's transaction is another one now.
        """
        effects = effects or Effects()
        if is_locked or not self._is_impatient:
            return self._finish_attempts(jobs, effects, transaction, is_locked=is_locked, skips=not is_locked)
        # To lock a row first, so that locked ones can be skipped, costs as much again as to write it.
        try:
            return self._finish_attempts(jobs, effects, transaction, is_locked=False, skips=False)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
        return self._finish_attempts(jobs, effects, transaction, is_locked=False, skips=True)

    def _finish_attempts(
        self,
        jobs: Sequence[FinishedJob],
        effects: Effects,
        transaction: OpenTransaction | None,
        *,
        is_locked: bool,
        skips: bool,
    ) -> set[AttemptKey]:
        continuations = {job.key: job.continuation for job in jobs if job.continuation}
        with nullcontext() if is_locked else self.transaction():
            if not is_locked:
                self._lock_with_blockers(list(continuations.values()))
            written = self._finish(jobs, transaction, is_locked=is_locked, skips=skips)
            if len(written) < max(len(jobs), 1):
                self._check_transaction(transaction)
            going_on = [row for row in written if row.key in continuations]
            for row in going_on:
                continuations[row.key].is_cancelled = row.is_cancelled
            self.create([continuations[row.key] for row in going_on], effects)
            ended = [row for row in written if row.key not in continuations or row.is_cancelled]
            effects.finished_chains.update(row.chain_id for row in ended)
            self._settle([row.chain_id for row in ended if row.may_be_awaited], effects)
        return {row.key for row in written}

    def _lock_with_blockers(self, continuations: Sequence[NewJob]) -> None:
        """All in the order of their ids: locked after their own chains, the blockers would be locked in any."""
        waiting = [job for job in continuations if job.blockers]
        if waiting:
            self.lock_tails({chain_id for job in waiting for chain_id in (job.chain_id, *job.blockers)})

    def _finish(
        self, jobs: Sequence[FinishedJob], transaction: OpenTransaction | None, *, is_locked: bool, skips: bool
    ) -> "list[_Written]":
        inside, inside_params = self._inside(transaction)
        if is_locked and len(jobs) == 1:
            return self._finish_one(jobs[0], inside, inside_params)
        return self._update(
            self._finish_assignments,
            _FINISH_COLUMNS,
            [{"job_id": job.job_id.hex, "n": job.lease_number, "output": _output(job)} for job in jobs],
            is_locked=is_locked,
            skips=skips,
            only_if=(inside, inside_params),
        )

    def _finish_one(self, job: FinishedJob, inside: str, inside_params: Sequence[Any]) -> "list[_Written]":
        """The same of one that is locked. Its SQL is kept: to put it together takes as long as to send it."""
        sql = self._finish_one_sql.get((self.ahead_seconds, inside))
        if sql is None:
            sql = self._update_sql(self._finish_assignments, self._row(_FINISH_COLUMNS), inside, self._is_awaited)
            self._finish_one_sql[self.ahead_seconds, inside] = sql
        rows = self._fetch(sql, [job.job_id.hex, job.lease_number, _output(job), *inside_params])
        return list(starmap(self._written, rows))

    @property
    def _finish_assignments(self) -> str:
        return (
            f"status = 'completed', output = d.output{self.json_cast}, finished_at = clock.now, "
            "completed_by = leased_by, leased_by = NULL, leased_until = NULL, last_error = NULL"
        )

    @property
    def _is_awaited(self) -> str:
        """SQL of whether anybody waits for the chain of a job."""
        return f"EXISTS (SELECT 1 FROM {self.blocker} AS link WHERE link.blocker_id = chain_id AND link.is_open)"

    def reschedule(self, tries: Sequence[FailedTry], effects: Effects | None = None) -> dict[AttemptKey, str]:
        """Records failed attempts and makes their jobs pending again; the statuses of those that held their lease.

        A job that someone else has locked is skipped.
        """
        return self._end_failed(tries, f"{self._unless_cancelled('pending')}, run_at = {self._planned}", effects)

    def fail(self, tries: Sequence[FailedTry], effects: Effects | None = None) -> dict[AttemptKey, str]:
        """Records failed attempts and gives their jobs up; the statuses of those that still held their lease.

        A job that someone else has locked is skipped.
        """
        return self._end_failed(tries, self._unless_cancelled("failed"), effects)

    def _unless_cancelled(self, status: str) -> str:
        """SQL that sets the status, or cancels the job of an attempt that was asked to stop."""
        otherwise = "clock.now" if status in FINAL else "NULL"
        is_cancelled = f"job.cancel_requested_at IS NOT NULL OR {self._is_to_be_cancelled('job.chain_id')}"
        return (
            f"status = CASE WHEN {is_cancelled} THEN 'cancelled' ELSE '{status}' END, "
            f"finished_at = CASE WHEN {is_cancelled} THEN clock.now ELSE {otherwise} END"
        )

    @retried
    def _end_failed(
        self, tries: Sequence[FailedTry], assignments: str, effects: Effects | None
    ) -> dict[AttemptKey, str]:
        columns = "job_id uuid, n int, error text, traceback text, run_at timestamptz, delay_seconds float"
        rows = [
            {
                "job_id": failed.job_id.hex,
                "n": failed.lease_number,
                "error": failed.error,
                "traceback": failed.traceback,
                "run_at": failed.run_at and self._time_text(failed.run_at),
                "delay_seconds": failed.delay_seconds or 0,
            }
            for failed in tries
        ]
        with self.transaction():
            recorded = self._fetch(
                f"{self._record_failures('error', 'd.error', 'd.traceback')} FROM {self.job} AS job "
                f"JOIN {self._rows(columns)} ON {FENCE} CROSS JOIN {self.clock} "
                f"WHERE true {self._by_ids} ORDER BY job.id {self._locked('job')} RETURNING job_id",
                [json.dumps(rows), *self._by_ids_params(rows)],
            )
            locked = {self._id(job_id).hex for (job_id,) in recorded}
            unleased = "leased_by = NULL, leased_until = NULL, last_error = d.error"
            rows = [row for row in rows if row["job_id"] in locked]
            written = self._update(f"{assignments}, {unleased}", columns, rows, is_locked=True)
            self._settle_ended(written, effects or Effects())
        return {row.key: row.status for row in written}

    @retried
    def has_failed(self, key: AttemptKey) -> bool:
        """Whether an attempt is recorded as failed by an error."""
        sql = (
            f"SELECT 1 FROM {self.failed_attempt} WHERE job_id = {self._uuid} AND lease_number = %s AND kind = 'error'"
        )
        return bool(self._fetch(sql, [key[0].hex, key[1]]))

    @retried
    def hand_back(self, leases: Sequence[HeldLease], effects: Effects | None = None) -> set[AttemptKey]:
        """Gives unfinished jobs back, due as before and without having used an attempt; returns those still held.

        A job that someone else has locked is skipped.
        """
        rows = [{"job_id": lease.id.hex, "n": lease.lease_number} for lease in leases]
        with self.transaction():
            written = self._update(
                f"{self._unless_cancelled('pending')}, attempt = attempt - 1, leased_by = NULL, leased_until = NULL",
                "job_id uuid, n int",
                rows,
            )
            self._settle_ended(written, effects or Effects())
        return {row.key for row in written}

    def _settle_ended(self, written: "Sequence[_Written]", effects: Effects) -> None:
        ended = [row.chain_id for row in written if row.status in ("failed", "cancelled")]
        self._settle(ended, effects)
        effects.add_scheduled(row.type_name for row in written if row.status == "pending")

    def _record_failures(self, kind: str, error: str, traceback: str) -> str:
        return (
            f"INSERT INTO {self.failed_attempt} "
            "(job_id, attempt, lease_number, kind, error, traceback, worker, started_at, finished_at) "
            f"SELECT job.id, job.attempt, job.lease_number, '{kind}', {error}, {traceback}, "
            "COALESCE(job.leased_by, '?'), COALESCE(job.last_attempt_at, clock.now), clock.now"
        )

    def reap(
        self,
        limit: int,
        backoff: Backoff,
        max_crashes: int,
        held: Collection[UUID] = (),
        effects: Effects | None = None,
        *,
        backoffs: Mapping[str, Backoff] | None = None,
    ) -> list[ReapedJob]:
        """Takes back jobs whose lease ran out, oldest first: pending after a backoff, failed after ``max_crashes``.

        ``backoffs``: by job type, instead of ``backoff``. ``held`` are the caller's own, which it ends itself. A job
        that someone has locked is left alone, and so is one whose lease or outcome was deferred.
        """
        effects = effects or Effects()
        policy = _CrashPolicy(backoff, backoffs or {}, max_crashes)
        try:
            return self._reap(limit, policy, held, effects)
        except OperationalError as error:
            if self.connection.in_atomic_block or self._is_conflict(error) or not blames_statement(error):
                raise
        # A lock, or a time limit: it must not keep the others from being taken back.
        expired = self._expired(limit, held)
        return [job for job_id in expired for job in self._reap_one(job_id, policy, effects)]

    def _reap_one(self, job_id: UUID, policy: "_CrashPolicy", effects: Effects) -> list[ReapedJob]:
        try:
            return self._reap(1, policy, (), effects, only=job_id)
        except OperationalError as error:
            if not blames_statement(error):
                raise
            logger.warning("Job %s cannot be taken back yet: %s", job_id, log_text(error))
            return []

    @retried
    def _expired(self, limit: int, held: Collection[UUID]) -> list[UUID]:
        rows = self._fetch(self._expired_sql(""), [ids_json(held), limit])
        return [self._id(id_) for (id_,) in rows]

    def _expired_sql(self, lock: str, condition: str = "") -> str:
        return (
            f"SELECT job.id FROM {self.job} AS job WHERE job.status = 'running' AND job.leased_until < {self.now} "
            f"AND NOT {self._is_kept} AND NOT job.id {self._any(self._ids_sql)} {condition} "
            f"ORDER BY job.leased_until, job.id LIMIT %s {lock}"
        )

    @retried
    def _reap(
        self,
        limit: int,
        policy: "_CrashPolicy",
        held: Collection[UUID],
        effects: Effects,
        *,
        only: UUID | None = None,
    ) -> list[ReapedJob]:
        lost = "'The lease ran out: worker ' || COALESCE(job.leased_by, '?') || ' died, hung or lost the database.'"
        condition, ids = ("", []) if only is None else (f"AND job.id = {self._uuid}", [only.hex])
        with self.transaction():
            crashed = self._fetch(
                f"{self._record_failures('crash', lost, chr(39) * 2)} FROM {self.job} AS job CROSS JOIN {self.clock} "
                f"WHERE job.id {self._any(self._expired_sql(self._locked('job'), condition))} {self._held('job')} "
                f"RETURNING job_id, lease_number, {self._of_its_job('type_name')}, {self._of_its_job('crashes')}",
                [ids_json(held), *ids, limit],
            )
            rows = [
                {
                    "job_id": self._id(id_).hex,
                    "n": number,
                    "delay_seconds": policy.delay_seconds(type_name, crashes + 1),
                }
                for id_, number, type_name, crashes in crashed
            ]
            written = self._take_back(rows, policy.max_crashes, lost)
            self._settle_ended(written, effects)
        return [ReapedJob(row.key[0], row.type_name, row.status, row.crashes) for row in written]

    def _of_its_job(self, column: str) -> str:
        """SQL of a column of the job of a failed attempt, in a RETURNING."""
        return f"(SELECT its.{column} FROM {self.job} AS its WHERE its.id = {self._returned_job_id})"

    def _take_back(self, rows: list[dict[str, Any]], max_crashes: int, lost: str) -> "list[_Written]":
        gone = "job.crashes + 1 >= %s"
        stopped = f"(job.cancel_requested_at IS NOT NULL OR {self._is_to_be_cancelled('job.chain_id')})"
        return self._update(
            f"crashes = job.crashes + 1, leased_by = NULL, leased_until = NULL, last_error = {lost}, "
            f"status = CASE WHEN {stopped} THEN 'cancelled' WHEN {gone} THEN 'failed' ELSE 'pending' END, "
            f"finished_at = CASE WHEN {stopped} OR {gone} THEN clock.now END, "
            f"run_at = {self._after('clock.now', 'd.delay_seconds')}",
            "job_id uuid, n int, delay_seconds float",
            rows,
            [max_crashes, max_crashes],
            is_locked=True,
        )

    def _update(
        self,
        assignments: str,
        columns: str,
        rows: list[dict[str, Any]],
        before: Sequence[Any] = (),
        *,
        is_locked: bool = False,
        skips: bool = True,
        only_if: tuple[str, Sequence[Any]] = ("", ()),
    ) -> "list[_Written]":
        """One fenced UPDATE of running jobs from rows with ``job_id`` and lease number ``n``; returns what changed.

        ``before``: the parameters of the assignments. ``is_locked``: the transaction has locked all of the rows itself;
        otherwise those that someone else has locked are skipped if ``skips``, or waited for. ``only_if``: SQL that ends
        the condition, with its parameters.
        """
        if not rows:
            return []
        condition = self._by_unlocked_ids if skips and not is_locked else self._by_ids
        if len(rows) == 1:  # written out, it is planned as the one row it is
            source, condition = self._row(columns), condition if skips and not is_locked else ""
            params = [rows[0][column.split()[0]] for column in columns.split(", ")]
        else:
            source, params = self._rows(columns), [json.dumps(rows)]
        params += self._by_ids_params(rows) if condition else []
        may_be_awaited = self._is_awaited if is_locked else "true"
        sql = self._update_sql(assignments, source, f"{condition} {only_if[0]}", may_be_awaited)
        return list(starmap(self._written, self._fetch(sql, [*before, *params, *only_if[1]])))

    def _update_sql(self, assignments: str, source: str, condition: str, may_be_awaited: str) -> str:
        return (
            f"UPDATE {self.job} AS job SET {assignments} FROM {source} CROSS JOIN {self.clock} "
            f"WHERE {FENCE} {condition} RETURNING id, lease_number, NULLIF(chain_id, id), type_name, status, crashes, "
            f"{self._is_cancelled}, {may_be_awaited}"
        )

    def _written(self, id: Any, lease_number: int, other_chain_id: Any, *rest: Any) -> "_Written":
        job_id = self._id(id)
        chain_id = job_id if other_chain_id is None else self._id(other_chain_id)
        return _Written((job_id, lease_number), chain_id, *rest)


class _CrashPolicy(NamedTuple):
    """What becomes of a job whose lease ran out."""

    backoff: Backoff
    #: By job type, instead of ``backoff``.
    backoffs: Mapping[str, Backoff]
    max_crashes: int

    def delay_seconds(self, type_name: str, crashes: int) -> float:
        return self.backoffs.get(type_name, self.backoff).seconds(crashes)


class _Written(NamedTuple):
    """A job whose attempt was ended, as it is now."""

    key: AttemptKey
    chain_id: UUID
    type_name: str
    status: str
    crashes: int
    #: It was asked to stop.
    is_cancelled: bool
    #: False when it is sure that nobody waited for its chain when the statement began.
    may_be_awaited: bool


def _output(job: FinishedJob) -> str | None:
    """Only a job that has gone on has no output, not even JSON's null: so the last of a chain is known."""
    return None if job.continuation else job.output or "null"
