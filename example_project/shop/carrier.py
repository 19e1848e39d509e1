"""A fake carrier: it refuses addresses that it cannot find, and a parcel goes on a step each time it is looked for."""

from django.db import transaction

from shop.models import CarrierEntry

SCANS = ("collected", "in the depot", "in the van", "delivered")
DELIVERED = SCANS[-1]
#: The streets whose names the carrier corrects, if it is asked.
SPELLINGS = {"Dowing Street": "Downing Street", "Bakker Street": "Baker Street"}


class AddressRefused(Exception):
    """The carrier can't find the address; sending it again won't help."""


def hand_over(address: str, *, idempotency_key: str) -> str:
    """Takes a parcel, once per key; returns its tracking code."""
    if "Nowhere" in address or any(wrong in address for wrong in SPELLINGS):
        raise AddressRefused(address)
    # durable: this is somebody else's database, which a rollback of ours can't undo.
    with transaction.atomic(durable=True):
        code = f"TK-{idempotency_key}"
        CarrierEntry.objects.get_or_create(tracking_code=code, defaults={"address": address})
    return code


def correct(address: str) -> str:
    """The address as the carrier would write it."""
    for wrong, right in SPELLINGS.items():
        address = address.replace(wrong, right)
    return address


def whereabouts(tracking_code: str) -> str:
    """Where the parcel is."""
    with transaction.atomic(durable=True):
        entry = CarrierEntry.objects.select_for_update().get(tracking_code=tracking_code)
        entry.looks += 1
        entry.save(update_fields=["looks"])
    return SCANS[min(entry.looks, len(SCANS)) - 1]
