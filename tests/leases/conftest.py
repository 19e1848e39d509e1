from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from django_jobchains import leases
from django_jobchains.leases import HeldLeases
from django_jobchains.store import Store, get_store
from tests.leases.clock import Clock, Watched
from tests.store.connections import end_all


@pytest.fixture
def store() -> Store:
    return get_store()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def watched(store: Store) -> Watched:
    return Watched(store)


@pytest.fixture
def held(watched: Watched, clock: Clock) -> HeldLeases:
    return HeldLeases(watched)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_actor_survives() -> Iterator[None]:
    yield
    end_all()
