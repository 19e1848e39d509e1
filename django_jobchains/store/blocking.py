"""Fan-in: which jobs wait for which chains, and what happens to them when these end.

A link is open until its chain ended so that the job may run. Two chains that end at the same time both lock the jobs
that wait for them first, and only then, in a new statement, look whether a link is still open: so the second of them
sees what the first has done. And a job is linked to a chain only while that chain's last job is locked.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from django_jobchains.exceptions import ChainNotFound, InvalidBlockers
from django_jobchains.store.dialect import ids_json
from django_jobchains.store.errors import retried
from django_jobchains.store.rows import Effects, NewJob
from django_jobchains.store.tails import Tail, Tails

#: What a job is told whose blocker failed, by ``on_blocker_failure="fail"``.
BLOCKER_FAILED = "A blocker failed or was cancelled."


#: Waiting jobs that one statement changes at the most.
SETTLE_LIMIT = 1_000


class Blocking(Tails):
    def _lock_blockers(self, jobs: Sequence[NewJob]) -> None:
        """Locks the chains that new jobs wait for, and checks them; they stay as they are until the end."""
        for job in jobs:
            _check_blockers(job)
        chain_ids = {chain_id for job in jobs for chain_id in job.blockers}
        tails = self.lock_tails(chain_ids, shared=True)
        for job in jobs:
            for chain_id in job.blockers:
                if chain_id not in tails:
                    raise ChainNotFound(chain_id)
                _check_type(job, tails[chain_id])
        self._refuse_circles([job for job in jobs if job.chain_index])

    def _refuse_circles(self, jobs: Sequence[NewJob]) -> None:
        """A continuation could wait for a chain that, in the end, waits for its own chain: for ever.

        A circle may be closed elsewhere at the same time, by chains that ours wait for by way of others: so all of them
        are locked.
        """
        new = {job.chain_id: set(job.blockers) for job in jobs}
        locked = reached = set().union(*new.values())
        awaited = self._awaited(reached)
        while (reached := reached.union(*awaited.values())) != locked:
            locked = reached
            self.lock_tails(locked, shared=True)
            awaited = self._awaited(reached)
        for chain_id, blockers in new.items():
            awaited[chain_id] = awaited.get(chain_id, set()) | blockers
        for chain_id in new:
            if chain_id in _reached_from(awaited[chain_id], awaited):
                raise InvalidBlockers(f"Chain {chain_id} cannot wait for a chain that waits for it.")

    def _awaited(self, chain_ids: Collection[UUID]) -> dict[UUID, set[UUID]]:
        """The chains that these wait for, and those that they wait for in turn; a statement for each level."""
        awaited: dict[UUID, set[UUID]] = {}
        level = set(chain_ids)
        last = self._any(f"SELECT {self._last_of('d.job_id')} FROM {self._rows('job_id uuid')}")
        while level:
            awaited.update((chain_id, set()) for chain_id in level)
            rows = self._fetch(
                f"SELECT job.chain_id, link.blocker_id FROM {self.job} AS job JOIN {self.blocker} AS link "
                f"ON link.job_id = job.id AND link.is_open WHERE job.status || '' <> 'completed' AND job.id {last}",
                [ids_json(level)],
            )
            for chain_id, blocker_id in rows:
                awaited[self._id(chain_id)].add(self._id(blocker_id))
            level = {self._id(blocker_id) for _, blocker_id in rows} - awaited.keys()
        return awaited

    def _block(self, jobs: Sequence[NewJob], effects: Effects) -> None:
        """Links new jobs, which are blocked, to the chains they wait for; frees or fails those that need not wait.

        It is looked at again what the chains do, now that all jobs of this transaction are there: they may be of them.
        """
        rows = [
            {"job_id": job.id.hex, "position": position, "blocker_id": chain_id.hex}
            for job in jobs
            for position, chain_id in enumerate(job.blockers)
        ]
        self._fetch(
            f"INSERT INTO {self.blocker} (job_id, position, blocker_id, is_open) SELECT d.job_id, d.position, "
            f"d.blocker_id, true FROM {self._rows('job_id uuid, position int, blocker_id uuid')} RETURNING position",
            [json.dumps(rows)],
        )
        job_ids = [job.id for job in jobs]
        self._close_links(ids_json(job_ids))
        self._free(job_ids, effects)
        if any(job.on_blocker_failure == "fail" for job in jobs):
            self._settle(self._fail_waiting(job_ids), effects)

    def _settle(self, chain_ids: Collection[UUID], effects: Effects) -> None:
        """Frees or fails the jobs that waited for these chains, which ended, and settles the chains that fail by it.

        Each level of failing chains takes a constant number of statements for every ``SETTLE_LIMIT`` jobs, so that no
        statement meets a time limit, however many jobs wait for one chain.
        """
        ended = set(chain_ids)
        while ended:
            effects.finished_chains |= ended
            waiting = self._waiting_for(ended)
            steps = [waiting[start : start + SETTLE_LIMIT] for start in range(0, len(waiting), SETTLE_LIMIT)]
            ended = set().union(*[self._settle_jobs(step, ended, effects) for step in steps])

    def _waiting_for(self, chain_ids: Collection[UUID]) -> list[UUID]:
        """The jobs with an open link to these chains, in the order of their ids."""
        rows = self._fetch(
            f"SELECT DISTINCT job_id FROM {self.blocker} WHERE is_open AND blocker_id {self._any(self._ids_sql)} "
            "ORDER BY job_id",
            [ids_json(chain_ids)],
        )
        return [self._id(job_id) for (job_id,) in rows]

    def _settle_jobs(self, job_ids: Collection[UUID], ended: Collection[UUID], effects: Effects) -> set[UUID]:
        """Frees or fails these jobs, which it locks first; returns the chains that failed by it."""
        ids = ids_json(job_ids)
        policies = self._lock_rows("on_blocker_failure", self._any(self._ids_sql), [ids])
        self._close_links(ids, f"AND link.blocker_id {self._any(self._ids_sql)}", ids_json(ended))
        self._free(job_ids, effects)
        return self._fail_waiting(job_ids) if "fail" in policies.values() else set()

    def _close_links(self, job_ids: str, condition: str = "", *parameters: str) -> None:
        """Closes the open links of these jobs, in JSON, whose chain has ended so that the job may run."""
        self._fetch(
            f"UPDATE {self.blocker} AS link SET is_open = false WHERE link.is_open AND {self._lets_run} "
            f"AND link.job_id {self._any(self._ids_sql)} {condition} RETURNING position",
            [job_ids, *parameters],
        )

    @property
    def _lets_run(self) -> str:
        """SQL of whether the chain of a link has ended so that the job may run."""
        runs_anyway = f"(SELECT job.on_blocker_failure FROM {self.job} AS job WHERE job.id = link.job_id) = 'run'"
        return (
            f"(CASE {self._last_of('link.blocker_id', 'status')} WHEN 'completed' THEN true "
            f"WHEN 'failed' THEN {runs_anyway} WHEN 'cancelled' THEN {runs_anyway} ELSE false END)"
        )

    def _free(self, job_ids: Collection[UUID], effects: Effects) -> list[UUID]:
        """Makes those of these locked jobs pending that wait for nothing any more; a future date survives."""
        rows = self._fetch(
            f"UPDATE {self.job} AS job SET status = 'pending', run_at = {self._latest('job.run_at', 'clock.now')} "
            f"FROM {self.clock} WHERE job.id {self._any(self._ids_sql)} AND job.status || '' = 'blocked' "
            f"AND NOT {self._has_open_link()} RETURNING id, type_name, run_at <= (SELECT now FROM {self.clock})",
            [ids_json(job_ids)],
        )
        effects.add_due(type_name for _, type_name, is_due in rows if is_due)
        effects.add_scheduled(type_name for _, type_name, is_due in rows if not is_due)
        return [self._id(id_) for id_, _, _ in rows]

    def _has_open_link(self, condition: str = "true") -> str:
        """SQL of whether a job has an open link of which this is true, looked at for each job by itself.

        Not EXISTS, which PostgreSQL may turn into a join: with statistics of when the tables were nearly empty, one of
        all the jobs with all open links.
        """
        link = f"SELECT 1 FROM {self.blocker} AS link WHERE link.job_id = job.id AND link.is_open AND {condition}"
        return f"(COALESCE(({link} LIMIT 1), 0) = 1)"

    def _fail_waiting(self, job_ids: Collection[UUID]) -> set[UUID]:
        """Fails those of these locked jobs that do not outlive a blocker; returns their chains."""
        rows = self._fetch(
            f"UPDATE {self.job} AS job SET status = 'failed', finished_at = clock.now, last_error = '{BLOCKER_FAILED}' "
            f"FROM {self.clock} WHERE job.id {self._any(self._ids_sql)} AND job.status || '' = 'blocked' "
            f"AND job.on_blocker_failure = 'fail' AND {self._has_open_link(self._has_failed)} RETURNING chain_id",
            [ids_json(job_ids)],
        )
        return {self._id(chain_id) for (chain_id,) in rows}

    @property
    def _has_failed(self) -> str:
        """SQL of whether the chain of a link has failed or was cancelled."""
        return f"{self._last_of('link.blocker_id', 'status')} IN ('failed', 'cancelled')"

    @retried
    def sweep(self, limit: int, after: UUID | None, effects: Effects) -> tuple[list[UUID], UUID | None]:
        """Frees blocked jobs that wait for nothing, and fails those that should have failed with a blocker.

        There must not be any. Looks at ``limit`` blocked jobs, of the chains with an id above ``after``; returns the
        ids of the jobs it moved, and where to go on.
        """
        with self.transaction():
            self._write_first()
            looked_at = self._blocked_after(after, limit)
            stuck = [job_id for _, job_id, is_stuck in looked_at if is_stuck]
            moved: list[UUID] = []
            if stuck:
                stuck = list(self._lock_unlocked(stuck))  # the others are found again by the next sweep
                self._close_links(ids_json(stuck))
                moved = self._free(stuck, effects)
                failed = self._fail_waiting(stuck)
                self._settle(failed, effects)
                moved += [job_id for chain_id, job_id, _ in looked_at if chain_id in failed]
        return moved, looked_at[-1][0] if len(looked_at) == limit else None

    def _blocked_after(self, after: UUID | None, limit: int) -> list[tuple[UUID, UUID, Any]]:
        """The next blocked jobs, of which a chain has one: chain, job, and whether it should not be blocked."""
        fails = f"CASE job.on_blocker_failure WHEN 'fail' THEN {self._has_open_link(self._has_failed)} ELSE false END"
        rows = self._fetch(
            f"SELECT job.chain_id, job.id, NOT {self._has_open_link(f'NOT {self._lets_run}')} OR ({fails}) "
            f"FROM {self.job} AS job WHERE job.status = 'blocked' AND job.chain_id > {self._uuid} "
            "ORDER BY job.chain_id LIMIT %s",
            [(after or UUID(int=0)).hex, limit],
        )
        return [(self._id(chain_id), self._id(job_id), is_stuck) for chain_id, job_id, is_stuck in rows]


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


def _check_type(job: NewJob, blocker: Tail) -> None:
    if job.accepted_blockers is not None and blocker.chain_type_name not in job.accepted_blockers:
        names = ", ".join(sorted(job.accepted_blockers)) or "none"
        problem = f"not of {blocker.chain_type_name!r} ({blocker.chain_id})"
        raise InvalidBlockers(f"{job.type_name!r} accepts blockers of {names}, {problem}.")
