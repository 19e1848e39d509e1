"""Compensation: the steps of an order that is sold out are undone once, in reverse order."""

from unittest.mock import patch

from django.core import mail
from django.test import TestCase

from django_jobchains import testing
from django_jobchains.chains import Chain
from shop.models import GatewayCharge, LoyaltyAccount, Order, Product
from shop.patterns.compensation import send_off
from shop.tests.baskets import no_waiting, place_order

UNDO = ["shop.pack", "shop.take_points_back", "shop.refund", "shop.apologise"]


@no_waiting
class CompensationTests(TestCase):
    def setUp(self) -> None:
        self.order = place_order()
        testing.run_due_jobs(raise_errors=True)
        mail.outbox.clear()

    def sell_out(self) -> None:
        Product.objects.update(stock=1)

    def send_off(self) -> Chain:
        self.order.refresh_from_db()
        return send_off(self.order, "default")

    def types(self, chain: Chain) -> list[str]:
        return [job.type_name for job in chain.jobs]

    def points(self) -> int:
        return LoyaltyAccount.objects.get(email=self.order.email).points

    def test_an_order_in_stock_is_packed_and_taken_off_the_shelf(self) -> None:
        before = self.order.product.stock
        chain = self.send_off()
        testing.run_due_jobs(limit=1, raise_errors=True)
        assert self.types(chain) == ["shop.pack", "shop.ship_order"]
        self.order.product.refresh_from_db()
        assert self.order.product.stock == before - 2

    def test_a_sold_out_order_is_undone_in_reverse_order(self) -> None:
        self.sell_out()
        chain = self.send_off()
        testing.run_due_jobs(raise_errors=True)
        assert self.types(chain) == UNDO
        self.order.refresh_from_db()
        assert (chain.refresh().status, self.order.delivery) == ("completed", Order.Delivery.REFUNDED)
        assert (self.points(), Product.objects.get(slug="sencha").stock) == (0, 1)
        assert GatewayCharge.objects.get().refund_key == str(chain.jobs[2].pk)
        assert [message.subject for message in mail.outbox] == [f"Order {self.order.pk} is sold out"]

    def test_the_refund_does_not_depend_on_the_current_price(self) -> None:
        self.sell_out()
        Product.objects.update(price=1)
        self.send_off()
        testing.run_due_jobs(raise_errors=True)
        assert self.points() == 0
        assert f"€{self.order.total}" in mail.outbox[0].body

    def test_points_are_taken_back_once_when_steps_fail(self) -> None:
        self.sell_out()
        chain = self.send_off()
        with (
            testing.clock() as clock,
            patch("shop.gateway.refund", side_effect=ConnectionError("no answer")) as refund,
            self.assertLogs("django_jobchains", "WARNING"),
        ):
            for _ in range(3):
                testing.run_due_jobs()
                clock.advance(600)
        assert (refund.call_count, self.points()) == (3, 0)
        assert {str(call.kwargs["idempotency_key"]) for call in refund.call_args_list} == {str(chain.jobs[2].pk)}
        with testing.clock() as clock:
            clock.advance(3600)
            testing.run_due_jobs(raise_errors=True)
        assert (self.types(chain), self.points()) == (UNDO, 0)

    def test_an_order_is_sent_off_once(self) -> None:
        first, second = self.send_off(), self.send_off()
        assert (first.id, first.deduplicated, second.deduplicated) == (second.id, False, True)
        testing.run_due_jobs(raise_errors=True)
        assert self.send_off().id == first.id, "Also after the first chain has ended."
        testing.assert_enqueued("shop.pack", count=1)
