import pytest

from django_jobchains.processors import get_registry
from tests.support.chains import mail, ship


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    declared = {ship.name: ship, mail.name: mail}
    monkeypatch.setattr(get_registry(), "declared", declared)
