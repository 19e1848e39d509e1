from dataclasses import dataclass

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
weigh = JobType("shop.weigh", output=dict[str, str])
send = JobType("shop.send", input=Parcel, entry=False)


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch, record_workers):
    monkeypatch.setattr(get_registry(), "declared", {part.name: part for part in (ship, mail, pack, send, weigh)})
