from dataclasses import dataclass
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import Client

from django_jobchains.processors import JobType, get_registry
from django_jobchains.store import Store, get_store
from tests.interventions.chains_at import mail, ship


@pytest.fixture
def store(db: None) -> Store:
    return get_store()


@dataclass(frozen=True)
class Parcel:
    number: int
    to: str = ""


@dataclass(frozen=True)
class Receipt:
    reference: str


pack = JobType("shop.pack", input=Parcel, output=Receipt, continues_with=["shop.ship", "shop.send"])
send: JobType[Parcel, Any] = JobType("shop.send", input=Parcel, entry=False)


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    declared: dict[str, Any] = {part.name: part for part in (ship, mail, pack, send)}
    monkeypatch.setattr(get_registry(), "declared", declared)


@pytest.fixture
def admin_request(superuser: Client) -> HttpRequest:
    """A request of somebody who may do everything."""
    return superuser.get("/admin/").wsgi_request
