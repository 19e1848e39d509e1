"""A model of the store: every operation in a few lines, on dicts instead of tables, without locks or a clock."""

from dataclasses import replace

from django_jobchains.exceptions import (
    ChainNotFound,
    ChainReferenced,
    InvalidBlockers,
    JobAlreadyCompleted,
    JobNotCompletable,
    JobNotRunnable,
)
from django_jobchains.statuses import FINAL, OPEN
from django_jobchains.store.rows import NewJob
from tests.model.tables import Link, Row, Tables

STOPPED = ("failed", "cancelled")
MAX_CRASHES = 3


def crash_wait(crashes):
    """Return the hours to wait after the given number of crashes."""
    return min(1 << (crashes - 1), 4)


class Model(Tables):
    #: Hours since the start.
    now: float = 0

    # Queries

    def last_job(self, chain):
        return max((job for job in self.jobs.values() if job.chain == chain), key=lambda job: job.index)

    def chains(self):
        return sorted({job.chain for job in self.jobs.values()})

    def held(self, key):
        """Return the attempt's job if the attempt still holds its lease."""
        job = self.jobs.get(key[0])
        return job if job and (job.status, job.lease) == ("running", key[1]) else None

    def open_links(self, job):
        return [link for (id_, _), link in self.links.items() if id_ == job and link.is_open]

    def lets_run(self, job, link):
        status = self.last_job(link.blocker).status
        return status == "completed" or (status in STOPPED and self.jobs[job].policy == "run")

    # Creating

    def same(self, new):
        """Return the chains that deduplication may return for a new job."""
        wanted = new.deduplicate
        assert wanted
        since = self.now - wanted.window / 3600 if wanted.window else 0
        return {
            job.chain
            for job in self.jobs.values()
            if job.index == 0
            and (job.key, job.chain_type) == (wanted.key, new.type_name)
            and job.chain not in wanted.exclude_chain_ids
            and self.matches(wanted.scope, self.may_run(self.last_job(job.chain)), (job.created_at or 0) >= since)
        }

    @staticmethod
    def matches(scope, is_open, is_young):
        if scope == "incomplete_or_recent":
            return is_open or is_young
        return is_young and (is_open or scope == "any")

    def enqueue(self, batch):
        """Create jobs, and return for each the ids of which the store may return one."""
        found = [self.same(new) if new.deduplicate else set() for new in batch]
        first = {}
        answers, fresh = [], []
        for new, same in zip(batch, found, strict=True):
            if new.deduplicate and not same:
                same = {first.setdefault((new.type_name, new.deduplication_key), new.id)}
            answers.append(same or {new.id})
            if answers[-1] == {new.id}:
                fresh.append(new)
        self.create(fresh)
        return answers

    def replace(self, chain, new):
        """Move the first job of a chain to the time of a new one, and return True, if it has not started."""
        job = self.jobs[chain]
        if job.status not in ("blocked", "pending") or job.last_attempt_at is not None:
            return False
        job.run_at = self.now + (new.delay_seconds or 0) / 3600
        job.expires_at = new.expires_seconds and job.run_at + new.expires_seconds / 3600
        return True

    def create(self, batch):
        for new in batch:
            for blocker in new.blockers:
                self.refuse_unknown([blocker])
        for new in batch:
            self.insert(new)
        for new in batch:
            if new.chain_index and new.chain_id in self.awaited_by(new.blockers):
                raise InvalidBlockers
        self.resolve(self.free([new.id for new in batch if new.blockers]))

    def insert(self, new):
        wanted = self.now + (new.delay_seconds or 0) / 3600
        self.jobs[new.id] = job = Row(
            new.id,
            new.chain_id,
            new.chain_index,
            new.chain_type_name,
            new.type_name,
            new.queue,
            new.priority,
            new.deduplication_key,
            new.on_blocker_failure if new.blockers else None,
            wanted,
            self.now,
            "blocked" if new.blockers else "pending",
            expires_at=new.expires_seconds and wanted + new.expires_seconds / 3600,
        )
        if new.is_cancelled:
            self.end(job, "cancelled")
        for position, blocker in enumerate(new.blockers):
            self.links[new.id, position] = Link(blocker, is_open=True)

    def awaited_by(self, chains):
        """Return these chains, and all that they wait for directly or indirectly."""
        found, left = set(), list(chains)
        while left:
            chain = left.pop()
            if chain not in found:
                found.add(chain)
                last = self.last_job(chain)
                left += [link.blocker for link in self.open_links(last.id) if last.status != "completed"]
        return found

    # Fan-in

    def resolve(self, chains):
        """Free or fail the jobs that waited for chains which have ended."""
        while chains:
            waiting = [job for (job, _), link in self.links.items() if link.is_open and link.blocker in chains]
            chains = self.free(waiting)

    def free(self, waiting):
        """Free or fail waiting jobs as their policies require, and return the chains that failed."""
        failing = set()
        for job in (self.jobs[id_] for id_ in waiting):
            links = self.open_links(job.id)
            for link in links:
                link.is_open = not self.lets_run(job.id, link)
            if job.status == "blocked" and not self.open_links(job.id):
                job.status, job.run_at = "pending", max(job.run_at or 0, self.now)
        for job in (self.jobs[id_] for id_ in waiting):
            statuses = {self.last_job(link.blocker).status for link in self.open_links(job.id)}
            if (job.status, job.policy) == ("blocked", "fail") and statuses & set(STOPPED):
                failing.add(job.id)
        for id_ in failing:
            self.end(self.jobs[id_], "failed")
            self.jobs[id_].error = "A bl"
        return {self.jobs[id_].chain for id_ in failing}

    def end(self, job, status):
        job.status, job.leased_by, job.leased_until = status, None, None
        job.finished_at = self.now if status in FINAL else None

    # Attempts

    def claim(self, worker, limit, hours, queues, times):
        def order(job):
            return -job.priority, times[job.id][0], job.id

        groups = {}
        for job in sorted(self.jobs.values(), key=order):
            is_served = job.type in hours and (queues is None or job.queue in queues)
            if job.status == "pending" and is_served and (job.run_at or 0) <= self.now:
                groups.setdefault((job.queue, job.type, job.priority), []).append(job)
        # A claim takes group after group, ordered by the first job of each. A dict keeps that order.
        claimed = sorted([job for group in groups.values() for job in group][:limit], key=order)
        late = [job for job in claimed if self.is_late(job)]
        for job in claimed:
            job.status, job.leased_by, job.leased_until = "running", worker, self.now + hours[job.type]
            job.attempt, job.lease, job.last_attempt_at = job.attempt + 1, job.lease + 1, self.now
        for job in late:
            job.is_stopped = job.is_late = True
            job.last_attempt_at = None
        return [(job.id, job.lease) for job in claimed if job not in late], {(job.id, job.lease) for job in late}

    def may_run(self, job):
        return job.status in OPEN and not job.is_late and not self.is_late(job)

    def is_late(self, job):
        return job.expires_at is not None and job.expires_at <= self.now and not job.attempt

    def renew(self, keys, hours):
        """Renew leases, and return the attempts that lost their leases and the attempts that should stop."""
        for key in keys:
            if job := self.held(key):
                job.leased_until = self.now + hours
        return {key for key in keys if not self.held(key)}, {
            key for key in keys if (job := self.held(key)) and job.is_stopped
        }

    def finish(self, outcomes):
        held = {key: job for key in outcomes if (job := self.held(key))}
        continuations = []
        for key, job in held.items():
            outcome = outcomes[key]
            job.output = outcome if isinstance(outcome, str) else None
            job.completed_by, job.error = job.leased_by, None
            self.end(job, "completed")
            if isinstance(outcome, NewJob):
                continuations.append(replace(outcome, is_cancelled=job.is_stopped))
        self.create(continuations)
        self.resolve({job.chain for job in held.values() if self.last_job(job.chain).status in FINAL})
        return set(held)

    def end_failed(self, keys, status, delay=0):
        """Implement ``reschedule`` and ``fail``."""
        held = {key: job for key in keys if (job := self.held(key))}
        for key, job in held.items():
            if not job.is_stopped:  # Cancelling is not failing.
                self.failures[key] = (job.attempt, "error", "Boom", job.leased_by or "")
            job.error = "Boom"
            if status == "pending":
                job.run_at = self.now + delay
            self.end(job, "cancelled" if job.is_stopped else status)
        self.resolve({job.chain for job in held.values() if job.status in FINAL})
        return {key: job.status for key, job in held.items()}

    def hand_back(self, keys, *, has_begun=True):
        held = {key: job for key in keys if (job := self.held(key))}
        for job in held.values():
            job.attempt -= 1
            if has_begun:
                job.expires_at, job.is_late = None, False
            self.end(job, "cancelled" if job.is_stopped else "pending")
        self.resolve({job.chain for job in held.values() if job.status in FINAL})
        return set(held)

    def reap(self, limit, times):
        expired = [job for job in self.jobs.values() if job.status == "running" and (job.leased_until or 0) < self.now]
        expired = sorted(expired, key=lambda job: (times[job.id][1], job.id))[:limit]
        for job in expired:
            self.failures[job.id, job.lease] = (job.attempt, "crash", "The ", job.leased_by or "")
            job.crashes, job.error = job.crashes + 1, "The "
            job.run_at = self.now + crash_wait(job.crashes)
            self.end(job, "cancelled" if job.is_stopped else "failed" if job.crashes >= MAX_CRASHES else "pending")
        self.resolve({job.chain for job in expired if job.status in FINAL})
        return {job.id: job.status for job in expired}

    # Interventions

    def complete(self, chain, outcome):
        job = self.last_job(chain)
        if job.status in FINAL:
            raise JobAlreadyCompleted(job.id) if job.status == "completed" else JobNotCompletable(job.id, job.status)
        job.output = outcome if isinstance(outcome, str) else None
        job.error = None
        self.end(job, "completed")
        if isinstance(outcome, NewJob):
            self.create([replace(outcome, is_cancelled=job.is_stopped)])
        self.resolve({chain} if self.last_job(chain).status in FINAL else set())

    def cancel(self, chains):
        self.refuse_unknown(chains)
        changed = [job for chain in chains if (job := self.last_job(chain)).status in OPEN]
        for job in changed:
            job.is_stopped = True
            if job.status != "running":
                self.end(job, "cancelled")
        self.resolve({job.chain for job in changed if job.status == "cancelled"})
        return {job.chain for job in changed}

    def expire(self):
        late = [job for job in self.jobs.values() if job.status in ("blocked", "pending") and self.is_late(job)]
        for job in late:
            job.is_stopped = job.is_late = True
            self.end(job, "cancelled")
        self.resolve({job.chain for job in late})
        return {job.id for job in late}

    def retry(self, jobs):
        stopped = [job for id_ in self.job_ids_of(jobs) if (job := self.jobs[id_]).status in STOPPED]
        for job in stopped:
            self.end(job, "blocked" if self.open_links(job.id) else "pending")
            job.run_at, job.is_stopped, job.expires_at, job.is_late = self.now, False, None, False
        self.resolve(self.free([job.id for job in stopped if job.status == "blocked"]))
        return {job.id for job in stopped}

    def job_ids_of(self, jobs):
        """Resolve ids to jobs. The id of a first job is also the id of its chain, and stands for the last job."""
        return {id_ if self.jobs[id_].index else self.last_job(id_).id for id_ in jobs}

    def move(self, jobs, delay):
        for id_ in self.job_ids_of(jobs):
            if self.jobs[id_].status != "pending":
                raise JobNotRunnable(id_, self.jobs[id_].status)
            self.jobs[id_].run_at = self.now + delay

    def delete(self, chains, *, cascade):
        self.refuse_unknown(chains)
        doomed = set(chains)
        while cascade and (
            more := {link.blocker for (id_, _), link in self.links.items() if self.jobs[id_].chain in doomed} - doomed
        ):
            doomed |= more
        gone = {job.id for job in self.jobs.values() if job.chain in doomed}
        for (id_, _), link in self.links.items():
            if link.blocker in doomed and id_ not in gone and self.jobs[id_].status != "completed":
                raise ChainReferenced([])
        self.links = {
            key: link for key, link in self.links.items() if key[0] not in gone and link.blocker not in doomed
        }
        self.failures = {key: row for key, row in self.failures.items() if key[0] not in gone}
        self.jobs = {id_: job for id_, job in self.jobs.items() if id_ not in gone}
        return doomed

    def refuse_unknown(self, chains):
        for chain in chains:
            if chain not in self.chains():
                raise ChainNotFound(chain)
