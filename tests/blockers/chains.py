"""Job types of each policy, the ways in which a chain ends, and queries for the state of chains."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django_jobchains import chains
from django_jobchains.declare.policies import Backoff
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType
from django_jobchains.store import ClaimedJob, Effects, FinishedJob, Store
from tests.support.jobs import MAIL, expire, failed_try, finished, next_job

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


def finish(store: Store, chain: Chain, effects: Effects) -> None:
    [job] = claim_only(store, chain)
    assert store.attempts.finish([finished(job)], effects)


def finish_in_transaction(store: Store, chain: Chain, effects: Effects) -> None:
    """Finish the job like an attempt whose handler used ``job.complete()``."""
    [job] = claim_only(store, chain)
    with store.db.transaction():
        assert store.attempts.lock(job.id)
        assert store.attempts.finish([finished(job)], effects, is_locked=True)


def finish_by_hand(store: Store, chain: Chain, effects: Effects) -> None:
    with store.db.transaction():
        last_job = store.last_jobs.lock([chain.id])[chain.id]
        store.chains.complete(last_job, "null", None, effects)


End = Callable[[Store, Chain, Effects], None]

COMPLETIONS: dict[str, End] = {
    "a worker": finish,
    "a worker, in complete()": finish_in_transaction,
    "a person": finish_by_hand,
}


def fail(store: Store, chain: Chain, effects: Effects) -> None:
    [job] = claim_only(store, chain)
    assert store.attempts.fail([failed_try(job)], effects)


def crash(store: Store, chain: Chain, effects: Effects) -> None:
    [job] = claim_only(store, chain)
    expire(job)
    assert [reaped.status for reaped in store.leases.reap(10, Backoff(), 1, (), effects)] == ["failed"]


def cancel(store: Store, chain: Chain, effects: Effects) -> None:
    assert store.chains.cancel([chain.id], effects)


def cancel_running(store: Store, chain: Chain, effects: Effects) -> None:
    """Cancel a running chain whose handler raises."""
    [job] = claim_only(store, chain)
    store.chains.cancel([chain.id], Effects())
    assert store.attempts.reschedule([failed_try(job)], effects) == {job.key: "cancelled"}


def cancel_handed_back(store: Store, chain: Chain, effects: Effects) -> None:
    """Cancel a running chain whose worker stops."""
    [job] = claim_only(store, chain)
    store.chains.cancel([chain.id], Effects())
    assert store.attempts.hand_back([job.key], effects)


def cancel_crashed(store: Store, chain: Chain, effects: Effects) -> None:
    """Cancel a running chain whose worker dies."""
    [job] = claim_only(store, chain)
    store.chains.cancel([chain.id], Effects())
    expire(job)
    assert [reaped.status for reaped in store.leases.reap(10, Backoff(), 9, (), effects)] == ["cancelled"]


#: Every way in which a chain ends without being completed.
FAILURES: dict[str, End] = {
    "fails": fail,
    "is reaped to failed": crash,
    "is cancelled": cancel,
    "is cancelled while it runs": cancel_running,
    "is cancelled while its worker stops": cancel_handed_back,
    "is cancelled while its worker dies": cancel_crashed,
}
