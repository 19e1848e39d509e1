import pytest

from tests.support.connections import committing

#: Marks a test of transactions that write at the same time. ``committing`` comes first.
locks_rows = pytest.mark.usefixtures("_locks_rows")


def with_locks(test):
    """Mark a test that commits, and needs transactions that write at the same time."""
    return committing(locks_rows(test))


@pytest.fixture
def _locks_rows(store):
    if not store.db.locks_rows:
        pytest.skip("one transaction writes at a time")
