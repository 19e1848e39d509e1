"""The confirmation pages of the actions on records, and the buttons that lead to them.

A GET request changes nothing. Permissions are checked when an action is offered, when its page is shown and, for each
record, when it is carried out.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db import OperationalError, transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.formats import localize
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext

from django_jobchains.admin.actions import audit
from django_jobchains.admin.actions.action import HAS_CHANGED, NOT_ALLOWED, NOT_THERE
from django_jobchains.admin.actions.execution import ActionResult, show_result
from django_jobchains.admin.actions.forms import ActionForm
from django_jobchains.admin.actions.views import MAX_LISTED_ROWS, Button
from django_jobchains.admin.records.actions import RECORD_ACTIONS, RecordAction
from django_jobchains.admin.records.display import state_label, state_style
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.operations import db_for_write, record_types_of
from django_jobchains.text.errors import log_error

logger = getLogger("django_jobchains")

#: The number of records that can be selected.
MAX_RECORDS = 500


@dataclass(frozen=True)
class RecordRow:
    """A record on a confirmation page; ``refusal`` is the reason why it will be skipped, or empty."""

    record: Any
    url: str
    style: str
    state: Any
    refusal: Any


class RecordActionAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # takes no parameter at run time
    """Base class for admin classes of records, which can be retried, requeued and canceled."""

    record_actions: Sequence[RecordAction] = RECORD_ACTIONS

    def __init__(self, *args: Any, **options: Any) -> None:
        """Add the actions on records to the ``actions`` of a subclass, unless these are None."""
        super().__init__(*args, **options)
        if self.actions is not None:
            self.actions = [*self.actions, *map(_changelist_action, self.record_actions)]

    def has_retry_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may retry records, by default if they may change them.

        Like the next two methods, it is called once without a record and then for each record.
        """
        return self.has_change_permission(request, obj)

    def has_requeue_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request, obj)

    def has_cancel_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request, obj)

    @property
    def record_type(self) -> RecordType:
        """Return the registration of the model. Raises ``RecordTypeNotFound`` if it has none."""
        return record_types_of(self.model)[0]

    def get_urls(self) -> list[Any]:
        urls = []
        for action in self.record_actions:
            for route, view, name in (
                (f"<path:object_id>/record-{action.name}/", self.record_action_view, action.name),
                (f"record-{action.name}/", self.record_actions_view, f"{action.name}_many"),
            ):
                checked = self.admin_site.admin_view(partial(view, action=action))
                urls.append(path(route, checked, name=self._record_url_name(name)))
        return [*urls, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Reject actions that are not allowed, which Django only ignores, and keys that no row can have."""
        self._selected(request)
        requested = set(request.POST.getlist("action"))
        for action in self.record_actions:
            if action.name in requested:
                self._require(request, action)
        return super().changelist_view(request, extra_context)

    def record_buttons(self, request: HttpRequest, record: Any) -> list[Button]:
        """Return buttons for the actions that the user can perform on the record now."""
        return [
            Button(action.label, self._record_url(action.name, record), action.is_dangerous)
            for action in self.record_actions
            if not self._refusal(request, action, record)
        ]

    def record_action_view(self, request: HttpRequest, object_id: str, action: RecordAction) -> HttpResponse:
        """Show the confirmation page for one record or, by POST, carry out the action."""
        self._require(request, action)
        found = self._visible(request, self._keys([unquote(object_id)]))
        if not found:
            raise Http404(gettext("This row does not exist."))
        if not self._may(request, action, found[0]):
            raise PermissionDenied
        if request.method != "POST":
            return self._confirmation(request, action, found)
        return self._perform(request, action, found)

    def record_actions_view(self, request: HttpRequest, action: RecordAction) -> HttpResponse:
        """Carry out the action for several records."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._require(request, action)
        keys = self._selected(request)
        if not 1 <= len(keys) <= MAX_RECORDS:
            raise BadRequest
        return self._perform(request, action, self._visible(request, keys), keys)

    def confirm_selected(self, request: HttpRequest, action: RecordAction) -> HttpResponse | None:
        """Return the confirmation page for the selected records, or None with a message to show the list again."""
        self._require(request, action)
        keys = self._selected(request)
        found = self._visible(request, keys) if 1 <= len(keys) <= MAX_RECORDS else []
        if not found or request.POST.get("select_across", "0") != "0":
            text = gettext("Nothing was changed: select 1 to %(limit)s rows.") % {"limit": localize(MAX_RECORDS)}
            messages.error(request, text)
            return None
        return self._confirmation(request, action, found, keys=keys, next_=request.get_full_path())

    def _confirmation(
        self,
        request: HttpRequest,
        action: RecordAction,
        found: Sequence[Any],
        form: Any = None,
        keys: Sequence[Any] = (),
        next_: str | None = None,
    ) -> TemplateResponse:
        """Return the confirmation page, with the ``form`` if it was sent. ``keys`` are set for several records."""
        next_ = self._next(request) if next_ is None else next_
        rows = [self._row(request, action, record) for record in found]
        possible = sum(not row.refusal for row in rows)
        form = form or action.form()
        context = {
            "title": action.label,
            "media": self.media + form.media,
            "action": action,
            "form": form if possible else ActionForm(),
            "rows": rows[:MAX_LISTED_ROWS],
            "more": max(0, len(rows) - MAX_LISTED_ROWS),
            "possible": possible,
            "impossible": max(len(keys), len(rows)) - possible,
            "ids": keys,
            "ids_name": ACTION_CHECKBOX_NAME,
            "act_url": reverse(
                f"admin:{self._record_url_name(f'{action.name}_many')}", current_app=self.admin_site.name
            )
            if keys
            else "",
            "next": next_,
            "back_url": next_ or self._page_after(found, keys),
        }
        return self.render(request, "admin/django_jobchains/record/confirm.html", context)

    def render(
        self, request: HttpRequest, template: str, context: Mapping[str, Any], status: int = 200
    ) -> TemplateResponse:
        """Return a page with the context that the templates of the admin need."""
        request.current_app = self.admin_site.name
        page_context = {**self.admin_site.each_context(request), "opts": self.opts, **context}
        return TemplateResponse(request, template, page_context, status=status)

    def _row(self, request: HttpRequest, action: RecordAction, record: Any) -> RecordRow:
        state = self.record_type.value(record, "state")
        refusal = self._refusal(request, action, record)
        return RecordRow(record, self._change_url(record), state_style(state), state_label(state), refusal)

    def _perform(
        self, request: HttpRequest, action: RecordAction, found: Sequence[Any], keys: Sequence[Any] = ()
    ) -> HttpResponse:
        form = action.form(request.POST)
        if not form.is_valid():
            return self._confirmation(request, action, found, form, keys)
        result = ActionResult()
        result.skip(NOT_THERE, set(keys) - {record.pk for record in found})
        try:
            self._carry_out(request, action, found, form, result)
        except OperationalError as error:
            log_error(logger, error, "Admin: a database error undid the action %s: %s", action.name)
            result = ActionResult(problem=gettext("a database error occurred, try again"))
        show_result(request, action, result)
        return HttpResponseRedirect(self._next(request) or self._page_after(found, keys))

    def _carry_out(
        self, request: HttpRequest, action: RecordAction, found: Sequence[Any], form: Any, result: ActionResult
    ) -> None:
        """Lock the records, check them, change those that allow it, and write the log entries, in one transaction."""
        keys = [record.pk for record in found]
        using = db_for_write(self.get_queryset(request))
        rows = self.model._base_manager.using(using)
        with transaction.atomic(using=using):
            to_lock = rows.filter(pk__in=keys).order_by("pk")
            list(to_lock.select_for_update(of=("self",), skip_locked=action.skips_locked))
            possible = []
            # Who may see or change a record can depend on its columns, so the rows are read again.
            locked = self._visible(request, keys)
            result.skip(NOT_THERE, set(keys) - {record.pk for record in locked})
            for record in locked:
                reason = self._refusal(request, action, record)
                result.skip(reason, [record.pk] if reason else ())
                possible += [] if reason else [record]
            if possible and action.perform(rows.filter(pk__in=[record.pk for record in possible]), form) < len(
                possible
            ):
                raise OperationalError(HAS_CHANGED)  # happens only in databases without row locks
            audit.log(request, possible, action.log_text, verb=action.name, flag=action.flag, using=using)
        result.changed = possible

    def _visible(self, request: HttpRequest, keys: Collection[Any]) -> list[Any]:
        """Return the records with these keys, in this order, without those that are hidden from the user."""
        rows = self.get_queryset(request)
        found = rows.using(db_for_write(rows)).filter(pk__in=keys).order_by()
        seen = {record.pk: record for record in found if self.has_view_permission(request, record)}
        return [seen[key] for key in keys if key in seen]

    def _refusal(self, request: HttpRequest, action: RecordAction, record: Any) -> Any:
        """Return why the user cannot perform the action on this record; empty if they can."""
        return action.refusal(self.record_type, record) if self._may(request, action, record) else NOT_ALLOWED

    def _may(self, request: HttpRequest, action: RecordAction, record: Any = None) -> bool:
        permission: Callable[..., bool] = getattr(self, f"has_{action.name}_permission")
        return permission(request, record)

    def _require(self, request: HttpRequest, action: RecordAction) -> None:
        if not (self.has_view_permission(request) and self._may(request, action)):
            raise PermissionDenied

    def _selected(self, request: HttpRequest) -> list[Any]:
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

    def _page_after(self, found: Sequence[Model], keys: Sequence[Any]) -> str:
        if keys or not found:
            name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
            return reverse(name, current_app=self.admin_site.name)
        return self._change_url(found[0])

    def _change_url(self, record: Model) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return reverse(name, args=[quote(record.pk)], current_app=self.admin_site.name)

    def _record_url(self, name: str, record: Model) -> str:
        url = f"admin:{self._record_url_name(name)}"
        return reverse(url, args=[quote(record.pk)], current_app=self.admin_site.name)

    def _record_url_name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_record_{name}"

    def _next(self, request: HttpRequest) -> str:
        """Return the URL to return to; empty unless it is on this site."""
        given = (request.POST if request.method == "POST" else request.GET).get("next", "")
        is_here = url_has_allowed_host_and_scheme(given, {request.get_host()}, require_https=request.is_secure())
        return given if is_here else ""


def _changelist_action(action: RecordAction) -> Any:
    """Return the changelist action that shows the confirmation page for the selected records."""

    @admin.action(description=action.label, permissions=[action.name])
    def confirm(model_admin: RecordActionAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return model_admin.confirm_selected(request, action)

    confirm.__name__ = action.name
    return confirm
