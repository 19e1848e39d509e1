"""The list of records: its filters, and its limits on large tables."""

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.records.actions import STATE_LABELS
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.operations import record_types_of
from django_jobchains.store import get_store

#: The number of rows that a list counts and shows. Filters and the search find the others.
MAX_ROWS = 10_000
#: The number of rows that are checked where ``has_view_permission`` hides single rows.
MAX_CHECKED_ROWS = 1_000


class RecordPaginator(Paginator):  # type: ignore[type-arg]  # takes no parameter at run time
    """Counts up to ``MAX_ROWS``, so that neither the count nor the last page reads a whole table."""

    @cached_property
    def count(self) -> int:
        return min(self._counted, MAX_ROWS)

    @property
    def is_limited(self) -> bool:
        """Return whether there are more rows than are shown."""
        return self._counted > MAX_ROWS

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[: MAX_ROWS + 1].count())


class RecordChangeList(ChangeList):
    """A list that reads its rows at once, within the time limit of the page, and without their logs."""

    def get_filters(self, request: HttpRequest) -> Any:
        """Ignore lookups that no filter declares, as the lists of chains and jobs do.

        Django allows any lookup of a column, also of one whose values are hidden: ``?failure_message__startswith=``.
        """
        specs, has_specs, lookups, *others = super().get_filters(request)
        of_dates = {f"{self.date_hierarchy}__{end}" for end in ("gte", "lt")}
        declared = {name: values for name, values in lookups.items() if name in of_dates}
        return specs, has_specs, declared, *others

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        found = super().get_queryset(request, exclude_parameters)
        return found.defer(record_types_of(self.model)[0].columns["execution_logs"])

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.is_limited = self.paginator.is_limited or getattr(request, "has_unchecked_rows", False)
        len(self.result_list)  # evaluates the queryset


class RecordStateFilter(SimpleListFilter):
    """Filters by the state of records."""

    title = _("state")
    parameter_name = "record_state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(STATE_LABELS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        value = self.value()
        if value is None:
            return None
        if value not in STATE_LABELS:
            raise IncorrectLookupParameters
        return queryset.filter(**{record_types_of(queryset.model)[0].columns["state"]: value})


class RecordWaitFilter(SimpleListFilter):
    """Filters queued records by whether a worker may start them now, by the database's clock."""

    title = _("waiting")
    parameter_name = "record_wait"
    DUE, LATER = "due", "later"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(self.DUE, _("due now")), (self.LATER, _("waiting for its time"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        value = self.value()
        if value is None:
            return None
        if value not in (self.DUE, self.LATER):
            raise IncorrectLookupParameters
        kind: RecordType = record_types_of(queryset.model)[0]
        time, now = kind.columns["process_after"], get_store(queryset.db).stats.time_ago(0)
        is_later = Q(**{f"{time}__gt": now})
        is_due = Q(**{f"{time}__isnull": True}) | Q(**{f"{time}__lte": now})
        return queryset.filter(is_later if value == self.LATER else is_due, **{kind.columns["state"]: "queued"})
