"""Operations on records: count and wait for them, wake up workers, and cancel, requeue or retry records.

Each that uses the database has an async twin with the prefix ``a``.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import EmptyResultSet
from django.db import router
from django.db.models import Min, Model, Q, QuerySet
from django.db.models.functions import Greatest

from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.db.times import as_compared, as_stored
from django_jobchains.notifications import EVERY, job_scheduled, ownership_lost, publish_after_commit
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.errors import RecordTypeNotFound, checked_after
from django_jobchains.store import get_store

ModelT = TypeVar("ModelT", bound=Model)

#: Records to work on: one, several of the same model, or a QuerySet.
Objects = Model | Iterable[Model] | QuerySet[Any]


def queryset(model: type[ModelT]) -> "RecordQuerySet[ModelT]":
    """Return all rows of a registered model as a QuerySet with methods about waiting records.

    Raises ``RecordTypeNotFound`` if the model is not registered.
    """
    found: RecordQuerySet[ModelT] = RecordQuerySet(model)
    found.record_type = record_types_of(model)[0]
    return found


@has_async_twin("records")
def notify(model: type[Model], *, using: str | None = None) -> None:
    """Wake up the workers of a model after the commit of the current transaction, so that they need not poll."""
    names = [kind.name for kind in record_types_of(model)]
    publish_after_commit(using or router.db_for_write(model), {job_scheduled(name) for name in names})


@has_async_twin("records")
def cancel(objects: Objects) -> int:
    """Cancel waiting records now, and records in process when their handlers stop. Return the number of both."""
    return _move("cancel", objects)


@has_async_twin("records")
def requeue(objects: Objects, *, after: datetime | None = None) -> int:
    """Queue failed, errored, cancelled and processing records, now or after an aware time. Return their number.

    Running handlers of these records are asked to stop, and can no longer write.
    """
    return _move("requeue", objects, checked_after(after))


@has_async_twin("records")
def retry(objects: Objects) -> int:
    """Queue failed, errored and cancelled records now, with their failures and resets set to 0. Return their number."""
    return _move("retry", objects)


def _move(name: str, objects: Objects, *arguments: Any) -> int:
    """Call an operation of the store, and wake up workers to run records, or to stop handlers that lost theirs."""
    selected = _selected(objects)
    if selected is None:
        return 0
    kinds, using = record_types_of(selected.model), selected.db
    try:
        sql, params = selected.values("pk").query.get_compiler(using).as_sql()
    except EmptyResultSet:
        return 0
    count: int = getattr(get_store(using).record_operations, name)(kinds[0].table(using), (sql, params), *arguments)
    if count:
        hints = [job_scheduled(kind.name) for kind in kinds]
        publish_after_commit(using, {ownership_lost(EVERY), *hints})
    return count


def _selected(objects: Any) -> QuerySet[Any] | None:
    """Return a QuerySet of the objects on the database where they are written, or None if there are none."""
    if isinstance(objects, QuerySet):
        selected = objects if objects.query.is_sliced else objects.order_by()
        return selected.using(db_for_write(objects))
    rows = [objects] if isinstance(objects, Model) or not isinstance(objects, Iterable) else list(objects)
    if not rows:
        return None
    kind = type(rows[0])
    if not (isinstance(rows[0], Model) and all(type(row) is kind for row in rows)):
        raise TypeError(f"Pass instances of one model, or a QuerySet, not {objects!r:.100}.")
    using = router.db_for_write(kind, instance=rows[0])
    return kind._base_manager.using(using).filter(pk__in=[row.pk for row in rows])


def db_for_write(rows: QuerySet[Any]) -> str:
    """Return the alias to which ``update()`` of a QuerySet would write. ``rows.db`` may be a replica."""
    rows = rows.all()
    rows._for_write = True  # type: ignore[attr-defined]
    return rows.db


def record_types_of(model: type[Model]) -> list[RecordType]:
    """Return the registrations of a model in the project's registry; raise ``RecordTypeNotFound`` if it has none."""
    config: Any = apps.get_app_config("django_jobchains")
    table = model._meta.concrete_model
    found = [kind for kind in config.registry.record_types() if kind.model._meta.concrete_model is table]
    if not found:
        raise RecordTypeNotFound(model.__qualname__)
    return found


anotify = sync_to_async(notify)
acancel = sync_to_async(cancel)
arequeue = sync_to_async(requeue)
aretry = sync_to_async(retry)


#: The columns by which the indexes of ``JobRecord`` order the records of a state.
_INDEXED = {"queued": "process_after", "errored": "finished_at", "failed": "finished_at", "processing": "started_at"}


class RecordQuerySet(QuerySet[ModelT]):
    """All rows of a model, with the columns and the retry rules of its registration. It can be filtered as usual."""

    record_type: RecordType

    @has_async_twin("queryset")
    def queued_count(self, include_processing: bool = False) -> int:
        """Return how many records wait: queued records, and errored records that will be tried again."""
        states = ["queued"]
        if self.record_type.retry_seconds is not None:
            states.append("errored")
        if include_processing:
            states.append("processing")
        # One by one, because each state has its own index.
        return sum(self._in_state(state).count() for state in states)

    @has_async_twin("queryset")
    def max_duration_in_queue(self) -> timedelta:
        """Return the longest wait of the records that could be processed now, by the database's clock."""
        name = self.record_type.columns
        moment = get_store(self.db).stats.time_ago(0)
        now, limit = as_stored(moment, self.db), as_compared(moment, self.db)
        is_fresh = Q(**{f"{name['process_after']}__isnull": True})
        is_due = Q(**{f"{name['process_after']}__lte": limit})
        waiting = self.exclude(**{name["cancel"]: True})
        # In the order of the index, which min() would not use.
        fresh = waiting._in_state("queued").filter(is_fresh).order_by(name["process_after"], name["queued_at"])
        since = [
            fresh.values_list(name["queued_at"], flat=True).first(),
            waiting._in_state("queued")
            .filter(is_due)
            .aggregate(since=Min(Greatest(name["queued_at"], name["process_after"])))["since"],
        ]
        if self.record_type.retry_seconds is not None:
            # Without the time, the wait is unknown.
            failed = waiting._in_state("errored").filter(is_fresh | is_due, **{f"{name['finished_at']}__isnull": False})
            failed_at = failed.order_by(name["finished_at"]).values_list(name["finished_at"], flat=True).first()
            since.append(failed_at and failed_at + timedelta(seconds=self.record_type.retry_seconds))
        waits: list[timedelta] = [now - time for time in since if time is not None]
        return max([timedelta(), *waits])

    @has_async_twin("queryset")
    def exists_in(self, states: Collection[str]) -> bool:
        """Return whether there is a record in one of these states; raise ``ValueError`` if no state is given."""
        if isinstance(states, str):
            states = [states]
        if not states:
            raise ValueError("exists_in() needs at least one state.")
        for state in states:
            found = self._in_state(state)
            # In the order of its index: otherwise PostgreSQL may expect to find such a row soon in the whole table.
            if order := self.record_type.columns.get(_INDEXED.get(state, "")):
                found = found.order_by(order)
            if found.values_list("pk")[:1]:
                return True
        return False

    aqueued_count = sync_to_async(queued_count)
    amax_duration_in_queue = sync_to_async(max_duration_in_queue)
    aexists_in = sync_to_async(exists_in)

    def _in_state(self, state: str) -> "RecordQuerySet[ModelT]":
        return self.filter(**{self.record_type.columns["state"]: state})

    def _clone(self) -> "RecordQuerySet[ModelT]":
        clone: RecordQuerySet[ModelT] = super()._clone()  # type: ignore[misc]
        clone.record_type = self.record_type
        return clone
