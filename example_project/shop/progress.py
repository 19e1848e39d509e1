"""The progress of an order, for its page: the order's state and the jobs of its chain."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from django_jobchains.chains import ChainNotFound, Job
from django_jobchains.statuses import Status
from shop.models import Order, Parcel
from shop.patterns.approval import approval

STEPS = (Order.State.PLACED, Order.State.PAID, Order.State.RECEIPT_SENT, Order.State.POINTS_CREDITED)


@dataclass(frozen=True)
class Progress:
    order: Order
    #: The status of the chain; empty if the chain was deleted.
    chain_status: str = ""
    jobs: Sequence[Job] = field(default_factory=tuple)
    is_finished: bool = True
    parcels: Sequence[Parcel] = field(default_factory=tuple)

    @classmethod
    def of(cls, order: Order) -> "Progress":
        try:
            chain = order.load_chain()
            jobs = list(chain.jobs.prefetch_related("failed_attempts"))
            progress = cls(order, chain.status, jobs, chain.finished_at is not None, list(order.parcels.all()))
        except ChainNotFound:
            return cls(order, parcels=list(order.parcels.all()))
        # Read the order after the chain, so that a finished chain never comes with an unfinished order.
        order.refresh_from_db(fields=["state", "payment_reference", "delivery"])
        return progress

    @property
    def steps(self) -> list[tuple[str, str]]:
        """The label of each step, with ``done``, ``next``, ``stopped`` or ``later``."""
        reached = STEPS.index(self.order.state) if self.order.state in STEPS else 0
        after = "next" if self.chain_status and not self.is_finished else "stopped"
        marks = ["done"] * (reached + 1) + [after] + ["later"] * len(STEPS)
        return [(step.label, mark) for step, mark in zip(STEPS, marks, strict=False)]

    @property
    def mood(self) -> str:
        """The color of the summary. A rejection completes a chain, but is not good news."""
        is_bad_news = self.order.state == Order.State.REJECTED or self.order.delivery == Order.Delivery.REFUNDED
        return "warning" if is_bad_news else self.chain_status

    @property
    def is_followed(self) -> bool:
        """Whether the page is still going to change."""
        return not self.is_finished or self.order.delivery in (Order.Delivery.PACKED, Order.Delivery.SENT)

    @property
    def summary(self) -> str:
        """One sentence for the customer."""
        if not self.is_finished:
            return self._expectation
        if self.order.delivery == Order.Delivery.REFUNDED:
            return "The product is sold out. The money is being refunded, and the points were taken back."
        if self.order.state == Order.State.POINTS_CREDITED:
            return f"All done: paid, receipt sent, {self.order.points} points credited."
        if self.order.state == Order.State.DECLINED:
            return "The card was declined, so nothing was charged."
        if self.order.state == Order.State.UNPAID:
            return "The payment failed, and was given up. Our staff can retry it in the admin."
        if self.order.state == Order.State.REJECTED:
            return "The order was not approved, so nothing was charged."
        return STOPPED.get(self.chain_status, "The history of this order was deleted.")

    @property
    def _expectation(self) -> str:
        job = self.jobs[-1]
        if job.type_name == approval.name:
            return "An order of this size waits until our staff approve it."
        if job.status != Status.PENDING:
            return "Your order is being processed. This page follows it."
        if job.attempt:
            return "A step failed and will be retried automatically. This page follows it."
        return "Waiting for a worker. If nothing happens, start one with “manage.py run_jobworker”."


STOPPED: dict[str, str] = {
    Status.FAILED: "The order is stuck because a job has failed. You can retry it in the admin.",
    Status.CANCELLED: "The order was cancelled before it was completed.",
}
