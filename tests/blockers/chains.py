"""Job types of each policy, and queries for the state of chains."""

from django_jobchains import chains
from django_jobchains.processors import JobType
from tests.support.jobs import MAIL, failed_try, finished, next_job

STEP = JobType("blockers.step")
WAITS = JobType("blockers.waits")
FAILS = JobType("blockers.fails", on_blocker_failure="fail")
RUNS = JobType("blockers.runs", on_blocker_failure="run")

TYPES = [kind.name for kind in (STEP, WAITS, FAILS, RUNS)] + [MAIL]


def claim_only(store, *wanted):
    """Claim the jobs of these chains, and check that no other job is due."""
    claimed = {job.chain_id: job for job in store.jobs.claim("worker-1", 10_000, dict.fromkeys(TYPES, 60.0))}
    assert set(claimed) == {chain.id for chain in wanted}
    return [claimed[chain.id] for chain in wanted]


def continued(job, **changes):
    """Return the outcome of an attempt whose chain continues."""
    return finished(job, None, next_job(job, **changes))


def statuses(*wanted):
    return [chain.refresh().status for chain in wanted]


def links(chain):
    """Return the blockers of a chain's last job, and whether it still waits for each."""
    return list(chain.refresh().current_job.blocker_links.order_by("position").values_list("blocker_id", "is_open"))


def complete_by_hand(chain, output=None):
    chains.complete(chain.id, output)


def fail(store, chain, effects):
    [job] = claim_only(store, chain)
    assert store.attempts.fail([failed_try(job)], effects)


def cancel(store, chain, effects):
    assert store.chains.cancel([chain.id], effects)
