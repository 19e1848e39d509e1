"""The pages, for every state of an order."""

import logging
import re
from typing import Any
from unittest.mock import patch

from config.csp import POLICY
from django.contrib.auth.models import User
from django.test import TestCase
from django.urls import reverse

from django_jobchains import FailJob, chains, testing
from django_jobchains.chains import Job
from shop.admin import OrderAdmin
from shop.gateway import GatewayTimeout
from shop.models import Order, OutboxMessage
from shop.tests.baskets import no_waiting, place_order

INLINE = re.compile(r"<style|style=|<script>|javascript:| on\w+=")
REFRESH = '<meta http-equiv="refresh"'


@no_waiting
class OrderPageTests(TestCase):
    def setUp(self) -> None:
        self.order = place_order()
        logging.disable(logging.ERROR)  # The failures are expected.
        self.addCleanup(logging.disable, logging.NOTSET)

    def page(self) -> Any:
        return self.client.get(self.order.get_absolute_url())

    def run_with(self, error: Exception) -> None:
        """Run the charge with a payment service that raises this error."""
        with patch("shop.gateway.charge", side_effect=error):
            testing.run_due_jobs()

    def test_placed(self) -> None:
        page = self.page()
        self.assertContains(page, "Waiting for a worker")
        self.assertContains(page, "shop.charge")
        self.assertContains(page, REFRESH)
        self.assertContains(page, "shop/follow.js")

    def test_the_charge_runs(self) -> None:
        Job.objects.update(status="running", attempt=1)
        page = self.page()
        self.assertContains(page, "is being processed")
        self.assertContains(page, '<span class="badge running">running</span>')

    def test_the_charge_will_be_retried(self) -> None:
        self.run_with(GatewayTimeout("no <answer>"))
        page = self.page()
        self.assertContains(page, "will be retried automatically")
        self.assertContains(page, "<dt>Attempts</dt><dd>1</dd>", html=True)
        self.assertContains(page, "Next try")
        self.assertContains(page, "GatewayTimeout: no &lt;answer&gt;")
        self.assertNotContains(page, "Traceback")

    def test_paid(self) -> None:
        testing.run_due_jobs(limit=1, raise_errors=True)
        page = self.page()
        self.order.refresh_from_db()
        self.assertContains(page, self.order.payment_reference)
        self.assertContains(page, '<li class="done">Paid</li>', html=True)
        self.assertContains(page, '<li class="next" aria-current="step">Receipt sent</li>', html=True)
        self.assertContains(page, REFRESH)

    def test_receipt_sent(self) -> None:
        testing.run_due_jobs(limit=2, raise_errors=True)
        page = self.page()
        self.assertContains(page, '<li class="done">Receipt sent</li>', html=True)
        self.assertContains(page, REFRESH)

    def test_points_credited(self) -> None:
        testing.run_due_jobs(raise_errors=True)
        page = self.page()
        self.assertContains(page, "All done: paid, receipt sent, 23 points credited.")
        self.assertContains(page, "23 points</dd>")
        self.assertNotContains(page, REFRESH)
        self.assertNotContains(page, "shop/follow.js")

    def test_on_its_way(self) -> None:
        testing.run_due_jobs(raise_errors=True)
        self.order.mark_delivery(Order.Delivery.SENT)
        self.assertContains(self.page(), '<span class="badge sent">On its way</span>')
        self.assertContains(self.page(), REFRESH)

    def test_refunded(self) -> None:
        testing.run_due_jobs(raise_errors=True)
        self.order.mark_delivery(Order.Delivery.REFUNDED)
        self.assertContains(self.page(), "The product is sold out")
        self.assertContains(self.page(), '<span class="badge refunded">Sold out, refunded</span>')
        self.assertNotContains(self.page(), REFRESH)

    def test_declined(self) -> None:
        Order.objects.update(card=Order.Card.DECLINED)
        testing.run_due_jobs()
        page = self.page()
        self.assertContains(page, "The card was declined, so nothing was charged.")
        self.assertContains(page, '<li class="stopped">Paid</li>', html=True)
        self.assertContains(page, "FailJob: card declined")
        self.assertNotContains(page, REFRESH)

    def test_declined_then_retried_by_a_person(self) -> None:
        Order.objects.update(card=Order.Card.DECLINED)
        testing.run_due_jobs()
        chains.retry(self.order.load_chain().current_job)
        page = self.page()
        self.assertContains(page, "will be retried automatically")
        self.assertContains(page, REFRESH)

    def test_the_charge_failed(self) -> None:
        self.run_with(FailJob("no such order"))
        self.assertContains(self.page(), "The payment failed")

    def test_a_later_step_failed(self) -> None:
        with patch.object(Order, "mark_receipt_sent", side_effect=FailJob("no such order")):
            testing.run_due_jobs()
        self.assertContains(self.page(), "The order is stuck")

    def test_cancelled(self) -> None:
        chains.cancel(self.order.known_chain_id)
        self.assertContains(self.page(), "cancelled before it was completed")
        self.assertNotContains(self.page(), REFRESH)

    def test_the_chain_was_deleted(self) -> None:
        chains.delete(self.order.known_chain_id)
        page = self.page()
        self.assertContains(page, "The history of this order was deleted.")
        self.assertNotContains(page, REFRESH)

    def test_an_unknown_order(self) -> None:
        assert self.client.get(reverse("shop:order", args=[10**9])).status_code == 404


class OtherPagesTests(TestCase):
    def test_pages_before_the_first_order(self) -> None:
        self.assertContains(self.client.get(reverse("shop:front")), "No orders yet")
        self.assertContains(self.client.get(reverse("shop:orders")), "No orders yet")
        self.assertContains(self.client.get(reverse("shop:outbox")), "No mail has been sent yet")

    def test_a_migration_creates_the_products(self) -> None:
        page = self.client.get(reverse("shop:front"))
        self.assertContains(page, "Stoneware cup")
        self.assertContains(page, 'class="product"', count=6)

    def test_orders_are_listed_with_their_state(self) -> None:
        place_order().mark_paid("pay_123")
        for name in ("shop:front", "shop:orders"):
            self.assertContains(self.client.get(reverse(name)), '<span class="badge paid">Paid</span>')

    def test_user_input_is_escaped(self) -> None:
        mail = {"recipient": "a@example.com", "subject": "<i>Hello</i>", "body": "<script>alert(1)</script>"}
        OutboxMessage.objects.create(message_id="1", **mail)
        page = self.client.get(reverse("shop:outbox"))
        self.assertContains(page, "&lt;i&gt;Hello&lt;/i&gt;")
        self.assertNotContains(page, "<script>alert")

    def test_pages_have_the_policy_and_no_inline_code(self) -> None:
        order = place_order("kettle", quantity=14)
        self.client.force_login(User.objects.create_user("grace", is_staff=True))
        for url in ("/", "/orders/", "/outbox/", "/approvals/", order.get_absolute_url()):
            page = self.client.get(url)
            assert page.headers["Content-Security-Policy"] == POLICY
            assert not INLINE.search(page.content.decode())

    def test_the_policy_is_strict(self) -> None:
        assert POLICY.startswith("default-src 'self'; ")
        assert not any(word in POLICY for word in ("unsafe", "*", "http", "data:", "script-src", "style-src"))

    def test_admin_pages_follow_the_policy(self) -> None:
        order = place_order()
        assert order.chain_id is not None
        job = Job.objects.get(chain_id=order.chain_id)
        self.client.force_login(User.objects.create_superuser("ada"))
        names: list[tuple[str, list[Any]]] = [
            ("admin:index", []),
            ("admin:app_list", ["django_jobchains"]),
            ("admin:django_jobchains_dashboard_changelist", []),
            ("admin:django_jobchains_chain_changelist", []),
            ("admin:django_jobchains_job_changelist", []),
            ("admin:django_jobchains_chain_enqueue", []),
            ("admin:django_jobchains_chain_change", [job.chain_id]),
            ("admin:django_jobchains_job_change", [job.pk]),
            ("admin:django_jobchains_chain_history", [job.chain_id]),
            ("admin:django_jobchains_chain_complete", [job.chain_id]),
            ("admin:django_jobchains_chain_delete", [job.chain_id]),
        ]
        for name, arguments in names:
            with self.subTest(name):
                page = self.client.get(reverse(name, args=arguments), follow=True)
                assert page.status_code == 200
                assert page.headers["Content-Security-Policy"] == POLICY
                assert not INLINE.search(page.content.decode())


class OrderAdminTests(TestCase):
    def test_a_new_card_does_not_undo_the_state_that_a_job_wrote(self) -> None:
        order = place_order()
        self.client.force_login(User.objects.create_superuser("ada"))
        save_form = OrderAdmin.save_form

        def save_late(*args: Any, **options: Any) -> Any:
            Order.objects.get(pk=order.pk).mark_paid("ref-1")
            return save_form(*args, **options)

        with patch.object(OrderAdmin, "save_form", save_late):
            self.client.post(reverse("admin:shop_order_change", args=[order.pk]), {"card": "flaky", "address": "Here"})
        order.refresh_from_db()
        assert (order.card, order.address) == ("flaky", "Here")
        assert (order.state, order.payment_reference) == ("paid", "ref-1")
