"""The linear chain: charge → receipt → points, also when a step fails half-way."""

import logging
from unittest.mock import patch

from django.core import mail
from django.test import TestCase

from django_jobchains import chains, testing
from shop import gateway
from shop.models import GatewayCharge, LoyaltyAccount, Order
from shop.tests.baskets import no_waiting, place_order


@no_waiting
class ChainTests(TestCase):
    def setUp(self) -> None:
        logging.disable(logging.ERROR)  # The failures are expected.
        self.addCleanup(logging.disable, logging.NOTSET)

    def run_jobs(self, *, failing: str = "") -> None:
        """Run the due jobs. ``failing`` names a method of Order that is replaced by one that raises."""
        if not failing:
            testing.run_due_jobs()
            return
        with patch.object(Order, failing, autospec=True, side_effect=RuntimeError("broken on purpose")):
            testing.run_due_jobs()

    def run_after_backoff(self) -> None:
        with testing.clock() as clock:
            clock.advance(10)
            testing.run_due_jobs(raise_errors=True)

    def points(self) -> int:
        return sum(LoyaltyAccount.objects.values_list("points", flat=True))

    def test_an_order_completes_all_steps(self) -> None:
        order = place_order()
        self.run_jobs()
        order.refresh_from_db()
        chain = order.load_chain()
        assert [job.type_name for job in chain.jobs] == ["shop.charge", "shop.send_receipt", "shop.credit_points"]
        assert (order.state, chain.status, chain.output) == (Order.State.POINTS_CREDITED, "completed", 23)
        assert order.payment_reference == GatewayCharge.objects.get().reference
        assert [message.to for message in mail.outbox] == [[order.email]]
        assert self.points() == 23

    def test_points_of_a_failed_attempt_are_rolled_back(self) -> None:
        order = place_order()
        self.run_jobs(failing="mark_points_credited")
        assert (order.load_chain().status, self.points()) == ("pending", 0)
        self.run_after_backoff()
        assert (order.load_chain().status, self.points()) == ("completed", 23)

    def test_a_failed_attempt_charges_once_and_continues_once(self) -> None:
        order = place_order()
        self.run_jobs(failing="mark_paid")
        assert order.load_chain().jobs.count() == 1
        self.run_after_backoff()
        assert order.load_chain().jobs.count() == 3
        assert (GatewayCharge.objects.get().tries, GatewayCharge.objects.get().times_charged) == (2, 1)

    def test_a_receipt_is_sent_again_with_the_same_id(self) -> None:
        place_order()
        self.run_jobs(failing="mark_receipt_sent")
        self.run_after_backoff()
        assert len(mail.outbox) == 2
        assert len({message.extra_headers["Message-ID"] for message in mail.outbox}) == 1

    def test_a_declined_card_ends_the_chain(self) -> None:
        order = place_order(card=Order.Card.DECLINED)
        self.run_jobs()
        order.refresh_from_db()
        assert (order.state, order.load_chain().status) == (Order.State.DECLINED, "failed")
        self.assertContains(self.client.get(order.get_absolute_url()), "card declined")
        assert (self.points(), mail.outbox) == (0, [])

    def place_order_that_cannot_be_charged(self) -> Order:
        order = place_order()
        with patch("shop.gateway.charge", side_effect=gateway.GatewayTimeout), testing.clock() as clock:
            for _ in range(5):
                clock.advance(10)
                testing.run_due_jobs()
        order.refresh_from_db()
        return order

    def test_an_order_whose_charge_uses_up_its_attempts_is_marked(self) -> None:
        order = self.place_order_that_cannot_be_charged()
        assert (order.state, order.load_chain().status) == (Order.State.UNPAID, "failed")
        self.assertContains(self.client.get(order.get_absolute_url()), "The payment failed")

    def test_an_unpaid_order_continues_when_its_charge_is_retried(self) -> None:
        order = self.place_order_that_cannot_be_charged()
        chains.retry(order.known_chain_id)
        self.run_jobs()
        order.refresh_from_db()
        assert (order.state, order.load_chain().status) == (Order.State.POINTS_CREDITED, "completed")

    def test_a_declined_order_continues_with_another_card(self) -> None:
        order = place_order(card=Order.Card.DECLINED)
        self.run_jobs()
        Order.objects.update(card=Order.Card.GOOD)
        chains.retry(order.load_chain().current_job.id)
        self.run_jobs()
        assert (order.load_chain().status, self.points()) == ("completed", 23)
