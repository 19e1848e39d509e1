"""The pages of a chain and of a job, and their history."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext, ngettext

from django_jobchains.admin.base import (
    FRAGMENT,
    TIME_LIMIT_PAGE,
    ReadOnlyAdmin,
    TimeLimitExceeded,
    integer_parameter,
    log_position,
    parse_uuid,
    time_limit,
    url_with,
)
from django_jobchains.admin.detail import queries
from django_jobchains.admin.detail.graph import graph_of
from django_jobchains.admin.detail.steps import Presenter, TimeScale
from django_jobchains.admin.visibility import LARGE, Visibility, with_current_jobs
from django_jobchains.chains.tree import Step, count_blockers, with_ids
from django_jobchains.conf import current_database
from django_jobchains.context import trace_id_of, trace_url_of
from django_jobchains.models import Chain, Job, Schedule
from django_jobchains.models.jobs import ShownStatus, shown_status
from django_jobchains.statuses import FINAL
from django_jobchains.text.humanize import number, span

#: The number of jobs, counted from the end of the chain, whose entries are in the history of the chain.
MAX_JOBS = 1_000
ENTRIES_ON_PAGE = 100


class DetailAdmin(ReadOnlyAdmin):
    """The base class of both pages."""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        key = self.key_of(unquote(object_id))
        try:
            with time_limit(current_database()):
                found = self.visible_row(request, key)
                if found is None:
                    return self.missing(request, key, object_id)
                if address := self.other_page(request, found):
                    return HttpResponseRedirect(address)
                details = self.details(request, found)
        except TimeLimitExceeded:
            return self.render(request, *TIME_LIMIT_PAGE, status=503)
        return self._page(request, found, {**details, **(extra_context or {})})

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row for Django's own pages, such as the history."""
        return self.visible_row(request, self.key_of(object_id))

    def key_of(self, text: str) -> Any:
        """Return the primary key that a URL contains, or None if no row can have it."""
        return parse_uuid(text)

    def visible_row(self, request: HttpRequest, key: Any) -> Any:
        """Return the row, or None if it does not exist or is hidden from the user."""
        found = self.row(request, key) if key else None
        return next(iter(self.visibility(request).seen([found])), None) if found else None

    def row(self, request: HttpRequest, key: Any) -> Model | None:
        """Return the row if ``get_queryset`` includes it."""
        raise NotImplementedError

    def other_page(self, request: HttpRequest, found: Any) -> str:
        """Return the address of the page that shows the row instead of this one, or an empty string."""
        return ""

    def details(self, request: HttpRequest, found: Any) -> dict[str, Any]:
        """Return the context of the page."""
        raise NotImplementedError

    def missing(self, request: HttpRequest, key: Any, object_id: str) -> HttpResponse:
        """Return the response for a row that does not exist or is hidden."""
        response: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        return response

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show Django's page of the history, with the log entries of related rows."""
        if not self.has_view_permission(request):  # Django checks it for a row that exists.
            raise PermissionDenied
        key = self.key_of(unquote(object_id))
        entries = self.log_entries(key, self.visibility(request)) if key else None
        shown = _history(request, entries) if entries else {}
        return super().history_view(request, object_id, {**shown, **(extra_context or {})})

    def log_entries(self, key: Any, visibility: Visibility) -> Q | None:
        """Return the condition for the log entries of a row, or None if the user may not see the row."""
        raise NotImplementedError

    def _page(self, request: HttpRequest, found: Model, details: Mapping[str, Any]) -> HttpResponse:
        folder = f"admin/django_jobchains/{self.opts.model_name}"
        context = {
            "original": found,
            "detail_template": f"{folder}/detail.html",
            "refresh_url": url_with(request, **{FRAGMENT: 1}) if details["is_open"] else "",
            **details,
        }
        page = self.change_form_template or f"{folder}/change_form.html"
        part = "admin/django_jobchains/detail_part.html"
        return self.render(request, part if FRAGMENT in request.GET else page, context)

    def job_details(
        self, request: HttpRequest, presenter: Presenter, found: Job, chain: Chain | None
    ) -> dict[str, Any]:
        """Return what the page of a job, or of a chain with one step, shows about a job from ``queries.whole_jobs``."""
        visibility = self.visibility(request)
        count = chain.current_job.chain_index + 1 if chain else found.chain_index + 1
        attempts = queries.last_attempts(found.id, integer_parameter(request, "attempts", 1))
        lines = queries.last_lines(found.id, queries.LINES_PER_PAGE, log_position(request))
        blockers = queries.blockers(found.id, integer_parameter(request, "blockers", 0), visibility)
        step = Step(found, attempts=list(attempts.rows), blockers=list(blockers.rows))
        count_blockers({found.id: step}, current_database())
        trace_id = trace_id_of(getattr(found, "context_text", None))
        is_only_step = chain is not None and count == 1
        scale = TimeScale([step], presenter.timestamps) if is_only_step else None
        return {
            "job": found,
            "chain": chain,
            "chain_url": presenter.url("chain", found.chain_id) if chain else "",
            "is_only_step": is_only_step,
            "deduplication_key": found.deduplication_key if chain else None,
            "is_open": found.status not in FINAL,
            "step": presenter.step(step, count, queries.progress([found.id]).get(found.id), scale),
            "step_count": number(count),
            "error": presenter.payloads_of(found).error_line(found.error_text),  # type: ignore[attr-defined]
            "context": presenter.stored(found, "context"),
            # A trace id is not a payload.
            "trace_id": trace_id,
            "trace_url": trace_url_of(trace_id),
            "leased_until": presenter.timestamps.timestamp(found.leased_until),
            "expired": presenter.timestamps.timestamp(found.expires_at if found.is_expired else None),
            "cancel_requested": presenter.timestamps.timestamp(None if found.is_expired else found.cancel_requested_at),
            "earlier_attempts_url": url_with(request, attempts=attempts.next) if attempts.next else "",
            "is_earlier_attempts": "attempts" in request.GET,
            "lines": presenter.lines(found, lines.rows),
            "earlier_lines_url": url_with(request, log=f"{lines.next[0]}.{lines.next[1]}") if lines.next else "",
            "is_earlier_lines": "log" in request.GET,
            "more_blockers_url": f"{url_with(request, blockers=blockers.next)}#blockers" if blockers.next else "",
            **_schedule_of(found, visibility, presenter),
            **_failure_links([found], visibility, presenter),
        }

    def presenter(self, request: HttpRequest, *rows: Model) -> Presenter:
        return Presenter(self.visibility(request), *rows)


class ChainDetailAdmin(DetailAdmin):
    def row(self, request: HttpRequest, key: Any) -> Chain | None:
        return with_ids(with_current_jobs(self.get_queryset(request)), [key]).first()

    def missing(self, request: HttpRequest, key: Any, object_id: str) -> HttpResponse:
        """Redirect from the id of a job to its chain."""
        job = self.visibility(request).jobs([key]).get(key) if key else None
        if job and self.visible_row(request, job.chain_id):
            return HttpResponseRedirect(f"{self.presenter(request).url('chain', job.chain_id)}#step-{key}")
        return super().missing(request, key, object_id)

    def details(self, request: HttpRequest, found: Chain) -> dict[str, Any]:
        visibility, presenter = self.visibility(request), self.presenter(request, found)
        count = found.current_job.chain_index + 1
        only = queries.visible_job(found.id, visibility) if count == 1 else None
        if only:
            steps = queries.steps(found, [range(1)], visibility)
            return {
                "title": titled(gettext("Chain %(type)s") % {"type": found.type_name}, presenter.label(only)),
                "detail_template": "admin/django_jobchains/job/detail.html",
                **self.job_details(request, presenter, only, found),
                **self._related_chains(request, found, steps, presenter),
                "actions": self.actions_for(request, found, found.current_job),
            }
        ranges = _shown_ranges(count, integer_parameter(request, "from", 1, count))
        steps = queries.steps(found, ranges, visibility)
        current = steps.get(found.current_job_id)
        is_job_hidden = current is None and found.current_job_id in visibility.hidden_jobs([found.current_job_id])
        first = steps.get(found.id)
        lines = () if is_job_hidden else queries.last_lines(found.current_job_id, queries.LINES_OF_CURRENT_STEP).rows
        return {
            "title": titled(
                gettext("Chain %(type)s") % {"type": found.type_name}, presenter.label(first.job) if first else ""
            ),
            "chain": found,
            "job": None if is_job_hidden else found.current_job,
            "deduplication_key": found.deduplication_key,
            "is_open": found.status not in FINAL,
            "status": shown_status(found.current_job, presenter.timestamps),
            "created": presenter.timestamps.timestamp(found.created_at),
            "finished": presenter.timestamps.timestamp(found.finished_at),
            "took": span(presenter.timestamps.between(found.created_at, found.finished_at) or 0),
            "is_due_shown": not is_job_hidden
            and shown_status(found.current_job, presenter.timestamps) == ShownStatus.SCHEDULED,
            "due": presenter.timestamps.timestamp(found.current_job.run_at),
            "step_count": number(count),
            "items": _items(steps, ranges, count, presenter, request),
            "is_part": len(steps) < count,
            "is_from": "from" in request.GET,
            "all_url": url_with(request, **{"from": None}),
            "context": presenter.stored(current.job, "context") if current else None,
            "lines": presenter.lines(found.current_job, lines),
            "current_url": presenter.url("job", found.current_job_id),
            **self._related_chains(request, found, steps, presenter),
            **_schedule_of(found, visibility, presenter),
            **_failure_links([step.job for step in steps.values()], visibility, presenter),
            "actions": self.actions_for(request, found, found.current_job),
        }

    def log_entries(self, key: Any, visibility: Visibility) -> Q | None:
        """Include the entries of visible jobs, whose ids are read first, because the log may be in another database."""
        if not visibility.chains([key]):
            return None
        jobs = visibility.rows(Job).filter(chain_id=key).order_by("-chain_index").defer(*LARGE)[:MAX_JOBS]
        return entries_of(Chain, [key]) | entries_of(Job, [job.pk for job in visibility.seen(jobs)])

    def _related_chains(
        self, request: HttpRequest, found: Chain, steps: Mapping[UUID, Step], presenter: Presenter
    ) -> dict[str, Any]:
        """Return the graph of blockers and waiting chains, and the list of the latter."""
        dependents = queries.dependents(found.id, parse_uuid(request.GET.get("dependents")), self.visibility(request))
        return {
            "graph": graph_of(found, steps.values(), dependents, presenter),
            "dependents": [
                (presenter.link(row.chain), "" if row.is_job_hidden else presenter.url("job", row.job.id), row)
                for row in dependents.rows
            ],
            "more_dependents_url": url_with(request, dependents=dependents.next) if dependents.next else "",
        }


class JobDetailAdmin(DetailAdmin):
    def row(self, request: HttpRequest, key: Any) -> Job | None:
        job: Job | None = queries.whole_jobs(self.get_queryset(request)).filter(pk=key).first()
        return job

    def other_page(self, request: HttpRequest, found: Job) -> str:
        """Return the page of the chain if it has no other step, because that page shows the same and more."""
        chain = self._chain_of(request, found)
        if chain is None or chain.current_job.chain_index:
            return ""
        query = request.GET.urlencode()
        return self.presenter(request).url("chain", chain.id) + (f"?{query}" if query else "")

    def details(self, request: HttpRequest, found: Job) -> dict[str, Any]:
        presenter, chain = self.presenter(request), self._chain_of(request, found)
        return {
            "title": titled(gettext("Job %(type)s") % {"type": found.type_name}, presenter.label(found)),
            **self.job_details(request, presenter, found, chain),
            "actions": self.actions_for(request, chain, found) if chain else (),
        }

    def _chain_of(self, request: HttpRequest, found: Job) -> Chain | None:
        return self.visibility(request).chains([found.chain_id]).get(found.chain_id)

    def log_entries(self, key: Any, visibility: Visibility) -> Q | None:
        """Include the entries of the chain, whose actions apply to its current job."""
        job = visibility.jobs([key]).get(key)
        if job is None:
            return None
        return entries_of(Job, [key]) | entries_of(Chain, list(visibility.chains([job.chain_id])))


def titled(text: str, label: str) -> str:
    return f"{text} – {label}" if label else text


def _failure_links(jobs: Sequence[Job], visibility: Visibility, presenter: Presenter) -> dict[str, Any]:
    """Return links to the chains that ``on_failure`` started for these jobs, and from such a chain to what failed."""
    started = visibility.chains(queries.failure_chains([job.id for job in jobs]))
    failed = visibility.jobs({job.failed_job_id for job in jobs if job.failed_job_id})
    of_failed = visibility.chains({job.chain_id for job in failed.values()})
    links = [
        replace(
            presenter.link(of_failed[job.chain_id]),
            type_name=job.type_name,
            url=f"{presenter.url('chain', job.chain_id)}#step-{job.id}",
        )
        for job in failed.values()
        if job.chain_id in of_failed
    ]
    return {
        "failure_chains": [presenter.link(chain) for chain in started.values()],
        "failed_job": links[0] if links else None,
    }


def _schedule_of(found: Chain | Job, visibility: Visibility, presenter: Presenter) -> dict[str, Any]:
    """Return the schedule that a chain comes from, with a link if the user may view it, and the tick."""
    name = found.schedule_name
    is_visible = name and visibility.seen(visibility.rows(Schedule).filter(pk=name).defer("input", "last_error"))
    return {
        "schedule_name": name,
        "schedule_url": presenter.url("schedule", name) if is_visible else "",
        "scheduled_for": presenter.timestamps.exact(found.scheduled_for),
    }


def _shown_ranges(count: int, first: int | None) -> list[range]:
    """Return the ranges of step indexes to show: those from the number ``first``, or the first and the last ones."""
    if first is not None:
        return [range(first - 1, min(count, first - 1 + queries.STEPS_PER_PAGE))]
    half = queries.MAX_STEPS // 2
    return [range(count)] if count <= queries.MAX_STEPS else [range(half), range(count - half, count)]


def _items(
    steps: Mapping[UUID, Step], ranges: Sequence[range], count: int, presenter: Presenter, request: HttpRequest
) -> list[dict[str, Any]]:
    """Return the steps in order, with placeholders for the others, with links if they are outside of ``ranges``."""
    by_index, progress = {step.job.chain_index: step for step in steps.values()}, queries.progress(steps)
    items: list[dict[str, Any]] = []
    expected = 0
    for indexes in ranges:
        items += _omitted(expected, indexes.start, request)
        scale = TimeScale([by_index[index] for index in indexes if index in by_index], presenter.timestamps)
        for is_shown, group in groupby(indexes, by_index.__contains__):
            run = list(group)
            if is_shown:
                shown = [by_index[index] for index in run]
                items += [presenter.step(step, count, progress.get(step.job.id), scale) for step in shown]
            else:
                text = ngettext(
                    "%(count)s step that you may not view", "%(count)s steps that you may not view", len(run)
                )
                items.append({"text": text % {"count": number(len(run))}})
        expected = indexes.stop
    return [*items, *_omitted(expected, count, request, is_last=True)]


def _omitted(begin: int, end: int, request: HttpRequest, *, is_last: bool = False) -> list[dict[str, Any]]:
    """Link to the steps that follow the ones above or, at the top of the page, precede the ones below."""
    if begin >= end:
        return []
    count = end - begin
    text = ngettext("%(count)s step is not shown here", "%(count)s steps are not shown here", count)
    first = begin + 1 if begin or is_last else max(1, end + 1 - queries.STEPS_PER_PAGE)
    return [{"text": text % {"count": number(count)}, "url": url_with(request, **{"from": first})}]


def entries_of(model: type[Model], keys: Sequence[Any]) -> Q:
    """Return the condition for the log entries of these rows."""
    return Q(content_type=get_content_type_for_model(model), object_id__in=[str(key) for key in keys])


def _history(request: HttpRequest, entries: Q) -> dict[str, Any]:
    """Return the context for Django's template."""
    found = LogEntry.objects.filter(entries).select_related("user", "content_type").order_by("action_time", "pk")
    paginator = Paginator(found, ENTRIES_ON_PAGE)
    page = paginator.get_page(request.GET.get(PAGE_VAR, 1))
    return {
        "action_list": page,
        "page_range": paginator.get_elided_page_range(page.number),
        "pagination_required": paginator.num_pages > 1,
    }
