import pytest

#: Marks a test of transactions that write at the same time. ``committing`` comes first.
locks_rows = pytest.mark.usefixtures("_locks_rows")


@pytest.fixture
def _locks_rows(store):
    if not store.db.locks_rows:
        pytest.skip("one transaction writes at a time")
