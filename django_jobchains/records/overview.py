"""An overview of the record workers, in a constant number of statements for each. Finished records add no cost."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

from django.apps import apps
from django.db import DatabaseError, connections, transaction
from django.db.models import Model

from django_jobchains.conf import get_settings
from django_jobchains.db.setup import is_column_missing, is_table_missing
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.queryset import RecordQuerySet
from django_jobchains.store import get_store
from django_jobchains.store.errors import is_lock_timeout

#: The limit up to which the records of each state are counted.
COUNT_TO = 10_000
#: How long to wait for a table that another transaction has locked, so that the others are counted soon.
MAX_LOCK_SECONDS = 1.0


@dataclass(frozen=True)
class RecordFacts:
    """A record worker with the records that its queryset selects, each count up to ``count_to``.

    ``queued``: waiting records, including errored ones that will be tried again. ``errored``: all errored records,
    including waiting ones. ``due``: records that could be processed now. ``oldest_seconds``: the longest wait of these,
    0 if there are none. ``problem``: why nothing is counted, or "". If it is "missing", the table or a column does not
    exist; if it is "locked", another transaction has locked the table.
    """

    name: str
    model: str
    queue: str
    queued: int
    processing: int
    errored: int
    failed: int
    due: int
    oldest_seconds: float
    count_to: int
    problem: Literal["", "missing", "locked"] = ""


def record_overview(
    using: str | None = None,
    *,
    count_to: int = COUNT_TO,
    is_counted: Callable[[type[Model]], bool] = lambda model: True,
) -> tuple[RecordFacts, ...]:
    """Return the record workers by name, except models that are not to be counted.

    Models whose tables are in another database are also excluded, because its workers process them.
    """
    alias = using or get_settings().DATABASE
    kinds = sorted(_kinds(), key=lambda kind: kind.name)
    return tuple(_facts(kind, alias, count_to) for kind in kinds if kind.is_in(alias) and is_counted(kind.model))


def _kinds() -> Iterator[RecordType]:
    config: Any = apps.get_app_config("django_jobchains")
    kinds: Iterator[RecordType] = config.registry.record_types()
    return kinds


def _facts(kind: RecordType, using: str, count_to: int) -> RecordFacts:
    db = get_store(using).db
    # A savepoint, because an error would end the caller's transaction.
    savepoint = transaction.atomic(using=using) if connections[using].in_atomic_block else nullcontext()
    try:
        with db.waits_at_most(MAX_LOCK_SECONDS), db.limited(), savepoint:
            return _counted(kind, using, count_to)
    except DatabaseError as error:
        is_locked = is_lock_timeout(error)
        if not (is_locked or is_table_missing(error) or is_column_missing(error)):
            raise
    nothing = RecordFacts(kind.name, kind.model._meta.label, kind.queue, 0, 0, 0, 0, 0, 0.0, count_to)
    return replace(nothing, problem="locked" if is_locked else "missing")


def _counted(kind: RecordType, using: str, count_to: int) -> RecordFacts:
    counts = get_store(using).record_counts.by_state(
        kind.table(using), kind.select(using), count_to, kind.retry_seconds
    )
    rows = RecordQuerySet(kind.model, kind.queryset.query.chain(), using)
    rows.record_type = kind
    waiting = counts.queued + (counts.errored if kind.retry_seconds is not None else 0)
    return RecordFacts(
        name=kind.name,
        model=kind.model._meta.label,
        queue=kind.queue,
        queued=min(waiting, count_to),
        processing=counts.processing,
        errored=counts.errored,
        failed=counts.failed,
        due=counts.due,
        oldest_seconds=rows.max_duration_in_queue().total_seconds() if counts.due else 0.0,
        count_to=count_to,
    )
