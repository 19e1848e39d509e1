"""The actions on records: the states they apply to, their texts, and their calls of ``django_jobchains.records``."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, ClassVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_jobchains import records
from django_jobchains.admin.actions.action import HAS_CHANGED, NOT_THERE, Action, ActionResult, Refused
from django_jobchains.admin.actions.confirmed import ActionRow, ConfirmedActions
from django_jobchains.admin.actions.forms import ActionForm, TimeFields
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.operations import db_for_write, record_types_of
from django_jobchains.store import get_store

STATE_LABELS = {
    "queued": _("queued"),
    "processing": _("processing"),
    "completed": _("completed"),
    "errored": _("errored"),
    "failed": _("failed"),
    "cancelled": _("cancelled"),
}


def state_label(state: Any) -> Any:
    """Return the translated state, or the text itself for a custom state."""
    return STATE_LABELS.get(state, state)


def state_style(state: Any) -> str:
    """Return the part of a CSS class. Custom states, which may be any text, share one."""
    return state if state in STATE_LABELS else "other"


class RequeueForm(TimeFields, ActionForm):
    """Takes a time or a delay, or neither, which means now."""

    def after(self, using: str) -> datetime | None:
        """Return the time before which no worker starts the records. A delay is added to the database's time."""
        when = self.when()
        if "delay" in when:
            return get_store(using).stats.time_ago(-when["delay"].total_seconds())
        return when.get("run_at")


class RecordAction(Action):
    """An action that users perform on records."""

    #: Whether the operation itself handles records that other transactions have locked, so that the page does not wait.
    skips_locked: ClassVar[bool] = False

    def refusal_of(self, request: HttpRequest, target: Any) -> Any:
        state = record_types_of(type(target))[0].value(target, "state")
        return "" if state in self.statuses else state_label(state)

    def perform(self, rows: QuerySet[Any], form: Any) -> int:
        """Change the rows, which the caller has locked and checked; return how many."""
        raise NotImplementedError


class RetryRecords(RecordAction):
    name = "retry"
    label = _("Retry")
    statuses = ("failed", "errored", "cancelled")
    help_text = _("Queues failed, errored and cancelled records now, and counts their failures and resets anew.")
    success_text = ngettext_lazy("%(count)s record retried.", "%(count)s records retried.", "number")
    log_text = _("Retried.")

    def perform(self, rows: QuerySet[Any], form: Any) -> int:
        return records.retry(rows)


class RequeueRecords(RecordAction):
    name = "requeue"
    label = _("Requeue")
    statuses = ("failed", "errored", "cancelled", "processing")
    help_text = _(
        "Queues records again, now or to be processed from a time on, and keeps their counts of failures and resets. "
        "A handler that processes one is asked to stop, and can no longer change it."
    )
    success_text = ngettext_lazy("%(count)s record queued again.", "%(count)s records queued again.", "number")
    log_text = _("Queued again.")
    form = RequeueForm

    def perform(self, rows: QuerySet[Any], form: Any) -> int:
        return records.requeue(rows, after=form.after(rows.db))


class CancelRecords(RecordAction):
    name = "cancel"
    #: "Cancel" alone could be taken for leaving the page.
    label = _("Cancel records")
    statuses = ("queued", "errored", "processing")
    help_text = _(
        "A record that waits is cancelled immediately. The handler of a record in process is asked to stop, and the "
        "record is cancelled when it has stopped with an error."
    )
    success_text = ngettext_lazy(
        "%(count)s record cancelled or stopping.", "%(count)s records cancelled or stopping.", "number"
    )
    log_text = _("Cancelled, or asked to stop.")
    is_dangerous = True
    skips_locked = True

    def refusal_of(self, request: HttpRequest, target: Any) -> Any:
        kind = record_types_of(type(target))[0]
        if kind.value(target, "state") == "processing" and kind.value(target, "cancel"):
            return _("already asked to stop")
        return super().refusal_of(request, target)

    def perform(self, rows: QuerySet[Any], form: Any) -> int:
        return records.cancel(rows)


RECORD_ACTIONS: tuple[RecordAction, ...] = (RetryRecords(), RequeueRecords(), CancelRecords())


class RecordActionAdmin(ConfirmedActions):
    """Base class for admin classes of records, which can be retried, requeued and cancelled. A record is a target."""

    row_actions = RECORD_ACTIONS
    action_prefix = "record_"

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

    def visible_targets(self, request: HttpRequest, keys: Collection[Any]) -> list[Any]:
        rows = self.get_queryset(request)
        found = rows.using(db_for_write(rows)).filter(pk__in=keys).order_by()
        return [record for record in found if self.has_view_permission(request, record)]

    def is_action_allowed(self, request: HttpRequest, action: Action, target: Any = None) -> bool:
        permission: Callable[..., bool] = getattr(self, f"has_{action.name}_permission")
        return permission(request, target)

    def action_headings(self) -> list[Any]:
        return [capfirst(self.opts.verbose_name), _("State"), _("Action")]

    def action_row(self, target: Any, refusal: Any) -> ActionRow:
        state = self.record_type.value(target, "state")
        return ActionRow(
            str(target), self.page_url("change", target.pk), state_style(state), state_label(state), refusal
        )

    def action_database(self, request: HttpRequest) -> str:
        return db_for_write(self.get_queryset(request))

    def perform_action(
        self, request: HttpRequest, action: Any, targets: Sequence[Any], form: Any, result: ActionResult
    ) -> list[Model]:
        """Lock the records, check them again, and change those that still allow it."""
        keys = [record.pk for record in targets]
        rows = self.model._base_manager.using(self.action_database(request))
        to_lock = rows.filter(pk__in=keys).order_by("pk")
        list(to_lock.select_for_update(of=("self",), skip_locked=action.skips_locked))
        # Who may see or change a record can depend on its columns, so the rows are read again.
        locked = self.action_targets(request, keys, action)
        result.skip(NOT_THERE, set(keys) - {record.pk for record in locked})
        possible = []
        for record in locked:
            reason = self.action_refusal(request, action, record)
            result.skip(reason, [record.pk] if reason else ())
            possible += [] if reason else [record]
        if possible and action.perform(rows.filter(pk__in=[record.pk for record in possible]), form) < len(possible):
            raise Refused(HAS_CHANGED)  # happens only in databases without row locks
        return possible
