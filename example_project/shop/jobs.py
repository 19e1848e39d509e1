"""The chain of an order: charge → receipt → loyalty points.

Each step commits its own writes, its completion and the next step in one transaction.
"""

from dataclasses import dataclass

from django.core.mail import EmailMessage

from django_jobchains import Backoff, Concurrency, Continuation, FailedJob, FailJob, Processors, RunningJob
from django_jobchains.middleware import LogContext
from shop import gateway
from shop.models import LoyaltyAccount, Order

# A short backoff makes retries visible while you watch; the library's default starts at 10 seconds.
# LogContext adds the job's id to everything that these handlers log.
processors = Processors(backoff=Backoff(initial_seconds=1, maximum_seconds=8), timeout=60, middleware=[LogContext()])


@dataclass(frozen=True)
class Charge:
    order_id: int


@dataclass(frozen=True)
class Receipt:
    order_id: int
    payment_reference: str


@dataclass(frozen=True)
class Points:
    order_id: int
    points: int


@processors.register(
    "shop.charge",
    continues_with=["shop.send_receipt"],
    label="Order {order_id}",
    max_attempts=5,
    on_failure="shop.mark_unpaid",
    concurrency=Concurrency(5, group="payment gateway"),
)
def charge(job: RunningJob[Charge]) -> Continuation:
    """Charge the card outside any transaction. The job's id is the idempotency key, so that a retry is safe."""
    order = _order(job.input.order_id)
    try:
        reference = gateway.charge(order.card, order.total, idempotency_key=str(job.id))
    except gateway.CardDeclined as error:
        order.mark_declined()
        raise FailJob("card declined") from error
    with job.complete():
        order.mark_paid(reference)
        return job.continue_with(send_receipt, Receipt(order.pk, reference))


@processors.register("shop.mark_unpaid", label=lambda failed: f"Order {failed.input['order_id']}")
def mark_unpaid(job: RunningJob[FailedJob]) -> None:
    """Mark the order of a failed charge as unpaid, unless it was declined, or paid by a retry in the meantime."""
    with job.complete():
        order = Order.objects.select_for_update().get(pk=job.input.input["order_id"])
        if order.state == Order.State.PLACED:
            order.mark_unpaid()


@processors.register("shop.send_receipt", entry=False, continues_with=["shop.credit_points"], label="Order {order_id}")
def send_receipt(job: RunningJob[Receipt]) -> Continuation:
    """Send the mail before completing: it cannot be rolled back, but its id lets the receiver drop a duplicate."""
    order = _order(job.input.order_id)
    receipt_mail(order, job.input.payment_reference, message_id=f"<{job.id}@tin-kettle.example>").send()
    with job.complete():
        order.mark_receipt_sent()
        return job.continue_with(credit_points, Points(order.pk, order.points))


@processors.register("shop.credit_points", entry=False, label="Order {order_id}")
def credit_points(job: RunningJob[Points]) -> int:
    """Credit the points exactly once: they and the job's completion are one commit."""
    order = _order(job.input.order_id)
    with job.complete():
        LoyaltyAccount.objects.credit(order.email, job.input.points)
        order.mark_points_credited()
        return job.input.points


def receipt_mail(order: Order, payment_reference: str, *, message_id: str) -> EmailMessage:
    return EmailMessage(
        subject=f"Receipt for order {order.pk}",
        body=(
            f"Thank you for your order.\n\n"
            f"{order.quantity} × {order.product.name}: €{order.total}\n"
            f"Payment reference: {payment_reference}\n\n"
            f"It earns you {order.points} loyalty points.\n"
        ),
        to=[order.email],
        headers={"Message-ID": message_id},
    )


def _order(order_id: int) -> Order:
    return Order.objects.select_related("product").get(pk=order_id)
