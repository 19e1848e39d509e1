"""Somebody walks along the shelf and counts: a job that takes its time, and can be stopped between two products."""

from dataclasses import dataclass

from django_jobchains.processors import Processors, RunningJob
from shop.models import Product

SECONDS_A_PRODUCT = 2.0

processors = Processors()


@dataclass(frozen=True)
class Shelf:
    product_ids: list[int]


@processors.register("shop.count_stock")
def count_stock(job: RunningJob[Shelf]) -> dict[str, int]:
    """Waits in a way that ends when the job is cancelled, or the worker is stopped."""
    counted = {}
    for product in Product.objects.filter(pk__in=job.input.product_ids):
        job.signal.wait(SECONDS_A_PRODUCT)
        job.signal.raise_if_aborted()
        counted[product.slug] = product.stock
    return counted
