import pytest

from django_jobchains.processors import get_registry
from tests.deduplication.keyed_chains import mail, ship


@pytest.fixture(autouse=True)
def _declared(sent, monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {ship.name: ship, mail.name: mail})
