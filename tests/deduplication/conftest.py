import pytest

from django_jobchains.processors import get_registry
from tests.attempts.conftest import second_alias
from tests.deduplication.keyed_chains import mail, ship
from tests.enqueueing.conftest import sent
from tests.store.conftest import _end_actors, store

__all__ = ("_end_actors", "second_alias", "sent", "store")


@pytest.fixture(autouse=True)
def _declared(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {ship.name: ship, mail.name: mail})
