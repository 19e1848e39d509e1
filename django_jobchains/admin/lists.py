"""The lists of chains and jobs: Django's change list, with keyset pages.

Nothing of a request reaches a query but through a filter, the search and the cursor, each of which an index serves.
There are no page numbers and no "show all": what a list costs does not depend on how much there is.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin import ShowFacets
from django.contrib.admin.options import IS_POPUP_VAR, TO_FIELD_VAR
from django.contrib.admin.views.main import ORDER_VAR, SEARCH_VAR, ChangeList
from django.db.models import BooleanField, ExpressionWrapper, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.columns import ERROR_LENGTH, Cells, ChainCells, JobCells
from django_jobchains.admin.estimates import Amount, Precision, amount_of
from django_jobchains.admin.filters import FILTERS
from django_jobchains.admin.reading import TookTooLong, bounded
from django_jobchains.admin.searching import Found, find
from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.conf import get_settings
from django_jobchains.exceptions import InvalidCursor
from django_jobchains.models import Chain, Job
from django_jobchains.models.jobs import LAST
from django_jobchains.pages import Page, PagedQuerySet
from django_jobchains.processors import get_registry
from django_jobchains.store import get_store

AFTER_VAR = "after"
#: Types of rows that are looked for, to choose from.
MOST_TYPES = 1_000
#: Of rows some of which are hidden, those that are looked at for the types to filter by.
MOST_LOOKED_AT = 500
#: How often a page is filled up when ``has_view_permission`` hides rows of it.
MAX_READS_OF_PAGE = 20

Rows = PagedQuerySet[Any]


class KeysetChangeList(ChangeList):
    """A page of a list, and what leads to the next one."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.after = request.GET.get(AFTER_VAR) or None
        super().__init__(request, *args, **kwargs)
        self.title = str(capfirst(self.opts.verbose_name_plural))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Rows:
        self._forget_unknown_parameters()
        self.filter_specs, self.has_filters, _rest, _doubles, self.has_active_filters = self.get_filters(request)
        rows: Rows = self.root_queryset  # type: ignore[assignment]
        for spec in self.filter_specs:
            narrowed = spec.queryset(request, rows)
            rows = rows if narrowed is None else narrowed  # type: ignore[assignment]
        self.found: Found = self.model_admin.searched(request, rows, self.query)  # type: ignore[attr-defined]
        self.clear_all_filters_qs = f"?{urlencode(self.get_query_parameters(without=self._filter_names))}"
        ordered: Rows = self.found.rows.order_by(*self.get_ordering(request, rows))
        return ordered

    def get_results(self, request: HttpRequest) -> None:
        self.page = self._page(request)
        self.result_list = list(self.page)
        self.result_count = self.full_result_count = len(self.page)
        self.paginator = self.model_admin.get_paginator(request, self.result_list, self.list_per_page)
        self.show_full_result_count = self.show_all = self.can_show_all = self.multi_page = False
        self.show_admin_actions = bool(self.page)

    def _page(self, request: HttpRequest) -> Page[Any]:
        self.visibility: Visibility = self.model_admin.visibility(request)  # type: ignore[attr-defined]
        rows = self.model_admin.shown(self.queryset)  # type: ignore[attr-defined]
        try:
            page = self._visible_page(rows)
        except InvalidCursor:
            messages.warning(request, gettext("There is no such page. This is the first one."))
            self.after = None
            page = self._visible_page(rows)
        self.model_admin.mark(request, page.items)  # type: ignore[attr-defined]
        return page

    def _visible_page(self, rows: Rows) -> Page[Any]:
        """Read on until the page is full, where single rows are hidden. The cursor is that of a visible row."""
        if not self.visibility.checks_each_row(self.model):
            return rows.page(self.after, self.list_per_page)
        items: list[Any] = []
        cursor = self.after
        for _read in range(MAX_READS_OF_PAGE):
            page = rows.page(cursor, self.list_per_page)
            items += self.visibility.seen(page.items)
            cursor = page.next_cursor
            if cursor is None or len(items) > self.list_per_page:
                break
        shown = items[: self.list_per_page]
        has_more = cursor is not None or len(items) > len(shown)
        return Page(shown, rows.cursor_after(shown[-1]) if shown and has_more else None)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """The newest first, or the oldest; another order has no index."""
        newest, oldest = queryset.page_orders  # type: ignore[attr-defined]
        asked = super().get_ordering(request, queryset)[:1]
        return list(oldest if asked == [oldest[0]] else newest)

    def _forget_unknown_parameters(self) -> None:
        """Links and forms of the page carry on what is known; the cursor of this page leads nowhere else."""
        known = (*self._filter_names, SEARCH_VAR, ORDER_VAR, IS_POPUP_VAR, TO_FIELD_VAR)
        self.params = {name: value for name, value in self.params.items() if name in known}
        self.filter_params = {name: value for name, value in self.filter_params.items() if name in known}

    @property
    def _filter_names(self) -> list[str]:
        """Of filters of Django's simple kind: those that are made of a field take any look-up of it."""
        filters: Any = self.list_filter
        return [each.parameter_name for each in filters]

    def get_query_parameters(self, *, without: str | Iterable[str]) -> list[tuple[str, str]]:
        """What the address says besides these."""
        names = {without} if isinstance(without, str) else {*without}
        return [(name, value) for name, value in self.params.items() if name not in names]

    @property
    def next_page_link(self) -> str | None:
        cursor = self.page.next_cursor
        return cursor and self.get_query_string({AFTER_VAR: cursor})

    @property
    def first_page_link(self) -> str | None:
        return self.get_query_string() if self.after else None

    @property
    def is_narrowed(self) -> bool:
        return bool(self.has_active_filters or self.query)

    @cached_property
    def amount(self) -> Amount:
        """Read when the page is drawn: a page that is there is not lost to it."""
        if self.after is None and self.page.next_cursor is None:
            return Amount(len(self.page))
        if self.visibility.checks_each_row(self.model):
            return Amount(len(self.page), Precision.MORE)
        return amount_of(self.queryset, len(self.page))


class ListedAdmin(ReadOnlyAdmin):
    """The list of a class; a subclass says what its rows and cells are."""

    cells: ClassVar[type[Cells]]

    list_filter = FILTERS
    list_per_page = 50
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    search_fields = ("id",)  # for the search box; what it finds, ``searched`` says
    search_help_text = _(
        "An id or its beginning (8 digits or more), a deduplication key as a whole, or the beginning of a type."
    )
    change_list_template = "admin/django_jobchains/change_list.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        try:
            return super().changelist_view(request, extra_context)
        except TookTooLong:
            context = {**self.admin_site.each_context(request), "opts": self.opts, "title": gettext("Took too long")}
            return TemplateResponse(request, "admin/django_jobchains/took_too_long.html", context, status=503)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return KeysetChangeList

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        with bounded(get_settings().DATABASE):
            return super().get_changelist_instance(request)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Methods that know who asks: ``list_display`` takes no request."""
        cells = self.cells(self.visibility(request), get_settings().DATABASE, self.admin_site.name)
        return [getattr(cells, name) for name in cells.in_order]

    def get_list_display_links(self, request: HttpRequest, list_display: Sequence[Any]) -> list[Any]:
        return [cell for cell in list_display if getattr(cell, "__name__", "") == "type_name"]

    def get_sortable_by(self, request: HttpRequest) -> Any:
        """None: those that say so."""
        return None

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return what other pages of the admin find, such as those with ``autocomplete_fields``."""
        found: QuerySet[Any] = self.searched(request, queryset, search_term).rows  # type: ignore[arg-type]
        visibility = self.visibility(request)
        if visibility.checks_each_row(self.model):
            seen = visibility.seen(found.defer(*LARGE)[:MOST_LOOKED_AT])
            found = queryset.filter(pk__in=[row.pk for row in seen])
        return found, False

    def searched(self, request: HttpRequest, rows: Rows, term: str) -> Found:
        """Return what is found in the rows by a term, and how."""
        visibility = self.visibility(request)
        if visibility.sees_all(Chain) and visibility.sees_all(Job):
            return find(rows, term, lambda: self.type_names(request))
        return find(rows, term, self.known_type_names, visibility)

    def type_names(self, request: HttpRequest) -> set[str]:
        """Return the types to filter by: all that are known, or those of the newest rows that the user sees."""
        visibility = self.visibility(request)
        if visibility.sees_all(self.model):
            return self.known_type_names()
        rows: Rows = visibility.rows(self.model)  # type: ignore[assignment]
        newest = rows.order_by(*rows.page_orders[0]).defer(*LARGE)[:MOST_LOOKED_AT]
        return {row.type_name for row in visibility.seen(newest)}

    def known_type_names(self) -> set[str]:
        """Return the types that are declared here, or of which there are rows."""
        raise NotImplementedError

    def mark(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Mark the rows of a page for the cells, which show nothing of what is hidden beside a row."""
        raise NotImplementedError

    def shown(self, rows: Rows) -> Rows:
        """The rows with what their cells need, and without what is large."""
        raise NotImplementedError


class ChainList(ListedAdmin):
    cells = ChainCells
    ordering = ("-id",)

    def known_type_names(self) -> set[str]:
        declared = (name for name, job_type in get_registry().job_types().items() if job_type.entry)
        return {*declared, *get_store().chain_type_names(MOST_TYPES)}

    def mark(self, request: HttpRequest, rows: Sequence[Chain]) -> None:
        hidden = self.visibility(request).hidden_jobs([chain.current_job_id for chain in rows])
        for chain in rows:
            chain.is_job_hidden = chain.current_job_id in hidden  # type: ignore[attr-defined]

    def shown(self, rows: Rows) -> Rows:
        large = ("input", "output", "last_error")
        jobs = (f"current_job__{name}" for name in (*large, "context"))
        chains = rows.select_related("current_job").defer(*large, *jobs)
        return chains.annotate(error_start=Left("last_error", ERROR_LENGTH))


class JobList(ListedAdmin):
    cells = JobCells
    ordering = ("-chain_id",)

    def known_type_names(self) -> set[str]:
        return {*get_registry().job_types(), *get_store().type_names(MOST_TYPES)}

    def mark(self, request: HttpRequest, rows: Sequence[Job]) -> None:
        hidden = self.visibility(request).hidden_chains({job.chain_id for job in rows})
        for job in rows:
            job.is_chain_hidden = job.chain_id in hidden  # type: ignore[attr-defined]

    def shown(self, rows: Rows) -> Rows:
        return rows.defer("input", "output", "last_error", "context").annotate(
            error_start=Left("last_error", ERROR_LENGTH),
            is_last=ExpressionWrapper(LAST, output_field=BooleanField()),
        )
