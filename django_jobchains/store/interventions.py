"""What people do to jobs, and programs without a worker: complete, cancel, retry, reschedule, delete.

Chains are locked by their last jobs (see ``tails``), jobs in the order of their ids.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from uuid import UUID

from django.db import OperationalError, transaction

from django_jobchains.exceptions import (
    ChainNotFound,
    ChainReferenced,
    JobAlreadyCompleted,
    JobNotCompletable,
    JobNotFound,
    JobNotRunnable,
)
from django_jobchains.store.creating import Creating
from django_jobchains.store.deferred_writes import DeferredWrites
from django_jobchains.store.dialect import ids_json
from django_jobchains.store.errors import is_lock_timeout, retried
from django_jobchains.store.rows import Effects, NewJob
from django_jobchains.store.tails import Tail

#: References to a chain that an error names.
MOST_NAMED = 5
#: How long ``cancel`` waits for a running job that is locked, which most often is just being completed.
CANCEL_SECONDS = 0.2


class Interventions(Creating, DeferredWrites):
    def complete(self, tail: Tail, output: str | None, continuation: NewJob | None, effects: Effects) -> None:
        """Completes a chain's last job, which the caller has locked. Raises ``JobAlreadyCompleted`` and
        ``JobNotCompletable``."""
        with transaction.atomic(using=self.using):  # the caller may catch the error and commit
            is_cancelled = self._complete(tail.job_id, output)
            if is_cancelled is None:
                if tail.status == "completed":
                    raise JobAlreadyCompleted(tail.job_id)
                raise JobNotCompletable(tail.job_id, tail.status)
            if tail.status == "running":
                effects.stopped_jobs.add(tail.job_id)
            if continuation:
                continuation.is_cancelled = is_cancelled
                self.create([continuation], effects)
            if not continuation or is_cancelled:
                self._settle([tail.chain_id], effects)

    def _complete(self, job_id: UUID, output: str | None) -> bool | None:
        """Whether the chain was to be cancelled; None when the job has ended."""
        rows = self._fetch(
            f"UPDATE {self.job} AS job SET status = 'completed', output = %s{self.json_cast}, finished_at = clock.now, "
            "completed_by = NULL, leased_by = NULL, leased_until = NULL, last_error = NULL "
            f"FROM {self.clock} WHERE job.id = {self._uuid} AND job.status || '' IN ('blocked', 'pending', 'running') "
            f"RETURNING {self._is_cancelled}",
            [output, job_id.hex],
        )
        return bool(rows[0][0]) if rows else None

    @retried
    def cancel(self, chain_ids: Collection[UUID], effects: Effects) -> set[UUID]:
        """Cancels chains that did not start their last job, and asks the others to stop; returns those of both.

        Raises ``ChainNotFound``, and has changed nothing then. A chain that has ended is left as it is. A job that runs
        and is locked for long, by its own handler or someone else, is not waited for: it is asked to stop all the same.
        """
        with self.transaction():
            self._write_first()
            tails = self.tails(chain_ids)
            _refuse_missing(chain_ids, tails)
            running = {tail.chain_id for tail in tails.values() if tail.status == "running"}
            # Those that run come last, and are not waited for long: the others are locked in the order of their ids.
            free = self.lock_tails(tails.keys() - running) if len(running) < len(tails) else {}
            if running:
                free |= self._lock_tails_soon(running)
            later = tails.keys() - free.keys()
            if later:
                self._defer_cancelling(later)
                effects.stopped_jobs.update(tails[chain_id].job_id for chain_id in later)
            return later | self._cancel_jobs([tail.job_id for tail in free.values()], effects)

    def _lock_tails_soon(self, chain_ids: Collection[UUID]) -> dict[UUID, Tail]:
        """``lock_tails`` of chains that someone else may have locked for long; then they are missing."""
        try:
            with self._waits_within(CANCEL_SECONDS):
                return self.lock_tails(chain_ids)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
        tails = self.tails(chain_ids)
        free = self._lock_unlocked(tail.job_id for tail in tails.values())
        return {chain_id: tail for chain_id, tail in self.tails(chain_ids).items() if tail.job_id in free}

    def _cancel_jobs(self, job_ids: Collection[UUID], effects: Effects) -> set[UUID]:
        """Cancels the last jobs of chains, which are locked, or asks them to stop; returns their chains."""
        changed = self._fetch(
            f"UPDATE {self.job} AS job SET cancel_requested_at = COALESCE(job.cancel_requested_at, clock.now), "
            "finished_at = CASE job.status WHEN 'running' THEN NULL ELSE clock.now END, "
            "status = CASE job.status WHEN 'running' THEN 'running' ELSE 'cancelled' END "
            f"FROM {self.clock} WHERE job.id {self._any(self._ids_sql)} "
            "AND job.status || '' IN ('blocked', 'pending', 'running') RETURNING id, chain_id, status",
            [ids_json(job_ids)],
        )
        effects.stopped_jobs.update(self._id(id_) for id_, _, status in changed if status == "running")
        self._settle([self._id(chain_id) for _, chain_id, status in changed if status == "cancelled"], effects)
        return {self._id(chain_id) for _, chain_id, _ in changed}

    @retried
    def retry(self, job_ids: Collection[UUID], effects: Effects) -> set[UUID]:
        """Makes failed and cancelled jobs pending, due now, or blocked while a blocker is open; returns their ids.

        A job with ``on_blocker_failure="fail"`` whose blocker is still failed or cancelled fails again at once. Raises
        ``JobNotFound``, and has changed nothing then. Jobs of other statuses are left as they are.
        """
        with self.transaction():
            self._lock_known(job_ids)
            rows = self._fetch(
                f"UPDATE {self.job} AS job SET "
                f"status = CASE WHEN {self._has_open_link()} THEN 'blocked' ELSE 'pending' END, "
                "run_at = clock.now, finished_at = NULL, cancel_requested_at = NULL, crashes = 0 "
                f"FROM {self.clock} WHERE job.id {self._any(self._ids_sql)} AND job.status IN ('failed', 'cancelled') "
                "RETURNING id, type_name, status, chain_id",
                [ids_json(job_ids)],
            )
            if rows:  # a request to cancel that was deferred must not reach the chain again
                self._forget_cancelling([self._id(chain_id) for *_, chain_id in rows])
            if blocked := [self._id(id_) for id_, _, status, _ in rows if status == "blocked"]:
                self._settle(self._fail_waiting(blocked), effects)
        effects.add_scheduled(type_name for _, type_name, _, _ in rows)
        return {self._id(id_) for id_, *_ in rows}

    @retried
    def move(self, job_ids: Collection[UUID], run_at: datetime | None, delay_seconds: float, effects: Effects) -> None:
        """Moves pending jobs to a time, or so far from now: all of them, or after ``JobNotFound`` or ``JobNotRunnable``
        none."""
        with self.transaction():
            for job_id, status in self._lock_known(job_ids).items():
                if status != "pending":
                    raise JobNotRunnable(job_id, status)
            rows = self._fetch(
                f"UPDATE {self.job} AS job SET run_at = {self._planned} "
                f"FROM {self._row('run_at timestamptz, delay_seconds float')} CROSS JOIN {self.clock} "
                f"WHERE job.id {self._any(self._ids_sql)} AND job.status || '' = 'pending' RETURNING type_name",
                [run_at and self._time_text(run_at), delay_seconds, ids_json(job_ids)],
            )
        effects.add_scheduled(type_name for (type_name,) in rows)

    def _lock_known(self, job_ids: Collection[UUID]) -> dict[UUID, str]:
        statuses = self._lock_jobs(job_ids)
        for job_id in job_ids:
            if job_id not in statuses:
                raise JobNotFound(job_id)
        return statuses

    @retried
    def delete(self, chain_ids: Collection[UUID], *, cascade: bool, effects: Effects) -> set[UUID]:
        """Deletes chains with all their jobs, and by ``cascade`` the chains they had as blockers; returns their ids.

        Raises ``ChainNotFound``, and ``ChainReferenced`` when a job of another chain needs one of them; then nothing
        was deleted.
        """
        with self.transaction():
            tails = self._lock_doomed(chain_ids, cascade=cascade)
            _refuse_missing(chain_ids, tails)
            doomed = ids_json(tails)
            if references := self._references(doomed):
                raise ChainReferenced(references)
            self._erase(doomed)
        effects.finished_chains.update(tails)
        effects.stopped_jobs.update(tail.job_id for tail in tails.values() if tail.status == "running")
        return set(tails)

    def _erase(self, doomed: str) -> None:
        """Deletes locked chains, in JSON, with everything that is theirs.

        The jobs first: from then on nobody adds log lines to them. References are looked at when it is committed.
        """
        rows = self._fetch(f"DELETE FROM {self.job} WHERE chain_id {self._any(self._ids_sql)} RETURNING id", [doomed])
        jobs = ids_json(self._id(id_) for (id_,) in rows)
        for table in (self.failed_attempt, self.log_line, self.progress, self.blocker):
            self._execute(f"DELETE FROM {table} WHERE job_id {self._any(self._ids_sql)}", [jobs])
        self._execute(f"DELETE FROM {self.blocker} WHERE blocker_id {self._any(self._ids_sql)}", [doomed])

    def _lock_doomed(self, chain_ids: Collection[UUID], *, cascade: bool) -> dict[UUID, Tail]:
        """Locks the chains to delete. A chain may get blockers while it is waited for: then there are more."""
        if not cascade:
            return self.lock_tails(chain_ids)
        self._write_first()
        doomed = self._with_blockers(chain_ids)
        while True:
            tails = self.lock_tails(doomed)
            if (wanted := self._with_blockers(chain_ids)) == doomed:
                return tails
            doomed = wanted

    def _with_blockers(self, chain_ids: Collection[UUID]) -> set[UUID]:
        """These chains, their jobs' blockers, and the blockers of those; a statement for each level."""
        found = level = set(chain_ids)
        while level:
            jobs = self._any(f"SELECT job.id FROM {self.job} AS job WHERE job.chain_id {self._any(self._ids_sql)}")
            rows = self._fetch(f"SELECT blocker_id FROM {self.blocker} WHERE job_id {jobs}", [ids_json(level)])
            level = {self._id(chain_id) for (chain_id,) in rows} - found
            found = found | level
        return found

    def _references(self, doomed: str) -> list[tuple[UUID, UUID]]:
        """Links from jobs of other chains, which are not completed and so may need the chain's output."""
        rows = self._fetch(
            f"SELECT link.blocker_id, link.job_id FROM {self.blocker} AS link "
            f"JOIN {self.job} AS job ON job.id = link.job_id "
            f"WHERE link.blocker_id {self._any(self._ids_sql)} AND NOT job.chain_id {self._any(self._ids_sql)} "
            "AND job.status || '' <> 'completed' ORDER BY link.blocker_id, link.job_id LIMIT %s",
            [doomed, doomed, MOST_NAMED],
        )
        return [(self._id(chain_id), self._id(job_id)) for chain_id, job_id in rows]


def _refuse_missing(chain_ids: Iterable[UUID], tails: dict[UUID, Tail]) -> None:
    for chain_id in chain_ids:
        if chain_id not in tails:
            raise ChainNotFound(chain_id)
