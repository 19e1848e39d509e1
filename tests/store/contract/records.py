"""A model of records, and the store's calls about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Model, QuerySet

from django_jobchains.declare.policies import Backoff
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store
from django_jobchains.store.record_tables import COLUMNS, Dequeued, RecordEnd, RecordKey, RecordTable
from django_jobchains.store.records import DequeueRequest

FLAT = Backoff(60, 1, 60, 0)
HOUR = timedelta(hours=1)


@dataclass
class RecordModel:
    kind: RecordType
    store: Store
    #: Creates a record that is ready to be processed.
    make: Callable[[], Model]

    @property
    def rows(self) -> QuerySet[Model]:
        return self.kind.model._base_manager.all()

    @property
    def table(self) -> RecordTable:
        return self.kind.table(self.store.using)

    def put(self, state: str = "queued", **values: Any) -> Model:
        """Create a record with these values in the package's columns."""
        record = self.make()
        defaults = {"lease_number": 1} if state == "processing" else {}
        self.change(record, state=state, **{**defaults, **values})
        return record

    def change(self, record: Model, **values: Any) -> None:
        self.rows.filter(pk=record.pk).update(**{self.kind.columns[name]: value for name, value in values.items()})

    def row(self, record: Model) -> dict[str, Any]:
        """Return the stored values of the package's columns."""
        stored = self.rows.get(pk=record.pk)
        return {name: self.kind.value(stored, name) for name in COLUMNS}

    def dequeue(
        self, limit: int = 10, *, retry_seconds: float | None = None, joins_transaction: bool = True
    ) -> list[Dequeued]:
        select, has_own_order = self.kind.select(self.store.using), bool(self.kind.order_by)
        request = DequeueRequest(select, limit, "host", self.kind.queue, retry_seconds, has_own_order=has_own_order)
        return self.store.records.dequeue(self.table, request, joins_transaction=joins_transaction)

    def running(self, **values: Any) -> tuple[Model, RecordKey]:
        """Create a record and dequeue it."""
        record = self.make()
        [dequeued] = self.dequeue()
        if values:
            self.change(record, **values)
        return record, dequeued.key

    def end(self, key: RecordKey, end: str, **values: Any) -> dict[RecordKey, str]:
        return self.store.records.end(self.table, [RecordEnd(*key, end, **values)])

    def stalled(self, held: Sequence[Any] = ()) -> list[RecordKey]:
        return self.store.record_operations.stalled(self.table, 10, stalled_seconds=30, held=held)

    def reset(self, keys: Sequence[RecordKey] | None = None, max_resets: int = 2) -> Sequence[tuple[Any, ...]]:
        """Reset these records, or all that are stalled."""
        values: dict[str, Any] = {"stalled_seconds": 30, "max_resets": max_resets, "backoff": FLAT, "message": "gone"}
        return self.store.record_operations.reset(self.table, self.stalled() if keys is None else keys, **values)

    def lock(self, record: Model) -> Any:
        return self.store.records.lock(self.table, record.pk)

    def now(self) -> datetime:
        return self.store.stats.time_ago(0)
