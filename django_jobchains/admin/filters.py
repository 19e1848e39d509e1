"""Filters that an index serves. There is none by queue: no index has the jobs of a queue in the order of a page."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.visibility import Visibility
from django_jobchains.models.jobs import TYPE_NAME_LENGTH
from django_jobchains.statuses import Status


class StatusFilter(SimpleListFilter):
    """A status, or whatever may still run."""

    title = _("status")
    parameter_name = "status"
    OPEN = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(self.OPEN, _("may still run")), *Status.choices]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Any] | None:
        value = self.value()
        if value is None:
            return None
        if value == self.OPEN:
            return queryset.incomplete()  # type: ignore[no-any-return]
        if value not in Status.values:
            raise IncorrectLookupParameters
        if value == Status.COMPLETED:
            # Nearly all are: the pages of several types are made of one of each, where for another status all that
            # have it are walked through once.
            return queryset.filter(status=value)  # type: ignore[no-any-return]
        return queryset.with_status(value)  # type: ignore[no-any-return]


class TypeFilter(SimpleListFilter):
    """A type by its whole name, chosen from those that are declared or present; a field, for there may be hundreds."""

    title = _("type")
    parameter_name = "type"
    template = "admin/django_jobchains/type_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = {*model_admin.type_names(request), *filter(None, [self.value()])}
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Any] | None:
        value = self.value()
        if not value:
            return None
        if "\0" in value or len(value) > TYPE_NAME_LENGTH:
            raise IncorrectLookupParameters
        return queryset.of_type(value)  # type: ignore[no-any-return]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """For the template: the names, and what else the form has to send."""
        kept = changelist.get_query_parameters(without=self.parameter_name)  # type: ignore[attr-defined]
        yield {"selected": not self.value(), "value": "", "display": _("All"), "kept": kept}
        for name, _name in self.lookup_choices:
            yield {"selected": name == self.value(), "value": name, "display": name}


class BlockedByFilter(SimpleListFilter):
    """Those that wait for a chain, or did; offered by links that name it. Nothing waits for a hidden chain."""

    title = _("blocker")
    parameter_name = "blocked_by"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        self._visibility: Visibility = model_admin.visibility(request)
        super().__init__(request, params, model, model_admin)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        value = self.value()
        return [(value, value)] if value else []

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Any] | None:
        value = self.value()
        if not value:
            return None
        try:
            blocker = UUID(value)
        except ValueError as error:
            raise IncorrectLookupParameters from error
        if self._visibility.hidden_chains([blocker]):
            return queryset.none()  # type: ignore[no-any-return]
        return queryset.blocked_by(blocker)  # type: ignore[no-any-return]


FILTERS = (StatusFilter, TypeFilter, BlockedByFilter)
