"""Buttons, actions of the lists and the pages that ask before anything is done.

A page asked for by GET changes nothing. The permission is asked for where a verb is offered, where its page is shown
and where it is done, there for each row too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import action
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import DELETION
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.formats import localize
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext

from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.completion import Complete, continuations, names_continuations
from django_jobchains.admin.deletion import Delete
from django_jobchains.admin.forms import ActionForm
from django_jobchains.admin.outcomes import Outcome, carry_out, tell
from django_jobchains.admin.verbs import NOT_ALLOWED, NOT_THERE, Cancel, Find, Reschedule, Retry, RunNow, Target, Verb
from django_jobchains.chains import Chain, Job
from django_jobchains.conf import get_settings
from django_jobchains.job_types import JobType
from django_jobchains.models.jobs import Among
from django_jobchains.shown_statuses import ShownStatus, shown_status
from django_jobchains.times import Times

#: Of the rows of one call, those that the page which asks names.
MOST_SHOWN = 50


@dataclass(frozen=True)
class Button:
    label: Any
    url: str
    is_dangerous: bool


@dataclass(frozen=True)
class Row:
    """A target as the page shows it; ``refusal`` says why it will be left as it is."""

    target: Target
    url: str
    status: ShownStatus
    refusal: Any


class Acting(ReadOnlyAdmin):
    verbs: Sequence[Verb] = ()

    def targets_among(self, rows: QuerySet[Any], ids: Collection[UUID]) -> Sequence[Target]:
        """Those of the rows that have these ids."""
        raise NotImplementedError

    def targets(self, request: HttpRequest, ids: Collection[UUID], verb: Verb) -> list[Target]:
        """Return targets in the order of the ids. A row that is hidden is missing, as if it did not exist."""
        found = self.targets_among(self.get_queryset(request), ids)
        seen = {row.pk for row in self.visibility(request).seen([target.row for target in found])}
        found = self.marked(request, [target for target in found if target.row.pk in seen], verb)
        by_id = {target.row.pk: target for target in found}
        return [by_id[id_] for id_ in ids if id_ in by_id]

    def marked(self, request: HttpRequest, targets: Sequence[Target], verb: Verb) -> list[Target]:
        """Mark those of which the user sees the row, but not all that the verb acts on."""
        visibility, chain_ids = self.visibility(request), [target.chain_id for target in targets]
        if verb.takes_all_jobs:
            hidden = visibility.chains_with_hidden_jobs(chain_ids)
        else:
            jobs = visibility.hidden_jobs([target.job.id for target in targets])
            hidden = {target.chain_id for target in targets if target.job.id in jobs}
        hidden |= visibility.hidden_chains(chain_ids)
        return [replace(target, is_partly_hidden=target.chain_id in hidden) for target in targets]

    def next_types(self, request: HttpRequest, job: Job) -> Mapping[str, JobType[Any, Any]]:
        """Return the types that this user may continue the job's chain with, by name.

        By default these are the types that the job's type allows, for a user with the permission ``enqueue_job``, and
        none for others. If the job's type names none, these are the types that ``entry_types`` of the class of chains
        returns. A subclass may return others of the types that the job's type allows, with no permission.
        """
        visibility, types = self.visibility(request), continuations(job.type_name)
        if not visibility.may("enqueue_job", job):
            return {}
        if names_continuations(job.type_name):
            return types
        entries = visibility.entry_types()
        return {name: job_type for name, job_type in types.items() if name in entries}

    # What is offered

    def buttons(self, request: HttpRequest, target: Target) -> list[Button]:
        times = Times(get_settings().DATABASE)
        return [
            Button(verb.label, self.url(verb.name, target.row.pk), verb.is_dangerous)
            for verb in self.verbs
            if verb.is_offered(target.job, times)
            and not self._refusal(request, verb, *self.marked(request, [target], verb))
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """An action that is not offered is refused, not only ignored; ids that are none are a bad request."""
        if request.method == "POST":
            asked = set(request.POST.getlist("action"))
            for verb in self.verbs:
                if verb.name in asked:
                    self._require(request, verb)
            _ids(request)
        return super().changelist_view(request, extra_context)

    def has_complete_job_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "complete_job")

    def has_retry_job_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "retry_job")

    def has_cancel_job_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "cancel_job")

    def has_run_job_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "run_job")

    def has_delete_chain_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "delete_chain")

    # The pages

    def get_urls(self) -> list[Any]:
        pages = []
        for verb in self.verbs:
            one, many = partial(self.one_view, verb=verb), partial(self.many_view, verb=verb)
            pages.append(self._path(f"<uuid:object_id>/{verb.name}/", one, verb.name))
            pages.append(self._path(f"{verb.name}/", many, f"{verb.name}_many"))
        return [*pages, *super().get_urls()]

    def one_view(self, request: HttpRequest, object_id: UUID, verb: Verb) -> HttpResponse:
        """The page that asks, and by POST what it asks for."""
        self._require(request, verb)
        targets = self.targets(request, [object_id], verb)
        if not targets:
            raise Http404(gettext("There is no such row."))
        if not self._is_allowed(request, verb, targets[0]):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask(request, verb, targets)
        return self._act(request, verb, targets)

    def many_view(self, request: HttpRequest, verb: Verb) -> HttpResponse:
        """Does it to the rows whose ids come along; with ``ask``, asks again, after something else was chosen."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._require(request, verb)
        ids = _ids(request)
        if not 1 <= len(ids) <= verb.most_at_once:
            raise BadRequest
        targets = self.targets(request, ids, verb)
        if "ask" in request.POST:
            asked = self._ask_together(request, verb, targets, ids, self._next(request))
            return asked or HttpResponseRedirect(self._next(request) or self.url("changelist"))
        return self._act(request, verb, targets, ids)

    def ask_for_ticked(self, request: HttpRequest, verb: Verb) -> HttpResponse | None:
        """An action of the list: the page that asks; None, and so the list again, with a message."""
        self._require(request, verb)
        ids = _ids(request)
        targets = self.targets(request, ids, verb) if 1 <= len(ids) <= verb.most_at_once else []
        if not targets or request.POST.get("select_across", "0") != "0":
            text = gettext("Tick 1 to %(most)s rows. Nothing was changed.") % {"most": localize(verb.most_at_once)}
            messages.error(request, text)
            return None
        return self._ask_together(request, verb, targets, ids, request.get_full_path())

    # How they do it

    def _ask_together(
        self, request: HttpRequest, verb: Verb, targets: Sequence[Target], ids: Sequence[UUID], next_: str
    ) -> HttpResponse | None:
        possible = [target for target in targets if not self._refusal(request, verb, target)]
        if problem := verb.refusal_together(possible):
            tell(request, verb, Outcome(problem=problem))
            return None
        return self._ask(request, verb, targets, ids=ids, next_=next_)

    def _ask(
        self,
        request: HttpRequest,
        verb: Verb,
        targets: Sequence[Target],
        form: Any = None,
        ids: Sequence[UUID] = (),
        next_: str | None = None,
    ) -> TemplateResponse:
        """``form``: as it was answered. ``ids``: those of several rows; they go to the page for many."""
        next_ = self._next(request) if next_ is None else next_
        rows = [self._row(request, verb, target) for target in targets]
        possible = [row.target for row in rows if not row.refusal]
        form = form or (verb.make_form(self, request, possible, None) if possible else ActionForm())
        context = {
            **self.admin_site.each_context(request),
            "title": verb.label,
            "opts": self.opts,
            "media": self.media + form.media,
            "verb": verb,
            "form": form,
            "rows": rows[:MOST_SHOWN],
            "more": max(0, len(rows) - MOST_SHOWN),
            "possible": len(possible),
            "impossible": max(len(ids), len(rows)) - len(possible),
            "ids": ids,
            "ids_name": ACTION_CHECKBOX_NAME,
            "act_url": self.url(f"{verb.name}_many") if ids else "",
            "next": next_,
            "back_url": next_ or self._page_after(targets, ids),
            **(verb.preview(self, request, possible, self._finder(request, verb)) if possible else {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/django_jobchains/{verb.template}.html", context)

    def _row(self, request: HttpRequest, verb: Verb, target: Target) -> Row:
        status = shown_status(target.job, Times(get_settings().DATABASE))
        return Row(target, self.url("change", target.row.pk), status, self._refusal(request, verb, target))

    def _refusal(self, request: HttpRequest, verb: Verb, target: Target) -> Any:
        """Why this user cannot do it to this row; "" when nothing is in the way."""
        return verb.refusal_of(request, target) if self._is_allowed(request, verb, target) else NOT_ALLOWED

    def _is_allowed(self, request: HttpRequest, verb: Verb, target: Target) -> bool:
        return not target.is_partly_hidden and self.may(request, verb.permission, target.row)

    def _act(
        self, request: HttpRequest, verb: Verb, targets: Sequence[Target], ids: Sequence[UUID] = ()
    ) -> HttpResponse:
        outcome, possible = Outcome(), []
        outcome.refuse(NOT_THERE, set(ids) - {target.row.pk for target in targets})
        for target in targets:
            reason = self._refusal(request, verb, target)
            outcome.refuse(reason, [target.row.pk] if reason else ())
            possible += [] if reason else [target]
        if problem := verb.refusal_together(possible):
            outcome.problem = problem
        elif possible:
            form = verb.make_form(self, request, possible, request.POST)
            if not form.is_valid():
                return self._ask(request, verb, targets, form, ids)
            carry_out(request, verb, possible, form, self._finder(request, verb), outcome)
        tell(request, verb, outcome)
        is_gone = verb.flag == DELETION and outcome.done
        return HttpResponseRedirect(
            self._next(request) or (self.url("changelist") if is_gone else self._page_after(targets, ids))
        )

    def _finder(self, request: HttpRequest, verb: Verb) -> Find:
        def find(ids: Collection[UUID]) -> list[Target]:
            return [target for target in self.targets(request, ids, verb) if not self._refusal(request, verb, target)]

        return find

    def _require(self, request: HttpRequest, verb: Verb) -> None:
        if not (self.has_view_permission(request) and self.may(request, verb.permission)):
            raise PermissionDenied

    def _page_after(self, targets: Sequence[Target], ids: Sequence[UUID]) -> str:
        return self.url("changelist") if ids or not targets else self.url("change", targets[0].row.pk)

    def _next(self, request: HttpRequest) -> str:
        """Where the page was come to from; "" unless that is in this site."""
        given = (request.POST if request.method == "POST" else request.GET).get("next", "")
        is_here = url_has_allowed_host_and_scheme(given, {request.get_host()}, require_https=request.is_secure())
        return given if is_here else ""

    def url(self, name: str, *arguments: Any) -> str:
        """Of a page of this class: ``changelist``, ``change``, or a verb's."""
        return reverse(f"admin:{self._url_name(name)}", args=arguments, current_app=self.admin_site.name)

    def _url_name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def _path(self, route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
        return path(route, self.admin_site.admin_view(view), name=self._url_name(name))


def _action(verb: Verb) -> Any:
    """Of a list: asks about the rows that were ticked."""

    @action(description=verb.label, permissions=[verb.permission])
    def ask(acting: Acting, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return acting.ask_for_ticked(request, verb)

    ask.__name__ = verb.name
    return ask


def _ids(request: HttpRequest) -> list[UUID]:
    """Those that were ticked, each once."""
    try:
        return list(dict.fromkeys(UUID(text) for text in request.POST.getlist(ACTION_CHECKBOX_NAME)))
    except ValueError as error:
        raise BadRequest from error


VERBS_OF_CHAINS: tuple[Verb, ...] = (Complete(), Retry(), RunNow(), Reschedule(), Cancel(), Delete())
#: What deletes, deletes chains.
VERBS_OF_JOBS: tuple[Verb, ...] = VERBS_OF_CHAINS[:-1]


class ActingOnChains(Acting):
    """What is done to a chain is done to the job it is at."""

    verbs = VERBS_OF_CHAINS
    actions = [_action(verb) for verb in VERBS_OF_CHAINS]

    def targets_among(self, rows: QuerySet[Any], ids: Collection[UUID]) -> list[Target]:
        """By their last jobs, and so as fast however long the chains are."""
        steps = Job.objects.filter(chain_id=OuterRef("pk")).order_by("-chain_index").values("pk")[:1]
        last = Job.objects.filter(pk__in=ids).annotate(last=Subquery(steps)).values("last")
        chains = rows.filter(Among(F("current_job_id"), Subquery(last))).order_by()
        chains = chains.select_related("current_job").defer(*_UNREAD, *(f"current_job__{name}" for name in _UNREAD))
        return [Target(chain, chain.current_job) for chain in chains]

    def actions_for(self, request: HttpRequest, chain: Chain, job: Job) -> Sequence[Button]:
        return self.buttons(request, Target(chain, job)) if job.pk == chain.current_job_id else ()


class ActingOnJobs(Acting):
    verbs = VERBS_OF_JOBS
    actions = [_action(verb) for verb in VERBS_OF_JOBS]

    def targets_among(self, rows: QuerySet[Any], ids: Collection[UUID]) -> list[Target]:
        return [Target(job, job) for job in rows.filter(pk__in=ids).order_by().defer(*_UNREAD)]

    def actions_for(self, request: HttpRequest, chain: Chain, job: Job) -> Sequence[Button]:
        return self.buttons(request, Target(job, job))


#: Large, and not looked at here.
_UNREAD = ("input", "output", "last_error")
