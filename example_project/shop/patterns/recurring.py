"""Each product's stock is checked more often the less there is. Each chain enqueues the next one when it completes."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.core.mail import EmailMessage

from django_jobchains import Deduplicate, Processors, RunningJob
from django_jobchains.chains import Chain
from shop.models import FULL_SHELF, Product

BUYER = "buyer@tin-kettle.example"
LOW_STOCK = FULL_SHELF // 10
#: A full shelf is checked once a day, and an empty one once an hour.
SOONEST, LATEST = timedelta(hours=1), timedelta(days=1)

processors = Processors()


@dataclass(frozen=True)
class Watched:
    product_id: int


def watch(product_id: int, *, delay: timedelta = timedelta(0), exclude: Collection[UUID] = ()) -> Chain:
    """Check a product's stock after a delay. If a check is already planned, return its chain."""
    only_one = Deduplicate(f"stock of {product_id}", exclude_chain_ids=exclude)
    return check_stock.enqueue(Watched(product_id), delay=delay, deduplicate=only_one)


def until_next_check(stock: int) -> timedelta:
    return SOONEST + (LATEST - SOONEST) * min(stock / FULL_SHELF, 1)


@processors.register("shop.check_stock")
def check_stock(job: RunningJob[Watched]) -> int:
    """Ask the buyer for more if there is little. The stock decides when the next check takes place."""
    product = Product.objects.filter(pk=job.input.product_id).first()
    if product is None:  # It is not sold any more, so there is no next check.
        return 0
    if product.stock < LOW_STOCK:
        low_stock_mail(product, message_id=f"<{job.id}@tin-kettle.example>").send()
    with job.complete():
        watch(product.pk, delay=until_next_check(product.stock), exclude=[job.chain_id])
        return product.stock


def low_stock_mail(product: Product, *, message_id: str) -> EmailMessage:
    return EmailMessage(
        subject=f"Order more of {product}",
        body=f"Only {product.stock} pieces of {product} are left.\n",
        to=[BUYER],
        headers={"Message-ID": message_id},
    )
