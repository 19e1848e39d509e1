"""The pages that ask for confirmation of an action and carry it out, and the buttons that lead to them.

A GET request changes nothing. Permissions are checked when an action is offered, when its page is shown and, for each
row, when it is carried out.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import DELETION
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db import OperationalError, transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.formats import localize
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext

from django_jobchains.admin.actions.action import NOT_ALLOWED, NOT_THERE, Action, ActionResult, Refused, log_change
from django_jobchains.admin.actions.forms import ActionForm
from django_jobchains.admin.base import PageAdmin
from django_jobchains.conf import current_database
from django_jobchains.text.errors import log_error

logger = getLogger("django_jobchains")

#: The number of selected rows that a confirmation page lists.
MAX_LISTED_ROWS = 50


@dataclass(frozen=True)
class Button:
    label: Any
    url: str
    #: "primary", "secondary" or "dangerous": the end of a CSS class.
    style: str


@dataclass(frozen=True)
class ActionRow:
    """A target on a confirmation page. The page shows the link at the name or, if there is one, at the id."""

    name: str
    url: str
    #: The end of a CSS class, and the text of the status.
    style: str
    status: Any
    #: The reason why it will be skipped, or empty.
    refusal: Any
    id: Any = None
    label: str = ""


class ConfirmedActions(PageAdmin):
    """Base class for admin classes whose rows have actions. Subclasses decide about targets and permissions."""

    row_actions: Sequence[Action] = ()
    #: The route of one row.
    row_route: ClassVar[str] = "<path:object_id>"
    #: What precedes the name of an action in the names of its URLs and, with "-" instead of "_", in its routes.
    action_prefix: ClassVar[str] = ""

    def visible_targets(self, request: HttpRequest, keys: Collection[Any]) -> Sequence[Any]:
        """Return the targets with these keys, in any order, without rows that are hidden from the user."""
        raise NotImplementedError

    def mark_hidden(self, request: HttpRequest, targets: Sequence[Any], action: Action) -> list[Any]:
        """Return the targets, marked if not everything that the action changes is visible."""
        return list(targets)

    def is_action_allowed(self, request: HttpRequest, action: Action, target: Any = None) -> bool:
        """Return whether the user may perform the action in general or, if given, on a target."""
        raise NotImplementedError

    def action_headings(self) -> list[Any]:
        """Return the headings of the table of targets."""
        raise NotImplementedError

    def action_row(self, target: Any, refusal: Any) -> ActionRow:
        """Return how the confirmation page shows a target, with the reason why it will be skipped, or empty."""
        raise NotImplementedError

    def action_labels(self, request: HttpRequest, targets: Sequence[Any]) -> Mapping[Any, str]:
        """Return texts that tell the targets apart, by their keys."""
        return {}

    def action_database(self, request: HttpRequest) -> str:
        """Return the database that the actions change."""
        return current_database()

    def perform_action(
        self, request: HttpRequest, action: Action, targets: Sequence[Any], form: Any, result: ActionResult
    ) -> list[Model]:
        """Perform the action in the caller's transaction; return the changed rows, and add the others to the result.

        Raises ``Refused`` to undo everything, or a ``ValidationError``, which is added to the form.
        """
        raise NotImplementedError

    # The same for all classes

    def action_targets(self, request: HttpRequest, keys: Collection[Any], action: Action) -> list[Any]:
        """Return the targets with these keys, in this order, without rows that are hidden from the user."""
        found = {target.pk: target for target in self.visible_targets(request, keys)}
        return self.mark_hidden(request, [found[key] for key in keys if key in found], action)

    def possible_targets(self, request: HttpRequest, keys: Collection[Any], action: Action) -> list[Any]:
        """Return the targets with these keys that the user can perform the action on."""
        return self.select_possible(request, self.action_targets(request, keys, action), action, ActionResult())

    def select_possible(
        self, request: HttpRequest, targets: Sequence[Any], action: Action, result: ActionResult
    ) -> list[Any]:
        """Return the targets that the user can perform the action on, and add the others to the result."""
        possible = []
        for target in targets:
            if reason := self.action_refusal(request, action, target):
                result.skip(reason, [target.pk])
            else:
                possible.append(target)
        return possible

    def action_refusal(self, request: HttpRequest, action: Action, target: Any) -> Any:
        """Return why the user cannot perform the action on this target; empty if they can."""
        return action.refusal_of(request, target) if self.is_action_allowed(request, action, target) else NOT_ALLOWED

    def action_buttons(self, request: HttpRequest, target: Any) -> list[Button]:
        """Return buttons for the actions that the user can perform on the target now."""
        possible = [
            action
            for action in self.row_actions
            if action.is_offered(target)
            and not self.action_refusal(request, action, *self.mark_hidden(request, [target], action))
        ]
        possible.sort(key=lambda action: not action.is_awaited(target))
        return [
            Button(
                action.label,
                self.page_url(f"{self.action_prefix}{action.name}", target.pk),
                _style(action, is_first=not place),
            )
            for place, action in enumerate(possible)
        ]

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> Any:
        """Add the actions that the user may perform, unless ``actions`` is None, which disables all of them.

        ``action_location``: where they are offered, which Django passes from 6.1 on.
        """
        where = {} if action_location is None else {"action_location": action_location}
        offered: dict[str, Any] = super().get_actions(request, **where)
        if self.actions is not None and IS_POPUP_VAR not in request.GET:
            for action in self.row_actions:
                found = self.get_action(_changelist_action(action), **where)
                if found and self.is_action_allowed(request, action):
                    offered[action.name] = found
        return offered

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Reject actions that are not allowed, which Django only ignores, and keys that no row can have."""
        self._selected_keys(request)
        requested = set(request.POST.getlist("action"))
        for action in self.row_actions:
            if action.name in requested:
                self._require(request, action)
        return super().changelist_view(request, extra_context)

    def get_urls(self) -> list[Any]:
        urls = []
        for action in self.row_actions:
            name, route = f"{self.action_prefix}{action.name}", f"{self.action_prefix.replace('_', '-')}{action.name}/"
            one, many = partial(self.action_view, action=action), partial(self.actions_view, action=action)
            urls.append(self.page_path(f"{self.row_route}/{route}", one, name))
            urls.append(self.page_path(route, many, f"{name}_many"))
        return [*urls, *super().get_urls()]

    def action_view(self, request: HttpRequest, object_id: Any, action: Action) -> HttpResponse:
        """Show the confirmation page for one row or, by POST, carry out the action."""
        self._require(request, action)
        targets = self.action_targets(request, self._keys([unquote(str(object_id))]), action)
        if not targets:
            raise Http404(gettext("This row does not exist."))
        if not self.is_action_allowed(request, action, targets[0]):
            raise PermissionDenied
        if request.method != "POST":
            return self._confirmation(request, action, targets)
        return self._perform(request, action, targets)

    def actions_view(self, request: HttpRequest, action: Action) -> HttpResponse:
        """Carry out the action for several rows; with ``ask``, show the page again for another choice."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._require(request, action)
        keys = self._selected_keys(request)
        if not 1 <= len(keys) <= action.max_rows:
            raise BadRequest
        targets = self.action_targets(request, keys, action)
        if "ask" in request.POST:
            page = self._confirmation_for_many(request, action, targets, keys, self._next(request))
            return page or HttpResponseRedirect(self._next(request) or self.page_url("changelist"))
        return self._perform(request, action, targets, keys)

    def confirm_selected(self, request: HttpRequest, action: Action) -> HttpResponse | None:
        """Return the confirmation page for the selected rows, or None with a message to show the list again."""
        self._require(request, action)
        keys = self._selected_keys(request)
        targets = self.action_targets(request, keys, action) if 1 <= len(keys) <= action.max_rows else []
        if not targets or request.POST.get("select_across", "0") != "0":
            text = gettext("Nothing was changed: select 1 to %(limit)s rows.") % {"limit": localize(action.max_rows)}
            messages.error(request, text)
            return None
        return self._confirmation_for_many(request, action, targets, keys, request.get_full_path())

    def _confirmation_for_many(
        self, request: HttpRequest, action: Action, targets: Sequence[Any], keys: Sequence[Any], next_: str
    ) -> HttpResponse | None:
        possible = self.select_possible(request, targets, action, ActionResult())
        if problem := action.refusal_together(possible):
            ActionResult(problem=problem).show(request, action)
            return None
        return self._confirmation(request, action, targets, keys=keys, next_=next_)

    def _confirmation(
        self,
        request: HttpRequest,
        action: Action,
        targets: Sequence[Any],
        form: Any = None,
        keys: Sequence[Any] = (),
        next_: str | None = None,
    ) -> TemplateResponse:
        """Return the confirmation page, with the invalid ``form`` if it was sent. ``keys`` are set for several rows."""
        next_ = self._next(request) if next_ is None else next_
        labels = self.action_labels(request, targets[:MAX_LISTED_ROWS])
        rows = [
            replace(
                self.action_row(target, self.action_refusal(request, action, target)), label=labels.get(target.pk, "")
            )
            for target in targets
        ]
        possible = [target for target, row in zip(targets, rows, strict=True) if not row.refusal]
        form = form or (action.make_form(self, request, possible, None) if possible else ActionForm())
        context = {
            "title": action.label,
            "media": self.media + form.media,
            "action": action,
            "form": form,
            "headings": self.action_headings(),
            "rows": rows[:MAX_LISTED_ROWS],
            "more": max(0, len(rows) - MAX_LISTED_ROWS),
            "possible": len(possible),
            "impossible": max(len(keys), len(rows)) - len(possible),
            "ids": [str(key) for key in keys],  # A template would format numbers with thousand separators.
            "ids_name": ACTION_CHECKBOX_NAME,
            "act_url": self.page_url(f"{self.action_prefix}{action.name}_many") if keys else "",
            "next": next_,
            "back_url": next_ or self._page_after(targets, keys),
            **(action.preview(self, request, possible) if possible else {}),
        }
        return self.render(request, f"admin/django_jobchains/{action.template}.html", context)

    def _perform(
        self, request: HttpRequest, action: Action, targets: Sequence[Any], keys: Sequence[Any] = ()
    ) -> HttpResponse:
        result = ActionResult()
        result.skip(NOT_THERE, set(keys) - {target.pk for target in targets})
        possible = self.select_possible(request, targets, action, result)
        if problem := action.refusal_together(possible):
            result.problem = problem
        elif possible:
            form = action.make_form(self, request, possible, request.POST)
            if form.is_valid():
                self._carry_out(request, action, possible, form, result)
            if not form.is_valid():  # carrying it out may have added an error
                return self._confirmation(request, action, targets, form, keys)
        result.show(request, action)
        is_gone = action.flag == DELETION and result.changed
        return HttpResponseRedirect(
            self._next(request) or (self.page_url("changelist") if is_gone else self._page_after(targets, keys))
        )

    def _carry_out(
        self, request: HttpRequest, action: Action, targets: Sequence[Any], form: Any, result: ActionResult
    ) -> None:
        """Perform the action on these targets and write the log entries, in one transaction."""
        using = self.action_database(request)
        try:
            targets = action.expand(self, request, targets, form)
            with transaction.atomic(using=using):
                rows = self.perform_action(request, action, targets, form, result)
                log_change(request, rows, action.log_message(form), verb=action.name, flag=action.flag, using=using)
        except Refused as error:
            result.problem = str(error)
        except ValidationError as error:
            form.add_error(None, error)
        except OperationalError as error:
            log_error(logger, error, "Admin: a database error undid the action %s: %s", action.name)
            result.problem = gettext("a database error occurred, try again")
        else:
            result.changed = rows

    def _require(self, request: HttpRequest, action: Action) -> None:
        if not (self.has_view_permission(request) and self.is_action_allowed(request, action)):
            raise PermissionDenied

    def _selected_keys(self, request: HttpRequest) -> list[Any]:
        return self._keys(request.POST.getlist(ACTION_CHECKBOX_NAME))

    def _keys(self, texts: Collection[str]) -> list[Any]:
        """Return primary keys from texts, without duplicates."""
        field: Any = self.opts.pk
        while field.remote_field:  # the key of a parent model
            field = field.target_field
        try:
            keys = list(dict.fromkeys(field.to_python(text) for text in texts))
            for key in keys:
                field.run_validators(key)
        except ValidationError as error:
            raise BadRequest from error
        if any("\0" in text for text in texts):  # PostgreSQL does not accept it in texts
            raise BadRequest
        return keys

    def _page_after(self, targets: Sequence[Any], keys: Sequence[Any]) -> str:
        return self.page_url("changelist") if keys or not targets else self.page_url("change", targets[0].pk)

    def _next(self, request: HttpRequest) -> str:
        """Return the URL to return to; empty unless it is on this site."""
        given = (request.POST if request.method == "POST" else request.GET).get("next", "")
        is_here = url_has_allowed_host_and_scheme(given, {request.get_host()}, require_https=request.is_secure())
        return given if is_here else ""

    def page_url(self, name: str, *keys: Any) -> str:
        """Return the URL of a page of this class: ``changelist``, ``change``, or another one by its name."""
        return reverse(
            f"admin:{self._url_name(name)}", args=[quote(key) for key in keys], current_app=self.admin_site.name
        )

    def page_path(self, route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
        return path(route, self.admin_site.admin_view(view), name=self._url_name(name))

    def _url_name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"


def _style(action: Action, *, is_first: bool) -> str:
    """A deletion is the last button, and has no color, so that it does not attract attention."""
    if action.is_dangerous:
        return "secondary" if action.flag == DELETION else "dangerous"
    return "primary" if is_first else "secondary"


def _changelist_action(action: Action) -> Any:
    """Return the function that Django calls to show the confirmation page for the selected rows of a list."""

    @admin.action(description=action.label)
    def confirm(model_admin: ConfirmedActions, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return model_admin.confirm_selected(request, action)

    confirm.__name__ = action.name
    return confirm
