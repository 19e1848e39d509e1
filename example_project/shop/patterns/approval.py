"""An expensive order waits for a person, or until a day has passed: whoever decides first completes the job.

``shop.approval`` has no processor: no worker can take it. The views below ``/approvals/`` complete it, and so does a
delayed job in a chain of its own.
"""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from django.core.mail import EmailMessage

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, JobNotCompletable, JobTypeMismatch
from django_jobchains.processors import JobType, Processors, RunningJob
from shop.jobs import Charge, charge
from shop.models import Order

NEEDS_APPROVAL_ABOVE = Decimal(250)
TIME_TO_DECIDE = timedelta(hours=24)

processors = Processors()


#: The chain has gone on, was cancelled, or is gone.
TOO_LATE = (JobTypeMismatch, JobNotCompletable, ChainNotFound)


class AlreadyDecided(Exception):
    """Somebody else was faster, or the time was up."""


@dataclass(frozen=True)
class Request:
    order_id: int


@dataclass(frozen=True)
class Rejection:
    order_id: int
    reason: str


approval: JobType[Request, None] = JobType(
    "shop.approval", input=Request, continues_with=["shop.charge", "shop.send_rejection"]
)


def ask_for_approval(order: Order, queue: str) -> Chain:
    """Starts the order's chain with the job that waits, and the one that decides if nobody else does."""
    order.mark_awaiting_approval()
    reject_when_undecided.enqueue(Request(order.pk), delay=TIME_TO_DECIDE, queue=queue)
    return approval.enqueue(Request(order.pk), queue=queue)


def approve(order: Order, decided_by: str) -> None:
    """The chain goes on to the charge. Raises ``AlreadyDecided``."""
    try:
        with chains.complete(order.known_chain_id, approval) as current:
            order.mark_approved(decided_by)
            current.continue_with(charge, Charge(order.pk))
    except TOO_LATE as error:
        raise AlreadyDecided from error


def reject(order: Order, reason: str, decided_by: str = "") -> None:
    """The chain goes on to a letter instead. Raises ``AlreadyDecided``."""
    try:
        with chains.complete(order.known_chain_id, approval) as current:
            order.mark_rejected(decided_by)
            current.continue_with(send_rejection, Rejection(order.pk, reason))
    except TOO_LATE as error:
        raise AlreadyDecided from error


@processors.register("shop.reject_when_undecided")
def reject_when_undecided(job: RunningJob[Request]) -> str:
    """Runs a day later. It locks the other chain alone, as the page does, so the two cannot wait for each other."""
    try:
        reject(Order.objects.get(pk=job.input.order_id), "Nobody could look at it in time.")
    except AlreadyDecided:
        return "nothing to decide"
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
