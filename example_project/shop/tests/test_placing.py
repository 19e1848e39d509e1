"""Placing an order: stored rows, refused input and rollbacks."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.urls import reverse

from django_jobchains.chains import Job, NotAnEntryType
from shop.forms import OrderForm
from shop.jobs import Charge, Points, Receipt, charge, credit_points, send_receipt
from shop.models import MAX_QUANTITY, Order, Product
from shop.tests.baskets import basket, place_order

PLACE = "/orders/place/"


class PlacingTests(TestCase):
    def test_an_order_and_its_chain_are_stored_together(self) -> None:
        order = place_order()
        chain = order.load_chain()
        assert order.state == Order.State.PLACED
        assert (chain.type_name, chain.status, chain.input) == ("shop.charge", "pending", {"order_id": order.pk})

    def test_placing_an_order_redirects_to_its_page(self) -> None:
        response = self.client.post(PLACE, basket())
        self.assertRedirects(response, Order.objects.get().get_absolute_url())

    @override_settings(SHOP_QUEUE="another")
    def test_the_chain_uses_the_queue_in_the_settings(self) -> None:
        place_order()
        assert Job.objects.get().queue == "another"

    def test_the_steps_after_the_charge_cannot_start_a_chain(self) -> None:
        with pytest.raises(NotAnEntryType):
            send_receipt.enqueue(Receipt(1, "pay_1"))
        with pytest.raises(NotAnEntryType):
            credit_points.enqueue(Points(1, 1))


class RollbackTests(TransactionTestCase):
    serialized_rollback = True  # Keeps the products, which a migration creates.

    def test_a_rolled_back_order_leaves_no_chain(self) -> None:
        with transaction.atomic():
            order: Order = OrderForm(basket()).save()
            charge.enqueue(Charge(order.pk))
            transaction.set_rollback(True)
        assert (Order.objects.count(), Job.objects.count()) == (0, 0)

    def test_an_error_in_the_view_leaves_no_order_and_no_chain(self) -> None:
        seen: list[int] = []
        self.client.raise_request_exception = False
        with patch.object(Order, "save", autospec=True, side_effect=_fail_on_update(Order.save, seen)):
            response = self.client.post(PLACE, basket())
        assert response.status_code == 500
        assert seen == [1], "The chain existed when the error was raised."
        assert (Order.objects.count(), Job.objects.count()) == (0, 0)


def _fail_on_update(save: Callable[..., None], seen: list[int]) -> Callable[..., None]:
    """Return an ``Order.save`` that raises when the view stores the chain's id, after both INSERTs."""

    def failing(order: Order, **options: Any) -> None:
        if "update_fields" in options:
            seen.append(Job.objects.count())
            raise RuntimeError("broken on purpose")
        save(order, **options)

    return failing


class RefusalTests(TestCase):
    def assert_refused(self, field: str, **changes: object) -> None:
        response = self.client.post(PLACE, basket(**changes))
        self.assertContains(response, "Your order was not placed")
        assert field in response.context["form"].errors
        assert (Order.objects.count(), Job.objects.count()) == (0, 0)

    def test_invalid_input_is_refused(self) -> None:
        cases: list[tuple[str, object]] = [
            ("product", 999_999),
            ("product", "tea"),
            ("quantity", 0),
            ("quantity", -1),
            ("quantity", MAX_QUANTITY + 1),
            ("quantity", "many"),
            ("email", ""),
            ("email", "not an address"),
            ("card", "stolen"),
        ]
        for field, value in cases:
            with self.subTest(field=field, value=value):
                self.assert_refused(field, **{field: value})

    def test_a_refused_form_is_escaped(self) -> None:
        response = self.client.post(PLACE, basket(email='"><script>alert(1)</script>'))
        self.assertNotContains(response, "<script>alert")
        self.assertContains(response, "&lt;script&gt;alert")

    def test_placing_an_order_requires_post_and_a_token(self) -> None:
        assert self.client.get(PLACE).status_code == 405
        careful = self.client_class(enforce_csrf_checks=True)
        assert careful.post(PLACE, basket()).status_code == 403

    def test_a_product_can_be_chosen_by_link(self) -> None:
        product = Product.objects.get(slug="cup")
        response = self.client.get(reverse("shop:front"), {"product": product.pk})
        self.assertContains(response, f'<option value="{product.pk}" selected>')
        assert self.client.get(reverse("shop:front"), {"product": "<tea>"}).status_code == 200
