from collections.abc import Iterator

import pytest

from django_jobchains.store import Store, get_store
from tests.store.connections import end_all


@pytest.fixture
def store() -> Store:
    """The store of the database the suite runs on; the test itself marks its access to it."""
    return get_store()


@pytest.fixture(autouse=True)
def _no_actor_survives() -> Iterator[None]:
    yield
    end_all()
