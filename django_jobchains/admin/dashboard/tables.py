"""The tables of the dashboard: facts, up to a limited number of rows, which templates format."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.apps import apps
from django.contrib.admin import AdminSite
from django.urls import reverse

from django_jobchains.monitoring import Overview, RecordFacts

#: The number of rows of a table.
MAX_ROWS = 100
#: The number of slowest types.
MAX_SLOW = 10

RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Table(Generic[RowT]):
    """The rows of a table, and the number of omitted rows in ``more``."""

    rows: tuple[RowT, ...]
    more: int


@dataclass(frozen=True)
class RecordRow:
    """A record worker, and how many live workers process its records.

    ``model``: the name of the model. ``url``: the address of the list of its records, or "" if the site has none.
    """

    facts: RecordFacts
    model: str
    url: str
    workers: int


def first_rows(rows: Sequence[RowT], limit: int | None = None) -> Table[RowT]:
    limit = MAX_ROWS if limit is None else limit
    return Table(tuple(rows[:limit]), max(0, len(rows) - limit))


def important_rows(rows: Iterable[RowT], priority: Callable[[RowT], tuple[object, ...]]) -> Table[RowT]:
    """Keep the rows with the lowest ``priority``, in their given order, so that a refresh does not move them."""
    given = list(enumerate(rows))
    kept = sorted(given, key=lambda pair: priority(pair[1]))[:MAX_ROWS]
    return Table(tuple(row for _, row in sorted(kept, key=lambda pair: pair[0])), len(given) - len(kept))


def record_rows(records: Iterable[RecordFacts], overview: Overview, site: AdminSite) -> list[RecordRow]:
    """Return the rows of the record workers whose records were counted."""
    workers = {kind.name: kind.workers for kind in overview.types}
    return [
        RecordRow(
            kind,
            model=str(apps.get_model(kind.model)._meta.verbose_name_plural),
            url=_url(kind.model, site),
            workers=workers.get(kind.name, 0),
        )
        for kind in records
        if not kind.problem
    ]


def _url(label: str, site: AdminSite) -> str:
    model = apps.get_model(label)
    if not site.is_registered(model):
        return ""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return reverse(name, current_app=site.name)
