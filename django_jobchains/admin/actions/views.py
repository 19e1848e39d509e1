"""The pages that ask for confirmation of an action and carry it out, and the buttons that lead to them.

A GET request changes nothing. Permissions are checked when an action is offered, when its page is shown and, for each
row, when it is carried out.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import DELETION
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.formats import localize
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext

from django_jobchains.admin.actions.action import NOT_ALLOWED, NOT_THERE, Action, ActionTarget, Find
from django_jobchains.admin.actions.completion import continuations, declared
from django_jobchains.admin.actions.execution import ActionResult, carry_out, show_result
from django_jobchains.admin.actions.forms import ActionForm
from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.chains import Job
from django_jobchains.conf import get_settings
from django_jobchains.db.times import Times
from django_jobchains.models.jobs import ShownStatus, shown_status
from django_jobchains.registry.job_types import JobType

#: The number of selected rows that a confirmation page lists.
MAX_LISTED_ROWS = 50


@dataclass(frozen=True)
class Button:
    label: Any
    url: str
    is_dangerous: bool


@dataclass(frozen=True)
class ActionRow:
    """A target on a confirmation page; ``refusal`` is the reason why it will be skipped, or empty."""

    target: ActionTarget
    url: str
    status: ShownStatus
    refusal: Any


class ActionAdmin(ReadOnlyAdmin):
    """Base class for admin classes whose rows have actions."""

    row_actions: Sequence[Action] = ()

    def targets_among(self, rows: QuerySet[Any], ids: Collection[UUID]) -> Sequence[ActionTarget]:
        """Return the targets for the rows with these ids."""
        raise NotImplementedError

    def targets(self, request: HttpRequest, ids: Collection[UUID], action: Action) -> list[ActionTarget]:
        """Return the targets with these ids, in this order, without rows that are hidden from the user."""
        found = self.targets_among(self.get_queryset(request), ids)
        seen = {row.pk for row in self.visibility(request).seen([target.row for target in found])}
        found = self.mark_hidden(request, [target for target in found if target.row.pk in seen], action)
        by_id = {target.row.pk: target for target in found}
        return [by_id[id_] for id_ in ids if id_ in by_id]

    def mark_hidden(self, request: HttpRequest, targets: Sequence[ActionTarget], action: Action) -> list[ActionTarget]:
        """Set ``is_partly_hidden`` of targets whose row is visible, but not everything that the action changes."""
        visibility, chain_ids = self.visibility(request), [target.chain_id for target in targets]
        if action.changes_all_jobs:
            hidden = visibility.chains_with_hidden_jobs(chain_ids)
        else:
            jobs = visibility.hidden_jobs([target.job.id for target in targets])
            hidden = {target.chain_id for target in targets if target.job.id in jobs}
        hidden |= visibility.hidden_chains(chain_ids)
        return [replace(target, is_partly_hidden=target.chain_id in hidden) for target in targets]

    def next_types(self, request: HttpRequest, job: Job) -> Mapping[str, JobType[Any, Any]]:
        """Return the types that this user may continue the job's chain with, by name.

        By default, users with the permission ``enqueue_job`` may choose among the ``continues_with`` of the job's type
        or, if it is not set, among the ``entry_types`` of the chain admin. A subclass may return any types that the
        job's type allows, also for users without the permission.
        """
        visibility, job_type = self.visibility(request), declared(job.type_name)
        if not visibility.may("enqueue_job", job):
            return {}
        types = continuations(job.type_name)
        if job_type is not None and job_type.continues_with is not None:
            return types
        entries = visibility.entry_types()
        return {name: job_type for name, job_type in types.items() if name in entries}

    def buttons(self, request: HttpRequest, target: ActionTarget) -> list[Button]:
        """Return buttons for the actions that the user can perform on the target now."""
        times = Times(get_settings().DATABASE)
        return [
            Button(action.label, self.url(action.name, target.row.pk), action.is_dangerous)
            for action in self.row_actions
            if action.is_offered(target.job, times)
            and not self._refusal(request, action, *self.mark_hidden(request, [target], action))
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Reject actions that are not allowed, which Django only ignores, and malformed ids."""
        if request.method == "POST":
            requested = set(request.POST.getlist("action"))
            for action in self.row_actions:
                if action.name in requested:
                    self._require(request, action)
            _selected_ids(request)
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

    def get_urls(self) -> list[Any]:
        urls = []
        for action in self.row_actions:
            one, many = partial(self.one_view, action=action), partial(self.many_view, action=action)
            urls.append(self._path(f"<uuid:object_id>/{action.name}/", one, action.name))
            urls.append(self._path(f"{action.name}/", many, f"{action.name}_many"))
        return [*urls, *super().get_urls()]

    def one_view(self, request: HttpRequest, object_id: UUID, action: Action) -> HttpResponse:
        """Show the confirmation page for one row or, by POST, carry out the action."""
        self._require(request, action)
        targets = self.targets(request, [object_id], action)
        if not targets:
            raise Http404(gettext("This row does not exist."))
        if not self.is_allowed(request, action, targets[0]):
            raise PermissionDenied
        if request.method != "POST":
            return self._confirmation(request, action, targets)
        return self._perform(request, action, targets)

    def many_view(self, request: HttpRequest, action: Action) -> HttpResponse:
        """Carry out the action for several rows; with ``ask``, show the page again for another choice."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._require(request, action)
        ids = _selected_ids(request)
        if not 1 <= len(ids) <= action.max_rows:
            raise BadRequest
        targets = self.targets(request, ids, action)
        if "ask" in request.POST:
            page = self._confirmation_for_many(request, action, targets, ids, self._next(request))
            return page or HttpResponseRedirect(self._next(request) or self.url("changelist"))
        return self._perform(request, action, targets, ids)

    def confirm_selected(self, request: HttpRequest, action: Action) -> HttpResponse | None:
        """Return the confirmation page for the selected rows, or None with a message to show the list again."""
        self._require(request, action)
        ids = _selected_ids(request)
        targets = self.targets(request, ids, action) if 1 <= len(ids) <= action.max_rows else []
        if not targets or request.POST.get("select_across", "0") != "0":
            text = gettext("Nothing was changed: select 1 to %(limit)s rows.") % {"limit": localize(action.max_rows)}
            messages.error(request, text)
            return None
        return self._confirmation_for_many(request, action, targets, ids, request.get_full_path())

    def _confirmation_for_many(
        self, request: HttpRequest, action: Action, targets: Sequence[ActionTarget], ids: Sequence[UUID], next_: str
    ) -> HttpResponse | None:
        possible = [target for target in targets if not self._refusal(request, action, target)]
        if problem := action.refusal_together(possible):
            show_result(request, action, ActionResult(problem=problem))
            return None
        return self._confirmation(request, action, targets, ids=ids, next_=next_)

    def _confirmation(
        self,
        request: HttpRequest,
        action: Action,
        targets: Sequence[ActionTarget],
        form: Any = None,
        ids: Sequence[UUID] = (),
        next_: str | None = None,
    ) -> TemplateResponse:
        """Return the confirmation page, with the invalid ``form`` if it was sent. ``ids`` are set for several rows."""
        next_ = self._next(request) if next_ is None else next_
        rows = [self._row(request, action, target) for target in targets]
        possible = [row.target for row in rows if not row.refusal]
        form = form or (action.make_form(self, request, possible, None) if possible else ActionForm())
        context = {
            "title": action.label,
            "media": self.media + form.media,
            "action": action,
            "form": form,
            "rows": rows[:MAX_LISTED_ROWS],
            "more": max(0, len(rows) - MAX_LISTED_ROWS),
            "possible": len(possible),
            "impossible": max(len(ids), len(rows)) - len(possible),
            "ids": ids,
            "ids_name": ACTION_CHECKBOX_NAME,
            "act_url": self.url(f"{action.name}_many") if ids else "",
            "next": next_,
            "back_url": next_ or self._page_after(targets, ids),
            **(action.preview(self, request, possible, self.finder(request, action)) if possible else {}),
        }
        return self.render(request, f"admin/django_jobchains/{action.template}.html", context)

    def _row(self, request: HttpRequest, action: Action, target: ActionTarget) -> ActionRow:
        status = shown_status(target.job, Times(get_settings().DATABASE))
        return ActionRow(target, self.url("change", target.row.pk), status, self._refusal(request, action, target))

    def _refusal(self, request: HttpRequest, action: Action, target: ActionTarget) -> Any:
        """Return why the user cannot perform the action on this row; empty if they can."""
        return action.refusal_of(request, target) if self.is_allowed(request, action, target) else NOT_ALLOWED

    def is_allowed(self, request: HttpRequest, action: Action, target: ActionTarget) -> bool:
        return not target.is_partly_hidden and self.may(request, action.permission, target.row)

    def _perform(
        self, request: HttpRequest, action: Action, targets: Sequence[ActionTarget], ids: Sequence[UUID] = ()
    ) -> HttpResponse:
        result, possible = ActionResult(), []
        result.skip(NOT_THERE, set(ids) - {target.row.pk for target in targets})
        for target in targets:
            reason = self._refusal(request, action, target)
            result.skip(reason, [target.row.pk] if reason else ())
            possible += [] if reason else [target]
        if problem := action.refusal_together(possible):
            result.problem = problem
        elif possible:
            form = action.make_form(self, request, possible, request.POST)
            if form.is_valid():
                carry_out(self, request, action, possible, form, result)
            if not form.is_valid():  # carrying it out may have added an error
                return self._confirmation(request, action, targets, form, ids)
        show_result(request, action, result)
        is_gone = action.flag == DELETION and result.changed
        return HttpResponseRedirect(
            self._next(request) or (self.url("changelist") if is_gone else self._page_after(targets, ids))
        )

    def finder(self, request: HttpRequest, action: Action) -> Find:
        def find(ids: Collection[UUID]) -> list[ActionTarget]:
            return [
                target for target in self.targets(request, ids, action) if not self._refusal(request, action, target)
            ]

        return find

    def _require(self, request: HttpRequest, action: Action) -> None:
        if not (self.has_view_permission(request) and self.may(request, action.permission)):
            raise PermissionDenied

    def _page_after(self, targets: Sequence[ActionTarget], ids: Sequence[UUID]) -> str:
        return self.url("changelist") if ids or not targets else self.url("change", targets[0].row.pk)

    def _next(self, request: HttpRequest) -> str:
        """Return the URL to return to; empty unless it is on this site."""
        given = (request.POST if request.method == "POST" else request.GET).get("next", "")
        is_here = url_has_allowed_host_and_scheme(given, {request.get_host()}, require_https=request.is_secure())
        return given if is_here else ""

    def url(self, name: str, *arguments: Any) -> str:
        """Return the URL of a page of this class: ``changelist``, ``change``, or the name of an action."""
        return reverse(f"admin:{self._url_name(name)}", args=arguments, current_app=self.admin_site.name)

    def _url_name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def _path(self, route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
        return path(route, self.admin_site.admin_view(view), name=self._url_name(name))


def _selected_ids(request: HttpRequest) -> list[UUID]:
    """Return the ids of the selected rows, without duplicates."""
    try:
        return list(dict.fromkeys(UUID(text) for text in request.POST.getlist(ACTION_CHECKBOX_NAME)))
    except ValueError as error:
        raise BadRequest from error
