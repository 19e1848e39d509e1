"""Suppliers' deliveries: each file is a row of the shop's own table, which workers process as a record."""

from threading import Lock

from django.db.models import F, Q

from django_jobchains import Processors
from django_jobchains.records import NonRetryable, RecordProcessor, RecordRun
from shop.models import Product, SupplierImport

#: The number of lines that one worker process handles at the same time, whatever the number of its slots.
LINES_AT_ONCE = 40
#: Slow enough to watch.
SECONDS_PER_LINE = 0.3

processors = Processors()


@processors.records(
    SupplierImport,
    name="shop.supplier_import",
    max_attempts=3,
    retry_after=10,
    stalled_after=30,
    max_runtime=120,
)
class ImportDelivery(RecordProcessor[SupplierImport]):
    """Adds the delivered goods to the stock, with a budget of lines for each worker process."""

    def __init__(self) -> None:
        self._free = LINES_AT_ONCE
        self._lock = Lock()

    def pre_dequeue(self) -> Q | bool:
        """Take only a file that fits into what is left of the budget."""
        return Q(lines__lte=self._free) if self._free else False

    def pre_handle(self, record: SupplierImport) -> None:
        """Called before the next ``pre_dequeue``, so that two files never use the same lines."""
        self._spend(record.lines)

    def handle(self, record: SupplierImport, run: RecordRun) -> None:
        entry = run.add_log("read", ["read", record.file_name])
        deliveries = read_deliveries(record.content)
        for _ in deliveries:
            run.signal.wait(SECONDS_PER_LINE)
            run.signal.raise_if_aborted()
        entry.update(out=f"{len(deliveries)} lines", exit_code=0)
        with run.complete():
            for slug, quantity in deliveries:
                Product.objects.filter(slug=slug).update(stock=F("stock") + quantity)
            record.added = sum(quantity for _, quantity in deliveries)
            record.save(update_fields=["added"])

    def post_handle(self, record: SupplierImport) -> None:
        self._spend(-record.lines)

    def _spend(self, lines: int) -> None:
        with self._lock:
            self._free -= lines


def read_deliveries(content: str) -> list[tuple[str, int]]:
    """Return the products with their quantities. A wrong line is wrong in every attempt: it fails the record."""
    known = set(Product.objects.values_list("slug", flat=True))
    deliveries = []
    for number, line in enumerate(content.splitlines(), start=1):
        slug, _, quantity = line.partition(";")
        if slug not in known:
            raise NonRetryable(f"Line {number}: there is no product {slug!r}.")
        if not (quantity.isascii() and quantity.isdecimal() and 0 < int(quantity) <= 1_000):
            raise NonRetryable(f"Line {number}: {quantity!r} is not a quantity from 1 to 1000.")
        deliveries.append((slug, int(quantity)))
    return deliveries
