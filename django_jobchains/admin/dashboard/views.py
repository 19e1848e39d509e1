"""The dashboard: alerts, figures, charts, tables, and forms to change queues; and the pages of types and queues.

The tables are facts, up to a limited number of rows, which templates format.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from django import forms
from django.apps import apps
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_jobchains import queues
from django_jobchains.admin.actions.action import log_change
from django_jobchains.admin.base import FiguresAdmin, show_problem, url_with
from django_jobchains.admin.dashboard import charts
from django_jobchains.admin.dashboard.access import DashboardAccess, access_of, may_change_queue, page_url, sees_queue
from django_jobchains.admin.dashboard.visible_figures import Failures, failing_types, visible_failures, visible_overview
from django_jobchains.admin.record_admin import is_counted
from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.conf import current_database
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
from django_jobchains.monitoring.durations import PART_SIZE, Durations, durations, ended_jobs
from django_jobchains.monitoring.facts import MAX_RUNNING, label_inputs, longest_running, troubled_schedules
from django_jobchains.monitoring.problems import Problem, about_jobs, find_problems, summarized
from django_jobchains.monitoring.throughput import WEEK_HOURS, hourly_totals
from django_jobchains.store import get_store
from django_jobchains.store.stats import MAX_FAILED
from django_jobchains.text.humanize import number
from django_jobchains.values import QUEUE

#: The number of rows of a table.
MAX_ROWS = 100
#: The number of slowest types, and of next ticks.
MAX_SLOW = MAX_TICKS = 10
#: The number of running jobs that are shown.
MAX_RUNNING_ROWS = 10
#: The number of alerts that are shown; the others are folded.
MAX_ALERTS = 4

_FOLDER = "admin/django_jobchains/"

RowT = TypeVar("RowT")
FactsT = TypeVar("FactsT", TypeFacts, QueueFacts)


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
class RunningRow:
    """A running job. ``seconds``: since it was claimed. ``label``: see ``JobType``."""

    job: Job
    seconds: float
    label: str

    @property
    def step(self) -> int:
        return self.job.chain_index + 1


@dataclass(frozen=True)
class NextTick:
    """The next tick of a schedule. ``seconds``: since the tick, negative for one in the future."""

    schedule: Schedule
    time: datetime
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


def running_rows(visibility: Visibility, jobs: QuerySet[Job], limit: int) -> Table[RunningRow]:
    """Return the running ones of some jobs that the user may see, longest first."""
    found = longest_running(jobs.defer(*LARGE), MAX_RUNNING)
    seen = {job.pk for job in visibility.seen([job for job, _seconds in found])}
    table = first_rows([(job, seconds) for job, seconds in found if job.pk in seen], limit)
    inputs = label_inputs([job for job, _seconds in table.rows], current_database())
    rows = [
        RunningRow(job, seconds, visibility.payloads(job).label(job.type_name, inputs.get(job.pk)))
        for job, seconds in table.rows
    ]
    return Table(tuple(rows), table.more)


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


#: The number of alerts of one kind; a last one counts the others.
MAX_ALERTS_PER_KIND = 3


@dataclass(frozen=True)
class DashboardFacts:
    """The context of the dashboard's template.

    ``throughput``: None if jobs are hidden from the user, to whom workers and the database are then not shown either.
    """

    now: datetime
    overview: Overview
    throughput: Throughput | None
    alerts: tuple[Problem, ...]
    period: charts.Period | None
    running: Table[RunningRow]
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
    def first_alerts(self) -> tuple[Problem, ...]:
        return self.alerts[:MAX_ALERTS]

    @property
    def more_alerts(self) -> tuple[Problem, ...]:
        return self.alerts[MAX_ALERTS:]

    @property
    def is_of_week(self) -> bool:
        return self.throughput is not None and len(self.throughput.hours) == WEEK_HOURS

    @property
    def is_empty(self) -> bool:
        """Whether there are no workers, no jobs and no throughput, as in a new installation."""
        return not (self.overview.workers or self.overview.types or (self.throughput and self.throughput.types))

    @property
    def is_capped(self) -> bool:
        """Whether counting the jobs of a queue that is shown stopped at the limit."""
        return any(queue.is_capped for queue in self.queues.rows)


@dataclass(frozen=True)
class SubjectFacts:
    """The context of the page of a type or of a queue.

    ``failing``: the type itself, if it is failing. ``period``: None if jobs are hidden from the user. ``durations``: of
    the jobs that ended in the range of time, for each type. ``is_sample``: whether these are only some of them.
    """

    kind: Literal["type", "queue"]
    now: datetime
    overview: Overview
    facts: TypeFacts | QueueFacts
    failing: Table[FailingType]
    period: charts.Period | None
    running: Table[RunningRow]
    durations: list[Durations]
    is_sample: bool
    is_of_week: bool
    is_changeable: bool = False
    part_size: int = PART_SIZE
    failed_limit: int = MAX_FAILED


@dataclass(frozen=True)
class _Figures:
    """What the pages have in common. ``failures``: the visible failed attempts by type, if they were read."""

    using: str
    visibility: Visibility
    is_whole: bool
    failures: dict[str, Failures]
    overview: Overview

    def failing(self, kind: FailingType) -> FailingType:
        """Return a failing type with its last error as the user may see it."""
        rows = [self.failures[kind.name].last_job] if kind.name in self.failures else []
        return replace(kind, last_error=self.visibility.payloads(*rows).error_line(kind.last_error))

    def running(self, **which: str) -> Table[RunningRow]:
        """Return the visible running jobs, of a type or a queue."""
        return running_rows(self.visibility, self.visibility.rows(Job).filter(**which), MAX_RUNNING_ROWS)

    def period(self, range_: str, **which: str) -> tuple[charts.Period | None, datetime]:
        """Return the charts of a type or queue, and the database's time."""
        if not self.is_whole:
            return None, get_store(self.using).stats.time_ago(0)
        hours, now = hourly_totals(self.using, charts.RANGES[range_], **which)
        return charts.period_of(range_, (), hours), now

    def durations(self, column: str, name: str, range_: str, now: datetime) -> dict[str, Any]:
        """Return the durations of the visible jobs that ended in a range of time."""
        hours = charts.RANGES[range_]
        rows = self.visibility.rows(Job).defer(*LARGE)
        jobs, is_sample = ended_jobs(rows, column, name, now - timedelta(hours=hours), now)
        is_sample = is_sample and not self.visibility.checks_each_row(Job)  # It would reveal the number of hidden ones.
        found = durations(self.visibility.seen(jobs))
        return {"durations": found, "is_sample": is_sample, "is_of_week": hours == WEEK_HOURS}


class DashboardPages(FiguresAdmin):
    """The dashboard, and the pages of types and queues. The site's admin class of jobs decides what users see."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        access = access_of(self.admin_site)
        return access is not None and access.has_dashboard_permission(request)

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page_path("", self.dashboard_view, "dashboard_changelist"),
            self.page_path("type/", self.type_view, "dashboard_type"),
            self.page_path("queue/", self.queue_view, "dashboard_queue"),
            self.page_path("change-queue/", self.change_queue_view, "change_queue"),
        ]

    def dashboard_view(self, request: HttpRequest) -> HttpResponse:
        return self._page(request, self.read, "hour", f"{_FOLDER}dashboard.html", {"title": _("Dashboard")})

    def type_view(self, request: HttpRequest) -> HttpResponse:
        """Show a type. A type that has no visible jobs looks like one that does not exist."""
        return self._subject_page(request, self.read_type, gettext("Type %(name)s"))

    def queue_view(self, request: HttpRequest) -> HttpResponse:
        return self._subject_page(request, self.read_queue, gettext("Queue %(name)s"))

    def _subject_page(
        self, request: HttpRequest, read: Callable[[HttpRequest, str], SubjectFacts], title: str
    ) -> HttpResponse:
        name = request.GET.get("name", "")
        if not name or "\0" in name:
            raise Http404
        return self._page(
            request, read, "day", f"{_FOLDER}subject.html", {"title": title % {"name": name}, "name": name}
        )

    def _page(
        self,
        request: HttpRequest,
        read: Callable[[HttpRequest, str], DashboardFacts | SubjectFacts],
        first_range: str,
        template: str,
        context: dict[str, Any],
    ) -> HttpResponse:
        """Return a page with a choice of the time range. ``first_range``: the shortest one, which is the default."""
        texts = {"hour": gettext("1 hour"), "day": gettext("24 hours"), "week": gettext("7 days")}
        names = list(texts)[list(texts).index(first_range) :]
        chosen = request.GET.get("range", "")
        chosen = chosen if chosen in names else first_range
        ranges = [(texts[name], url_with(request, range=name), name == chosen) for name in names]
        return self.figures_page(request, partial(read, request, chosen), template, {"ranges": ranges, **context})

    def _figures(self, request: HttpRequest) -> _Figures:
        using, visibility = current_database(), self.visibility(request)
        access = self._access
        is_whole = visibility.sees_all(Job)
        failures: dict[str, Failures] = {}
        if not is_whole or access.decides_by_row():
            failures = visible_failures(visibility, using)
        found = overview(using) if is_whole else visible_overview(visibility, failures, using)
        if is_whole and access.decides_by_row():
            found = replace(found, failing=failing_types(failures, using))
        return _Figures(using, visibility, is_whole, failures, found)

    def read(self, request: HttpRequest, range_: str) -> DashboardFacts:
        figures = self._figures(request)
        using, visibility, is_whole, found = figures.using, figures.visibility, figures.is_whole, figures.overview
        ended = throughput(using, hours=charts.RANGES[range_]) if is_whole else None
        records = record_overview(using, is_counted=partial(is_counted, self.admin_site, request))
        shown = self._access.visible_queues(request)
        queues = [queue for queue in found.queues if shown is None or queue.name in shown]
        schedules: ScheduleQuerySet = visibility.rows(Schedule)  # type: ignore[assignment]
        troubled = visibility.seen(troubled_schedules(schedules))
        ticks = _next_ticks(schedules, visibility, using)
        problems = find_problems(found, records, queues, troubled)
        workers = found.workers if is_whole else ()
        queue_table = important_rows(queues, lambda queue: (not queue.is_paused, -queue.due))
        return DashboardFacts(
            now=ended.now if ended else get_store(using).stats.time_ago(0),
            overview=found,
            throughput=ended,
            alerts=tuple(summarized(problems if is_whole else about_jobs(problems), MAX_ALERTS_PER_KIND)),
            period=charts.period_of(range_, ended.minutes, ended.hours) if ended else None,
            running=figures.running(),
            queues=queue_table,
            types=important_rows(
                [kind for kind in found.types if kind.has_jobs], lambda kind: (bool(kind.workers), -kind.due)
            ),
            records=first_rows(record_rows(records, found, self.admin_site)),
            ticks=ticks if ticks or troubled else None,
            failing=first_rows([figures.failing(kind) for kind in found.failing]),
            slow=first_rows(ended.types if ended else (), MAX_SLOW),
            workers=important_rows(workers, lambda worker: (not worker.is_stale, not worker.stuck)),
            pools=important_rows(
                [(worker, pool) for worker in workers if not worker.is_stale for pool in worker.pools],
                lambda pair: (pair[1].state not in ("cannot_start", "in_threads"), not pair[1].is_saturated),
            ),
            changeable_queues=frozenset(
                queue.name for queue in queue_table.rows if may_change_queue(self._access, request, queue.name)
            ),
            may_change_any_queue=shown is None and self._access.may(request, "change_queuestate"),
        )

    def read_type(self, request: HttpRequest, range_: str) -> SubjectFacts:
        figures, name = self._figures(request), request.GET["name"]
        period, now = figures.period(range_, type_name=name)
        return SubjectFacts(
            kind="type",
            now=now,
            overview=figures.overview,
            facts=_named(figures.overview.types, name) or TypeFacts(name, 0, 0, 0, 0, 0, None, False, 0, 0),
            failing=first_rows([figures.failing(kind) for kind in figures.overview.failing if kind.name == name]),
            period=period,
            running=figures.running(type_name=name),
            **figures.durations("type_name", name, range_, now),
        )

    def read_queue(self, request: HttpRequest, range_: str) -> SubjectFacts:
        name = request.GET["name"]
        if not sees_queue(self._access, request, name):
            raise Http404
        figures = self._figures(request)
        period, now = figures.period(range_, queue=name)
        return SubjectFacts(
            kind="queue",
            now=now,
            overview=figures.overview,
            facts=_named(figures.overview.queues, name) or QueueFacts(name, 0, 0, 0, 0, 0, None, False, False, None),
            failing=first_rows([]),
            period=period,
            running=figures.running(queue=name),
            **figures.durations("queue", name, range_, now),
            is_changeable=may_change_queue(self._access, request, name),
        )

    @property
    def _access(self) -> DashboardAccess:
        access = access_of(self.admin_site)
        if access is None:
            raise PermissionDenied
        return access

    def change_queue_view(self, request: HttpRequest) -> HttpResponseBase:
        """Change a queue that the form names."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self._access.may(request, "change_queuestate")):
            raise PermissionDenied
        form = QueueChangeForm(request.POST)
        if form.is_valid():
            if not may_change_queue(self._access, request, form.cleaned_data["queue"]):
                raise PermissionDenied
            self._change_queue(request, form)
        else:
            show_problem(request, form)
        if form.is_valid() and "from_queue" in request.POST:
            return redirect(page_url(self.admin_site, request, "queue", form.cleaned_data["queue"]))
        return redirect(page_url(self.admin_site, request))

    def _change_queue(self, request: HttpRequest, form: QueueChangeForm) -> None:
        using, (verb, name, _slots) = current_database(), form.change
        with transaction.atomic(using=using):
            form.apply(using)
            queue = QueueState.objects.using(using).get(pk=name)
            log_change(request, [queue], form.log_message(), verb=f"{verb} queue")
        messages.success(request, form.success_message())


def _named(facts: Iterable[FactsT], name: str) -> FactsT | None:
    return next((each for each in facts if each.name == name), None)


def _next_ticks(schedules: ScheduleQuerySet, visibility: Visibility, using: str) -> tuple[NextTick, ...]:
    """Return the next ticks of visible schedules, earliest first."""
    active = schedules.in_state(Schedule.State.ACTIVE, Schedule.State.FAILING).filter(next_tick_at__isnull=False)
    limit = MAX_ROWS if visibility.checks_each_row(Schedule) else MAX_TICKS
    rows = visibility.seen(active.order_by("next_tick_at").defer("input", "last_error")[:limit])
    times = Times(using)
    return tuple(
        NextTick(row, times.aware(row.next_tick_at), times.seconds_since(row.next_tick_at))
        for row in rows[:MAX_TICKS]
        if row.next_tick_at
    )
