"""The QuerySet of a model's records: counts and waits, which read only waiting rows."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import Min, Q, QuerySet
from django.db.models.functions import Greatest

from django_jobchains.records.declarations import RecordType
from django_jobchains.store import get_store

#: The columns by which the indexes of ``JobRecord`` order the records of a state.
_INDEXED = {"queued": "process_after", "errored": "finished_at", "failed": "finished_at", "processing": "started_at"}


class RecordQuerySet(QuerySet[Any]):
    """All rows of a model, with the columns and the retry rules of its registration. It can be filtered as usual."""

    record_type: RecordType

    def queued_count(self, include_processing: bool = False) -> int:
        """Return how many records wait: queued records, and errored records that will be tried again."""
        states = ["queued"]
        if self.record_type.retry_seconds is not None:
            states.append("errored")
        if include_processing:
            states.append("processing")
        # One by one, because each state has its own index.
        return sum(self._in_state(state).count() for state in states)

    def max_duration_in_queue(self) -> timedelta:
        """Return the longest wait of the records that could be processed now, by the database's clock."""
        name = self.record_type.columns
        now = get_store(self.db).stats.time_ago(0)
        is_fresh, is_due = Q(**{f"{name['process_after']}__isnull": True}), Q(**{f"{name['process_after']}__lte": now})
        # In the order of the index, which min() would not use.
        fresh = self._in_state("queued").filter(is_fresh).order_by(name["process_after"], name["queued_at"])
        since = [
            fresh.values_list(name["queued_at"], flat=True).first(),
            self._in_state("queued")
            .filter(is_due)
            .aggregate(since=Min(Greatest(name["queued_at"], name["process_after"])))["since"],
        ]
        if self.record_type.retry_seconds is not None:
            # Without the time, the wait is unknown.
            errored = self._in_state("errored").filter(is_fresh | is_due, **{f"{name['finished_at']}__isnull": False})
            failed_at = errored.order_by(name["finished_at"]).values_list(name["finished_at"], flat=True).first()
            since.append(failed_at and failed_at + timedelta(seconds=self.record_type.retry_seconds))
        waits: list[timedelta] = [now - time for time in since if time is not None]
        return max([timedelta(), *waits])

    def exists_in(self, states: Collection[str]) -> bool:
        """Return whether there is a record in one of these states; raise ``ValueError`` if no state is given."""
        if isinstance(states, str):
            states = [states]
        if not states:
            raise ValueError("exists_in() needs at least one state.")
        return any(self._exists(state) for state in states)

    aqueued_count = sync_to_async(queued_count)
    amax_duration_in_queue = sync_to_async(max_duration_in_queue)
    aexists_in = sync_to_async(exists_in)

    def _exists(self, state: str) -> bool:
        # In the order of its index: otherwise PostgreSQL may expect to find such a row soon in the whole table.
        order = self.record_type.columns.get(_INDEXED.get(state, ""))
        found = self._in_state(state)
        return bool(found.order_by(order).values_list("pk")[:1]) if order else found.exists()

    def _in_state(self, state: str) -> "RecordQuerySet":
        return self.filter(**{self.record_type.columns["state"]: state})

    def _clone(self) -> "RecordQuerySet":
        clone: RecordQuerySet = super()._clone()  # type: ignore[misc]
        clone.record_type = self.record_type
        return clone
