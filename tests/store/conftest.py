import pytest

from django_jobchains.store import get_store
from tests.support.connections import end_all

#: Marks a test of transactions that write at the same time. ``committing`` comes first.
locks_rows = pytest.mark.usefixtures("_locks_rows")


@pytest.fixture
def store():
    """The store of the default database. The test itself requests access to the database."""
    store = get_store()
    yield store
    store.db.ahead_seconds = 0


@pytest.fixture
def _locks_rows(store):
    if not store.db.locks_rows:
        pytest.skip("one transaction writes at a time")


@pytest.fixture(autouse=True)
def _end_actors():
    yield
    end_all()
