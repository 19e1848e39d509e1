"""Helpers that place orders through the shop's page."""

from typing import Any
from unittest.mock import patch

from django.test import Client
from django.urls import reverse

from shop.models import Order, Product

#: Class decorator that removes the payment service's latency.
no_waiting = patch("shop.gateway.LATENCY_SECONDS", 0)


def basket(**changes: Any) -> dict[str, Any]:
    """Return the data of a valid order form, with these changes."""
    product = Product.objects.get(slug="sencha").pk
    return {"product": product, "quantity": 2, "email": "ada@example.com", "card": Order.Card.GOOD, **changes}


def place_order(product: str = "sencha", **changes: Any) -> Order:
    form = basket(product=Product.objects.get(slug=product).pk, **changes)
    response = Client().post(reverse("shop:place_order"), form)
    assert response.status_code == 302, response.content.decode()
    return Order.objects.select_related("product").latest("pk")
