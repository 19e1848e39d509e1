"""Invariants of the tables, which hold after every operation."""


def check(tables):
    chains = {}
    for job in sorted(tables.jobs.values(), key=lambda job: job.index):
        chains.setdefault(job.chain, []).append(job)
    for chain, jobs in chains.items():
        check_chain(chain, jobs)
    for job in tables.jobs.values():
        check_waiting(tables, job, {chain: jobs[-1].status for chain, jobs in chains.items()})
        check_lease(job)


def check_chain(chain, jobs):
    """Check the positions of a chain's jobs, and that all but the last one are completed."""
    assert jobs[0].id == chain
    assert [job.index for job in jobs] == list(range(len(jobs)))
    assert {job.status for job in jobs[:-1]} <= {"completed"}
    assert len({(job.chain_type, job.key) for job in jobs}) == 1
    assert jobs[0].chain_type == jobs[0].type


def check_waiting(tables, job, statuses):
    """Check that a job is blocked exactly as long as it has an open link, and that no link is open needlessly."""
    waits_for = [link.blocker for (id_, _), link in tables.links.items() if id_ == job.id and link.is_open]
    assert not waits_for or job.status not in ("pending", "running")
    assert waits_for or job.status != "blocked"
    assert "completed" not in {statuses[chain] for chain in waits_for}
    if job.policy == "run":
        assert {statuses[chain] for chain in waits_for} <= {"blocked", "pending", "running"}


def check_lease(job):
    assert (job.status == "running") is (job.leased_by is not None) is (job.leased_until is not None)
    assert (job.status in ("completed", "failed", "cancelled")) is (job.finished_at is not None)
    assert job.attempt <= job.lease
