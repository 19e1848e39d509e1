from collections.abc import Callable, Iterator

import pytest

from django_jobchains import testing
from tests.interventions.conftest import _declared, _no_actor_survives, store
from tests.worker.fixtures import events, make_worker, registry, start_worker

__all__ = ("_declared", "_no_actor_survives", "events", "make_worker", "registry", "start_worker", "store")


@pytest.fixture
def reported() -> tuple[list[tuple[int, float]], Callable[[int, float], None]]:
    """What ``on_batch`` was told, and what to pass as it."""
    told: list[tuple[int, float]] = []
    return told, lambda deleted, share: told.append((deleted, share))


@pytest.fixture
def clock() -> Iterator[testing.Clock]:
    """The database's clock, to move forward."""
    with testing.clock() as clock:
        yield clock
