"""Counts the stock, slowly: a job that reports its progress and can be cancelled between two products."""

from dataclasses import dataclass

from django_jobchains import Processors, RunningJob
from shop.models import Product

SECONDS_PER_PRODUCT = 2.0

processors = Processors()


@dataclass(frozen=True)
class Shelf:
    product_ids: list[int]


@processors.register("shop.count_stock", label=lambda shelf: f"{len(shelf.product_ids)} products")
def count_stock(job: RunningJob[Shelf]) -> dict[str, int]:
    """Count each product. The wait ends early if the job is cancelled or the worker stops."""
    products = Product.objects.filter(pk__in=job.input.product_ids)
    counted: dict[str, int] = {}
    for number, product in enumerate(products):
        job.set_progress(number / len(products), f"counting {product.name}")
        job.signal.wait(SECONDS_PER_PRODUCT)
        job.signal.raise_if_aborted()
        counted[product.slug] = product.stock
    job.set_progress(1, f"counted: {len(counted)}")
    return counted
