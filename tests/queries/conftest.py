import pytest

from django_jobchains.processors import get_registry
from django_jobchains.store import get_store
from tests.attempts.conftest import second_alias
from tests.support.chain_shapes import DECLARED

__all__ = ("second_alias",)


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {job_type.name: job_type for job_type in DECLARED})


@pytest.fixture
def store():
    """Return the store of the default database. The test itself must request database access."""
    return get_store()
