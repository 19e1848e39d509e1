from types import SimpleNamespace

import pytest

from django_jobchains.worker import held_leases
from django_jobchains.worker.held_leases import HeldJobs
from tests.leases.observed_store import ObservedStore
from tests.support.clocks import Clock


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
