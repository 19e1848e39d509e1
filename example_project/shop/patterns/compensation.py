"""If a paid order turns out to be sold out, its steps are undone in reverse order.

``shop.pack`` → ``shop.ship_order``, or ``shop.take_points_back`` → ``shop.refund`` → ``shop.apologise``.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

from django.core.mail import EmailMessage

from django_jobchains import Backoff, Continuation, Deduplicate, Processors, RunningJob
from django_jobchains.chains import Chain
from shop.gateway import GatewayRefunds, Refunds
from shop.models import LoyaltyAccount, Order, Product
from shop.patterns.nested import Shipment, ship_order

# An undo must not give up, and its backoff grows to minutes.
processors = Processors(
    backoff=Backoff(initial_seconds=1, maximum_seconds=300), max_attempts=inf, middleware=[GatewayRefunds()]
)


@dataclass(frozen=True)
class Paid:
    order_id: int

    def load(self) -> Order:
        return Order.objects.select_related("product").get(pk=self.order_id)


def send_off(order: Order, queue: str) -> Chain:
    """Start the chain that packs and ships an order. A second call returns the chain of the first."""
    once = Deduplicate(f"order {order.pk}", scope="any")
    return pack.enqueue(Paid(order.pk), deduplicate=once, queue=queue)


@processors.register("shop.pack", continues_with=["shop.ship_order", "shop.take_points_back"])
def pack(job: RunningJob[Paid]) -> Continuation:
    order = job.input.load()
    with job.complete():
        if not Product.objects.take(order.product_id, order.quantity):
            return job.continue_with(take_points_back, job.input)
        order.mark_delivery(Order.Delivery.PACKED)
        return job.continue_with(ship_order, Shipment(order.pk))


@processors.register("shop.take_points_back", entry=False, continues_with=["shop.refund"])
def take_points_back(job: RunningJob[Paid]) -> Continuation:
    order = job.input.load()
    with job.complete():
        LoyaltyAccount.objects.credit(order.email, -order.points)
        return job.continue_with(refund, job.input)


@processors.register("shop.refund", entry=False, continues_with=["shop.apologise"])
def refund(job: RunningJob[Paid, Any, Refunds]) -> Continuation:
    """Refund the payment outside any transaction. The idempotency key makes a retry safe, as for the charge."""
    order = job.input.load()
    GatewayRefunds.of(job).pay_back(order.payment_reference)
    with job.complete():
        order.mark_delivery(Order.Delivery.REFUNDED)
        return job.continue_with(apologise, job.input)


@processors.register("shop.apologise", entry=False)
def apologise(job: RunningJob[Paid]) -> None:
    order = job.input.load()
    EmailMessage(
        subject=f"Order {order.pk} is sold out",
        body=f"We are sorry. €{order.total} are on the way back to you.\n",
        to=[order.email],
        headers={"Message-ID": f"<{job.id}@tin-kettle.example>"},
    ).send()
