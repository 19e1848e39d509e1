"""The changelists of chains and jobs, with keyset pagination, and their columns.

A request can only affect the query through filters, the search and the cursor, which all use an index. There are no
page numbers and no "show all" link, so the cost of a page does not depend on the number of rows.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.options import IS_POPUP_VAR, TO_FIELD_VAR
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ORDER_VAR, SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import BooleanField, ExpressionWrapper, Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.base import LimitedPaginator, ReadOnlyAdmin, TimeLimitExceeded, time_limit
from django_jobchains.admin.dashboard.access import page_url
from django_jobchains.admin.display import Timestamps
from django_jobchains.admin.lists.filters import CHAIN_FILTERS, COUNT_SECONDS, JOB_FILTERS
from django_jobchains.admin.lists.search import SearchResult, find
from django_jobchains.admin.visibility import LARGE, Visibility, with_current_jobs
from django_jobchains.conf import current_database
from django_jobchains.db.keyset import Page, PagedQuerySet
from django_jobchains.declare.labels import MAX_INPUT_LENGTH
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import InvalidCursor
from django_jobchains.models import Chain, Job
from django_jobchains.models.jobs import LAST, shown_status
from django_jobchains.models.payload_fields import short_input, text_start
from django_jobchains.statuses import OPEN, Status
from django_jobchains.store import get_store
from django_jobchains.text.humanize import age, number

AFTER_VAR = "after"
#: The number of types and of queues that are read from the database for the filters.
MAX_NAMES = 1_000
#: The number of rows that are checked where some are hidden: for the filters by type and queue, and for autocompletion.
MAX_CHECKED_ROWS = 500
#: How many times rows are read to fill a page of which ``has_view_permission`` hides some.
MAX_PAGE_READS = 20
#: The number of rows up to which they are counted.
COUNT_LIMIT = 10_000
#: The number of characters that are read of an error to show its first line.
ERROR_LENGTH = 500

Rows = PagedQuerySet[Any]
_NOTE = ' <span class="jobchains-cell-note">{}</span>'


class Columns:
    """The base class of the columns of both lists, for the user of a request.

    ``ListAdmin.mark`` sets ``is_job_hidden`` and ``is_first_job_hidden`` on the chains, and ``is_chain_hidden`` on the
    jobs of a page.
    """

    #: The methods that are columns, the most important first: narrow pages leave out the last ones. The first one opens
    #: the row.
    names: ClassVar[tuple[str, ...]]
    #: The columns that a page leaves out if they are empty in all of its rows.
    optional: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, visibility: Visibility, using: str, url_of: Callable[[str, Any], str]) -> None:
        """``url_of``: see ``ListAdmin.url_of``."""
        self._visibility = visibility
        self._timestamps = Timestamps(using)
        self._url_of = url_of

    def _link(self, kind: str, key: Any, text: str = "") -> SafeString:
        """Return the key, or another text, as a link to the page of a type, a queue or a row, if there is one."""
        shown, url = parted(text or key), self._url_of(kind, key)
        return format_html('<a href="{}">{}</a>', url, shown) if url else shown

    def _attempts(self, job: Job) -> str:
        if job.finite_max_attempts is None:
            return number(job.attempt)
        return gettext("%(attempt)s of %(limit)s") % {
            "attempt": number(job.counted_attempts),
            "limit": number(job.finite_max_attempts),
        }


class ChainColumns(Columns):
    """The columns of chains, which include values of the current job."""

    names = ("status", "type_name", "created", "duration", "attempts", "queue", "key")
    optional = frozenset({"duration", "attempts", "queue", "key"})

    @admin.display(description=_("status"))
    def status(self, chain: Chain) -> SafeString:
        """Return the status, and the first line of the current job's error."""
        status, error = shown_status(chain.current_job, self._timestamps), chain.error_start  # type: ignore[attr-defined]  # annotated
        payloads = self._visibility.payloads(chain, chain.current_job)
        return payloads.status_html(status.value, status.label, None if _is_job_hidden(chain) else error)

    @admin.display(description=_("type"))
    def type_name(self, chain: Chain) -> SafeString:
        """Return the type, the label, and the current step of a chain that has continued."""
        job, step, label = chain.current_job, "", self._label(chain)
        if job.chain_index:
            step = gettext("step %(number)s") % {"number": number(job.chain_index + 1)}
            step = step if _is_job_hidden(chain) else format_html("{}: {}", step, self._link("type", job.type_name))
        return named(self._link("type", chain.type_name), label and self._link("chain", chain.pk, label), step)

    def _label(self, chain: Chain) -> str:
        is_hidden = getattr(chain, "is_first_job_hidden", False)
        return "" if is_hidden else self._visibility.label(chain, chain.current_job, chain.input_text)  # type: ignore[attr-defined]

    @admin.display(description=_("queue"))
    def queue(self, chain: Chain) -> SafeString | str:
        return "" if _is_job_hidden(chain) else self._link("queue", chain.current_job.queue)

    @admin.display(description=_("age"), ordering="id")
    def created(self, chain: Chain) -> SafeString | str:
        return self._timestamps.timestamp(chain.created_at, age)

    @admin.display(description=_("duration"))
    def duration(self, chain: Chain) -> str:
        return self._timestamps.duration(chain)

    @admin.display(description=_("attempts"))
    def attempts(self, chain: Chain) -> str:
        return "" if _is_job_hidden(chain) else self._attempts(chain.current_job)

    @admin.display(description=_("key"))
    def key(self, chain: Chain) -> str:
        return chain.deduplication_key or ""


class JobColumns(Columns):
    """The columns of jobs."""

    names = ("status", "type_name", "created", "chain", "attempts", "run_at", "queue", "worker")
    optional = frozenset({"chain", "attempts", "run_at", "queue", "worker"})

    @admin.display(description=_("status"))
    def status(self, job: Job) -> SafeString:
        """Return the status, and the first line of the error."""
        status = shown_status(job, self._timestamps, is_last=job.is_last)  # type: ignore[attr-defined]  # annotated
        error = job.error_start  # type: ignore[attr-defined]  # annotated
        return self._visibility.payloads(job).status_html(status.value, status.label, error)

    @admin.display(description=_("type"))
    def type_name(self, job: Job) -> SafeString:
        label = self._visibility.payloads(job).label(job.type_name, job.input_text)  # type: ignore[attr-defined]
        return named(self._link("type", job.type_name), label and self._link("job", job.pk, label))

    @admin.display(description=_("chain"))
    def chain(self, job: Job) -> SafeString | str:
        """Return the step, and the chain's type if it is another one, with a link to the chain if it is visible."""
        step = gettext("step %(number)s") % {"number": number(job.chain_index + 1)}
        if getattr(job, "is_chain_hidden", False):
            return step
        is_other = job.chain_type_name != job.type_name
        chain_type = self._link("type", job.chain_type_name) if is_other else ""
        return named(self._link("chain", job.chain_id, step), chain_type)

    @admin.display(description=_("queue"))
    def queue(self, job: Job) -> SafeString | str:
        return self._link("queue", job.queue)

    @admin.display(description=_("age"), ordering="chain_id")
    def created(self, job: Job) -> SafeString | str:
        return self._timestamps.timestamp(job.created_at, age)

    @admin.display(description=_("run at"))
    def run_at(self, job: Job) -> SafeString | str:
        """Return when a pending job is due, or when the last attempt of another job started."""
        if job.status == Status.PENDING:
            return self._timestamps.timestamp(job.run_at)
        return self._timestamps.timestamp(job.last_attempt_at)

    @admin.display(description=_("attempts"))
    def attempts(self, job: Job) -> str:
        return self._attempts(job)

    @admin.display(description=_("worker"))
    def worker(self, job: Job) -> str:
        return (job.leased_by if job.status in OPEN else job.completed_by) or ""


def named(name: str, *notes: str) -> SafeString:
    """Return a name with notes below it, for a column of a list. Texts can wrap between their parts; HTML is kept."""
    return format_html("{}{}", parted(name), format_html_join("", _NOTE, ([parted(note)] for note in notes if note)))


def parted(name: str) -> SafeString:
    if isinstance(name, SafeString):
        return name
    return format_html_join(SafeString("<wbr>"), "{}", ([part] for part in re.split(r"(?<=[._/-])(?=\w)", name)))


def _is_job_hidden(chain: Chain) -> bool:
    """Return whether the current job of a visible chain is hidden from the user."""
    return getattr(chain, "is_job_hidden", False)


class KeysetChangeList(ChangeList):
    """A page of a changelist, with a link to the next one."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.after = request.GET.get(AFTER_VAR) or None
        super().__init__(request, *args, **kwargs)
        self.title = str(capfirst(self.opts.verbose_name_plural))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Rows:
        # Keep only known parameters, without the cursor, in the links and forms of the page.
        known = (*self._filter_names, SEARCH_VAR, ORDER_VAR, IS_POPUP_VAR, TO_FIELD_VAR)
        self.params = {name: value for name, value in self.params.items() if name in known}
        self.filter_params = {name: value for name, value in self.filter_params.items() if name in known}
        self.filter_specs, self.has_filters, _rest, _doubles, self.has_active_filters = self.get_filters(request)
        rows: Rows = self.root_queryset  # type: ignore[assignment]
        for spec in self.filter_specs:
            narrowed = spec.queryset(request, rows)
            rows = rows if narrowed is None else narrowed  # type: ignore[assignment]
        self.search_result: SearchResult = self.model_admin.searched(request, rows, self.query)  # type: ignore[attr-defined]
        self.clear_all_filters_qs = self.get_query_string(remove=self._filter_names)
        ordered: Rows = self.search_result.rows.order_by(*self.get_ordering(request, rows))
        return ordered

    def get_results(self, request: HttpRequest) -> None:
        self.page = self._page(request)
        self.result_list = list(self.page)
        self.result_count = self.full_result_count = len(self.page)
        self.paginator = Paginator(self.result_list, self.list_per_page)
        self.show_full_result_count = self.show_all = self.can_show_all = self.multi_page = False
        self.show_admin_actions = bool(self.page)
        self.list_display = [column for column in self.list_display if self._is_shown(column)]

    def _is_shown(self, column: Any) -> bool:
        """Return whether a column is not empty in all rows of the page."""
        is_optional = getattr(column, "__name__", "") in self.model_admin.columns.optional  # type: ignore[attr-defined]
        return not is_optional or any(map(column, self.result_list))

    def _page(self, request: HttpRequest) -> Page[Any]:
        self.visibility: Visibility = self.model_admin.visibility(request)  # type: ignore[attr-defined]
        rows = self.model_admin.shown(self.queryset)  # type: ignore[attr-defined]
        try:
            page = self._visible_page(rows)
        except InvalidCursor:
            messages.warning(request, gettext("This page does not exist. Showing the first page instead."))
            self.after = None
            page = self._visible_page(rows)
        self.model_admin.mark(request, page.items)  # type: ignore[attr-defined]
        return page

    def _visible_page(self, rows: Rows) -> Page[Any]:
        """If single rows are hidden, read until the page is full. The cursor always belongs to a visible row."""
        if not self.visibility.checks_each_row(self.model):
            return rows.page(self.after, self.list_per_page)
        items: list[Any] = []
        cursor = self.after
        for _read in range(MAX_PAGE_READS):
            page = rows.page(cursor, self.list_per_page)
            items += self.visibility.seen(page.items)
            cursor = page.next_cursor
            if cursor is None or len(items) > self.list_per_page:
                break
        shown = items[: self.list_per_page]
        has_more = cursor is not None or len(items) > len(shown)
        return Page(shown, rows.cursor_after(shown[-1]) if shown and has_more else None)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return newest or oldest first, because other orders have no index."""
        newest, oldest = queryset.page_orders  # type: ignore[attr-defined]
        is_oldest_first = not str(super().get_ordering(request, queryset)[0]).startswith("-")
        return list(oldest if is_oldest_first else newest)

    @property
    def _filter_names(self) -> list[str]:
        """Return the parameters of simple filters. Filters for fields would allow any lookup."""
        filters: Any = self.list_filter
        return [each.parameter_name for each in filters]

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
    def row_count(self) -> str:
        """Count the rows when the page is rendered, so that a slow count does not prevent the page."""
        if self.after is None and self.page.next_cursor is None:
            return _exactly(len(self.page))
        if self.visibility.checks_each_row(self.model):
            return _more_than(len(self.page))
        return count_rows(self.queryset, len(self.page))


class ListAdmin(ReadOnlyAdmin):
    """The changelist of a class. Subclasses define its rows and columns."""

    columns: ClassVar[type[Columns]]
    #: The columns that ``get_search_results`` does not read.
    large_columns: ClassVar[Sequence[str]] = LARGE

    search_fields = ("id",)  # shows the search box; see ``searched``
    search_help_text = _(
        "Search for an id or at least its first 8 digits, a complete deduplication key, or the beginning of a type."
    )
    change_list_template = "admin/django_jobchains/change_list.html"
    empty_value_display = ""
    #: For ``autocomplete_fields``. The list itself does not count its rows.
    paginator = LimitedPaginator

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return KeysetChangeList

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return methods that depend on the request, which ``list_display`` does not get."""
        columns = self.columns(self.visibility(request), current_database(), partial(self.url_of, request))
        return [getattr(columns, name) for name in columns.names]

    def url_of(self, request: HttpRequest, kind: str, key: Any) -> str:
        """Return the URL of the page of a "type" or "queue", or of a row of a model. Pop-ups have no links."""
        if IS_POPUP_VAR in request.GET:
            return ""
        if kind in ("type", "queue"):
            return page_url(self.admin_site, request, kind, key)
        return reverse(f"admin:django_jobchains_{kind}_change", args=(quote(key),), current_app=self.admin_site.name)

    def get_sortable_by(self, request: HttpRequest) -> Any:
        """Return None, which allows the columns that have an ordering."""
        return None

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the results for other pages of the admin, such as ``autocomplete_fields``."""
        found: QuerySet[Any] = self.searched(request, queryset, search_term).rows  # type: ignore[arg-type]
        visibility = self.visibility(request)
        if visibility.checks_each_row(self.model):
            seen = visibility.seen(found.defer(*self.large_columns)[:MAX_CHECKED_ROWS])
            found = queryset.filter(pk__in=[row.pk for row in seen])
        return found.defer(*self.large_columns), False

    def searched(self, request: HttpRequest, rows: Rows, term: str) -> SearchResult:
        """Search the rows for a term."""
        visibility = self.visibility(request)
        if visibility.sees_all(Chain) and visibility.sees_all(Job):
            return find(rows, term, lambda: self.type_names(request))
        return find(rows, term, self.known_type_names, visibility)

    def type_names(self, request: HttpRequest) -> set[str]:
        """Return the types to filter by: all known types, or the types of the newest rows that the user may see."""
        if self.visibility(request).sees_all(self.model):
            return self.known_type_names()
        return {row.type_name for row in self._newest(request, self.model)}

    def known_type_names(self) -> set[str]:
        """Return the types that are declared or have rows."""
        raise NotImplementedError

    def queue_names(self, request: HttpRequest) -> set[str]:
        """Return the queues to filter by: all with jobs, or the queues of the newest jobs that the user may see.

        Chains cannot be filtered where single jobs are hidden; see ``QueueFilter``.
        """
        visibility = self.visibility(request)
        if visibility.sees_all(Job):
            return set(get_store().stats.names("queue", MAX_NAMES))
        if self.model is Chain and visibility.checks_each_row(Job):
            return set()
        return {job.queue for job in self._newest(request, Job)}

    def _newest(self, request: HttpRequest, model: type[Model]) -> list[Any]:
        visibility = self.visibility(request)
        rows: Rows = visibility.rows(model)  # type: ignore[assignment]
        return visibility.seen(rows.order_by(*rows.page_orders[0]).defer(*LARGE)[:MAX_CHECKED_ROWS])

    def mark(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Prepare the rows of a page: mark those whose chain or current job is hidden from the user."""
        raise NotImplementedError

    def shown(self, rows: Rows) -> Rows:
        """Return the rows with the values that the columns need, without large columns."""
        raise NotImplementedError


class ChainListAdmin(ListAdmin):
    """The changelist of chains."""

    columns = ChainColumns
    list_filter = CHAIN_FILTERS
    ordering = ("-id",)

    def known_type_names(self) -> set[str]:
        declared = (name for name, job_type in get_registry().job_types().items() if job_type.entry)
        return {*declared, *get_store().stats.names("chain_type_name", MAX_NAMES)}

    def mark(self, request: HttpRequest, rows: Sequence[Chain]) -> None:
        jobs = {job_id for chain in rows for job_id in (chain.pk, chain.current_job_id)}
        hidden = self.visibility(request).hidden_jobs(jobs)
        for chain in rows:
            chain.is_job_hidden = chain.current_job_id in hidden  # type: ignore[attr-defined]
            chain.is_first_job_hidden = chain.pk in hidden  # type: ignore[attr-defined]

    def shown(self, rows: Rows) -> Rows:
        chains: Rows = with_current_jobs(rows)  # type: ignore[assignment]
        return chains.annotate(error_start=text_start("last_error", ERROR_LENGTH))


class JobListAdmin(ListAdmin):
    """The changelist of jobs."""

    columns = JobColumns
    list_filter = JOB_FILTERS
    ordering = ("-chain_id",)

    def known_type_names(self) -> set[str]:
        return {*get_registry().job_types(), *get_store().stats.names("type_name", MAX_NAMES)}

    def mark(self, request: HttpRequest, rows: Sequence[Job]) -> None:
        hidden = self.visibility(request).hidden_chains({job.chain_id for job in rows})
        for job in rows:
            job.is_chain_hidden = job.chain_id in hidden  # type: ignore[attr-defined]

    def shown(self, rows: Rows) -> Rows:
        return rows.defer(*LARGE, "context").annotate(
            error_start=text_start("last_error", ERROR_LENGTH),
            input_text=short_input(MAX_INPUT_LENGTH),
            is_last=ExpressionWrapper(LAST, output_field=BooleanField()),
        )


def count_rows(rows: Rows, shown: int) -> str:
    """Count the rows of a list that has more than the ``shown`` rows: exactly if there are few, or else roughly."""
    planned = _planner_estimate(rows)
    if planned is not None and planned > COUNT_LIMIT:
        return _rounded(planned)
    try:
        with time_limit(rows.db, COUNT_SECONDS):
            counted = rows.order_by()[: COUNT_LIMIT + 1].count()
    except TimeLimitExceeded:
        return _more_than(shown) if planned is None or planned <= shown else _rounded(planned)
    return _more_than(COUNT_LIMIT) if counted > COUNT_LIMIT else _exactly(counted)


def _planner_estimate(rows: Rows) -> int | None:
    """Return the estimate of the query planner, or None if the database has none."""
    if connections[rows.db].vendor != "postgresql":
        return None
    [plan] = json.loads(rows.order_by().values("pk").explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])


def _exactly(rows: int) -> str:
    return gettext("%(number)s in total") % {"number": number(rows)}


def _more_than(rows: int) -> str:
    return gettext("more than %(number)s in total") % {"number": number(rows)}


def _rounded(estimate: int) -> str:
    """Round an estimate to two significant digits."""
    return gettext("about %(number)s in total") % {"number": number(int(float(f"{estimate:.1e}")))}
