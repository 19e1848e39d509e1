"""A model of records, and the store's calls about it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Model

from django_jobchains.declare.policies import Backoff
from django_jobchains.processors import Processors
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store
from django_jobchains.store.record_limits import RecordRotation
from django_jobchains.store.record_tables import COLUMNS, RecordEnd
from django_jobchains.store.records import DequeueRequest
from tests.records.models import Upload

FLAT = Backoff(60, 1, 60, 0)
HOUR = timedelta(hours=1)


@dataclass
class RecordModel:
    kind: RecordType
    store: Store
    #: Creates a record that is ready to be processed.
    make: Callable[[], Model]

    @property
    def rows(self):
        return self.kind.model._base_manager.all()

    @property
    def table(self):
        return self.kind.table(self.store.using)

    def put(self, state="queued", **values):
        """Create a record with these values in the package's columns."""
        record = self.make()
        defaults = {"lease_number": 1} if state == "processing" else {}
        self.change(record, state=state, **{**defaults, **values})
        return record

    def change(self, record, **values):
        self.rows.filter(pk=record.pk).update(**{self.kind.columns[name]: value for name, value in values.items()})

    def row(self, record):
        """Return the stored values of the package's columns."""
        stored = self.rows.get(pk=record.pk)
        return {name: self.kind.value(stored, name) for name in COLUMNS}

    def dequeue(self, limit=10, *, retry_seconds=None, joins_transaction=True):
        select, has_own_order = self.kind.select(self.store.using), bool(self.kind.order_by)
        request = DequeueRequest(select, limit, "host", self.kind.queue, retry_seconds, has_own_order=has_own_order)
        return self.store.records.dequeue(self.table, request, joins_transaction=joins_transaction)

    def running(self, **values):
        """Create a record and dequeue it."""
        record = self.make()
        [dequeued] = self.dequeue()
        if values:
            self.change(record, **values)
        return record, dequeued.key

    def end(self, key, end, **values):
        return self.store.records.end(self.table, [RecordEnd(*key, end, **values)])

    def stalled(self, held=()):
        return self.store.record_operations.stalled(self.table, 10, stalled_seconds=30, held=held)

    def reset(self, keys=None, max_resets=2):
        """Reset these records, or all that are stalled."""
        values = {"stalled_seconds": 30, "max_resets": max_resets, "backoff": FLAT, "message": "gone"}
        return self.store.record_operations.reset(self.table, self.stalled() if keys is None else keys, **values)

    def lock(self, record):
        return self.store.records.lock(self.table, record.pk)

    def now(self):
        return self.store.stats.time_ago(0)


class Limited:
    """A registration with limits, and the store's calls about it."""

    def __init__(self, store, registry, model, options):
        registry.add(processors := Processors())
        processors.records(model, **options)(lambda record, run: None)
        [self.kind] = processors.record_types.values()
        self.store, self.model = store, model
        self.table, self.limits = self.kind.table(store.using), self.kind.limited(store.using)
        self.rotation = RecordRotation()

    def request(self, limit=10, condition=None):
        kind = self.kind
        select = kind.select(self.store.using, condition)
        return DequeueRequest(select, limit, "host", kind.queue, kind.retry_seconds, bool(kind.order_by))

    def dequeue(self, limit=10, store=None, rotation=None, **options):
        """Dequeue one or more times, and return how many records of each key started."""
        store, rotation = store or self.store, rotation or self.rotation
        calls = options.pop("calls", 1)
        options = {"joins_transaction": True, **options}
        found = [
            each.id
            for _ in range(calls)
            for each in store.record_limits.dequeue(self.table, self.limits, rotation, self.request(limit), **options)
        ]
        field = self.kind.limits.field or "state"
        return Counter(self.model.objects.filter(pk__in=found).values_list(field, flat=True))

    def lock_keys(self, store=None, limit=10):
        store, rotation = store or self.store, RecordRotation()
        return store.record_limits.lock_keys(self.table, self.limits, rotation, self.request(limit))

    def start_of(self, keys):
        return self.store.record_limits.start_of(keys, self.table, self.limits, self.rotation, self.request())


def add(count=1, model=Upload, **values):
    return [model.objects.create(**values).pk for _ in range(count)]


def add_keys(**counts):
    for key, count in counts.items():
        add(count, size=int(key[1:]))
