from types import SimpleNamespace

import pytest

from django_jobchains.attempts import leases
from django_jobchains.attempts.leases import HeldLeases
from django_jobchains.store import Store
from tests.leases.observed_store import ObservedStore
from tests.store.conftest import _end_actors, store
from tests.support.clocks import Clock

__all__ = ("_end_actors", "store")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def observed(store: Store) -> ObservedStore:
    return ObservedStore(store)


@pytest.fixture
def held(observed: ObservedStore, clock: Clock) -> HeldLeases:
    return HeldLeases(observed)  # type: ignore[arg-type]
