"""What the shop does every night, as schedules: a sales report, and a clean-up of the outbox."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.db.models import QuerySet
from django.utils import timezone

from django_jobchains import Processors, RunningJob
from shop.models import Order, OutboxMessage, SalesReport

SHOP_ZONE = ZoneInfo("Europe/London")
A_DAY = timedelta(days=1)

processors = Processors()


@processors.register("shop.clean_up")
def clean_up(job: RunningJob[None]) -> None:
    OutboxMessage.objects.filter(sent_at__lt=timezone.now() - timedelta(days=30)).delete()


@processors.register("shop.report_sales")
def report_sales(job: RunningJob[None]) -> int:
    """Write the report of the day before the tick, not before today: a late run or a retry reports the same day."""
    day = (job.scheduled_for or job.created_at).astimezone(SHOP_ZONE).date() - A_DAY
    totals = [order.total for order in paid_orders(day)]
    with job.complete():
        SalesReport.objects.update_or_create(
            day=day, defaults={"orders": len(totals), "takings": sum(totals, start=Decimal(0))}
        )
        return len(totals)


processors.schedule("clean-up", clean_up, cron="30 4 * * *", timezone=SHOP_ZONE)
processors.schedule("sales-report", report_sales, cron="0 3 * * *", timezone=SHOP_ZONE, on_missed="run_all")


def paid_orders(day: date) -> QuerySet[Order]:
    start, end = (datetime.combine(date_, time.min, tzinfo=SHOP_ZONE) for date_ in (day, day + A_DAY))
    orders = Order.objects.filter(placed_at__gte=start, placed_at__lt=end).exclude(payment_reference="")
    return orders.select_related("product")
