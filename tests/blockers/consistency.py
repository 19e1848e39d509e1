"""Checks that the tables are consistent, and that no job has started before its blockers were completed."""

from collections import defaultdict

from django.db.models import Exists

from django_jobchains.models import Chain, Job, JobBlocker
from django_jobchains.store.rows import Effects


def assert_consistent(store):
    found = problems()
    assert not found, "\n".join(found)
    assert swept(store) == []


def swept(store, limit=1_000):
    """Return the jobs that the sweeper had to free."""
    freed = []
    after = None
    while True:
        page, after = store.blockers.sweep(limit, after, Effects())
        freed += page
        if after is None:
            return freed


def problems():
    """Describe what is inconsistent. No other connection may write while this runs."""
    jobs = list(Job.objects.order_by("chain_id", "chain_index"))
    links = list(JobBlocker.objects.order_by("job_id", "position"))
    return [*_of_chains(jobs), *_of_jobs(jobs, links), *_of_links(jobs, links), *_circles(jobs, links)]


def _of_chains(jobs):
    chains = defaultdict(list)
    for job in jobs:
        chains[job.chain_id].append(job)
    found = []
    for chain_id, steps in chains.items():
        if steps[0].id != chain_id or [job.chain_index for job in steps] != list(range(len(steps))):
            found.append(f"chain {chain_id} lacks its first job or a step")
        if any(job.status != "completed" for job in steps[:-1]):
            found.append(f"chain {chain_id} continued after a job that is not completed")
    return found


def _of_jobs(jobs, links):
    waiting = {link.job_id for link in links if link.is_open}
    found = []
    for job in jobs:
        if job.status == "blocked" and job.id not in waiting:
            found.append(f"{job} is blocked without an open link")
        if job.status in ("pending", "running") and job.id in waiting:
            found.append(f"{job} is {job.status} with an open link")
        if (job.status == "running") != (job.leased_by is not None):
            found.append(f"{job} is {job.status} and leased by {job.leased_by}")
        if (job.status in ("completed", "failed", "cancelled")) != (job.finished_at is not None):
            found.append(f"{job} is {job.status} and finished at {job.finished_at}")
    return found


def _of_links(jobs, links):
    by_id = {job.id: job for job in jobs}
    statuses = {job.chain_id: job.status for job in jobs}  # of the last job
    positions = defaultdict(list)
    found = []
    for link in links:
        positions[link.job_id].append(link.position)
        if link.job_id not in by_id or link.blocker_id not in statuses:
            found.append(f"'{link}' has no job or no chain")
            continue
        status, runs_anyway = statuses[link.blocker_id], by_id[link.job_id].on_blocker_failure == "run"
        if link.is_open and (status == "completed" or (runs_anyway and status in ("failed", "cancelled"))):
            found.append(f"'{link}' is open, and the chain is {status}")
        if not link.is_open and status != "completed" and not runs_anyway:
            found.append(f"'{link}' is closed, and the chain is {status}")
    for id_, given in positions.items():  # a blocker of a completed job may be deleted
        if by_id[id_].status != "completed" and given != list(range(len(given))):
            found.append(f"{by_id[id_]} lacks a blocker")
    return found


def _circles(jobs, links):
    """Find blocked jobs that wait for each other directly or indirectly, and would never run."""
    blocked = {job.id: job.chain_id for job in jobs if job.status == "blocked"}
    awaited = defaultdict(set)
    for link in links:
        if link.is_open and link.job_id in blocked:
            awaited[blocked[link.job_id]].add(link.blocker_id)
    while free := [chain_id for chain_id, others in awaited.items() if not others & awaited.keys()]:
        for chain_id in free:
            del awaited[chain_id]
    return [f"chain {chain_id} waits in a circle" for chain_id in awaited]


def started_early(job_id):
    """Return the job if one snapshot shows that it is not blocked although a blocker is not completed."""
    blockers = JobBlocker.objects.filter(job_id=job_id).values("blocker_id")
    uncompleted = Chain.objects.filter(pk__in=blockers).exclude(status="completed")
    return list(Job.objects.filter(Exists(uncompleted), pk=job_id).exclude(status="blocked").values())
