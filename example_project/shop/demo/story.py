"""Prints the attempts of the demo's jobs as they end, by polling the tables."""

from collections.abc import Callable, Iterator
from datetime import datetime
from uuid import UUID

from django.core.management.color import Style

from django_jobchains.chains import Chain, Job
from django_jobchains.models import FailedAttempt
from django_jobchains.statuses import Status
from shop.models import Order
from shop.templatetags.shop import clock, last_line

Ending = tuple[datetime, Job, str]


class Story:
    """Follows orders and prints each attempt of their jobs once, when it has ended."""

    def __init__(self, write: Callable[[str], object], style: Style) -> None:
        self._write = write
        self._style = style
        self._orders: dict[UUID, Order] = {}
        self._shown: set[tuple[UUID, datetime]] = set()

    def add(self, order: Order) -> None:
        self._orders[order.known_chain_id] = order
        waits = " (it needs approval)" if order.state == Order.State.AWAITING_APPROVAL else ""
        text = f"placed: {order.quantity} × {order.product}, {order.get_card_display().lower()}{waits}"
        self._print(order.placed_at, order, "", text)

    def add_chain(self, order: Order, chain: Chain) -> None:
        self._orders[chain.id] = order
        self._print(chain.created_at, order, "", "sent off: the order's chain waits for the chains of its parcels")

    def is_over(self) -> bool:
        """Return whether all chains have ended.

        A job and its continuation are committed together, so if no job is open, no chain is.
        """
        return not Job.objects.filter(chain_id__in=self._orders).incomplete().exists()

    def show_new(self) -> None:
        for ended_at, job, text in sorted(self._endings(), key=lambda ending: ending[0]):
            if (job.pk, ended_at) not in self._shown:
                self._shown.add((job.pk, ended_at))
                self._print(ended_at, self._orders[job.chain_id], job.type_name, text)

    def _endings(self) -> Iterator[Ending]:
        for failed in FailedAttempt.objects.filter(job__chain_id__in=self._orders).select_related("job"):
            yield failed.finished_at, failed.job, self._failure(failed)
        for job in Job.objects.filter(chain_id__in=self._orders).with_status(Status.COMPLETED):
            assert job.finished_at is not None
            how = f"completed, attempt {job.attempt}" if job.completed_by else "completed by a person"
            yield job.finished_at, job, self._style.SUCCESS(how)

    def _failure(self, failed: FailedAttempt) -> str:
        error = last_line(failed.error)
        if failed.job.status == Status.FAILED:
            return self._style.ERROR(f"failed, attempt {failed.attempt}: {error}")
        return self._style.WARNING(f"attempt {failed.attempt} failed, will be retried: {error}")

    def _print(self, moment: datetime, order: Order, type_name: str, text: str) -> None:
        self._write(f"  {clock(moment)}  {order!s:<9} {type_name:<18} {text}")
