import pytest

from django_jobchains.processors import get_registry
from django_jobchains.store import Store, get_store
from tests.attempts.conftest import second_alias
from tests.queries.shapes import DECLARED

__all__ = ("second_alias",)


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_registry(), "declared", {job_type.name: job_type for job_type in DECLARED})


@pytest.fixture
def store() -> Store:
    """The store of the database the suite runs on; the test itself marks its access to it."""
    return get_store()
