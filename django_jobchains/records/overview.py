"""An overview of the record workers, in a constant number of statements for each. Finished records add no cost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db.models import Model

from django_jobchains.conf import get_settings
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.queryset import RecordQuerySet
from django_jobchains.store import get_store

#: The limit up to which the records of each state are counted.
COUNT_TO = 10_000


@dataclass(frozen=True)
class RecordFacts:
    """A record worker with its records, each count up to ``count_to``.

    ``queued``: waiting records, including errored ones that will be tried again. ``errored``: all errored records,
    including waiting ones. ``oldest_seconds``: the longest wait of a record that could be processed now, 0 if there is
    none.
    """

    name: str
    model: str
    queue: str
    queued: int
    processing: int
    errored: int
    failed: int
    oldest_seconds: float
    count_to: int


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
    counts = get_store(using).record_counts.by_state(kind.table(using), count_to)
    rows = RecordQuerySet(kind.model, using=using)
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
        oldest_seconds=rows.max_duration_in_queue().total_seconds() if waiting else 0.0,
        count_to=count_to,
    )
