"""An expensive order waits for approval by a person, and is rejected after a day.

``shop.approval`` has no processor, so no worker claims its jobs. The views below ``/approvals/`` complete it, and so do
a form in the admin and a delayed job in a separate chain. The first decision wins.
"""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from django.core.mail import EmailMessage

from django_jobchains import JobType, Processors, RunningJob, chains
from django_jobchains.chains import Chain, ChainNotFound, JobNotCompletable, JobTypeMismatch
from shop.jobs import Charge, charge
from shop.models import Order

NEEDS_APPROVAL_ABOVE = Decimal(250)
TIME_TO_DECIDE = timedelta(hours=24)

processors = Processors()


#: The chain has continued, failed, was cancelled or was deleted.
TOO_LATE = (JobTypeMismatch, JobNotCompletable, ChainNotFound)


class AlreadyDecided(Exception):
    """The order has already been approved or rejected."""


@dataclass(frozen=True)
class Request:
    order_id: int


@dataclass(frozen=True)
class Rejection:
    order_id: int
    reason: str


approval: JobType[Request, None] = JobType(
    "shop.approval",
    input=Request,
    continues_with=["shop.charge", "shop.send_rejection"],
    completion_form="shop.forms.DecisionForm",
    label="Order {order_id}",
)


def ask_for_approval(order: Order, queue: str) -> Chain:
    """Start the order's chain with a job that waits, and a second chain that rejects the order after a day."""
    order.mark_awaiting_approval()
    reject_when_undecided.enqueue(Request(order.pk), delay=TIME_TO_DECIDE, queue=queue)
    return approval.enqueue(Request(order.pk), queue=queue)


def approve(order: Order, decided_by: str) -> None:
    """Continue the chain with the charge. Raise ``AlreadyDecided`` if the order is no longer undecided."""
    try:
        with chains.current_job(order.known_chain_id, approval) as current:
            order.mark_approved(decided_by)
            current.continue_with(charge, Charge(order.pk))
    except TOO_LATE as error:
        raise AlreadyDecided from error


def reject(order: Order, reason: str, decided_by: str = "") -> None:
    """Continue the chain with the rejection mail. Raise ``AlreadyDecided`` if the order is no longer undecided."""
    try:
        with chains.current_job(order.known_chain_id, approval) as current:
            order.mark_rejected(decided_by)
            current.continue_with(send_rejection, Rejection(order.pk, reason))
    except TOO_LATE as error:
        raise AlreadyDecided from error


@processors.register("shop.reject_when_undecided", label="Order {order_id}")
def reject_when_undecided(job: RunningJob[Request]) -> str:
    """Reject an undecided order. Like the page, this locks only the order's chain, so the two cannot deadlock."""
    try:
        reject(Order.objects.get(pk=job.input.order_id), "Nobody could review it in time.")
    except AlreadyDecided:
        return "already decided"
    return "rejected"


@processors.register("shop.send_rejection", entry=False)
def send_rejection(job: RunningJob[Rejection]) -> None:
    order = Order.objects.get(pk=job.input.order_id)
    EmailMessage(
        subject=f"We could not accept order {order.pk}",
        body=f"{job.input.reason}\n\nNothing was charged.\n",
        to=[order.email],
        headers={"Message-ID": f"<{job.id}@tin-kettle.example>"},
    ).send()
