"""Recurring work: each night schedules the next one exactly once."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from unittest.mock import patch

from django.core.management import call_command
from django.test import TestCase
from django.utils import timezone

from django_jobchains import chains, testing
from django_jobchains.chains import Chain
from shop.models import Order, Product, SalesReport
from shop.patterns.recurring import SHOP_ZONE, Day, night_after, paid_orders, report_on, report_sales

A_DAY = timedelta(days=1)


def until_the_night_after(day: date) -> timedelta:
    return night_after(day) - timezone.now() + timedelta(minutes=1)


def sell(placed_at: datetime, payment_reference: str = "pay_1") -> None:
    product = Product.objects.get(slug="sencha")
    order = Order.objects.create(
        product=product, quantity=2, unit_price=product.price, payment_reference=payment_reference
    )
    Order.objects.filter(pk=order.pk).update(placed_at=placed_at)


def planned() -> list[Chain]:
    return list(Chain.objects.of_type(report_sales.name).incomplete())


class RecurringTests(TestCase):
    def setUp(self) -> None:
        self.today = datetime.now(SHOP_ZONE).date()

    def test_the_report_is_written_at_night_and_the_next_one_is_scheduled(self) -> None:
        noon = datetime.combine(self.today, time(12), tzinfo=SHOP_ZONE)
        sell(noon)
        sell(noon, payment_reference="")
        chain = report_on(self.today)
        assert testing.run_due_jobs() == []
        with testing.clock() as clock:
            clock.advance(until_the_night_after(self.today))
            testing.run_due_jobs(raise_errors=True)
        report = SalesReport.objects.get()
        assert (report.day, report.orders, report.takings) == (self.today, 1, Decimal(23))
        assert chain.refresh().status == "completed"
        (following,) = planned()
        assert following.id != chain.id
        assert following.input == {"day": (self.today + A_DAY).isoformat()}
        assert following.current_job.run_at == night_after(self.today + A_DAY)

    def test_reports_catch_up_after_an_outage(self) -> None:
        for number in (0, 3):
            sell(datetime.combine(self.today + number * A_DAY, time(12), tzinfo=SHOP_ZONE))
        report_on(self.today)
        with testing.clock() as clock:
            clock.advance(until_the_night_after(self.today + 4 * A_DAY))
            testing.run_due_jobs(raise_errors=True)
        reports = SalesReport.objects.order_by("day")
        assert [report.day for report in reports] == [self.today + number * A_DAY for number in range(5)]
        assert [report.orders for report in reports] == [1, 0, 0, 1, 0]
        assert len(planned()) == 1

    def test_a_failed_night_schedules_nothing_and_its_retry_schedules_once(self) -> None:
        chain = report_on(self.today)
        with testing.clock() as clock:
            clock.advance(until_the_night_after(self.today))
            failing = patch("shop.patterns.recurring.report_on", side_effect=_plans_and_fails)
            with failing, self.assertLogs("django_jobchains", "WARNING"):
                testing.run_due_jobs()
            assert not SalesReport.objects.exists()
            assert [plan.id for plan in planned()] == [chain.id]
            clock.advance(600)
            testing.run_due_jobs(raise_errors=True)
        assert SalesReport.objects.count() == 1
        assert len(planned()) == 1

    def test_scheduling_again_changes_nothing(self) -> None:
        for words in ("is now scheduled", "is already scheduled"):
            with self.subTest(words), patch("sys.stdout") as out:
                call_command("plan_reports", stdout=out)
                assert words in str(out.write.call_args_list)
        assert len(planned()) == 1

    def test_a_cancelled_report_can_be_scheduled_again(self) -> None:
        chains.cancel(report_on(self.today).id)
        assert not report_on(self.today).deduplicated
        testing.assert_enqueued(report_sales, Day(self.today), count=2)


class TimeZoneTests(TestCase):
    def test_a_day_is_in_shop_time(self) -> None:
        for moment in ("22:59", "23:00", "23:59"):
            sell(datetime.fromisoformat(f"2026-07-13T{moment}:00Z"))
        sell(datetime(2026, 7, 14, 23, tzinfo=UTC))
        assert paid_orders(date(2026, 7, 14)).count() == 2

    def test_the_report_runs_at_three_in_shop_time_in_summer_and_winter(self) -> None:
        assert night_after(date(2026, 1, 14)) == datetime(2026, 1, 15, 3, tzinfo=UTC)
        assert night_after(date(2026, 7, 14)) == datetime(2026, 7, 15, 2, tzinfo=UTC)

    def test_the_night_is_an_hour_shorter_when_the_clocks_go_forward(self) -> None:
        before, after = night_after(date(2026, 3, 27)), night_after(date(2026, 3, 28))
        assert after.astimezone(UTC) - before.astimezone(UTC) == timedelta(hours=23)


def _plans_and_fails(day: date, **options: object) -> None:
    report_sales.enqueue(Day(day), run_at=night_after(day))
    raise RuntimeError("broken on purpose")
