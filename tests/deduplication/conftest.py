from collections.abc import Iterator

import pytest

from django_jobchains.processors import get_registry
from django_jobchains.store import Store, get_store
from tests.attempts.conftest import second_alias
from tests.deduplication.chains_at import mail, ship
from tests.enqueueing.conftest import sent
from tests.store.connections import end_all

__all__ = ("second_alias", "sent")


@pytest.fixture
def store() -> Store:
    return get_store()


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_registry(), "declared", {ship.name: ship, mail.name: mail})


@pytest.fixture(autouse=True)
def _no_actor_survives() -> Iterator[None]:
    yield
    end_all()
