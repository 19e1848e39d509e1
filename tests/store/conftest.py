from collections.abc import Iterator

import pytest

from django_jobchains.store import Store, get_store
from tests.support.connections import end_all


@pytest.fixture
def store() -> Store:
    """The store of the default database. The test itself requests access to the database."""
    return get_store()


@pytest.fixture(autouse=True)
def _end_actors() -> Iterator[None]:
    yield
    end_all()
