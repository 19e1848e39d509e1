"""The fake payment service and the mail backend: repeated calls have one effect."""

from decimal import Decimal
from unittest.mock import patch

import pytest
from django.test import TestCase

from shop import gateway
from shop.jobs import receipt_mail
from shop.models import GatewayCharge, LoyaltyAccount, Order, OutboxMessage
from shop.outbox import OutboxBackend
from shop.tests.baskets import place_order


@patch("shop.gateway.LATENCY_SECONDS", 0)
class GatewayTests(TestCase):
    def charge(self, card: str, key: str = "key") -> str:
        return gateway.charge(card, Decimal(10), idempotency_key=key)

    def test_a_key_is_charged_once(self) -> None:
        assert self.charge(Order.Card.GOOD) == self.charge(Order.Card.GOOD)
        charge = GatewayCharge.objects.get()
        assert (charge.tries, charge.times_charged) == (2, 1)

    def test_each_key_is_charged(self) -> None:
        assert self.charge(Order.Card.GOOD, "one") != self.charge(Order.Card.GOOD, "two")

    def test_a_flaky_card_fails_before_and_after_the_money_is_taken(self) -> None:
        for times_charged in (0, 1):
            with pytest.raises(gateway.GatewayTimeout):
                self.charge(Order.Card.FLAKY)
            assert GatewayCharge.objects.get().times_charged == times_charged
        assert self.charge(Order.Card.FLAKY)
        assert GatewayCharge.objects.get().times_charged == 1

    def test_a_declined_card_is_not_charged(self) -> None:
        with pytest.raises(gateway.CardDeclined):
            self.charge(Order.Card.DECLINED)
        assert GatewayCharge.objects.get().times_charged == 0


class OutboxTests(TestCase):
    def test_a_second_mail_with_the_same_id_is_dropped(self) -> None:
        order = place_order()
        backend = OutboxBackend()
        mail = receipt_mail(order, "pay_1", message_id="<1@example.com>")
        assert [backend.send_messages([mail]), backend.send_messages([mail])] == [1, 0]
        message = OutboxMessage.objects.get()
        assert (message.recipient, message.message_id) == (order.email, "<1@example.com>")
        assert "2 × Sencha, 100 g: €23.00" in message.body


class LoyaltyTests(TestCase):
    def test_points_add_up(self) -> None:
        LoyaltyAccount.objects.credit("ada@example.com", 5)
        LoyaltyAccount.objects.credit("ada@example.com", 7)
        assert LoyaltyAccount.objects.get().points == 12
