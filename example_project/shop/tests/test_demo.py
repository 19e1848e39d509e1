"""Runs ``manage.py demo`` in its own process, as ``make demo`` does, and checks that it detects wrong results."""

import os
import subprocess
import sys

from django.conf import settings
from django.test import SimpleTestCase, TestCase

from django_jobchains import testing
from shop.demo.outcome import problems, results
from shop.models import GatewayCharge, LoyaltyAccount, OutboxMessage
from shop.tests.baskets import no_waiting, place_order

SECONDS = 90


class DemoTests(SimpleTestCase):
    def demo(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        return subprocess.run(
            [sys.executable, str(settings.BASE_DIR / "manage.py"), "demo", "--pace", "0", *arguments],
            env={**environment, "DJANGO_SETTINGS_MODULE": "config.settings", "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )

    def test_orders_end_in_the_expected_state(self) -> None:
        done = self.demo()
        assert done.returncode == 0, done.stdout + done.stderr
        for line in (
            "attempt 1 failed, will be retried: GatewayTimeout: no connection to the payment service",
            "attempt 2 failed, will be retried: GatewayTimeout: the money was taken, but the response was lost",
            "completed, attempt 3",
            "FailJob: card declined",
            "shop.approval      completed by a person",
            "shop.close_order   completed, attempt 1",
            "sales-report  0 3 * * *   next tick: ",
            " ms after its tick",
            "stopped cleanly",
            "13 orders, 12 paid, 12 charges in 19 tries",
        ):
            assert line in done.stdout
        assert "\x1b" not in done.stdout, "No colours when the output is not a terminal."

    def test_a_demo_that_takes_too_long_fails(self) -> None:
        done = self.demo("--timeout", "0.2")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "did not complete in time" in done.stderr


@no_waiting
class VerdictTests(TestCase):
    """A completed order, and one wrong value at a time."""

    def setUp(self) -> None:
        self.order = place_order()
        testing.run_due_jobs(raise_errors=True)
        # Tests keep mail in memory.
        OutboxMessage.objects.create(
            message_id="1", recipient=self.order.email, subject=f"Receipt for order {self.order.pk}", body="-"
        )

    def verdict(self) -> list[str]:
        return problems(results([self.order]))

    def test_nothing_is_wrong(self) -> None:
        assert self.verdict() == []

    def test_charged_twice(self) -> None:
        GatewayCharge.objects.update(times_charged=2)
        assert self.verdict() == [f"{self.order}: charges should be 1, not 2"]

    def test_credited_twice(self) -> None:
        LoyaltyAccount.objects.credit(self.order.email, self.order.points)
        assert self.verdict() == ["ada@example.com: 46 points in the account, 23 earned"]

    def test_no_receipt(self) -> None:
        OutboxMessage.objects.all().delete()
        assert self.verdict() == [f"{self.order}: receipts should be 1, not 0"]

    def test_stuck(self) -> None:
        self.order.load_chain().jobs.update(status="failed")
        assert self.verdict() == [f"{self.order}: chain status should be completed, not failed"]
