"""The dashboard on the index of the app: alerts, figures, tables, and forms to change queues."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext

from django_jobchains.admin.actions import audit
from django_jobchains.admin.base import QUERY_SECONDS, ReadOnlyAdmin, TimeLimitExceeded, time_limit
from django_jobchains.admin.dashboard import charts, tables
from django_jobchains.admin.dashboard.alerts import Alert, find_alerts
from django_jobchains.admin.dashboard.queue_changes import QueueChange, QueueChangeForm
from django_jobchains.admin.dashboard.record_workers import RecordWorkerRow, record_worker_table
from django_jobchains.admin.dashboard.visible_figures import Failures, failing_types, visible_failures, visible_overview
from django_jobchains.admin.payload_display import Payloads
from django_jobchains.admin.records.record_admin import is_counted
from django_jobchains.admin.visibility import Visibility
from django_jobchains.conf import get_settings
from django_jobchains.models import Job, QueueState
from django_jobchains.monitoring import (
    Overview,
    QueueFacts,
    RecordFacts,
    Throughput,
    overview,
    record_overview,
    throughput,
)
from django_jobchains.store import MAX_FAILED, get_store
from django_jobchains.text.humanize import age, number


@dataclass(frozen=True)
class Figure:
    name: str
    value: str


@dataclass(frozen=True)
class Dashboard:
    """The context of the dashboard's template."""

    now: datetime
    alerts: tuple[Alert, ...]
    #: Whether there are no workers, no jobs and no throughput, as in a new installation.
    is_empty: bool
    has_workers: bool
    figures: tuple[Figure, ...]
    periods: tuple[charts.Period, ...]
    queues: tables.Table[tables.QueueRow]
    types: tables.Table[tables.TypeRow]
    #: Only models of which the user may see all records.
    records: tables.Table[RecordWorkerRow]
    failing: tables.Table[tables.FailingRow]
    slow: tables.Table[tables.SlowRow]
    workers: tables.Table[tables.WorkerRow]
    pools: tables.Table[tables.PoolRow]
    database: tuple[Figure, ...]
    #: Whether all queues and types were counted.
    is_complete: bool
    #: Whether counting stopped at the limit.
    is_capped: bool
    count_limit: str
    #: The number of failed jobs and attempts that were read, newest first.
    failed_limit: str
    #: Whether the user sees all jobs. Otherwise, throughput, workers and the database are not shown.
    is_whole: bool
    #: Whether the user may change a queue that is shown, and any other queue by name.
    may_change_queues: bool
    may_change_any_queue: bool


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
        shown = self.visible_queues(request)
        return _dashboard(
            found,
            throughput(using) if is_whole else None,
            queues=[queue for queue in found.queues if shown is None or queue.name in shown],
            may_change=partial(self._may_change_queue, request),
            may_change_any=shown is None and self.may(request, "change_queuestate"),
            payloads_of=partial(_payloads_of, visibility, failures),
            records=record_overview(using, is_counted=partial(is_counted, self.admin_site, request)),
            site=self.admin_site,
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
            if not self._may_change_queue(request, form.change().queue):
                raise PermissionDenied
            self._change_queue(request, form.change())
        else:
            messages.error(request, form.error_message())
        site = self.admin_site.name
        return redirect(reverse("admin:app_list", kwargs={"app_label": self.opts.app_label}, current_app=site))

    def _change_queue(self, request: HttpRequest, change: QueueChange) -> None:
        using = get_settings().DATABASE
        with transaction.atomic(using=using):
            change.apply(using)
            queue = QueueState.objects.using(using).get(pk=change.queue)
            audit.log(request, [queue], change.log_message(), verb=f"{change.verb} queue")
        messages.success(request, change.success_message())


def _payloads_of(visibility: Visibility, failures: Mapping[str, Failures], type_name: str) -> Payloads:
    """Return the formatter for the last error of a type."""
    return visibility.payloads(*([failures[type_name].last_job] if type_name in failures else []))


def _dashboard(
    found: Overview,
    ended: Throughput | None,
    queues: Sequence[QueueFacts],
    may_change: Callable[[str], bool],
    *,
    may_change_any: bool,
    payloads_of: Callable[[str], Payloads],
    records: Sequence[RecordFacts],
    site: AdminSite,
) -> Dashboard:
    """Build the dashboard. ``ended`` is None if jobs are hidden from the user."""
    counts, is_whole = tables.Counts(found), ended is not None
    workers = {kind.name: kind.workers for kind in found.types}
    table = tables.queue_table(queues, counts, may_change)
    return Dashboard(
        now=ended.now if ended else get_store(found.database.alias).stats.time_ago(0),
        alerts=find_alerts(found, queues, records, is_whole=is_whole),
        is_empty=not (found.workers or found.types or (ended and ended.types)),
        has_workers=any(not worker.is_stale for worker in found.workers),
        figures=_figures(found, ended, counts),
        periods=(charts.last_hour(ended.minutes), charts.last_day(ended.hours)) if ended else (),
        queues=table,
        types=tables.type_table(found, counts),
        records=record_worker_table(records, workers, site),
        failing=tables.failing_table(found.failing, payloads_of),
        slow=tables.slow_table(ended.types if ended else ()),
        workers=tables.worker_table(found.workers if is_whole else ()),
        pools=tables.pool_table(found.workers if is_whole else ()),
        database=_database(found) if is_whole else (),
        is_complete=found.is_complete,
        is_capped=any(queue.is_capped for queue in queues),
        count_limit=number(found.count_to),
        failed_limit=number(MAX_FAILED),
        is_whole=is_whole,
        may_change_queues=any(row.may_change for row in table.rows),
        may_change_any_queue=may_change_any,
    )


def _figures(found: Overview, ended: Throughput | None, counts: tables.Counts) -> tuple[Figure, ...]:
    oldest = found.oldest_due_age_seconds
    figures = (
        Figure(gettext("due jobs"), counts.all_due()),
        Figure(gettext("oldest due job"), "–" if oldest is None else age(oldest)),
    )
    return figures + _worker_figures(found, ended) if ended else figures


def _worker_figures(found: Overview, ended: Throughput) -> tuple[Figure, ...]:
    alive = [worker for worker in found.workers if not worker.is_stale]
    busy, slots = sum(worker.busy for worker in alive), sum(worker.slots for worker in alive)
    of_slots = {"busy": number(busy), "slots": number(slots)}
    return (
        Figure(gettext("workers"), number(len(alive))),
        Figure(gettext("busy slots"), gettext("%(busy)s of %(slots)s") % of_slots),
        Figure(gettext("completed in the last hour"), number(ended.last_hour.completed)),
        Figure(gettext("failed in the last hour"), number(ended.last_hour.failed)),
    )


def _database(found: Overview) -> tuple[Figure, ...]:
    """Return figures of the database. SQLite has no server figures."""
    database = found.database
    figures = [Figure(gettext("database"), f"{database.alias} ({database.vendor})")]
    if database.oldest_transaction_seconds is not None:
        figures.append(Figure(gettext("oldest transaction"), age(database.oldest_transaction_seconds)))
    if database.connections is not None and database.max_connections is not None:
        used = {"used": number(database.connections), "limit": number(database.max_connections)}
        figures.append(Figure(gettext("connections"), gettext("%(used)s of %(limit)s") % used))
    return tuple(figures)
