from types import SimpleNamespace

import pytest

from django_jobchains.worker import held_leases
from django_jobchains.worker.held_leases import HeldJobs
from tests.support.clocks import Clock


class ObservedStore:
    """A store that records renewals, and calls functions of the test before and after each."""

    def __init__(self, store):
        self._store = store
        self.leases = self
        self.before = self.after = lambda: None
        self.renewed = []

    def renew(self, held):
        self.before()
        renewal = self._store.leases.renew(held)
        self.renewed += [lease.key for lease in held]
        self.after()
        return renewal

    def check(self, held):
        return self._store.leases.check(held)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(held_leases, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def observed(store):
    return ObservedStore(store)


@pytest.fixture
def held(observed, clock):
    return HeldJobs(observed)


@pytest.fixture
def hold(held, clock):
    """Return a function that adds the lease of a claimed job, and returns the signal of its attempt."""
    return lambda job, seconds=30: held.hold(job.key, seconds, clock(), job.queue)
