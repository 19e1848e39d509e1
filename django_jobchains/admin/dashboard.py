"""The index of the app: how it goes, what needs a person, and queues to pause, resume and limit."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext

from django_jobchains.admin import audit, charts, facts
from django_jobchains.admin.attention import Concern, concerns
from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.payloads import Payloads
from django_jobchains.admin.queue_changes import QueueChange, QueueChangeForm
from django_jobchains.admin.reading import READ_SECONDS, TookTooLong, bounded
from django_jobchains.admin.visibility import Visibility
from django_jobchains.admin.visible_figures import Failures, failing_types, visible_failures, visible_overview
from django_jobchains.admin.words import age, number
from django_jobchains.conf import get_settings
from django_jobchains.models import Job, QueueState
from django_jobchains.overview import Overview, QueueFacts, overview
from django_jobchains.store import MOST_FAILED, get_store
from django_jobchains.throughput import Throughput, throughput

#: Between two looks of a page that refreshes itself.
REFRESH_SECONDS = 10


@dataclass(frozen=True)
class Figure:
    name: str
    value: str


@dataclass(frozen=True)
class Dashboard:
    """What its template shows."""

    now: datetime
    concerns: tuple[Concern, ...]
    #: No worker was ever started, it seems, and no job enqueued.
    is_empty: bool
    has_workers: bool
    figures: tuple[Figure, ...]
    periods: tuple[charts.Period, ...]
    queues: facts.Table[facts.QueueRow]
    types: facts.Table[facts.TypeRow]
    failing: facts.Table[facts.FailingRow]
    slow: facts.Table[facts.SlowRow]
    workers: facts.Table[facts.WorkerRow]
    database: tuple[Figure, ...]
    #: Whether there are more queues and types than were looked at, and how far the jobs of each are counted.
    is_complete: bool
    is_capped: bool
    count_to: str
    #: Of the failed jobs and attempts those that were looked at, the newest.
    most_failed: str
    #: Whether the user sees all jobs; if not, nothing is shown of throughput, workers and the database.
    is_whole: bool
    #: Whether there is a queue that the user may change, and whether all other queues may be changed by name.
    may_change_queues: bool
    may_change_any_queue: bool


@dataclass(frozen=True)
class TooSlow:
    """In place of a dashboard: the database did not find what it shows in so many seconds."""

    seconds: str


class Dashboards(ReadOnlyAdmin):
    """For the class of jobs."""

    def has_dashboard_permission(self, request: HttpRequest) -> bool:
        """Return whether the user sees the dashboard, which counts only jobs that the user may see."""
        return self.has_view_permission(request)

    def visible_queues(self, request: HttpRequest) -> Collection[str] | None:
        """Return the names of the queues that the dashboard shows to this user; None: all.

        By default a user from whom jobs are hidden sees none. Who may change a queue that is shown is decided by
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
            with bounded(using):
                return self._read(request, using)
        except TookTooLong:
            return TooSlow(number(int(READ_SECONDS)))

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
        )

    def _may_change_queue(self, request: HttpRequest, name: str) -> bool:
        shown = self.visible_queues(request)
        queue = QueueState(name=name)
        return (shown is None or name in shown) and self.may(request, "change_queuestate", queue)

    def dashboard_view(self, request: HttpRequest) -> HttpResponse:
        """The part of the page that is refreshed."""
        if not self.has_dashboard_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name  # for the links of the template
        dashboard = self.dashboard(request)
        # With an error a page that refreshes itself keeps what it shows, and tries again later.
        status = 503 if isinstance(dashboard, TooSlow) else 200
        return TemplateResponse(
            request, "admin/django_jobchains/dashboard.html", {"dashboard": dashboard}, status=status
        )

    def queue_view(self, request: HttpRequest) -> HttpResponse:
        """Its name comes with the form: in an address it could not have all the letters it may have."""
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
            messages.error(request, form.refusal())
        site = self.admin_site.name
        return redirect(reverse("admin:app_list", kwargs={"app_label": self.opts.app_label}, current_app=site))

    def _change_queue(self, request: HttpRequest, change: QueueChange) -> None:
        using = get_settings().DATABASE
        with transaction.atomic(using=using):
            change.make(using)
            queue = QueueState.objects.using(using).get(pk=change.queue)
            audit.log(request, [queue], change.logged(), verb=f"{change.verb} queue")
        messages.success(request, change.told())


def _payloads_of(visibility: Visibility, failures: Mapping[str, Failures], type_name: str) -> Payloads:
    """Return what shows the last error of a type."""
    return visibility.payloads(*([failures[type_name].last_job] if type_name in failures else []))


def _dashboard(
    found: Overview,
    ended: Throughput | None,
    queues: Sequence[QueueFacts],
    may_change: Callable[[str], bool],
    *,
    may_change_any: bool,
    payloads_of: Callable[[str], Payloads],
) -> Dashboard:
    """``ended`` None: the user does not see all jobs."""
    counts, is_whole = facts.Counts(found), ended is not None
    table = facts.queue_table(queues, counts, may_change)
    return Dashboard(
        now=ended.now if ended else get_store(found.database.alias).time_ago(0),
        concerns=concerns(found, queues, is_whole=is_whole),
        is_empty=not (found.workers or found.types or (ended and ended.types)),
        has_workers=any(not worker.is_stale for worker in found.workers),
        figures=_figures(found, ended, counts),
        periods=(charts.last_hour(ended.minutes), charts.last_day(ended.hours)) if ended else (),
        queues=table,
        types=facts.type_table(found, counts),
        failing=facts.failing_table(found.failing, payloads_of),
        slow=facts.slow_table(ended.types if ended else ()),
        workers=facts.worker_table(found.workers if is_whole else ()),
        database=_database(found) if is_whole else (),
        is_complete=found.is_complete,
        is_capped=any(queue.is_capped for queue in queues),
        count_to=number(found.count_to),
        most_failed=number(MOST_FAILED),
        is_whole=is_whole,
        may_change_queues=any(row.may_change for row in table.rows),
        may_change_any_queue=may_change_any,
    )


def _figures(found: Overview, ended: Throughput | None, counts: facts.Counts) -> tuple[Figure, ...]:
    oldest = found.oldest_due_age_seconds
    figures = (
        Figure(gettext("jobs due"), counts.all_due()),
        Figure(gettext("oldest due for"), "–" if oldest is None else age(oldest)),
    )
    return figures + _figures_of_workers(found, ended) if ended else figures


def _figures_of_workers(found: Overview, ended: Throughput) -> tuple[Figure, ...]:
    alive = [worker for worker in found.workers if not worker.is_stale]
    busy, slots = sum(worker.busy for worker in alive), sum(worker.slots for worker in alive)
    of_slots = {"busy": number(busy), "slots": number(slots)}
    return (
        Figure(gettext("workers"), number(len(alive))),
        Figure(gettext("slots busy"), gettext("%(busy)s of %(slots)s") % of_slots),
        Figure(gettext("completed in the last hour"), number(ended.last_hour.completed)),
        Figure(gettext("failed in the last hour"), number(ended.last_hour.failed)),
    )


def _database(found: Overview) -> tuple[Figure, ...]:
    """What its server says of itself; SQLite has none."""
    database = found.database
    figures = [Figure(gettext("database"), f"{database.alias} ({database.vendor})")]
    if database.oldest_transaction_seconds is not None:
        figures.append(Figure(gettext("oldest transaction"), age(database.oldest_transaction_seconds)))
    if database.connections is not None and database.most_connections is not None:
        used = {"used": number(database.connections), "most": number(database.most_connections)}
        figures.append(Figure(gettext("connections"), gettext("%(used)s of %(most)s") % used))
    return tuple(figures)
