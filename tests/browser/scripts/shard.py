"""Creates the tables of the second database, and an order in each database. Prints the ids of the orders' chains."""

from tests.browser.scripts.project import answer  # isort: split

from django.core.management import call_command
from django.db import transaction
from shop.jobs import Charge, charge
from shop.models import Order, Product

from django_jobchains import use_database


def place(using, quantity):
    with use_database(using), transaction.atomic(using=using):
        product = Product.objects.get(slug="kettle")
        order = Order(product=product, quantity=quantity, unit_price=product.price, email="ada@tin-kettle.example")
        order.save()
        order.chain_id = charge.enqueue(Charge(order.pk), delay="1h").id
        order.save()
        return str(order.chain_id)


with use_database("shard"):
    call_command("migrate", database="shard", verbosity=0)
answer({using: place(using, quantity=1) for using in ("default", "shard")})
