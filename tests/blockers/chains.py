"""Job types of each policy, and queries for the state of chains."""

from typing import Any
from uuid import UUID

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType
from django_jobchains.store import Store
from django_jobchains.store.rows import ClaimedJob, Effects, FinishedJob
from tests.support.jobs import MAIL, failed_try, finished, next_job

STEP: JobType[Any, Any] = JobType("blockers.step")
WAITS: JobType[Any, Any] = JobType("blockers.waits")
FAILS: JobType[Any, Any] = JobType("blockers.fails", on_blocker_failure="fail")
RUNS: JobType[Any, Any] = JobType("blockers.runs", on_blocker_failure="run")

TYPES = [kind.name for kind in (STEP, WAITS, FAILS, RUNS)] + [MAIL]


def claim_only(store: Store, *wanted: Chain) -> list[ClaimedJob]:
    """Claim the jobs of these chains, and check that no other job is due."""
    claimed = {job.chain_id: job for job in store.jobs.claim("worker-1", 10_000, dict.fromkeys(TYPES, 60.0))}
    assert set(claimed) == {chain.id for chain in wanted}
    return [claimed[chain.id] for chain in wanted]


def continued(job: ClaimedJob, **changes: Any) -> FinishedJob:
    """Return the outcome of an attempt whose chain continues."""
    return finished(job, None, next_job(job, **changes))


def statuses(*wanted: Chain) -> list[str]:
    return [chain.refresh().status for chain in wanted]


def links(chain: Chain) -> list[tuple[UUID, bool]]:
    """Return the blockers of a chain's last job, and whether it still waits for each."""
    return list(current(chain).blocker_links.order_by("position").values_list("blocker_id", "is_open"))


def current(chain: Chain) -> Job:
    return chain.refresh().current_job


def complete_by_hand(chain: Chain, output: Any = None) -> None:
    chains.complete(chain.id, output)


def fail(store: Store, chain: Chain, effects: Effects) -> None:
    [job] = claim_only(store, chain)
    assert store.attempts.fail([failed_try(job)], effects)


def cancel(store: Store, chain: Chain, effects: Effects) -> None:
    assert store.chains.cancel([chain.id], effects)
