"""A fake payment service: slow, sometimes unreachable, and with idempotency keys.

The flaky card shows the two ways a call can fail: the first call never arrives, and the second takes the money but
its response is lost. The third call gets the stored response, and the customer has paid once.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db import transaction

from django_jobchains import RunningJob
from django_jobchains.middleware import Middleware
from shop.models import GatewayCharge, Order

LATENCY_SECONDS = 0.04


class GatewayTimeout(Exception):
    """No response. The money may or may not have been taken: retry with the same key."""


class CardDeclined(Exception):
    """The bank declined the card. A retry does not help."""


def charge(card: str, amount: Decimal, *, idempotency_key: str) -> str:
    """Charge the amount, at most once per key, and return the payment's reference."""
    time.sleep(LATENCY_SECONDS)
    tries = _count_try(idempotency_key, amount)
    if card == Order.Card.DECLINED:
        raise CardDeclined("declined by the bank")
    if card == Order.Card.FLAKY and tries == 1:
        raise GatewayTimeout("no connection to the payment service")
    reference = _take_money_once(idempotency_key)
    if card == Order.Card.FLAKY and tries == 2:
        raise GatewayTimeout("the money was taken, but the response was lost")
    return reference


def refund(reference: str, *, idempotency_key: str) -> None:
    """Refund a payment, at most once."""
    time.sleep(LATENCY_SECONDS)
    with transaction.atomic(durable=True):
        GatewayCharge.objects.filter(reference=reference, refund_key="").update(refund_key=idempotency_key)


@dataclass(frozen=True)
class Refunds:
    """The service for one job, whose id is the idempotency key, so that no handler can forget it."""

    key: str

    def pay_back(self, reference: str) -> None:
        refund(reference, idempotency_key=self.key)


class GatewayRefunds(Middleware[Refunds]):
    """Provides ``Refunds`` for each job."""

    @contextmanager
    def around_handler(self, job: RunningJob[Any]) -> Iterator[Refunds]:
        yield Refunds(str(job.id))


def _count_try(idempotency_key: str, amount: Decimal) -> int:
    # Durable, because it stands for another company's database: a rollback of ours cannot undo it.
    with transaction.atomic(durable=True):
        GatewayCharge.objects.get_or_create(idempotency_key=idempotency_key, defaults={"amount": amount})
        entry = _locked(idempotency_key)
        entry.tries += 1
        entry.save(update_fields=["tries"])
    return entry.tries


def _take_money_once(idempotency_key: str) -> str:
    with transaction.atomic(durable=True):
        entry = _locked(idempotency_key)
        if not entry.reference:
            entry.reference = f"pay_{secrets.token_hex(6)}"
            entry.times_charged += 1
            entry.save(update_fields=["reference", "times_charged"])
    return entry.reference


def _locked(idempotency_key: str) -> GatewayCharge:
    return GatewayCharge.objects.select_for_update().get(idempotency_key=idempotency_key)
