"""Nested chains: an order's chain starts the chains of its parcels and waits for them."""

from unittest.mock import patch

from django.test import TestCase

from django_jobchains import chains, testing
from django_jobchains.chains import Chain
from shop.models import Order, Parcel
from shop.patterns.compensation import send_off
from shop.patterns.loop import CHECK_INTERVAL
from shop.tests.baskets import no_waiting, place_order


@no_waiting
class NestedTests(TestCase):
    def send_off(self, **changes: object) -> Chain:
        self.order = place_order(**changes)  # type: ignore[arg-type]
        return send_off(self.order, "default")

    def delivery(self) -> str:
        self.order.refresh_from_db()
        return self.order.delivery

    def test_a_large_order_leaves_in_several_parcels(self) -> None:
        chain = self.send_off(quantity=14)
        testing.run_due_jobs(raise_errors=True)
        assert [parcel.quantity for parcel in self.order.parcels.all()] == [6, 6, 2]
        assert chain.refresh().output == ["ready to be collected"] * 3
        assert self.delivery() == Order.Delivery.DONE

    def test_the_order_is_closed_when_the_last_parcel_arrives(self) -> None:
        chain = self.send_off(quantity=13, address="7 Steep Street")
        with testing.clock() as clock:
            testing.run_due_jobs(raise_errors=True)
            assert chain.refresh().status == "blocked"
            assert sorted(parcel.state for parcel in self.order.parcels.all()) == ["on_its_way", "on_its_way", "posted"]
            for _ in range(2):
                clock.advance(CHECK_INTERVAL)
                testing.run_due_jobs(raise_errors=True)
                assert (chain.refresh().status, self.delivery()) == ("blocked", "sent")
            clock.advance(CHECK_INTERVAL)
            testing.run_due_jobs(raise_errors=True)
        assert (chain.refresh().status, self.delivery()) == ("completed", "done")
        assert chain.output == ["delivered", "delivered", "posted"]

    def test_a_failed_attempt_starts_no_parcels(self) -> None:
        chain = self.send_off(quantity=14)
        failing = patch.object(Order, "mark_delivery", autospec=True, side_effect=_fails_for(Order.Delivery.SENT))
        with failing, self.assertLogs("django_jobchains", "WARNING"):
            testing.run_due_jobs()
        assert not Parcel.objects.exists()
        testing.assert_enqueued("shop.choose_way", count=0)
        with testing.clock() as clock:
            clock.advance(60)
            testing.run_due_jobs(raise_errors=True)
        testing.assert_enqueued("shop.choose_way", count=3)
        assert chain.refresh().status == "completed"

    def test_a_failed_parcel_blocks_the_order_until_it_is_retried(self) -> None:
        chain = self.send_off(address="7 Steep Street", quantity=2)
        with patch("shop.patterns.loop.MAX_CHECKS", 1), self.assertLogs("django_jobchains", "ERROR"):
            testing.run_due_jobs()
        (parcel,) = Chain.objects.of_type("shop.choose_way")
        assert (parcel.status, chain.refresh().status) == ("failed", "blocked")
        chains.retry(parcel.current_job.id)
        with testing.clock() as clock:
            for _ in range(3):
                testing.run_due_jobs(raise_errors=True)
                clock.advance(CHECK_INTERVAL)
        assert chain.refresh().status == "completed"

    def test_the_page_shows_the_parcels(self) -> None:
        self.send_off(quantity=14)
        testing.run_due_jobs(raise_errors=True)
        page = self.client.get(self.order.get_absolute_url())
        self.assertContains(page, "Ready to be collected", count=3)


def _fails_for(delivery: str) -> object:
    real = Order.mark_delivery

    def mark(order: Order, value: Order.Delivery) -> None:
        real(order, value)
        if value == delivery:
            raise RuntimeError("broken on purpose")

    return mark
