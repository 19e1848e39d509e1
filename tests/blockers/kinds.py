"""Job types of each policy, the ways a chain ends, and the moves of a worker without one."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from django_jobchains.policies import Backoff
from django_jobchains.processors import JobType
from django_jobchains.store import ClaimedJob, Effects, FinishedJob, Store
from tests.store.jobs import MAIL, expire, failed_try, finished, lease, next_job

STEP: JobType[Any, Any] = JobType("blockers.step")
WAITS: JobType[Any, Any] = JobType("blockers.waits")
FAILS: JobType[Any, Any] = JobType("blockers.fails", on_blocker_failure="fail")
RUNS: JobType[Any, Any] = JobType("blockers.runs", on_blocker_failure="run")

TYPES = [kind.name for kind in (STEP, WAITS, FAILS, RUNS)] + [MAIL]


def started(store: Store, *wanted: Chain) -> list[ClaimedJob]:
    """The jobs of these chains, claimed; no other is due."""
    claimed = {job.chain_id: job for job in store.claim("worker-1", 10_000, dict.fromkeys(TYPES, 60.0))}
    assert set(claimed) == {chain.id for chain in wanted}
    return [claimed[chain.id] for chain in wanted]


def goes_on(job: ClaimedJob, **changes: Any) -> FinishedJob:
    """A completed attempt of which the chain goes on with another step."""
    return finished(job, None, next_job(job, **changes))


def statuses(*wanted: Chain) -> list[str]:
    return [chain.refresh().status for chain in wanted]


def links(chain: Chain) -> list[tuple[UUID, bool]]:
    """The blockers of a chain's last job, and whether it waits for them."""
    return list(current(chain).blocker_links.order_by("position").values_list("blocker_id", "is_open"))


def current(chain: Chain) -> Job:
    return chain.refresh().current_job


def by_hand(chain: Chain, output: Any = None) -> None:
    with chains.complete(chain.id) as job:
        job.finish(output)


def finish(store: Store, chain: Chain, effects: Effects) -> None:
    [job] = started(store, chain)
    assert store.finish([finished(job)], effects)


def finish_in_transaction(store: Store, chain: Chain, effects: Effects) -> None:
    """As an attempt does whose handler wrote in ``complete()``."""
    [job] = started(store, chain)
    with store.transaction():
        assert store.lock(job.id)
        assert store.finish([finished(job)], effects, is_locked=True)


def finish_by_hand(store: Store, chain: Chain, effects: Effects) -> None:
    with store.transaction():
        tail = store.lock_tails([chain.id])[chain.id]
        store.complete(tail, "null", None, effects)


End = Callable[[Store, Chain, Effects], None]

COMPLETIONS: dict[str, End] = {
    "a worker": finish,
    "a worker, in complete()": finish_in_transaction,
    "a person": finish_by_hand,
}


def fail(store: Store, chain: Chain, effects: Effects) -> None:
    [job] = started(store, chain)
    assert store.fail([failed_try(job)], effects)


def crash(store: Store, chain: Chain, effects: Effects) -> None:
    [job] = started(store, chain)
    expire(job)
    assert [reaped.status for reaped in store.reap(10, Backoff(), 1, (), effects)] == ["failed"]


def cancel(store: Store, chain: Chain, effects: Effects) -> None:
    assert store.cancel([chain.id], effects)


def cancel_running(store: Store, chain: Chain, effects: Effects) -> None:
    """Asked to stop; its handler raises."""
    [job] = started(store, chain)
    store.cancel([chain.id], Effects())
    assert store.reschedule([failed_try(job)], effects) == {job.key: "cancelled"}


def cancel_handed_back(store: Store, chain: Chain, effects: Effects) -> None:
    """Asked to stop; its worker stops too."""
    [job] = started(store, chain)
    store.cancel([chain.id], Effects())
    assert store.hand_back([lease(job)], effects)


def cancel_crashed(store: Store, chain: Chain, effects: Effects) -> None:
    """Asked to stop; its worker dies."""
    [job] = started(store, chain)
    store.cancel([chain.id], Effects())
    expire(job)
    assert [reaped.status for reaped in store.reap(10, Backoff(), 9, (), effects)] == ["cancelled"]


#: Every way a chain ends without being completed.
FAILURES: dict[str, End] = {
    "fails": fail,
    "is reaped to failed": crash,
    "is cancelled": cancel,
    "is cancelled while it runs": cancel_running,
    "is cancelled while its worker stops": cancel_handed_back,
    "is cancelled while its worker dies": cancel_crashed,
}
