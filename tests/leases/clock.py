"""A clock moved by hand, and the numbers of a lease by it."""

from collections.abc import Callable
from typing import Any

from django_jobchains.leases import HeldLeases
from django_jobchains.running import AbortSignal
from django_jobchains.store import AttemptKey, ClaimedJob, Renewal, Store

LEASE_SECONDS = 30
RENEW_AT = 10
ABORT_AT = 27


class Clock:
    """The host's monotonic clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


class Watched:
    """The store, with what a test does before or after a renewal."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: Callable[[], Any] = lambda: None
        self.after: Callable[[], Any] = lambda: None
        self.renewed: list[AttemptKey] = []

    def renew(self, held: Any) -> Renewal:
        self.before()
        renewal = self._store.renew(held)
        self.renewed += [lease.key for lease in held]
        self.after()
        return renewal

    def check(self, held: Any) -> Renewal:
        return self._store.check(held)


def hold(held: HeldLeases, job: ClaimedJob, clock: Clock, seconds: float = LEASE_SECONDS) -> AbortSignal:
    return held.hold(job, seconds, clock())
