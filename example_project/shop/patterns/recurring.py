"""A sales report every night at three, shop time. Each chain schedules the next one when it completes."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import QuerySet

from django_jobchains import Deduplicate, Processors, RunningJob
from django_jobchains.chains import Chain
from shop.models import Order, SalesReport

SHOP_ZONE = ZoneInfo("Europe/London")
#: Not between one and two: that hour does not exist on one night in March, and occurs twice on one in October.
AT_NIGHT = time(3)

processors = Processors()


@dataclass(frozen=True)
class Day:
    day: date


def report_on(day: date, *, exclude: Collection[UUID] = ()) -> Chain:
    """Schedule the report on a day for the night after it. If a report is already scheduled, return its chain."""
    only_one = Deduplicate("sales report", exclude_chain_ids=exclude)
    return report_sales.enqueue(Day(day), run_at=night_after(day), deduplicate=only_one)


def night_after(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), AT_NIGHT, tzinfo=SHOP_ZONE)


@processors.register("shop.report_sales")
def report_sales(job: RunningJob[Day]) -> int:
    """Write the report of the day in the input, not of today: a late run or a retry reports the same day."""
    day = job.input.day
    with job.complete():
        totals = [order.total for order in paid_orders(day)]
        SalesReport.objects.update_or_create(
            day=day, defaults={"orders": len(totals), "takings": sum(totals, start=Decimal(0))}
        )
        report_on(day + timedelta(days=1), exclude=[job.chain_id])
        return len(totals)


def paid_orders(day: date) -> QuerySet[Order]:
    start, end = (datetime.combine(date_, time.min, tzinfo=SHOP_ZONE) for date_ in (day, day + timedelta(days=1)))
    orders = Order.objects.filter(placed_at__gte=start, placed_at__lt=end).exclude(payment_reference="")
    return orders.select_related("product")
