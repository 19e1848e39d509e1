"""Fan-in: which jobs wait for which chains, and what happens to the jobs when the chains end.

A link is open until its chain has ended so that the job may run. Two chains that end at the same time both lock the
jobs that wait for them first. Only then, in a second statement, they check whether a link is still open, so the second
chain sees what the first has done. A job is linked to a chain only while that chain's last job is locked.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from django_jobchains.exceptions import ChainNotFound, InvalidBlockers
from django_jobchains.store.database import Database, Part, ids_json, statement
from django_jobchains.store.errors import retried
from django_jobchains.store.last_jobs import LastJob, LastJobs
from django_jobchains.store.on_failure import FailureChains
from django_jobchains.store.rows import Effects, FailedWaiter, NewJob

#: The error of a job with ``on_blocker_failure="fail"`` whose blocker failed.
BLOCKER_FAILED = "A blocker failed or was cancelled."
#: The limit of waiting jobs that one statement changes.
RESOLVE_LIMIT = 1_000


class Blockers(Part):
    def __init__(self, db: Database, last_jobs: LastJobs, failures: FailureChains) -> None:
        super().__init__(db)
        self._last_jobs = last_jobs
        self._failures = failures

    def lock(self, jobs: Sequence[NewJob]) -> None:
        """Lock the chains that new jobs wait for, and check them. They cannot change until the transaction ends."""
        for job in jobs:
            _check_blockers(job)
        chain_ids = {chain_id for job in jobs for chain_id in job.blockers}
        last_jobs = self._last_jobs.lock(chain_ids, shared=True)
        for job in jobs:
            for position, chain_id in enumerate(job.blockers):
                if chain_id not in last_jobs:
                    raise ChainNotFound(chain_id)
                _check_type(job, position, last_jobs[chain_id])
        self._refuse_circles([job for job in jobs if job.chain_index])

    def link(self, jobs: Sequence[NewJob], effects: Effects) -> None:
        """Link new blocked jobs to the chains they wait for; free or fail the jobs that need not wait.

        The chains are checked again now that all jobs of this transaction exist: some may belong to these chains.
        """
        rows = [
            {"job_id": job.id.hex, "position": position, "blocker_id": chain_id.hex}
            for job in jobs
            for position, chain_id in enumerate(job.blockers)
        ]
        self.db.fetch(self._insert_links, [json.dumps(rows)])
        job_ids = [job.id for job in jobs]
        self.db.fetch(self._close_links, [ids_json(job_ids)])
        self._free(job_ids, effects)
        if any(job.on_blocker_failure == "fail" for job in jobs):
            self.resolve(self.fail_waiting(job_ids, effects), effects)

    def resolve(self, chain_ids: Collection[UUID], effects: Effects) -> None:
        """Free or fail the jobs that waited for these ended chains, and do the same for chains that fail because of it.

        Each level of failing chains takes a constant number of statements for every ``RESOLVE_LIMIT`` jobs, so that no
        statement reaches a time limit, however many jobs wait for one chain.
        """
        ended = set(chain_ids)
        while ended:
            effects.finished_chains |= ended
            waiting = [self.db.id(job_id) for (job_id,) in self.db.fetch(self._waiting, [ids_json(ended)])]
            steps = [waiting[start : start + RESOLVE_LIMIT] for start in range(0, len(waiting), RESOLVE_LIMIT)]
            ended = set().union(*[self._resolve_jobs(step, ended, effects) for step in steps])

    def fail_waiting(self, job_ids: Collection[UUID], effects: Effects) -> set[UUID]:
        """Fail the locked jobs that must not run after a blocker failed or was cancelled; return their chains."""
        rows = self.db.fetch(self._fail, [ids_json(job_ids)])
        failed = [
            FailedWaiter(self.db.id(id_), self.db.id(chain_id), type_name, BLOCKER_FAILED)
            for id_, chain_id, type_name in rows
        ]
        self._failures.enqueue([(job.job_id, job.type_name) for job in failed], effects)
        effects.failed_waiters.update((job.job_id, job) for job in failed)
        return {job.chain_id for job in failed}

    @retried
    def sweep(self, limit: int, after: UUID | None, effects: Effects) -> tuple[list[UUID], UUID | None]:
        """Free blocked jobs that wait for nothing, and fail jobs that should have failed with a blocker.

        There should not be any such jobs. Reads ``limit`` blocked jobs, of the chains with an id above ``after``;
        returns the ids of the jobs it moved, and the id to continue after.
        """
        with effects.undone_on_error(), self.db.transaction():
            self.db.write_first()
            rows = self.db.fetch(self._blocked, [(after or UUID(int=0)).hex, limit])
            read = [(self.db.id(chain_id), self.db.id(job_id), is_stuck) for chain_id, job_id, is_stuck in rows]
            stuck = [job_id for _, job_id, is_stuck in read if is_stuck]
            moved: list[UUID] = []
            if stuck:
                stuck = list(self._last_jobs.lock_unlocked(stuck))  # The next sweep finds the others again.
                self.db.fetch(self._close_links, [ids_json(stuck)])
                moved = self._free(stuck, effects)
                failed = self.fail_waiting(stuck, effects)
                self.resolve(failed, effects)
                moved += [job_id for chain_id, job_id, _ in read if chain_id in failed]
        return moved, read[-1][0] if len(read) == limit else None

    def has_open_link(self, condition: str = "true") -> str:
        """SQL of whether a job has an open link for which this is true, evaluated for each job separately.

        Not EXISTS, which PostgreSQL may turn into a join: with statistics from a time when the tables were nearly
        empty, it would join all jobs with all open links.
        """
        link = (
            f"SELECT 1 FROM {self.tables.blocker} AS link WHERE link.job_id = job.id AND link.is_open AND {condition}"
        )
        return f"(COALESCE(({link} LIMIT 1), 0) = 1)"

    def _resolve_jobs(self, job_ids: Collection[UUID], ended: Collection[UUID], effects: Effects) -> set[UUID]:
        """Lock these jobs, and free or fail them; return the chains that failed."""
        ids = ids_json(job_ids)
        policies = self._last_jobs.lock_rows("on_blocker_failure", self.db.any_id, [ids])
        self.db.fetch(self._close_links_to, [ids, ids_json(ended)])
        self._free(job_ids, effects)
        return self.fail_waiting(job_ids, effects) if "fail" in policies.values() else set()

    def _free(self, job_ids: Collection[UUID], effects: Effects) -> list[UUID]:
        """Make the locked jobs pending that no longer wait for anything. A future due date is kept."""
        rows = self.db.fetch(self._make_pending, [ids_json(job_ids)])
        effects.unblocked.update((self.db.id(id_), type_name) for id_, type_name, _ in rows)
        effects.add_due(type_name for _, type_name, is_due in rows if is_due)
        effects.add_scheduled(type_name for _, type_name, is_due in rows if not is_due)
        return [self.db.id(id_) for id_, _, _ in rows]

    def _refuse_circles(self, jobs: Sequence[NewJob]) -> None:
        """Refuse a continuation that waits for a chain that waits, directly or not, for the continuation's own chain.

        It would never start. All chains on the way are locked, because another transaction may close a circle through
        them at the same time.
        """
        new = {job.chain_id: set(job.blockers) for job in jobs}
        locked = reached = set().union(*new.values())
        awaited = self._awaited(reached)
        while (reached := reached.union(*awaited.values())) != locked:
            locked = reached
            self._last_jobs.lock(locked, shared=True)
            awaited = self._awaited(reached)
        for chain_id, blockers in new.items():
            awaited[chain_id] = awaited.get(chain_id, set()) | blockers
        for chain_id in new:
            if chain_id in _reached_from(awaited[chain_id], awaited):
                raise InvalidBlockers(f"Chain {chain_id} cannot wait for a chain that waits for it.")

    def _awaited(self, chain_ids: Collection[UUID]) -> dict[UUID, set[UUID]]:
        """Return the chains that these chains wait for, directly or indirectly, with one statement for each level."""
        awaited: dict[UUID, set[UUID]] = {}
        level = set(chain_ids)
        while level:
            awaited.update((chain_id, set()) for chain_id in level)
            rows = self.db.fetch(self._awaited_by, [ids_json(level)])
            for chain_id, blocker_id in rows:
                awaited[self.db.id(chain_id)].add(self.db.id(blocker_id))
            level = {self.db.id(blocker_id) for _, blocker_id in rows} - awaited.keys()
        return awaited

    # Statements

    @property
    def _status_of_chain(self) -> str:
        return self.db.last_of("link.blocker_id", "status")

    @property
    def _has_failed(self) -> str:
        """SQL of whether the chain of a link has failed or was cancelled."""
        return f"{self._status_of_chain} IN ('failed', 'cancelled')"

    @property
    def _lets_run(self) -> str:
        """SQL of whether the chain of a link has ended so that the job may run."""
        runs_anyway = f"""
            (SELECT job.on_blocker_failure FROM {self.tables.job} AS job WHERE job.id = link.job_id) = 'run'
        """
        return f"""
            (CASE {self._status_of_chain} WHEN 'completed' THEN true
            WHEN 'failed' THEN {runs_anyway} WHEN 'cancelled' THEN {runs_anyway} ELSE false END)
        """

    @statement
    def _awaited_by(self) -> str:
        return f"""
            SELECT job.chain_id, link.blocker_id FROM {self.tables.job} AS job
            JOIN {self.tables.blocker} AS link ON link.job_id = job.id AND link.is_open
            WHERE job.status || '' <> 'completed' AND job.id {self._last_jobs.any_last_job}
        """

    @statement
    def _insert_links(self) -> str:
        return f"""
            INSERT INTO {self.tables.blocker} (job_id, position, blocker_id, is_open)
            SELECT d.job_id, d.position, d.blocker_id, true
            FROM {self.db.rows("job_id uuid, position int, blocker_id uuid")} RETURNING position
        """

    @statement
    def _waiting(self) -> str:
        return f"""
            SELECT DISTINCT job_id FROM {self.tables.blocker} WHERE is_open AND blocker_id {self.db.any_id}
            ORDER BY job_id
        """

    @statement
    def _close_links(self) -> str:
        return f"""
            UPDATE {self.tables.blocker} AS link SET is_open = false WHERE link.is_open AND {self._lets_run}
            AND link.job_id {self.db.any_id} RETURNING position
        """

    @statement
    def _close_links_to(self) -> str:
        return f"""
            UPDATE {self.tables.blocker} AS link SET is_open = false WHERE link.is_open AND {self._lets_run}
            AND link.job_id {self.db.any_id} AND link.blocker_id {self.db.any_id} RETURNING position
        """

    @statement
    def _make_pending(self) -> str:
        return f"""
            UPDATE {self.tables.job} AS job
            SET status = 'pending', run_at = {self.db.latest("job.run_at", "clock.now")}
            FROM {self.db.clock} WHERE job.id {self.db.any_id} AND job.status || '' = 'blocked'
            AND NOT {self.has_open_link()} RETURNING id, type_name, run_at <= (SELECT now FROM {self.db.clock})
        """

    @statement
    def _fail(self) -> str:
        return f"""
            UPDATE {self.tables.job} AS job
            SET status = 'failed', finished_at = clock.now, last_error = '{BLOCKER_FAILED}'
            FROM {self.db.clock} WHERE job.id {self.db.any_id} AND job.status || '' = 'blocked'
            AND job.on_blocker_failure = 'fail' AND {self.has_open_link(self._has_failed)}
            RETURNING id, chain_id, type_name
        """

    @statement
    def _blocked(self) -> str:
        """The next blocked jobs, at most one per chain: chain, job, and whether it should not be blocked."""
        fails = f"CASE job.on_blocker_failure WHEN 'fail' THEN {self.has_open_link(self._has_failed)} ELSE false END"
        return f"""
            SELECT job.chain_id, job.id, NOT {self.has_open_link(f"NOT {self._lets_run}")} OR ({fails})
            FROM {self.tables.job} AS job WHERE job.status = 'blocked' AND job.chain_id > {self.db.id_param}
            ORDER BY job.chain_id LIMIT %s
        """


def _reached_from(chain_ids: Collection[UUID], awaited: Mapping[UUID, Collection[UUID]]) -> set[UUID]:
    reached: set[UUID] = set()
    further = set(chain_ids)
    while further:
        reached |= further
        further = set().union(*(awaited.get(chain_id, ()) for chain_id in further)) - reached
    return reached


def _check_blockers(job: NewJob) -> None:
    ((chain_id, count),) = Counter(job.blockers).most_common(1)
    if count > 1:
        raise InvalidBlockers(f"Chain {chain_id} is given as a blocker twice.")
    if job.chain_id in job.blockers:
        raise InvalidBlockers(f"Chain {job.chain_id} cannot wait for itself.")


def _check_type(job: NewJob, position: int, blocker: LastJob) -> None:
    if job.blocker_slots is not None and blocker.chain_type_name != job.blocker_slots[position]:
        raise InvalidBlockers(
            f"{job.type_name!r} requires a chain of {job.blocker_slots[position]!r} as blocker {position + 1}, not of "
            f"{blocker.chain_type_name!r} ({blocker.chain_id})."
        )
    if job.accepted_blockers is not None and blocker.chain_type_name not in job.accepted_blockers:
        names = ", ".join(sorted(job.accepted_blockers)) or "none"
        problem = f"not of {blocker.chain_type_name!r} ({blocker.chain_id})"
        raise InvalidBlockers(f"{job.type_name!r} accepts blockers of {names}, {problem}.")
