"""The page of a chain, and the page of one of its jobs. They show; what may be done comes from ``actions_for``."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin import reads
from django_jobchains.admin.addresses import FRAGMENT, address, line_place, uuid_of, whole_number
from django_jobchains.admin.bars import Spread
from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.gaps import places_shown, with_gaps
from django_jobchains.admin.graphs import graph_of
from django_jobchains.admin.moments import Moments
from django_jobchains.admin.reading import TookTooLong, bounded
from django_jobchains.admin.steps import Showing, StepView
from django_jobchains.admin.visibility import chains
from django_jobchains.admin.words import number, span
from django_jobchains.conf import get_settings
from django_jobchains.models import Chain, Job
from django_jobchains.shown_statuses import shown_status
from django_jobchains.statuses import FINAL
from django_jobchains.trees import Step, count_blockers, with_ids

_TOO_LONG = {"title": _("Took too long")}


class _Detail(ReadOnlyAdmin):
    """What both pages do: who may see it, what there is not, and the frame around it."""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        if not self.has_view_permission(request):
            raise PermissionDenied
        id_ = uuid_of(unquote(object_id))
        try:
            with bounded(get_settings().DATABASE):
                found = self.visible_row(request, id_)
                if found is None:
                    return self.missing(request, id_, object_id)
                details = self.details(request, found)
        except TookTooLong:
            return self._answer(request, "admin/django_jobchains/took_too_long.html", _TOO_LONG, status=503)
        return self._page(request, found, {**details, **(extra_context or {})})

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row for the pages that Django makes, such as the history."""
        return self.visible_row(request, uuid_of(object_id))

    def visible_row(self, request: HttpRequest, id_: UUID | None) -> Any:
        """Return the row, or None if there is none or it is hidden from the user."""
        found = self.row(request, id_) if id_ else None
        return next(iter(self.visibility(request).seen([found])), None) if found else None

    def row(self, request: HttpRequest, id_: UUID) -> Model | None:
        """Return the row among those of ``get_queryset``."""
        raise NotImplementedError

    def details(self, request: HttpRequest, found: Any) -> dict[str, Any]:
        raise NotImplementedError

    def missing(self, request: HttpRequest, id_: UUID | None, object_id: str) -> HttpResponse:
        reply: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        return reply

    def _page(self, request: HttpRequest, found: Model, details: Mapping[str, Any]) -> HttpResponse:
        folder = f"admin/django_jobchains/{self.opts.model_name}"
        context = {
            "original": found,
            "media": self.media,
            "detail_template": f"{folder}/detail.html",
            "refresh_url": address(request, **{FRAGMENT: 1}) if details["is_open"] else "",
            **details,
        }
        page = self.change_form_template or f"{folder}/change_form.html"
        return self._answer(request, context["detail_template"] if FRAGMENT in request.GET else page, context)

    def _answer(self, request: HttpRequest, name: Any, context: Mapping[str, Any], status: int = 200) -> HttpResponse:
        request.current_app = self.admin_site.name  # for the links of the template
        frame = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, name, {**frame, **context}, status=status)

    def showing(self, request: HttpRequest, *rows: Model) -> Showing:
        """Return what shows the jobs of a page; payloads only if these rows allow it too."""
        payloads_of = partial(self.visibility(request).payloads, *rows)
        return Showing(payloads_of, Moments(get_settings().DATABASE), self.admin_site.name)


class ChainDetail(_Detail):
    """For the class of chains."""

    def row(self, request: HttpRequest, id_: UUID) -> Chain | None:
        return with_ids(chains(self.get_queryset(request)), [id_]).first()

    def missing(self, request: HttpRequest, id_: UUID | None, object_id: str) -> HttpResponse:
        """The id of a job leads to its chain."""
        job = self.visibility(request).jobs([id_]).get(id_) if id_ else None
        if job and self.visible_row(request, job.chain_id):
            return HttpResponseRedirect(f"{self.showing(request).url('chain', job.chain_id)}#step-{id_}")
        return super().missing(request, id_, object_id)

    def details(self, request: HttpRequest, found: Chain) -> dict[str, Any]:
        visibility, showing = self.visibility(request), self.showing(request, found)
        count = found.current_job.chain_index + 1
        places = places_shown(count, whole_number(request, "from", 1, count))
        steps = reads.steps(found, places, visibility)
        current = steps.get(found.current_job_id)
        is_job_hidden = current is None and found.current_job_id in visibility.hidden_jobs([found.current_job_id])
        lines = () if is_job_hidden else reads.last_lines(found.current_job_id, reads.LINES_OF_STEP).rows
        return {
            "title": gettext("Chain %(type)s") % {"type": found.type_name},
            "subtitle": str(found.id),
            "chain": found,
            "job": None if is_job_hidden else found.current_job,
            "is_open": found.status not in FINAL,
            "status": shown_status(found.current_job, showing.moments),
            "created": showing.moments.shown(found.created_at),
            "finished": showing.moments.shown(found.finished_at),
            "took": span(showing.moments.between(found.created_at, found.finished_at) or 0),
            "step_count": number(count),
            "items": with_gaps(_views(steps, places, count, showing), places, count, request),
            "is_part": len(steps) < count,
            "is_from": "from" in request.GET,
            "all_url": address(request, **{"from": None}),
            "context": showing.stored(current.job, "context") if current else None,
            "lines": showing.lines(found.current_job, lines),
            "current_url": showing.url("job", found.current_job_id),
            **self._neighbours(request, found, steps, showing),
            "actions": self.actions_for(request, found, found.current_job),
        }

    def _neighbours(
        self, request: HttpRequest, found: Chain, steps: Mapping[UUID, Step], showing: Showing
    ) -> dict[str, Any]:
        """What the chain waits for, and what waits for it."""
        needed_by = reads.dependents(found.id, uuid_of(request.GET.get("dependents")), self.visibility(request))
        return {
            "graph": graph_of(found, steps.values(), needed_by, showing),
            "dependents": [
                (showing.link(row.chain), "" if row.is_job_hidden else showing.url("job", row.job.id), row)
                for row in needed_by.rows
            ],
            "more_dependents_url": address(request, dependents=needed_by.next) if needed_by.next else "",
        }


def _views(steps: Mapping[UUID, Step], places: Iterable[range], count: int, showing: Showing) -> dict[int, StepView]:
    """By their places. Steps on either side of a gap share no time that their bars could be laid over."""
    progress = reads.progress(steps)
    views = {}
    for place in places:
        part = [step for step in steps.values() if step.job.chain_index in place]
        spread = Spread(part, showing.moments)
        for step in part:
            views[step.job.chain_index] = showing.step(step, count, progress.get(step.job.id), spread)
    return views


class JobDetail(_Detail):
    """For the class of jobs."""

    def row(self, request: HttpRequest, id_: UUID) -> Job | None:
        job: Job | None = reads.with_texts(self.get_queryset(request), reads.MOST_OF_JOB).filter(pk=id_).first()
        return job

    def details(self, request: HttpRequest, found: Job) -> dict[str, Any]:
        showing, visibility = self.showing(request), self.visibility(request)
        chain = visibility.chains([found.chain_id]).get(found.chain_id)
        count = chain.current_job.chain_index + 1 if chain else found.chain_index + 1
        attempts = reads.last_attempts(found.id, whole_number(request, "attempts", 1))
        lines = reads.last_lines(found.id, reads.LINES, line_place(request))
        blockers = reads.blockers(found.id, whole_number(request, "blockers", 0), visibility)
        step = Step(found, attempts=list(attempts.rows), blockers=list(blockers.rows))
        count_blockers({found.id: step}, get_settings().DATABASE)
        view = showing.step(step, count, reads.progress([found.id]).get(found.id))
        return {
            "title": gettext("Job %(type)s") % {"type": found.type_name},
            "subtitle": str(found.id),
            "job": found,
            "chain": chain,
            "chain_url": showing.url("chain", found.chain_id) if chain else "",
            "is_open": found.status not in FINAL,
            "step": view,
            "step_count": number(count),
            "error": showing.payloads_of(found).error_line(found.error_text),  # type: ignore[attr-defined]
            "context": showing.stored(found, "context"),
            "leased_until": showing.moments.shown(found.leased_until),
            "cancel_requested": showing.moments.shown(found.cancel_requested_at),
            "earlier_attempts_url": address(request, attempts=attempts.next) if attempts.next else "",
            "is_earlier_attempts": "attempts" in request.GET,
            "lines": showing.lines(found, lines.rows),
            "earlier_lines_url": address(request, log=f"{lines.next[0]}.{lines.next[1]}") if lines.next else "",
            "is_earlier_lines": "log" in request.GET,
            "more_blockers_url": f"{address(request, blockers=blockers.next)}#blockers" if blockers.next else "",
            "actions": self.actions_for(request, chain, found) if chain else (),
        }
