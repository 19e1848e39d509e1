import pytest


@pytest.fixture(autouse=True)
def _record_workers(record_workers):
    pass
