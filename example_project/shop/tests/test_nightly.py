"""Schedules: the report of a night is about the day before its tick, whenever it runs."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from unittest.mock import patch

from django.test import TestCase
from django.utils import timezone

from django_jobchains import schedules, testing
from shop.models import Order, OutboxMessage, Product, SalesReport
from shop.nightly import A_DAY, SHOP_ZONE, paid_orders


def sell(placed_at: datetime, payment_reference: str = "pay_1") -> None:
    product = Product.objects.get(slug="sencha")
    order = Order.objects.create(
        product=product, quantity=2, unit_price=product.price, payment_reference=payment_reference
    )
    Order.objects.filter(pk=order.pk).update(placed_at=placed_at)


def sell_at_noon(day: date, payment_reference: str = "pay_1") -> None:
    sell(datetime.combine(day, time(12), tzinfo=SHOP_ZONE), payment_reference)


class ReportTests(TestCase):
    def setUp(self) -> None:
        testing.fire_schedules()
        (self.tick,) = schedules.next_ticks("sales-report", 1)
        self.day = self.tick.date() - A_DAY

    def test_a_report_that_is_late_and_repeated_is_about_the_day_before_its_tick(self) -> None:
        sell_at_noon(self.day)
        sell_at_noon(self.day, payment_reference="")
        with testing.clock() as clock:
            clock.advance(self.tick - timezone.now() + timedelta(minutes=1))
            [chain] = [chain for chain in testing.fire_schedules() if chain.schedule_name == "sales-report"]
            clock.advance(3 * A_DAY)
            failing = patch("shop.nightly.paid_orders", side_effect=RuntimeError("broken on purpose"))
            with failing, self.assertLogs("django_jobchains", "WARNING"):
                testing.run_due_jobs()
            clock.advance(A_DAY)
            testing.run_due_jobs(raise_errors=True)
        assert chain.scheduled_for == self.tick
        report = SalesReport.objects.get()
        assert (report.day, report.orders, report.takings) == (self.day, 1, Decimal(23))

    def test_each_day_of_an_outage_is_reported(self) -> None:
        for number in (0, 3):
            sell_at_noon(self.day + number * A_DAY)
        with testing.clock() as clock:
            clock.advance(self.tick - timezone.now() + 4 * A_DAY + timedelta(minutes=1))
            testing.fire_schedules()
            testing.run_due_jobs(raise_errors=True)
        reports = SalesReport.objects.order_by("day")
        assert [report.day for report in reports] == [self.day + number * A_DAY for number in range(5)]
        assert [report.orders for report in reports] == [1, 0, 0, 1, 0]

    def test_a_report_without_a_tick_is_about_yesterday(self) -> None:
        yesterday = datetime.now(SHOP_ZONE).date() - A_DAY
        schedules.run_now("sales-report")
        testing.run_due_jobs(raise_errors=True)
        assert SalesReport.objects.get().day == yesterday

    def test_a_day_is_in_shop_time(self) -> None:
        for moment in ("22:59", "23:00", "23:59"):
            sell(datetime.fromisoformat(f"2026-07-13T{moment}:00Z"))
        sell(datetime(2026, 7, 14, 23, tzinfo=UTC))
        assert paid_orders(date(2026, 7, 14)).count() == 2


class CleanUpTests(TestCase):
    def test_mail_of_the_last_month_is_kept(self) -> None:
        for days in (29, 31):
            message = OutboxMessage.objects.create(message_id=str(days), recipient="ada@example.com", subject=str(days))
            OutboxMessage.objects.filter(pk=message.pk).update(sent_at=timezone.now() - timedelta(days=days))
        testing.fire_schedules()
        schedules.run_now("clean-up")
        testing.run_due_jobs(raise_errors=True)
        assert [message.subject for message in OutboxMessage.objects.all()] == ["29"]
