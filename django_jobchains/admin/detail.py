"""The page of a chain, and the page of one of its jobs. They show; what may be done comes from ``actions_for``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin import reads
from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.graphs import Column, Graph, Line, laid_out
from django_jobchains.admin.moments import Moments
from django_jobchains.admin.payloads import Payloads
from django_jobchains.admin.reading import TookTooLong, bounded
from django_jobchains.admin.steps import Showing, Spread, StepView
from django_jobchains.admin.words import number, span
from django_jobchains.conf import get_settings
from django_jobchains.models import Chain, Job
from django_jobchains.shown_statuses import shown_status
from django_jobchains.statuses import FINAL, Status
from django_jobchains.trees import ChainTree, Step, count_blockers

#: With this parameter the answer is the inner part of the page, for a script that refreshes it.
FRAGMENT = "fragment"

_TOO_LONG = {"title": _("Took too long")}


@dataclass(frozen=True)
class Gap:
    """Steps that are not on the page."""

    text: str
    url: str


class _Detail(ReadOnlyAdmin):
    """What both pages do: who may see it, what there is not, and the frame around it."""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        if not self.has_view_permission(request):
            raise PermissionDenied
        id_ = _uuid(unquote(object_id))
        try:
            with bounded(get_settings().DATABASE):
                found = self.row(request, id_) if id_ else None
                if found is None:
                    return self.missing(request, id_, object_id)
                if not self.has_view_permission(request, found):
                    raise PermissionDenied
                details = self.details(request, found)
        except TookTooLong:
            return self._answer(request, "admin/django_jobchains/took_too_long.html", _TOO_LONG, status=503)
        return self._page(request, found, {**details, **(extra_context or {})})

    def row(self, request: HttpRequest, id_: UUID) -> Model | None:
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
            "refresh_url": _query(request, **{FRAGMENT: 1}) if details["is_open"] else "",
            **details,
        }
        page = self.change_form_template or f"{folder}/change_form.html"
        return self._answer(request, context["detail_template"] if FRAGMENT in request.GET else page, context)

    def _answer(self, request: HttpRequest, name: Any, context: Mapping[str, Any], status: int = 200) -> HttpResponse:
        request.current_app = self.admin_site.name  # for the links of the template
        frame = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, name, {**frame, **context}, status=status)

    def showing(self, request: HttpRequest) -> Showing:
        return Showing(Payloads(request), Moments(get_settings().DATABASE), self.admin_site.name)

    def visible_chains(self, request: HttpRequest) -> Any:
        """The chains that may be shown beside this one: a project's subclass may leave some out."""
        return _queryset_of(self, Chain, request)


class ChainDetail(_Detail):
    """For the class of chains."""

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Chain | None:
        id_ = _uuid(object_id)
        return self.row(request, id_) if id_ else None

    def row(self, request: HttpRequest, id_: UUID) -> Chain | None:
        return reads.find_chain(self.get_queryset(request), id_)

    def missing(self, request: HttpRequest, id_: UUID | None, object_id: str) -> HttpResponse:
        """The id of a job leads to its chain."""
        jobs = Job.objects.using(get_settings().DATABASE)
        chain_id = jobs.filter(pk=id_).values_list("chain_id", flat=True).first() if id_ else None
        if chain_id and self.row(request, chain_id):
            return HttpResponseRedirect(f"{self.showing(request).url('chain', chain_id)}#step-{id_}")
        return super().missing(request, id_, object_id)

    def details(self, request: HttpRequest, found: Chain) -> dict[str, Any]:
        showing, count = self.showing(request), found.current_job.chain_index + 1
        places = _places(count, _whole(request, "from", 1, count))
        steps = reads.steps(found, places, self.get_queryset(request))
        progress = reads.progress(steps)
        views: dict[int, StepView] = {}
        for place in places:
            part = [step for step in steps.values() if step.job.chain_index in place]
            spread = Spread(part, showing.moments)
            views |= {
                step.job.chain_index: showing.step(step, count, progress.get(step.job.id), spread) for step in part
            }
        current = steps.get(found.current_job_id)
        needed_by = reads.dependents(found.id, _uuid(request.GET.get("dependents")), self.get_queryset(request))
        return {
            "title": gettext("Chain %(type)s") % {"type": found.type_name},
            "subtitle": str(found.id),
            "chain": found,
            "job": found.current_job,
            "is_open": found.status not in FINAL,
            "status": shown_status(found.current_job, showing.moments),
            "created": showing.moments.shown(found.created_at),
            "finished": showing.moments.shown(found.finished_at),
            "took": span(showing.moments.between(found.created_at, found.finished_at) or 0),
            "step_count": number(count),
            "items": _with_gaps(views, count, request),
            "is_part": len(views) < count,
            "is_from": "from" in request.GET,
            "all_url": _query(request, **{"from": None}),
            "context": showing.stored(current.job, "context") if current else None,
            "lines": showing.lines(reads.last_lines(found.current_job_id, reads.LINES_OF_STEP).rows),
            "current_url": showing.url("job", found.current_job_id),
            "graph": _graph(found, steps.values(), needed_by, showing),
            "dependents": [(showing.link(row.chain), showing.url("job", row.job.id), row) for row in needed_by.rows],
            "more_dependents_url": _query(request, dependents=needed_by.next) if needed_by.next else "",
            "actions": self.actions_for(request, found, found.current_job),
        }


class JobDetail(_Detail):
    """For the class of jobs."""

    def row(self, request: HttpRequest, id_: UUID) -> Job | None:
        job: Job | None = reads.with_texts(self.get_queryset(request), reads.MOST_OF_JOB).filter(pk=id_).first()
        return job

    def details(self, request: HttpRequest, found: Job) -> dict[str, Any]:
        showing = self.showing(request)
        chain = reads.found_chains([found.chain_id], self.visible_chains(request)).get(found.chain_id)
        count = chain.current_job.chain_index + 1 if chain else found.chain_index + 1
        attempts = reads.last_attempts(found.id, _whole(request, "attempts", 1))
        lines = reads.last_lines(found.id, reads.LINES, _line_place(request))
        blockers = reads.blockers(found.id, _whole(request, "blockers", 0), self.visible_chains(request))
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
            "error": showing.payloads.error_line(found.error_text),  # type: ignore[attr-defined]
            "context": showing.stored(found, "context"),
            "leased_until": showing.moments.shown(found.leased_until),
            "cancel_requested": showing.moments.shown(found.cancel_requested_at),
            "earlier_attempts_url": _query(request, attempts=attempts.next) if attempts.next else "",
            "is_earlier_attempts": "attempts" in request.GET,
            "lines": showing.lines(lines.rows),
            "earlier_lines_url": _query(request, log=f"{lines.next[0]}.{lines.next[1]}") if lines.next else "",
            "is_earlier_lines": "log" in request.GET,
            "more_blockers_url": f"{_query(request, blockers=blockers.next)}#blockers" if blockers.next else "",
            "actions": self.actions_for(request, chain, found) if chain else (),
        }


def _queryset_of(own: ReadOnlyAdmin, model: type[Model], request: HttpRequest) -> Any:
    """As the class that is registered for the model gives it."""
    if own.model is model:
        return own.get_queryset(request)
    registered: Any = own.admin_site._registry.get(model)
    manager: Any = model._default_manager
    return registered.get_queryset(request) if registered else manager.using(get_settings().DATABASE)


def _places(count: int, first: int | None) -> list[range]:
    """The places of the steps that are shown: some from a number on, or the first and the last."""
    if first is not None:
        return [range(first - 1, min(count, first - 1 + reads.STEPS_ON_PAGE))]
    half = reads.STEPS // 2
    return [range(count)] if count <= reads.STEPS else [range(half), range(count - half, count)]


def _with_gaps(views: Mapping[int, StepView], count: int, request: HttpRequest) -> list[StepView | Gap]:
    items: list[StepView | Gap] = []
    expected = 0
    for place, view in sorted(views.items()):
        items += _gap(expected, place, request)
        items.append(view)
        expected = place + 1
    return [*items, *_gap(expected, count, request, is_last=True)]


def _gap(begin: int, end: int, request: HttpRequest, *, is_last: bool = False) -> list[Gap]:
    """Leads to the steps that follow those above, or before the first ones shown to the ones right before them."""
    if begin >= end:
        return []
    count = end - begin
    text = ngettext("%(count)s step is not shown here", "%(count)s steps are not shown here", count)
    first = begin + 1 if begin or is_last else max(1, end + 1 - reads.STEPS_ON_PAGE)
    return [Gap(text % {"count": number(count)}, _query(request, **{"from": first}))]


def _graph(chain: Chain, steps: Iterable[Step], dependents: reads.Part, showing: Showing) -> Graph | None:
    """None when nothing is waited for, and nothing waits."""
    steps = list(steps)
    lines: list[Line] = []
    columns: list[Column] = []
    level = [(chain, tree) for step in steps for tree in step.blockers]
    left_out = sum(step.blocker_count - len(step.blockers) for step in steps)
    while level:
        lines += [Line(str(tree.chain.id), str(waiting.id), _is_open(waiting, tree)) for waiting, tree in level]
        columns.insert(
            0, Column([showing.link(tree.chain) for waiting, tree in level if not tree.is_repeated], left_out)
        )
        left_out = 0
        level = [(tree.chain, next_) for waiting, tree in level for step in tree.steps for next_ in step.blockers]
    rows: Sequence[reads.Dependent] = dependents.rows
    if not columns and not rows:
        return None
    columns.append(Column([showing.link(chain)]))
    waiting_chains = {row.chain.id: row.chain for row in rows}
    lines += [Line(str(chain.id), str(row.chain.id), row.job.status == Status.BLOCKED) for row in rows]
    if rows:
        columns.append(Column([showing.link(each) for each in waiting_chains.values()], is_more=bool(dependents.next)))
    return laid_out(columns, lines, str(chain.id))


def _is_open(waiting: Chain, tree: ChainTree) -> bool:
    return waiting.status == Status.BLOCKED and tree.chain.status != Status.COMPLETED


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except (ValueError, ValidationError):
        return None


def _whole(request: HttpRequest, name: str, least: int, most: int = 2**31 - 1) -> int | None:
    """The number of a parameter; what is none, or too small or too large, is as if it were not there."""
    text = request.GET.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        return None
    return int(text) if least <= int(text) <= most else None


def _line_place(request: HttpRequest) -> tuple[int, int] | None:
    lease_number, _dot, position = request.GET.get("log", "").partition(".")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 9 for part in (lease_number, position)):
        return None
    return int(lease_number), int(position)


def _query(request: HttpRequest, **changes: Any) -> str:
    """The address of this page with other parameters; None takes one away."""
    parameters = request.GET.copy()
    parameters.pop(FRAGMENT, None)
    for name, value in changes.items():
        parameters.pop(name, None)
        if value is not None:
            parameters[name] = str(value)
    return f"{request.path}?{parameters.urlencode()}" if parameters else request.path
