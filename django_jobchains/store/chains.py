"""What people and programs without a worker do to chains: complete, cancel, retry, move and delete.

Chains are locked by their last jobs (see ``last_jobs``), jobs in the order of their ids.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from functools import partial
from uuid import UUID

from django.db import OperationalError, transaction

from django_jobchains.exceptions import (
    ChainNotFound,
    ChainReferenced,
    JobAlreadyCompleted,
    JobNotCompletable,
    JobNotRunnable,
)
from django_jobchains.payloads.codecs import encode_json
from django_jobchains.statuses import FINAL
from django_jobchains.store.blockers import Blockers
from django_jobchains.store.database import Database, Part, ids_json, statement
from django_jobchains.store.errors import call_in_parts, is_lock_timeout, retried
from django_jobchains.store.jobs import Jobs
from django_jobchains.store.last_jobs import LastJob, LastJobs
from django_jobchains.store.rows import ChainEnd, ChainLifetime, ChainWait, Effects, ExpiredJob, NewJob
from django_jobchains.store.writes import DeferredWrites

#: The limit of references to a chain that an error names.
MAX_NAMED = 5
#: How long ``cancel`` waits for a running job that is locked, in most cases because it is being completed.
CANCEL_SECONDS = 0.2


class Chains(Part):
    def __init__(
        self, db: Database, last_jobs: LastJobs, blockers: Blockers, jobs: Jobs, deferred: DeferredWrites
    ) -> None:
        super().__init__(db)
        self._last_jobs = last_jobs
        self._blockers = blockers
        self._jobs = jobs
        self._deferred = deferred

    @retried
    def ends(self, job_ids: Collection[UUID]) -> dict[UUID, ChainEnd]:
        """Return how the chain of each of these jobs ended, or its current status.

        A chain that changes between the two statements counts as running.
        """
        last_jobs = self._last_jobs.of_jobs(job_ids)
        ended = [last_job.job_id for last_job in last_jobs.values() if last_job.status in FINAL]
        rows = self.db.fetch(self._results, [ids_json(ended)]) if ended else []
        results = {end.chain_id: end for end in (ChainEnd(self.db.id(id_), *rest) for id_, *rest in rows)}
        ends = {job_id: _end_of(last_job, results.get(last_job.chain_id)) for job_id, last_job in last_jobs.items()}
        return {job_id: ChainEnd(job_id, None) for job_id in job_ids} | ends

    @retried
    def wait_of(self, chain_id: UUID) -> ChainWait | None:
        """Return what decides when the last job of a chain may start, or None if there is no such chain."""
        rows = self.db.fetch(self._wait_of, [ids_json([chain_id])])
        return next((ChainWait._make(row) for row in rows), None)

    @retried
    def contexts(self, chain_ids: Collection[UUID]) -> list[str | None]:
        """Return the stored contexts of the first jobs of chains, in any order. Missing chains are left out."""
        return [context for (context,) in self.db.fetch(self._contexts, [ids_json(chain_ids)])]

    @retried
    def lifetimes(self, chain_ids: Collection[UUID]) -> list[ChainLifetime]:
        """Return how long the chains took that have ended."""
        rows = self.db.fetch(self._lifetimes, [ids_json(chain_ids)]) if chain_ids else []
        return [ChainLifetime(self.db.id(id_), *rest) for id_, *rest in rows]

    def complete(self, last_job: LastJob, output: str | None, continuation: NewJob | None, effects: Effects) -> None:
        """Complete a chain's last job, which the caller has locked.

        Raises ``JobAlreadyCompleted`` and ``JobNotCompletable``.
        """
        with transaction.atomic(using=self.db.using):  # The caller may catch the error and commit.
            rows = self.db.fetch(self._complete, [output and encode_json(output), last_job.job_id.hex])
            if not rows:
                if last_job.status == "completed":
                    raise JobAlreadyCompleted(last_job.job_id)
                raise JobNotCompletable(last_job.job_id, last_job.status)
            is_cancelled = bool(rows[0][0])
            if last_job.status == "running":
                effects.stopped_jobs.add(last_job.job_id)
                effects.freed_types.add(last_job.type_name)
            if continuation:
                continuation.is_cancelled = is_cancelled
                self._jobs.create([continuation], effects)
            if not continuation or is_cancelled:
                self._blockers.resolve([last_job.chain_id], effects)

    @retried
    def cancel(self, job_ids: Collection[UUID], effects: Effects) -> set[UUID]:
        """Cancel chains whose last job has not started, and ask the others to stop. Return the ids of both.

        ``job_ids`` are ids of any jobs of the chains. Raises ``ChainNotFound`` without having changed anything. A chain
        that has ended is not changed. A running job that its handler or another transaction locks for a long time is
        asked to stop too, without waiting for the lock.
        """
        with effects.undone_on_error(), self.db.transaction():
            self.db.write_first()
            found = self._last_jobs.of_jobs(job_ids)
            _refuse_missing(job_ids, found)
            last_jobs = {last_job.chain_id: last_job for last_job in found.values()}
            running = {last_job.chain_id for last_job in last_jobs.values() if last_job.status == "running"}
            # Running jobs come last, with a short time limit. The others are locked in the order of their ids.
            free = self._last_jobs.lock(last_jobs.keys() - running) if len(running) < len(last_jobs) else {}
            if running:
                free |= self._lock_soon(running)
            later = last_jobs.keys() - free.keys()
            if later:
                self._deferred.add_cancelling(later)
                effects.stopped_jobs.update(last_jobs[chain_id].job_id for chain_id in later)
            return later | self.cancel_jobs([last_job.job_id for last_job in free.values()], effects)

    def cancel_jobs(self, job_ids: Collection[UUID], effects: Effects) -> set[UUID]:
        """Cancel the locked last jobs of chains, or ask them to stop; return their chains."""
        changed = self.db.fetch(self._cancel, [ids_json(job_ids)])
        effects.stopped_jobs.update(self.db.id(id_) for id_, _, status in changed if status == "running")
        cancelled = [self.db.id(chain_id) for _, chain_id, status in changed if status == "cancelled"]
        self._blockers.resolve(cancelled, effects)
        return {self.db.id(chain_id) for _, chain_id, _ in changed}

    def expire(
        self, limit: int, effects: Effects, failed: dict[UUID, OperationalError] | None = None
    ) -> list[ExpiredJob]:
        """Cancel jobs that have not started and have expired, the longest expired first.

        Locked jobs are skipped. Jobs that cannot be cancelled, for example because a locked job waits for them, are
        added to ``failed``. Jobs in it are not tried again. If there is a new one, others may be left.
        """
        failed = {} if failed is None else failed
        return call_in_parts(partial(self._expire_jobs, effects), self._read_late(limit, failed), failed)

    @retried
    def _read_late(self, limit: int, failed: Collection[UUID]) -> list[UUID]:
        return [self.db.id(id_) for (id_,) in self.db.fetch(self._late, [ids_json(failed), limit])]

    @retried
    def _expire_jobs(self, effects: Effects, job_ids: list[UUID]) -> list[ExpiredJob]:
        with effects.undone_on_error(), self.db.transaction():
            rows = self.db.fetch(self._expire, [ids_json(job_ids)])
            expired = [ExpiredJob(self.db.id(id_), self.db.id(chain_id), *rest) for id_, chain_id, *rest in rows]
            self._blockers.resolve([job.chain_id for job in expired], effects)
        return expired

    @retried
    def retry(self, ids: Collection[UUID], effects: Effects) -> set[UUID]:
        """Make failed and cancelled jobs pending and due now, or blocked while a blocker is open. Return their ids.

        ``ids`` are ids of chains, which stand for their last jobs, or ids of later jobs. A job with
        ``on_blocker_failure="fail"`` whose blocker is still failed or cancelled fails again immediately. The counts of
        attempts and crashes and their history are kept, and the jobs no longer expire. Raises ``JobNotFound`` without
        having changed anything. Jobs with other statuses are not changed.
        """
        with effects.undone_on_error(), self.db.transaction():
            job_ids = self._last_jobs.lock_current(ids)
            rows = self.db.fetch(self._retry, [ids_json(job_ids)])
            if rows:  # A deferred request to cancel must not reach the chain again.
                self._deferred.forget_cancelling([self.db.id(chain_id) for *_, chain_id in rows])
            if blocked := [self.db.id(id_) for id_, _, status, _ in rows if status == "blocked"]:
                self._blockers.resolve(self._blockers.fail_waiting(blocked, effects), effects)
        effects.add_scheduled(type_name for _, type_name, _, _ in rows)
        return {self.db.id(id_) for id_, *_ in rows}

    @retried
    def move(self, ids: Collection[UUID], run_at: datetime | None, delay_seconds: float, effects: Effects) -> None:
        """Move pending jobs to a time, or to a delay from now. ``ids`` are as for ``retry``.

        Raises ``JobNotFound`` or ``JobNotRunnable`` without having moved any of them.
        """
        with self.db.transaction():
            statuses = self._last_jobs.lock_current(ids)
            for job_id, status in statuses.items():
                if status != "pending":
                    raise JobNotRunnable(job_id, status)
            time = run_at and self.db.time_text(run_at)
            rows = self.db.fetch(self._move, [time, delay_seconds, ids_json(statuses)])
        effects.add_scheduled(type_name for (type_name,) in rows)

    @retried
    def delete(self, job_ids: Collection[UUID], *, cascade: bool, effects: Effects) -> set[UUID]:
        """Delete chains with all their jobs, and with ``cascade`` the chains they had as blockers; return their ids.

        ``job_ids`` are ids of any jobs of the chains. Raises ``ChainNotFound``, or ``ChainReferenced`` if a job of
        another chain needs one of them, without having deleted anything.
        """
        with effects.undone_on_error(), self.db.transaction():
            self.db.write_first()
            found = self._last_jobs.chains_of(job_ids)
            _refuse_missing(job_ids, found)
            chain_ids = set(found.values())
            last_jobs = self._lock_doomed(chain_ids, cascade=cascade)
            _refuse_missing(chain_ids, last_jobs)
            doomed = ids_json(last_jobs)
            if references := self.db.fetch(self._references, [doomed, doomed, MAX_NAMED]):
                raise ChainReferenced([(self.db.id(chain_id), self.db.id(job_id)) for chain_id, job_id in references])
            self.erase(doomed)
        effects.finished_chains.update(last_jobs)
        running = [last_job for last_job in last_jobs.values() if last_job.status == "running"]
        effects.stopped_jobs.update(last_job.job_id for last_job in running)
        effects.freed_types.update(last_job.type_name for last_job in running)
        return set(last_jobs)

    def erase(self, doomed: str) -> None:
        """Delete locked chains, given as JSON, with everything that belongs to them.

        The jobs are deleted first, so that no log lines can be added to them. References are checked at the commit.
        """
        rows = self.db.fetch(f"DELETE FROM {self.tables.job} WHERE chain_id {self.db.any_id} RETURNING id", [doomed])
        jobs = ids_json(self.db.id(id_) for (id_,) in rows)
        for table in (self.tables.failed_attempt, self.tables.log_line, self.tables.progress, self.tables.blocker):
            self.db.execute(f"DELETE FROM {table} WHERE job_id {self.db.any_id}", [jobs])
        self.db.execute(f"DELETE FROM {self.tables.blocker} WHERE blocker_id {self.db.any_id}", [doomed])

    def _lock_soon(self, chain_ids: Collection[UUID]) -> dict[UUID, LastJob]:
        """Call ``LastJobs.lock`` for chains that others may lock for long. Such chains are missing from the result."""
        try:
            with self.db.waits_within(CANCEL_SECONDS):
                return self._last_jobs.lock(chain_ids)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
        free = self._last_jobs.lock_unlocked(last_job.job_id for last_job in self._last_jobs.read(chain_ids).values())
        return {
            chain_id: last_job
            for chain_id, last_job in self._last_jobs.read(chain_ids).items()
            if last_job.job_id in free
        }

    def _lock_doomed(self, chain_ids: Collection[UUID], *, cascade: bool) -> dict[UUID, LastJob]:
        """Lock the chains to delete. A chain may get blockers while this waits for it; these are locked too."""
        if not cascade:
            return self._last_jobs.lock(chain_ids)
        doomed = self._with_blockers(chain_ids)
        while True:
            last_jobs = self._last_jobs.lock(doomed)
            if (wanted := self._with_blockers(chain_ids)) == doomed:
                return last_jobs
            doomed = wanted

    def _with_blockers(self, chain_ids: Collection[UUID]) -> set[UUID]:
        """Return these chains with all their direct and indirect blockers, with one statement for each level."""
        found = level = set(chain_ids)
        while level:
            level = {self.db.id(id_) for (id_,) in self.db.fetch(self._blockers_of, [ids_json(level)])} - found
            found = found | level
        return found

    # Statements

    @statement
    def _contexts(self) -> str:
        return f"SELECT {self.db.json_text('context')} FROM {self.tables.job} WHERE id {self.db.any_id}"

    @statement
    def _wait_of(self) -> str:
        paused = f"SELECT 1 FROM {self.tables.queue} AS queue WHERE queue.name = job.queue AND paused_at IS NOT NULL"
        return f"""
            SELECT job.type_name, job.status, job.queue, {self.db.seconds("clock.now", "job.run_at")},
                EXISTS ({paused}), EXISTS (SELECT 1 FROM {self.tables.worker} WHERE slots > 0),
                job.attempt - job.crashes - COALESCE(job.reschedules, 0)
            FROM {self.tables.job} AS job CROSS JOIN {self.db.clock} WHERE job.id {self._last_jobs.any_last_job}
        """

    @statement
    def _lifetimes(self) -> str:
        created_at = f"(SELECT first.created_at FROM {self.tables.job} AS first WHERE first.id = job.chain_id)"
        return f"""
            SELECT job.chain_id, job.chain_type_name,
                CASE WHEN job.status = 'cancelled' AND {self.db.is_expired} THEN 'expired' ELSE job.status END,
                {self.db.seconds(created_at, "job.finished_at")}, job.schedule_name
            FROM {self.tables.job} AS job
            WHERE job.id {self._last_jobs.any_last_job} AND job.status || '' IN ('completed', 'failed', 'cancelled')
        """

    @statement
    def _results(self) -> str:
        return f"""
            SELECT chain_id, status, {self.db.json_text("output")}, last_error, type_name, chain_type_name,
                {self.db.is_expired}
            FROM {self.tables.job} AS job WHERE id {self.db.any_id}
        """

    @statement
    def _complete(self) -> str:
        return f"""
            UPDATE {self.tables.job} AS job SET status = 'completed', output = %s{self.db.json_cast},
                finished_at = clock.now, completed_by = NULL, leased_by = NULL, leased_until = NULL, last_error = NULL
            FROM {self.db.clock}
            WHERE job.id = {self.db.id_param} AND job.status || '' IN ('blocked', 'pending', 'running')
            RETURNING {self.db.is_cancelled}
        """

    @statement
    def _cancel(self) -> str:
        return f"""
            UPDATE {self.tables.job} AS job SET cancel_requested_at = COALESCE(job.cancel_requested_at, clock.now),
                finished_at = CASE job.status WHEN 'running' THEN NULL ELSE clock.now END,
                status = CASE job.status WHEN 'running' THEN 'running' ELSE 'cancelled' END
            FROM {self.db.clock}
            WHERE job.id {self.db.any_id} AND job.status || '' IN ('blocked', 'pending', 'running')
            RETURNING id, chain_id, status
        """

    @statement
    def _late(self) -> str:
        return f"""
            SELECT late.id FROM {self.tables.job} AS late {self.db.by_index("jobchains_expiring")}
            WHERE late.expires_at <= {self.db.now} AND late.attempt = 0 AND late.status IN ('blocked', 'pending')
            AND NOT late.id {self.db.any_id} ORDER BY late.expires_at LIMIT %s {self.db.skip_lock("late")}
        """

    @statement
    def _expire(self) -> str:
        late = f"""
            SELECT late.id FROM {self.tables.job} AS late
            WHERE late.id {self.db.any_id} AND late.expires_at <= {self.db.now} AND late.attempt = 0
            AND late.status || '' IN ('blocked', 'pending') ORDER BY late.id {self.db.skip_lock("late")}
        """
        return f"""
            UPDATE {self.tables.job} AS job SET status = 'cancelled', cancel_requested_at = job.expires_at,
                finished_at = clock.now
            FROM {self.db.clock}
            WHERE job.id {self.db.any_of(late)} AND job.status || '' IN ('blocked', 'pending')
            RETURNING id, chain_id, type_name, lease_number
        """

    @statement
    def _retry(self) -> str:
        return f"""
            UPDATE {self.tables.job} AS job
            SET status = CASE WHEN {self._blockers.has_open_link()} THEN 'blocked' ELSE 'pending' END,
                run_at = clock.now, finished_at = NULL, cancel_requested_at = NULL, expires_at = NULL
            FROM {self.db.clock} WHERE job.id {self.db.any_id} AND job.status IN ('failed', 'cancelled')
            RETURNING id, type_name, status, chain_id
        """

    @statement
    def _move(self) -> str:
        return f"""
            UPDATE {self.tables.job} AS job SET run_at = {self.db.planned}
            FROM {self.db.row("run_at timestamptz, delay_seconds float")} CROSS JOIN {self.db.clock}
            WHERE job.id {self.db.any_id} AND job.status || '' = 'pending' RETURNING type_name
        """

    @statement
    def _blockers_of(self) -> str:
        jobs = f"SELECT job.id FROM {self.tables.job} AS job WHERE job.chain_id {self.db.any_id}"
        return f"SELECT blocker_id FROM {self.tables.blocker} WHERE job_id {self.db.any_of(jobs)}"

    @statement
    def _references(self) -> str:
        """Links from uncompleted jobs of other chains, which may need the chain's output."""
        return f"""
            SELECT link.blocker_id, link.job_id FROM {self.tables.blocker} AS link
            JOIN {self.tables.job} AS job ON job.id = link.job_id
            WHERE link.blocker_id {self.db.any_id} AND NOT job.chain_id {self.db.any_id}
            AND job.status || '' <> 'completed' ORDER BY link.blocker_id, link.job_id LIMIT %s
        """


def _end_of(last_job: LastJob, result: ChainEnd | None) -> ChainEnd:
    if result and result.status == last_job.status:
        return result
    status = "running" if last_job.status in FINAL else last_job.status
    return ChainEnd(last_job.chain_id, status, type_name=last_job.type_name, chain_type_name=last_job.chain_type_name)


def _refuse_missing(chain_ids: Iterable[UUID], found: Collection[UUID]) -> None:
    for chain_id in chain_ids:
        if chain_id not in found:
            raise ChainNotFound(chain_id)
