from dataclasses import dataclass
from typing import Any

import pytest

from django_jobchains.processors import JobType, get_registry
from tests.support.chains import mail, ship


@dataclass(frozen=True)
class Parcel:
    number: int
    to: str = ""


@dataclass(frozen=True)
class Receipt:
    reference: str


pack = JobType("shop.pack", input=Parcel, output=Receipt, continues_with=["shop.ship", "shop.send"])
#: The output of this type has no fields.
weigh: JobType[Any, dict[str, str]] = JobType("shop.weigh", output=dict[str, str])
send: JobType[Parcel, Any] = JobType("shop.send", input=Parcel, entry=False)


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    declared: dict[str, Any] = {part.name: part for part in (ship, mail, pack, send, weigh)}
    monkeypatch.setattr(get_registry(), "declared", declared)


@pytest.fixture
def admin_request(superuser):
    """A request of a superuser."""
    return superuser.get("/admin/").wsgi_request
