"""The base classes of the admin classes, the time limit of their queries, and the parameters in their URLs."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import OperationalError
from django.db.models import Model, QuerySet
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.functional import cached_property
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.visibility import Visibility, has_own_view_permission, is_whole
from django_jobchains.conf import current_database
from django_jobchains.models import Chain, Job
from django_jobchains.store import get_store
from django_jobchains.text.humanize import number

#: The time limit of a query of a page.
QUERY_SECONDS = 5.0
#: The template and the context of the page that replaces one whose queries take longer.
TIME_LIMIT_PAGE = ("admin/django_jobchains/time_limit_exceeded.html", {"title": _("Time limit exceeded")})

#: With this parameter, the response is the inner part of the page, for the script that refreshes it.
FRAGMENT = "fragment"
_MAX_INTEGER = 2**31 - 1
#: The number of rows that a list of records, or of ``autocomplete_fields``, counts and shows. The search finds others.
MAX_ROWS = 10_000


class PageAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # takes no parameter at run time
    """The base class of all admin classes: pages with their style sheets, and a list with a time limit."""

    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    class Media:
        css = {"all": [f"django_jobchains/{name}.css" for name in ("admin", "lists", "pages", "actions")]}

    def sees_all_rows(self, request: HttpRequest) -> bool:
        """Return whether no row of this class is hidden from the user. If so, the dashboard counts the rows.

        A class that overrides ``has_view_permission`` is assumed to hide rows. If yours does not, or not from this
        user, override this method too.
        """
        return not has_own_view_permission(self) and is_whole(self.get_queryset(request))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        try:
            return super().changelist_view(request, {"page_admin": self, **(extra_context or {})})
        except TimeLimitExceeded:
            return self.render(request, *TIME_LIMIT_PAGE, status=503)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        with time_limit(self.get_queryset(request).db):
            return super().get_changelist_instance(request)

    def render(
        self, request: HttpRequest, template: Any, context: Mapping[str, Any], status: int = 200
    ) -> TemplateResponse:
        """Return a page with the context that the templates of the admin need."""
        request.current_app = self.admin_site.name
        own = {"page_admin": self, "opts": self.opts, "media": self.media}
        page_context = {**self.admin_site.each_context(request), **own, **context}
        return TemplateResponse(request, template, page_context, status=status)


class ReadOnlyAdmin(PageAdmin):
    """Shows rows that only the store writes, without Django's forms to add, change and delete them."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def may(self, request: HttpRequest, permission: str, obj: Model | None = None) -> bool:
        """Return whether the user has a permission of this app, such as ``retry_job``.

        It is called once without a row and then for each row, so that a subclass can decide by the row: a chain, a
        job, or for ``change_queuestate`` a ``QueueState``, which may be unsaved.
        """
        return bool(request.user.has_perm(f"django_jobchains.{permission}"))

    def decides_by_row(self) -> bool:
        """Return whether a subclass overrides ``may``, which can then depend on the row."""
        return type(self).may is not ReadOnlyAdmin.may

    def visibility(self, request: HttpRequest) -> Visibility:
        """Return the object that decides which rows and payloads this user may see."""
        return Visibility(request, self)

    def actions_for(self, request: HttpRequest, chain: Chain, job: Job) -> Sequence[Any]:
        """Return the buttons of the actions that the user can perform on a chain, or on this job of it."""
        return ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(current_database())


class FiguresAdmin(ReadOnlyAdmin):
    """The base class of the dashboard and of the pages of limits: figures, which a script refreshes."""

    page_template: ClassVar[str] = "admin/django_jobchains/dashboard/page.html"

    class Media:
        extend = False
        css = {"all": [f"django_jobchains/{name}.css" for name in ("admin", "dashboard")]}

    def page_path(self, route: str, view: Callable[[HttpRequest], HttpResponseBase], name: str) -> URLPattern:
        # Names of types, queues and limits are parameters of URLs, because some of them cannot be part of a path.
        return path(route, self.admin_site.admin_view(view), name=f"django_jobchains_{name}")

    def figures_page(
        self, request: HttpRequest, read: Callable[[], Any], template: str, context: Mapping[str, Any]
    ) -> HttpResponse:
        """Return a page, or only its content for the script that refreshes it. ``read`` returns its ``dashboard``."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        is_part, status, found = FRAGMENT in request.GET, 200, None
        try:
            with time_limit(current_database()):
                found = read()
        except TimeLimitExceeded:
            template, status = "admin/django_jobchains/dashboard/slow_database.html", 503 if is_part else 200
        shown = {
            "dashboard": found,
            "content_template": template,
            "refresh_url": url_with(request, **{FRAGMENT: 1}),
            "seconds": number(int(QUERY_SECONDS)),
            **context,
        }
        return self.render(request, template if is_part else self.page_template, shown, status)


def show_problem(request: HttpRequest, form: Form) -> None:
    """Add a message about the first error of a form."""
    field, problems = next(iter(form.errors.items()))
    names = {"field": form.fields[field].label, "problem": problems[0]}
    messages.error(request, gettext("Nothing was changed. %(field)s: %(problem)s") % names)


class LimitedPaginator(Paginator):  # type: ignore[type-arg]  # takes no parameter at run time
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


class TimeLimitExceeded(Exception):
    """A query of a page reached its time limit."""


@contextmanager
def time_limit(using: str, seconds: float | None = None) -> Iterator[None]:
    """Raise ``TimeLimitExceeded`` if a query inside takes longer. Evaluate lazy querysets inside.

    Do not nest it: on SQLite, the inner time limit removes the outer one.
    """
    store = get_store(using)
    try:
        with store.db.reads_within(QUERY_SECONDS if seconds is None else seconds):
            yield
    except OperationalError as error:
        if not store.db.is_out_of_time(error):
            raise
        raise TimeLimitExceeded from error


# The parameters in the URLs of pages. Invalid parameters are ignored.


def parse_uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None


def integer_parameter(request: HttpRequest, name: str, minimum: int, maximum: int = _MAX_INTEGER) -> int | None:
    found = re.fullmatch("[0-9]{1,10}", request.GET.get(name, ""))
    return int(found[0]) if found and minimum <= int(found[0]) <= maximum else None


def log_position(request: HttpRequest) -> tuple[int, int] | None:
    """Return the lease number of the attempt that logged a line, and the line's position in that attempt's log."""
    found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", request.GET.get("log", ""))
    return (int(found[1]), int(found[2])) if found else None


def url_with(request: HttpRequest, **changes: Any) -> str:
    """Return the URL of this page with changed parameters; None removes one."""
    parameters = request.GET.copy()
    parameters.pop(FRAGMENT, None)
    for name, value in changes.items():
        parameters.pop(name, None)
        if value is not None:
            parameters[name] = str(value)
    return f"{request.path}?{parameters.urlencode()}" if parameters else request.path
