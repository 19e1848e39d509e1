"""A fake carrier. It refuses unknown addresses, and a parcel advances one step each time it is queried."""

from django.db import transaction

from shop.models import CarrierEntry

SCANS = ("collected", "in the depot", "in the van", "delivered")
DELIVERED = SCANS[-1]
#: Misspelt streets that the carrier can correct.
SPELLINGS = {"Dowing Street": "Downing Street", "Bakker Street": "Baker Street"}


class AddressRefused(Exception):
    """The carrier does not know the address. Sending it again does not help."""


def hand_over(address: str, *, idempotency_key: str) -> str:
    """Accept a parcel once per key, and return its tracking code."""
    if "Nowhere" in address or any(wrong in address for wrong in SPELLINGS):
        raise AddressRefused(address)
    # Durable, because it stands for another company's database: a rollback of ours cannot undo it.
    with transaction.atomic(durable=True):
        code = f"TK-{idempotency_key}"
        CarrierEntry.objects.get_or_create(tracking_code=code, defaults={"address": address})
    return code


def correct(address: str) -> str:
    """Return the address with the carrier's spelling."""
    for wrong, right in SPELLINGS.items():
        address = address.replace(wrong, right)
    return address


def whereabouts(tracking_code: str) -> str:
    """Return the parcel's latest scan."""
    with transaction.atomic(durable=True):
        entry = CarrierEntry.objects.select_for_update().get(tracking_code=tracking_code)
        entry.looks += 1
        entry.save(update_fields=["looks"])
    return SCANS[min(entry.looks, len(SCANS)) - 1]
