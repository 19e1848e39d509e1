"""A price list is imported in parts that run in parallel, followed by one job that summarizes the results."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from django.db import transaction

from django_jobchains import Continuation, FailJob, Processors, RunningJob, chains
from shop.models import PriceList, Product

LINES_PER_PART = 25

processors = Processors()


@dataclass(frozen=True)
class Import:
    price_list_id: int


@dataclass(frozen=True)
class Part:
    """Lines ``start`` to ``stop`` of a price list. The lines themselves are not in the input."""

    price_list_id: int
    start: int
    stop: int


@dataclass(frozen=True)
class Summary:
    changed: int
    problems: list[str]


def start_import(price_list: PriceList) -> None:
    """Save a price list and start its import, in one commit."""
    with transaction.atomic():
        price_list.save()
        price_list.chain_id = import_prices.enqueue(Import(price_list.pk)).id
        price_list.save(update_fields=["chain_id"])


@processors.register("shop.import_prices", continues_with=["shop.sum_up_prices"])
def import_prices(job: RunningJob[Import]) -> Continuation:
    """Fan out: start one chain per part. The number of statements does not depend on the number of parts."""
    count = len(_lines(job.input.price_list_id))
    parts = [
        Part(job.input.price_list_id, start, min(start + LINES_PER_PART, count))
        for start in range(0, count, LINES_PER_PART)
    ]
    with job.complete():
        started = chains.enqueue_many([import_part.item(part, queue=job.queue) for part in parts])
        return job.continue_with(sum_up_prices, job.input, blockers=started)


@processors.register("shop.import_part", mode="atomic", label="Lines {start} to {stop}")
def import_part(job: RunningJob[Part]) -> int:
    """Set all prices of the part, or none if a line is invalid."""
    part, changed = job.input, 0
    lines = _lines(part.price_list_id)[part.start : part.stop]
    for done, line in enumerate(lines, start=1):
        changed += _set_price(line, part.start + done)
        job.set_progress(done / len(lines), f"line {part.start + done}")
    job.log("Prices are set.", lines=len(lines), changed=changed)
    return changed


@processors.register("shop.sum_up_prices", entry=False, blockers=["shop.import_part"], on_blocker_failure="run")
def sum_up_prices(job: RunningJob[Import]) -> Summary:
    """Fan in: summarize the parts, failed ones included. By default, the job would wait until they are retried."""
    changed = sum(part.output or 0 for part in job.blockers if part.status == "completed")
    problems = [str(part.last_error) for part in job.blockers if part.status != "completed"]
    with job.complete():
        PriceList.objects.filter(pk=job.input.price_list_id).update(changed=changed, problems=problems)
        return Summary(changed, problems)


def _lines(price_list_id: int) -> list[str]:
    return [line for line in PriceList.objects.get(pk=price_list_id).lines.splitlines() if line.strip()]


def _set_price(line: str, number: int) -> int:
    """Set the price that a line names. Return the number of products changed: 0 if it has that price already."""
    slug, _, text = line.partition(";")
    try:
        price = Decimal(text.strip())
        product = Product.objects.get(slug=slug.strip())
    except (InvalidOperation, Product.DoesNotExist) as error:
        raise FailJob(f"line {number}: {line!r}") from error
    return Product.objects.filter(pk=product.pk).exclude(price=price).update(price=price)
