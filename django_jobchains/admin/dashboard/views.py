"""The dashboard on the index of the app: alerts, figures, tables, and forms to change queues.

The tables are facts, up to a limited number of rows, which templates format.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

from django import forms
from django.apps import apps
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_jobchains import queues
from django_jobchains.admin.actions.action import log_change
from django_jobchains.admin.base import QUERY_SECONDS, ReadOnlyAdmin, TimeLimitExceeded, time_limit
from django_jobchains.admin.dashboard import charts
from django_jobchains.admin.dashboard.visible_figures import Failures, failing_types, visible_failures, visible_overview
from django_jobchains.admin.record_admin import is_counted
from django_jobchains.admin.visibility import Visibility
from django_jobchains.conf import get_settings
from django_jobchains.db.times import Times
from django_jobchains.models import Job, QueueState, Schedule, ScheduleQuerySet
from django_jobchains.monitoring import (
    FailingType,
    Overview,
    PoolState,
    QueueFacts,
    RecordFacts,
    Throughput,
    TypeFacts,
    TypeRuns,
    WorkerFacts,
    overview,
    record_overview,
    throughput,
)
from django_jobchains.monitoring.facts import troubled_schedules
from django_jobchains.monitoring.problems import Problem, about_jobs, find_problems, summarized
from django_jobchains.store import get_store
from django_jobchains.store.stats import MAX_FAILED
from django_jobchains.text.humanize import number
from django_jobchains.values import QUEUE

#: The number of rows of a table.
MAX_ROWS = 100
#: The number of slowest types, and of next ticks.
MAX_SLOW = MAX_TICKS = 10

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


@dataclass(frozen=True)
class NextTick:
    """The next tick of a schedule. ``seconds``: since the tick, negative for one in the future."""

    schedule: Schedule
    seconds: float


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
            url=_list_url(kind.model, site),
            workers=workers.get(kind.name, 0),
        )
        for kind in records
        if not kind.problem
    ]


def _list_url(label: str, site: AdminSite) -> str:
    model = apps.get_model(label)
    if not site.is_registered(model):
        return ""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return reverse(name, current_app=site.name)


MAX_SLOTS = 2**31 - 1


class QueueChangeForm(forms.Form):
    """A change of a queue. ``slots`` is used by ``limit``, where None removes the limit."""

    # Names may begin or end with spaces.
    queue = forms.CharField(label=_("queue"), strip=False)
    verb = forms.ChoiceField(
        label=_("action"), choices=(("pause", _("pause")), ("resume", _("resume")), ("limit", _("limit")))
    )
    slots = forms.IntegerField(label=_("slots"), required=False, min_value=1, max_value=MAX_SLOTS)

    def clean_queue(self) -> str:
        try:
            return QUEUE.check("queue", self.cleaned_data["queue"])
        except ValueError as error:
            raise ValidationError(_("Enter a queue name of 1 to 100 printable characters.")) from error

    @property
    def change(self) -> tuple[str, str, int | None]:
        """Return the verb, the queue and the slots."""
        values = self.cleaned_data
        return values["verb"], values["queue"], values["slots"]

    def apply(self, using: str) -> None:
        verb, queue, slots = self.change
        if verb == "limit":
            queues.set_limit(queue, slots, using=using)
        else:
            {"pause": queues.pause, "resume": queues.resume}[verb](queue, using=using)

    def success_message(self) -> str:
        verb, queue, slots = self.change
        if verb == "pause":
            text = gettext("Queue %(name)s was paused. Running jobs continue, and no other jobs are started.")
        elif verb == "resume":
            text = gettext("Queue %(name)s was resumed.")
        elif slots is None:
            text = gettext("The limit of queue %(name)s was removed.")
        else:
            text = ngettext(
                "Queue %(name)s was limited to %(count)s job at once.",
                "Queue %(name)s was limited to %(count)s jobs at once.",
                slots,
            )
        return text % {"name": queue, "count": number(slots or 0)}

    def log_message(self) -> Any:
        """Return the lazy message of the log entry, which names the queue itself."""
        verb, _queue, slots = self.change
        if verb != "limit":
            return {"pause": _("Paused."), "resume": _("Resumed.")}[verb]
        if slots is None:
            return _("Limit removed.")
        text = ngettext_lazy("Limited to {count} job at once.", "Limited to {count} jobs at once.", slots)
        return format_lazy(text, count=slots)

    def error_message(self) -> str:
        field, problems = next(iter(self.errors.items()))
        names = {"field": self.fields[field].label, "problem": problems[0]}
        return gettext("Nothing was changed. %(field)s: %(problem)s") % names


#: The number of alerts of one kind; a last one counts the others.
MAX_ALERTS_PER_KIND = 3


@dataclass(frozen=True)
class Dashboard:
    """The context of the dashboard's template.

    ``throughput``: None if jobs are hidden from the user, to whom workers and the database are then not shown either.
    """

    now: datetime
    overview: Overview
    throughput: Throughput | None
    alerts: tuple[Problem, ...]
    periods: tuple[charts.Period, ...]
    queues: Table[QueueFacts]
    types: Table[TypeFacts]
    #: Only models of which the user may see all records.
    records: Table[RecordRow]
    #: The next ticks, unless the user may see no schedule, or there are no ticks and no problems: then None.
    ticks: tuple[NextTick, ...] | None
    failing: Table[FailingType]
    slow: Table[TypeRuns]
    workers: Table[WorkerFacts]
    pools: Table[tuple[WorkerFacts, PoolState]]
    #: The names of the queues that are shown and that the user may change.
    changeable_queues: frozenset[str]
    #: Whether the user may change any other queue by name.
    may_change_any_queue: bool
    #: The number of failed jobs and attempts that were read, newest first.
    failed_limit: int = MAX_FAILED

    @property
    def is_whole(self) -> bool:
        """Whether the user sees all jobs."""
        return self.throughput is not None

    @property
    def is_empty(self) -> bool:
        """Whether there are no workers, no jobs and no throughput, as in a new installation."""
        return not (self.overview.workers or self.overview.types or (self.throughput and self.throughput.types))

    @property
    def is_capped(self) -> bool:
        """Whether counting the jobs of a queue that is shown stopped at the limit."""
        return any(queue.is_capped for queue in self.queues.rows)


@dataclass(frozen=True)
class TooSlow:
    """Replaces the dashboard if the queries exceed their time limit of a number of seconds."""

    seconds: str


class DashboardAdmin(ReadOnlyAdmin):
    """Adds the dashboard to the admin class of jobs."""

    def has_dashboard_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may view the dashboard, which counts only visible jobs."""
        return self.has_view_permission(request)

    def visible_queues(self, request: HttpRequest) -> Collection[str] | None:
        """Return the names of the queues that the dashboard shows to this user, or None for all.

        By default, users from whom jobs are hidden see none. Whether the user may change a queue is decided by
        ``may(request, "change_queuestate", queue)``.
        """
        return None if self.sees_all_rows(request) else ()

    def get_urls(self) -> list[URLPattern]:
        def url(route: str, view: Callable[[HttpRequest], HttpResponseBase], name: str) -> URLPattern:
            return path(route, self.admin_site.admin_view(view), name=f"django_jobchains_{name}")

        return [
            url("dashboard/", self.dashboard_view, "dashboard"),
            url("dashboard/queue/", self.queue_view, "change_queue"),
            *super().get_urls(),
        ]

    def dashboard(self, request: HttpRequest) -> Dashboard | TooSlow:
        using = get_settings().DATABASE
        try:
            with time_limit(using):
                return self._read(request, using)
        except TimeLimitExceeded:
            return TooSlow(number(int(QUERY_SECONDS)))

    def _read(self, request: HttpRequest, using: str) -> Dashboard:
        visibility = self.visibility(request)
        is_whole = visibility.sees_all(Job)
        failures: dict[str, Failures] = {}
        if not is_whole or self.decides_by_row():
            failures = visible_failures(visibility, using)
        found = overview(using) if is_whole else visible_overview(visibility, failures, using)
        if is_whole and self.decides_by_row():
            found = replace(found, failing=failing_types(failures, using))
        ended = throughput(using) if is_whole else None
        records = record_overview(using, is_counted=partial(is_counted, self.admin_site, request))
        shown = self.visible_queues(request)
        queues = [queue for queue in found.queues if shown is None or queue.name in shown]
        schedules: ScheduleQuerySet = visibility.rows(Schedule)  # type: ignore[assignment]
        troubled = visibility.seen(troubled_schedules(schedules))
        ticks = _next_ticks(schedules, visibility, using)
        problems = find_problems(found, records, queues, troubled)
        workers = found.workers if is_whole else ()
        queue_table = important_rows(queues, lambda queue: (not queue.is_paused, -queue.due))
        return Dashboard(
            now=ended.now if ended else get_store(using).stats.time_ago(0),
            overview=found,
            throughput=ended,
            alerts=tuple(summarized(problems if is_whole else about_jobs(problems), MAX_ALERTS_PER_KIND)),
            periods=(charts.last_hour(ended.minutes), charts.last_day(ended.hours)) if ended else (),
            queues=queue_table,
            types=important_rows(
                [kind for kind in found.types if kind.has_jobs], lambda kind: (bool(kind.workers), -kind.due)
            ),
            records=first_rows(record_rows(records, found, self.admin_site)),
            ticks=ticks if ticks or troubled else None,
            failing=first_rows([_shown(kind, visibility, failures) for kind in found.failing]),
            slow=first_rows(ended.types if ended else (), MAX_SLOW),
            workers=important_rows(workers, lambda worker: (not worker.is_stale, not worker.stuck)),
            pools=important_rows(
                [(worker, pool) for worker in workers if not worker.is_stale for pool in worker.pools],
                lambda pair: (pair[1].state not in ("cannot_start", "in_threads"), not pair[1].is_saturated),
            ),
            changeable_queues=frozenset(
                queue.name for queue in queue_table.rows if self._may_change_queue(request, queue.name)
            ),
            may_change_any_queue=shown is None and self.may(request, "change_queuestate"),
        )

    def _may_change_queue(self, request: HttpRequest, name: str) -> bool:
        shown = self.visible_queues(request)
        queue = QueueState(name=name)
        return (shown is None or name in shown) and self.may(request, "change_queuestate", queue)

    def dashboard_view(self, request: HttpRequest) -> HttpResponse:
        """Return the part of the page that is refreshed."""
        if not self.has_dashboard_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        dashboard = self.dashboard(request)
        # After an error, the page keeps its content and tries to refresh again later.
        status = 503 if isinstance(dashboard, TooSlow) else 200
        return TemplateResponse(
            request, "admin/django_jobchains/dashboard.html", {"dashboard": dashboard}, status=status
        )

    def queue_view(self, request: HttpRequest) -> HttpResponse:
        """Change a queue. Its name is sent with the form, because some names cannot be part of a URL."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_dashboard_permission(request) and self.may(request, "change_queuestate")):
            raise PermissionDenied
        form = QueueChangeForm(request.POST)
        if form.is_valid():
            if not self._may_change_queue(request, form.cleaned_data["queue"]):
                raise PermissionDenied
            self._change_queue(request, form)
        else:
            messages.error(request, form.error_message())
        site = self.admin_site.name
        return redirect(reverse("admin:app_list", kwargs={"app_label": self.opts.app_label}, current_app=site))

    def _change_queue(self, request: HttpRequest, form: QueueChangeForm) -> None:
        using, (verb, name, _slots) = get_settings().DATABASE, form.change
        with transaction.atomic(using=using):
            form.apply(using)
            queue = QueueState.objects.using(using).get(pk=name)
            log_change(request, [queue], form.log_message(), verb=f"{verb} queue")
        messages.success(request, form.success_message())


def _next_ticks(schedules: ScheduleQuerySet, visibility: Visibility, using: str) -> tuple[NextTick, ...]:
    """Return the next ticks of visible schedules, earliest first."""
    active = schedules.in_state(Schedule.State.ACTIVE, Schedule.State.FAILING).filter(next_tick_at__isnull=False)
    limit = MAX_ROWS if visibility.checks_each_row(Schedule) else MAX_TICKS
    rows = visibility.seen(active.order_by("next_tick_at").defer("input", "last_error")[:limit])
    times = Times(using)
    return tuple(NextTick(row, times.seconds_since(row.next_tick_at)) for row in rows[:MAX_TICKS] if row.next_tick_at)


def _shown(kind: FailingType, visibility: Visibility, failures: dict[str, Failures]) -> FailingType:
    """Return a failing type with its last error as the user may see it."""
    payloads = visibility.payloads(*([failures[kind.name].last_job] if kind.name in failures else []))
    return replace(kind, last_error=payloads.error_line(kind.last_error))
