"""A store that records renewals, and the times at which leases are renewed and given up on the tests' clock."""

from collections.abc import Callable
from typing import Any

from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.store import Store
from django_jobchains.store.rows import AttemptKey, ClaimedJob, Renewal
from django_jobchains.worker.held_leases import HeldLeases
from tests.support.clocks import Clock

LEASE_SECONDS = 30
RENEW_AT = 10
ABORT_AT = 27


class ObservedStore:
    """A store that records renewals, and calls functions of the test before and after each."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.leases = self
        self.before: Callable[[], Any] = lambda: None
        self.after: Callable[[], Any] = lambda: None
        self.renewed: list[AttemptKey] = []

    def renew(self, held: Any) -> Renewal:
        self.before()
        renewal = self._store.leases.renew(held)
        self.renewed += [lease.key for lease in held]
        self.after()
        return renewal

    def check(self, held: Any) -> Renewal:
        return self._store.leases.check(held)


def hold(held: HeldLeases, job: ClaimedJob, clock: Clock, seconds: float = LEASE_SECONDS) -> AbortSignal:
    return held.hold(job.key, seconds, clock(), job.queue)
