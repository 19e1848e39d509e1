import pytest

from django_jobchains import testing
from tests.interventions.conftest import _declared_types, _end_actors, store
from tests.support.workers import events, make_worker, registry, start_worker

__all__ = ("_declared_types", "_end_actors", "events", "make_worker", "registry", "start_worker", "store")


@pytest.fixture
def recorded_batches():
    """The calls of ``on_batch``, and the callback that records them."""
    reports: list[tuple[int, float]] = []
    return reports, lambda deleted, share: reports.append((deleted, share))


@pytest.fixture
def clock():
    """The database's clock, which a test can advance."""
    with testing.clock() as clock:
        yield clock
