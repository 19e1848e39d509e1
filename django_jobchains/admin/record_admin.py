"""The mixin for the admin class of a model with records: actions, a list with limits on large tables, and the page."""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core import checks
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.dateparse import parse_datetime
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_jobchains import records
from django_jobchains.admin.actions.action import HAS_CHANGED, NOT_THERE, Action, ActionResult, Refused
from django_jobchains.admin.actions.confirmed import ActionRow, ConfirmedActions
from django_jobchains.admin.actions.forms import ActionForm, TimeFields
from django_jobchains.admin.base import LimitedPaginator, url_with
from django_jobchains.admin.display import PERMISSION, Payloads, Timestamps
from django_jobchains.admin.lists.filters import ChoiceFilter
from django_jobchains.admin.visibility import has_own_view_permission, is_whole
from django_jobchains.db.times import as_compared
from django_jobchains.payloads.codecs import Unreadable
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.errors import RecordTypeNotFound
from django_jobchains.records.models import JobRecord
from django_jobchains.records.operations import db_for_write, record_types_of
from django_jobchains.store import get_store
from django_jobchains.text.humanize import age, number, span

STATE_LABELS = dict(JobRecord.State.choices)


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
    help_text = _(
        "Queues failed, errored and cancelled records now, and sets their counts of failures and resets to 0."
    )
    success_text = ngettext_lazy("%(count)s record retried.", "%(count)s records retried.", "number")
    log_text = _("Retried.")

    def perform(self, rows: QuerySet[Any], form: Any) -> int:
        return records.retry(rows)


class RequeueRecords(RecordAction):
    name = "requeue"
    label = _("Requeue")
    statuses = ("failed", "errored", "cancelled", "processing")
    help_text = _(
        "Queues records again, to be processed now or later, and keeps their counts of failures and resets. "
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
        """Lock the records, check them again, and change the records that still allow it."""
        keys = [record.pk for record in targets]
        rows = self.model._base_manager.using(self.action_database(request))
        to_lock = rows.filter(pk__in=keys).order_by("pk")
        list(to_lock.select_for_update(of=("self",), skip_locked=action.skips_locked))
        # Who may see or change a record can depend on its columns, so the rows are read again.
        locked = self.action_targets(request, keys, action)
        result.skip(NOT_THERE, set(keys) - {record.pk for record in locked})
        possible = self.select_possible(request, locked, action, result)
        if possible and action.perform(rows.filter(pk__in=[record.pk for record in possible]), form) < len(possible):
            raise Refused(HAS_CHANGED)  # happens only in databases without row locks
        return possible


#: The number of rows that are checked where ``has_view_permission`` hides single rows.
MAX_CHECKED_ROWS = 1_000
#: The number of entries of the execution logs that are shown, the last ones.
MAX_ENTRIES = 200
#: The states that change without user action.
OPEN = ("queued", "processing", "errored")
#: The columns that the form for a new record has.
_COLUMNS_OF_NEW = ("process_after",)


class RecordChangeList(ChangeList):
    """A list that reads its rows when it is created, within the time limit of the page, and without their logs."""

    def get_filters(self, request: HttpRequest) -> Any:
        """Ignore lookups that no filter declares, as the lists of chains and jobs do.

        Django allows any lookup of a column, also of one whose values are hidden: ``?failure_message__startswith=``.
        """
        specs, has_specs, lookups, *others = super().get_filters(request)
        of_dates = {f"{self.date_hierarchy}__{end}" for end in ("gte", "lt")}
        declared = {name: values for name, values in lookups.items() if name in of_dates}
        return specs, has_specs, declared, *others

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        found = super().get_queryset(request, exclude_parameters)
        return found.defer(record_types_of(self.model)[0].columns["execution_logs"])

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.is_limited = self.paginator.is_limited or getattr(request, "has_unchecked_rows", False)
        for record in self.result_list:  # evaluates the queryset
            record._payloads = self.model_admin.record_payloads(request, record)  # type: ignore[attr-defined]  # for the column


class RecordStateFilter(ChoiceFilter):
    """Filters by the state of records."""

    title = _("state")
    parameter_name = "record_state"
    options = tuple(STATE_LABELS.items())
    COUNTED = ("queued", "processing", "errored", "failed")

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.filter(**{record_types_of(queryset.model)[0].columns["state"]: value})


class RecordWaitFilter(ChoiceFilter):
    """Filters queued records by whether a worker may start them now, by the database's clock."""

    title = _("due time")
    parameter_name = "record_wait"
    LATER = "later"
    options = (("due", _("due now")), (LATER, _("waiting for its time")))

    def narrowed(self, queryset: Any, value: str) -> Any:
        columns = record_types_of(queryset.model)[0].columns
        time, using = columns["process_after"], queryset.db
        now = as_compared(get_store(using).stats.time_ago(0), using)
        is_later = Q(**{f"{time}__gt": now})
        is_due = Q(**{f"{time}__isnull": True}) | Q(**{f"{time}__lte": now})
        return queryset.filter(is_later if value == self.LATER else is_due, **{columns["state"]: "queued"})


class JobRecordAdmin(RecordActionAdmin):
    """Shows the state, timings and logs of records, with actions to retry, requeue and cancel them.

    Use it as the first base class: ``class UploadAdmin(JobRecordAdmin, admin.ModelAdmin)``. The columns of
    ``JobRecord`` are not in the form, and saving the form does not write them, because a worker may have changed them.
    """

    list_display: tuple[Any, ...] = ("__str__", "record_state", "record_queued", "record_attempts")
    list_filter: ClassVar[tuple[Any, ...]] = (RecordStateFilter, RecordWaitFilter)
    #: The primary key, because it has an index.
    ordering: ClassVar[tuple[Any, ...]] = ("-pk",)
    paginator = LimitedPaginator
    change_list_template = "admin/django_jobchains/record/change_list.html"
    change_form_template = "admin/django_jobchains/record/change_form.html"

    # Permissions

    def has_view_payload_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may see failure messages and logs, by default with ``view_payload``."""
        return bool(request.user.has_perm(f"django_jobchains.{PERMISSION}"))

    def record_payloads(self, request: HttpRequest, record: Any) -> Payloads:
        return Payloads(is_allowed=self.has_view_payload_permission(request, record))

    # Columns of the list

    @admin.display(description=_("state"))
    def record_state(self, record: Any) -> SafeString:
        """Return the state, and the first line of the failure message.

        A user who may not see payloads sees only the type of the error.
        """
        state, message = (self.record_type.value(record, name) for name in ("state", "failure_message"))
        payloads = getattr(record, "_payloads", Payloads(is_allowed=False))
        return payloads.status_html(state_style(state), state_label(state), message)

    @admin.display(description=_("queued"))
    def record_queued(self, record: Any) -> SafeString | str:
        time = self.record_type.value(record, "queued_at")
        return Timestamps(record._state.db).timestamp(time, age)

    @admin.display(description=_("attempts"))
    def record_attempts(self, record: Any) -> str:
        return number(attempts_of(self.record_type, record))

    # The list and the page

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Exclude rows that ``has_view_permission`` hides, also from counts and actions."""
        found, may_repeat = super().get_search_results(request, queryset, search_term)
        if self.sees_all_rows(request) or not has_own_view_permission(self):
            return found, may_repeat
        texts = (self.record_type.columns[name] for name in ("failure_message", "execution_logs"))
        rows = list((found.distinct() if may_repeat else found).defer(*texts)[: MAX_CHECKED_ROWS + 1])
        request.has_unchecked_rows = len(rows) > MAX_CHECKED_ROWS  # type: ignore[attr-defined]  # for the list
        checked = rows[:MAX_CHECKED_ROWS]
        return queryset.filter(pk__in=[row.pk for row in checked if self.has_view_permission(request, row)]), False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RecordChangeList]:
        return RecordChangeList

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the section about the record to its page."""
        record = context.get("original")
        if record is not None:
            shown = record_view(
                self.record_type, record, self.record_payloads(request, record), Timestamps(record._state.db)
            )
            context["record"] = shown
            context["title"], context["subtitle"] = f"{capfirst(self.opts.verbose_name)} – {record}", None
            context["actions"] = self.action_buttons(request, record)
            context["refresh_url"] = url_with(request) if shown["is_open"] and request.method == "GET" else ""
        return super().render_change_form(request, context, *args, **kwargs)

    # The form

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Exclude the columns of ``JobRecord``, except ``process_after`` of a new record."""
        hidden = {
            name
            for column, name in self.record_type.columns.items()
            if obj is not None or column not in _COLUMNS_OF_NEW
        }
        return [
            (title, {**options, "fields": _without(options["fields"], hidden)})
            for title, options in super().get_fieldsets(request, obj)
        ]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        record = super().get_object(request, object_id, from_field)
        if record is not None:
            self._keep_values(record)
        return record

    def get_changelist_formset(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Keep the values of the rows that ``list_editable`` changes, which are not read by ``get_object``."""
        keep_values = self._keep_values

        class RecordFormSet(super().get_changelist_formset(request, **kwargs)):  # type: ignore[misc]
            def add_fields(self, form: Any, index: Any) -> None:
                super().add_fields(form, index)
                keep_values(form.instance)

        return RecordFormSet

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Write only the columns of the form, and others that have changed since the record was read.

        A worker or the handler may have changed the record since then.
        """
        if not change:
            super().save_model(request, obj, form, change)
            return
        loaded = getattr(obj, "_loaded", {})
        # ``pre_save`` sets the value of fields such as those with ``auto_now``.
        changed = [
            field.name
            for field in self._own_fields(obj)
            if field.name in form.fields or field not in loaded or field.pre_save(obj, False) != loaded[field]
        ]
        obj.save(update_fields=changed)

    def _keep_values(self, record: Any) -> None:
        """Keep the values that were read, from which ``save_model`` finds the columns that have changed."""
        record._loaded = {field: deepcopy(field.value_from_object(record)) for field in self._own_fields(record)}

    def _own_fields(self, record: Any) -> list[Any]:
        """Return the fields that are not columns of ``JobRecord``, except deferred ones, which are not saved either."""
        ours, deferred = {*self.record_type.columns.values()}, record.get_deferred_fields()
        fields = [field for field in self.opts.concrete_fields if not (field.primary_key or field.generated)]
        return [field for field in fields if field.name not in ours and field.attname not in deferred]

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        found = super().check(**kwargs)
        try:
            _kind = self.record_type
        except RecordTypeNotFound as error:
            found.append(
                checks.Error(
                    f"{type(self).__qualname__} is a JobRecordAdmin, but no app handles its records.",
                    hint=str(error),
                    id="jobchains.E017",
                )
            )
        return found


def record_view(kind: RecordType, record: Any, payloads: Payloads, times: Timestamps) -> dict[str, Any]:
    """Return the context of the section about a record."""
    state, cancel = kind.value(record, "state"), kind.value(record, "cancel")
    started, finished = kind.value(record, "started_at"), kind.value(record, "finished_at")
    failures, resets = kind.value(record, "num_failures") or 0, kind.value(record, "num_resets") or 0
    took = times.between(started, finished) if finished or state == "processing" else None
    logs, message = _entries(kind.value(record, "execution_logs")), kind.value(record, "failure_message")
    failure, line = payloads.text(message), payloads.error_line(message)
    return {
        "state": state_label(state),
        "style": state_style(state),
        "is_open": state in OPEN,
        "is_stopping": state == "processing" and bool(cancel),
        "queued": times.timestamp(kind.value(record, "queued_at")),
        "process_after": times.timestamp(kind.value(record, "process_after")) if state == "queued" else None,
        "started": times.timestamp(started),
        "took": "" if took is None else span(took),
        "finished": times.timestamp(finished),
        "heartbeat": times.timestamp(kind.value(record, "last_heartbeat_at")) if state == "processing" else None,
        "worker": kind.value(record, "worker_hostname") or "",
        "attempts": number(attempts_of(kind, record)),
        "failures": number(failures),
        "resets": number(resets),
        "failure": None if failure.text == line else failure,
        "failure_type": line,
        "logs": tuple(_views(logs, payloads, times)) if payloads.is_allowed else (),
        "omitted_logs": number(len(logs) - MAX_ENTRIES) if len(logs) > MAX_ENTRIES else "",
        "is_logs_hidden": bool(logs) and not payloads.is_allowed,
    }


def attempts_of(kind: RecordType, record: Any) -> int:
    """Return the number of started attempts: failed ones, reset ones, and one that runs or has completed."""
    ended = (kind.value(record, "num_failures") or 0) + (kind.value(record, "num_resets") or 0)
    return int(ended) + (kind.value(record, "state") in ("processing", "completed"))


def _entries(value: Any) -> list[dict[str, Any]]:
    """Return the entries that are valid: programs may have written anything to the column."""
    if isinstance(value, Unreadable):
        return [{"out": str(value)}]
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _views(logs: list[dict[str, Any]], payloads: Payloads, times: Timestamps) -> Iterator[dict[str, Any]]:
    first = max(0, len(logs) - MAX_ENTRIES)
    for index, entry in enumerate(logs[first:], start=first):
        # Without an exit code and a duration, the command still runs.
        duration, exit_code, command = (entry.get(name) for name in ("duration_ms", "exit_code", "command"))
        is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
        yield {
            "key": f"log-{index}",
            "name": payloads.line(str(entry.get("key") or gettext("entry"))),
            "command": payloads.text(" ".join(map(str, command)) if isinstance(command, list) else str(command or "")),
            "out": payloads.text(str(entry.get("out") or "")),
            "exit_code": "" if exit_code is None else payloads.line(str(exit_code)),
            "is_failed": exit_code not in (None, 0),
            "took": span(duration / 1000) if is_number else "",  # type: ignore[operator]
            "started": times.timestamp(_time(entry.get("start_time"))),
        }


def _time(value: Any) -> datetime | None:
    try:
        return parse_datetime(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _without(names: Sequence[Any], hidden: set[str]) -> list[Any]:
    """Return the names of fields without these. Fields that share a line are in a nested sequence."""
    kept = [_without(name, hidden) if isinstance(name, list | tuple) else name for name in names]
    return [name for name in kept if name not in ([], ()) and not (isinstance(name, str) and name in hidden)]


def is_counted(site: admin.AdminSite, request: HttpRequest, model: Any) -> bool:
    """Return whether the dashboard may count a model's records for this user: they see the model and all its rows."""
    if not site.is_registered(model):
        return bool(request.user.has_perm(f"{model._meta.app_label}.view_{model._meta.model_name}"))
    model_admin: Any = site.get_model_admin(model)
    if not model_admin.has_view_permission(request):
        return False
    if isinstance(model_admin, JobRecordAdmin):
        return model_admin.sees_all_rows(request)
    rows: QuerySet[Any] = model_admin.get_queryset(request)
    return not has_own_view_permission(model_admin) and is_whole(rows)
