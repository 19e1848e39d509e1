"""``manage.py watch_stock``: starts the stock checks of all products. It is safe to run at every deployment."""

from typing import Any

from django.core.management.base import BaseCommand

from shop.models import Product
from shop.patterns.recurring import watch


class Command(BaseCommand):
    help = "Starts checking the stock of each product, unless its next check is already planned."

    def handle(self, *args: Any, **options: Any) -> None:
        started = [chain for product in Product.objects.all() if not (chain := watch(product.pk)).deduplicated]
        self.stdout.write(f"{len(started)} stock checks are started.")
