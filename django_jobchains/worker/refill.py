"""Takes the places of limits that this worker frees, in the transaction that writes the ends of their jobs.

Otherwise a place is free from the commit of an end until the commit of the next claim, and each end wakes all workers.
See docs/decisions/0118-refills.md.
"""

import time
from collections.abc import Collection
from typing import NamedTuple

from django_jobchains.store.limits import Rotation
from django_jobchains.store.rows import ClaimedJob, ExpiredJob
from django_jobchains.worker.claim_loop import ClaimLoop
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.slots import Lane

#: The claim loop queries this long after a refill, because the refill may have taken the place of another key.
QUERY_SECONDS = 0.2


class Refilled(NamedTuple):
    """The jobs of a lane that were claimed, and the monotonic time before the claim."""

    lane: Lane
    jobs: list[ClaimedJob]
    expired: list[ExpiredJob]
    since: float


class Refill:
    """Claims as many jobs as the writer of ends frees places. Only the writer's thread calls its methods.

    Jobs with a rate are left to the claim loop, which knows when the next one may start. Queues with limits are decided
    about in another transaction.
    """

    def __init__(self, context: WorkerContext, claim_loop: ClaimLoop) -> None:
        self._context = context
        self._claim_loop = claim_loop
        self._rotation = Rotation()

    @property
    def is_possible(self) -> bool:
        """Whether no other lane waits for the slots that become free: a refill would take them first."""
        return self._claim_loop.has_spare_slots and not self._context.queues.has_limits

    def claim(self, ended: Collection[str]) -> list[Refilled]:
        """Claim jobs that share a limit with the given types of ended jobs. Joins the transaction that ends these."""
        sharing = self._context.sharing_limits
        shared = {name for ended_type in set(ended) for name in sharing[ended_type]}
        left, found = len(ended), []
        for lane in self._claim_loop.limited_lanes:
            types = lane.limited(self._context.queues.overrides)
            leases = {
                name: seconds for name, seconds in lane.leases.items() if name in shared and name not in types.rates
            }
            if leases and (limit := min(left, lane.room())) > 0:
                expired: list[ExpiredJob] = []
                since = time.monotonic()
                jobs = self._context.store.limits.claim(
                    self._context.worker,
                    limit,
                    types._replace(leases=leases),
                    self._rotation,
                    *self._context.queues.open(),
                    expired,
                    joins=True,
                )
                left -= len(jobs)
                found.append(Refilled(lane, jobs, expired, since))
        return found

    def start(self, found: Collection[Refilled]) -> int:
        """Start the claimed jobs after the commit. Return their number."""
        for refilled in found:
            self._claim_loop.accept(*refilled)
        self._context.wake.query_in(QUERY_SECONDS, is_shared=False)
        return sum(len(refilled.jobs) for refilled in found)
