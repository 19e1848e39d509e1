"""The actions on records: the states they apply to, their texts, and their calls of ``django_jobchains.records``."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, ClassVar

from django.contrib.admin.models import CHANGE
from django.db.models import QuerySet
from django.utils.formats import localize
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_jobchains import records
from django_jobchains.admin.actions.forms import ActionForm, TimeFields
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import get_store

STATE_LABELS = {
    "queued": _("queued"),
    "processing": _("processing"),
    "completed": _("completed"),
    "errored": _("errored"),
    "failed": _("failed"),
    "canceled": _("canceled"),
}


class RequeueForm(TimeFields, ActionForm):
    """Takes a time or a delay, or neither, which means now."""

    def after(self, using: str) -> datetime | None:
        """Return the time before which no worker starts the records. A delay is added to the database's time."""
        when = self.when()
        if "delay" in when:
            return get_store(using).stats.time_ago(-when["delay"].total_seconds())
        return when.get("run_at")


class RecordAction:
    """An action that users perform on records."""

    #: Whether the operation itself handles records that other transactions have locked, so that the page does not wait.
    skips_locked: ClassVar[bool] = False
    #: Used in URLs, as the name of the changelist action, and in the name of the permission's method.
    name: ClassVar[str]
    label: ClassVar[Any]
    states: ClassVar[Collection[str]]
    help_text: ClassVar[Any]
    #: Shown afterwards, with the ``number`` of changed records for its plural, and as a ``count`` in the user's format.
    success_text: ClassVar[Any]
    #: The message of the log entry.
    log_text: ClassVar[Any]
    form: ClassVar[type[ActionForm]] = ActionForm
    is_dangerous: ClassVar[bool] = False
    flag: ClassVar[int] = CHANGE

    def refusal(self, kind: RecordType, record: Any) -> Any:
        """Return why the action cannot be performed on this record; empty if it can."""
        state = kind.value(record, "state")
        return "" if state in self.states else STATE_LABELS.get(state, state)

    def perform(self, rows: QuerySet[Any], form: Any) -> int:
        """Change the rows, which the caller has locked and checked; return how many."""
        raise NotImplementedError

    def success_message(self, count: int) -> str:
        return str(self.success_text % {"number": count, "count": localize(count)})


class RetryRecords(RecordAction):
    name = "retry"
    label = _("Retry")
    states = ("failed", "errored", "canceled")
    help_text = _("Queues failed, errored and canceled records now, and counts their failures and resets anew.")
    success_text = ngettext_lazy("%(count)s record retried.", "%(count)s records retried.", "number")
    log_text = _("Retried.")

    def perform(self, rows: QuerySet[Any], form: Any) -> int:
        return records.retry(rows)


class RequeueRecords(RecordAction):
    name = "requeue"
    label = _("Requeue")
    states = ("failed", "errored", "canceled", "processing")
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
    states = ("queued", "errored", "processing")
    help_text = _(
        "A record that waits is canceled immediately. The handler of a record in process is asked to stop, and the "
        "record is canceled when it has stopped with an error."
    )
    success_text = ngettext_lazy(
        "%(count)s record canceled or stopping.", "%(count)s records canceled or stopping.", "number"
    )
    log_text = _("Canceled, or asked to stop.")
    is_dangerous = True
    skips_locked = True

    def refusal(self, kind: RecordType, record: Any) -> Any:
        if kind.value(record, "state") == "processing" and kind.value(record, "cancel"):
            return _("already asked to stop")
        return super().refusal(kind, record)

    def perform(self, rows: QuerySet[Any], form: Any) -> int:
        return records.cancel(rows)


RECORD_ACTIONS: tuple[RecordAction, ...] = (RetryRecords(), RequeueRecords(), CancelRecords())
