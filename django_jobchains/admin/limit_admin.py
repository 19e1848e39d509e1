"""The admin of limits of all workers: the list, and the page of a limit with the jobs that hold its places."""

from dataclasses import dataclass, replace
from functools import partial

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.functional import lazy
from django.utils.http import urlencode
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains import limits
from django_jobchains.admin.actions.action import log_change
from django_jobchains.admin.base import FiguresAdmin, show_problem
from django_jobchains.admin.dashboard.access import access_of, may_change_queue
from django_jobchains.admin.dashboard.views import RunningRow, Table, first_rows, running_rows
from django_jobchains.admin.display import PERMISSION, Payloads
from django_jobchains.admin.record_admin import attempts_of, is_counted
from django_jobchains.conf import current_database
from django_jobchains.declare.limits import MAX_LIMIT
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import JobchainsError
from django_jobchains.limits import KeyFacts, LimitFacts
from django_jobchains.models import Job, LimitOverride, QueueState
from django_jobchains.monitoring.limits import COUNT_TO
from django_jobchains.records.declarations import RecordType
from django_jobchains.store.deduplication import TENANT_SEPARATOR as SEPARATOR

_FOLDER = "admin/django_jobchains/limit/"
#: The number of jobs, and of records, that hold places which the page of a limit shows.
MAX_HOLDERS = 50
#: The number of records in process that are read for it.
MAX_READ = 500


@dataclass(frozen=True)
class HeldRecord:
    """A record in process. ``url``: of its page, "" without one. ``seconds``: since its dequeue, None if unknown."""

    kind: RecordType
    id: str
    url: str
    seconds: float | None
    attempt: int
    worker: str


@dataclass(frozen=True)
class LimitPage:
    """The context of the templates. ``is_whole``: whether the user sees all jobs, and so their numbers. ``hidden``: the
    names of limits with records that the user may not see, whose numbers are not shown.

    ``limits``: all of them, or the one of the page, with the visible jobs in ``running``, and the visible records in
    process in ``records``, None if the limit is not for any.
    """

    limits: tuple[LimitFacts, ...]
    is_whole: bool
    hidden: frozenset[str] = frozenset()
    running: Table[RunningRow] | None = None
    records: Table[HeldRecord] | None = None
    is_changeable: bool = False
    count_to: int = COUNT_TO

    @property
    def limit(self) -> LimitFacts:
        return self.limits[0]


class LimitForm(forms.Form):
    """How many jobs may run at once, and start in the declared period.

    Each field has a hidden one with the number that the page showed, because another user may have changed the other
    number in the meantime.
    """

    concurrency = forms.IntegerField(
        min_value=0, max_value=MAX_LIMIT, required=False, label=_("Jobs at once"), show_hidden_initial=True
    )
    rate = forms.IntegerField(
        min_value=0, max_value=MAX_LIMIT, required=False, label=_("Starts"), show_hidden_initial=True
    )

    def changed_numbers(self) -> dict[str, int]:
        """Return the numbers that differ from what the page showed. An empty field does not change a number."""
        return {name: self.cleaned_data[name] for name in self.changed_data if self.cleaned_data[name] is not None}


class LimitAdmin(FiguresAdmin):
    """The admin class of limits: declared and effective numbers, and the jobs that hold places.

    The site's admin class of jobs decides which jobs are shown.
    """

    page_template = f"{_FOLDER}page.html"

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page_path("", self.list_view, "limitoverride_changelist"),
            self.page_path("limit/", self.limit_view, "limit"),
            self.page_path("change/", self.change_limit_view, "change_limit"),
        ]

    def list_view(self, request: HttpRequest) -> HttpResponse:
        return self.figures_page(request, partial(self._read, request), f"{_FOLDER}list.html", {"title": _("Limits")})

    def limit_view(self, request: HttpRequest) -> HttpResponse:
        name = request.GET.get("name", "")
        context = {"title": gettext("Limit %(name)s") % {"name": name}, "name": name}
        return self.figures_page(request, partial(self._read_limit, request), f"{_FOLDER}detail.html", context)

    def _read(self, request: HttpRequest) -> LimitPage:
        access = access_of(self.admin_site)
        shown = access.visible_queues(request) if access else ()
        is_whole, payloads = self.visibility(request).sees_all(Job), Payloads(is_allowed=self.may(request, PERMISSION))
        found = [limit for limit in limits.list() if limit.kind != "queue" or shown is None or limit.name in shown]
        kinds = get_registry().record_types()
        uncounted = {kind.name for kind in kinds if not is_counted(self.admin_site, request, kind.model)}
        hidden = frozenset(limit.name for limit in found if uncounted.intersection(limit.record_types))

        def shown_keys(limit: LimitFacts) -> tuple[KeyFacts, ...]:
            # Keys come from inputs and records.
            if limit.name in hidden or not (is_whole and payloads.is_allowed):
                return ()
            return tuple(replace(key, key=payloads.line(key.key)) for key in limit.keys)

        found = [replace(limit, keys=shown_keys(limit)) for limit in found]
        return LimitPage(tuple(found), is_whole, hidden)

    def _read_limit(self, request: HttpRequest) -> LimitPage:
        name, is_queue = request.GET.get("name", ""), request.GET.get("kind") == "queue"
        page = self._read(request)
        limit = next((each for each in page.limits if (each.name, each.kind == "queue") == (name, is_queue)), None)
        if limit is None:
            raise Http404
        visibility, running, held = self.visibility(request), None, None
        if limit.kind != "records":
            running = running_rows(visibility, _holding(visibility.rows(Job), limit), MAX_HOLDERS)
        kinds = [
            kind
            for kind in get_registry().record_types()
            if kind.is_in(current_database())
            and (kind.queue == limit.name if is_queue else kind.name in limit.record_types)
        ]
        if kinds:
            rows = [row for kind in kinds for row in self._held_records(request, kind)]
            held = first_rows(sorted(rows, key=lambda row: -(row.seconds or 0)), MAX_HOLDERS)
        may_change = self._may_change(request, limit.name, is_queue=is_queue)
        return LimitPage((limit,), page.is_whole, page.hidden, running, held, may_change)

    def _held_records(self, request: HttpRequest, kind: RecordType) -> list[HeldRecord]:
        """Return records in process that the user may see, among the first ``MAX_READ``."""
        site, model, using = self.admin_site, kind.model, current_database()
        model_admin = site.get_model_admin(model) if site.is_registered(model) else None
        if model_admin is None:
            if not request.user.has_perm(f"{model._meta.app_label}.view_{model._meta.model_name}"):
                return []
            visible = model._default_manager.all()
        elif model_admin.has_view_permission(request):
            visible = model_admin.get_queryset(request)
        else:
            return []
        in_process = kind.queryset.using(using).filter(**{kind.columns["state"]: "processing"}).order_by()
        found = visible.using(using).filter(pk__in=in_process.values("pk")).annotate(jobchains_now=Now())
        found = found.defer(*(kind.columns[name] for name in ("failure_message", "execution_logs")))
        rows = []
        for record in found.order_by(kind.columns["started_at"], "pk")[:MAX_READ]:
            url, started_at = "", kind.value(record, "started_at")
            if model_admin is not None:
                if not model_admin.has_view_permission(request, record):
                    continue
                name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
                url = reverse(name, args=[quote(record.pk)], current_app=site.name)
            seconds = None if started_at is None else (record.jobchains_now - started_at).total_seconds()
            worker = kind.value(record, "worker_hostname") or ""
            rows.append(HeldRecord(kind, str(record.pk), url, seconds, attempts_of(kind, record), worker))
        return rows

    def _may_change(self, request: HttpRequest, name: str, *, is_queue: bool) -> bool:
        if not is_queue:
            return self.may(request, "change_limitoverride", LimitOverride(name=name))
        access = access_of(self.admin_site)
        return access is not None and may_change_queue(access, request, name)

    def change_limit_view(self, request: HttpRequest) -> HttpResponseBase:
        """Set or reset the limit that the form names."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        name, is_queue = request.POST.get("name", ""), request.POST.get("kind") == "queue"
        if not (self.has_view_permission(request) and self._may_change(request, name, is_queue=is_queue)):
            raise PermissionDenied
        form = LimitForm(request.POST)
        if not form.is_valid():
            show_problem(request, form)
        elif "set" in request.POST and not form.changed_numbers():
            problem = gettext("Enter a new number. To remove an override, use the button Reset.")
            messages.error(request, gettext("Nothing was changed. %(problem)s") % {"problem": problem})
        else:
            try:
                self._change(request, name, form.changed_numbers(), is_queue=is_queue)
            except (JobchainsError, TypeError, ValueError) as error:
                messages.error(request, gettext("Nothing was changed. %(problem)s") % {"problem": error})
        if "set" in request.POST and (is_queue or name in get_registry().limits()):
            query = {"name": name, **({"kind": "queue"} if is_queue else {})}
            return redirect(f"{self._url('limit')}?{urlencode(query)}")
        return redirect(self._url("limitoverride_changelist"))

    def _url(self, name: str) -> str:
        return reverse(f"admin:django_jobchains_{name}", current_app=self.admin_site.name)

    def _change(self, request: HttpRequest, name: str, numbers: dict[str, int], *, is_queue: bool) -> None:
        using = current_database()
        target = {"queue" if is_queue else "name": name}
        row = QueueState(name=name) if is_queue else LimitOverride(name=name)
        with transaction.atomic(using=using):
            if "set" in request.POST:
                limits.set(**target, **numbers)  # type: ignore[arg-type]
                message, log_text = gettext("Limit %(name)s was set: %(numbers)s."), _("Limit set: {numbers}.")
            else:
                limits.reset(**target)
                message, log_text = gettext("Limit %(name)s was reset."), _("Limit reset.")
            log_message = format_lazy(log_text, numbers=lazy(_numbers_text, str)(numbers))
            log_change(request, [row], log_message, verb="set limit" if "set" in request.POST else "reset limit")
        messages.success(request, message % {"name": name, "numbers": _numbers_text(numbers)})


def _numbers_text(numbers: dict[str, int]) -> str:
    """Return the numbers with the labels of their fields, in the active language."""
    return ", ".join(f"{LimitForm.base_fields[name].label} {number}" for name, number in numbers.items())


def _holding(jobs: QuerySet[Job], limit: LimitFacts) -> QuerySet[Job]:
    """Return the jobs whose running ones hold the places of a limit."""
    if limit.kind == "queue":
        return jobs.filter(queue=limit.name)
    if limit.concurrency is None:
        return jobs.filter(type_name__in=limit.types)
    counted = Q(concurrency_key=limit.name) | Q(concurrency_key__startswith=f"{limit.name}{SEPARATOR}")
    return jobs.filter(counted, type_name__in=limit.types)
