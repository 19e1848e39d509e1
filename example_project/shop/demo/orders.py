"""A dozen orders and one that needs approval, placed through the shop's own page."""

from collections.abc import Iterator

from django.test import Client
from django.urls import resolve, reverse

from shop.models import Order, Product

GOOD, FLAKY, DECLINED = Order.Card.GOOD, Order.Card.FLAKY, Order.Card.DECLINED

#: customer, product, quantity, card
BASKETS = (
    ("ada", "sencha", 2, GOOD),
    ("grace", "kettle", 1, FLAKY),
    ("alan", "cup", 4, GOOD),
    ("ada", "honey", 1, GOOD),
    ("edsger", "kettle", 3, DECLINED),
    ("grace", "whisk", 1, GOOD),
    ("alan", "oolong", 2, FLAKY),
    ("barbara", "sencha", 1, GOOD),
    ("ada", "whisk", 2, FLAKY),
    ("barbara", "cup", 2, GOOD),
    ("grace", "oolong", 3, GOOD),
    ("alan", "honey", 5, GOOD),
    ("edsger", "cup", 14, GOOD),  # expensive: it waits for approval
)


class PlacingFailed(Exception):
    """The page did not accept an order."""


def place_orders(run: str) -> Iterator[Order]:
    """Place the orders one at a time. ``run`` makes the customers' e-mail addresses unique."""
    products = {product.slug: product.pk for product in Product.objects.all()}
    client = Client(SERVER_NAME="localhost")
    for name, slug, quantity, card in BASKETS:
        email = f"{name}.{run}@example.com"
        yield _place(client, {"product": products[slug], "quantity": quantity, "email": email, "card": card})


def _place(client: Client, form: dict[str, object]) -> Order:
    response = client.post(reverse("shop:place_order"), form)
    if response.status_code != 302:
        raise PlacingFailed(f"The response to {form} has status {response.status_code}")
    order_id = resolve(response.headers["Location"]).kwargs["order_id"]
    return Order.objects.select_related("product").get(pk=order_id)
