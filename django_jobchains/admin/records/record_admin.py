"""The mixin for the admin class of a model with records."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.core import checks
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.payload_display import PERMISSION, Payloads
from django_jobchains.admin.records import lists
from django_jobchains.admin.records.actions import RecordActionAdmin, state_label, state_style
from django_jobchains.admin.records.display import attempts_of, record_view
from django_jobchains.admin.records.lists import RecordChangeList, RecordPaginator, RecordStateFilter, RecordWaitFilter
from django_jobchains.admin.timestamps import Timestamps
from django_jobchains.admin.urls import url_with
from django_jobchains.admin.visibility import has_own_view_permission, is_whole
from django_jobchains.records.errors import RecordTypeNotFound
from django_jobchains.text.humanize import age, number

#: The columns that the form for a new record has.
_COLUMNS_OF_NEW = ("process_after",)


class JobRecordAdmin(RecordActionAdmin):
    """Shows the state, timings and logs of records, with actions to retry, requeue and cancel them.

    ``class UploadAdmin(JobRecordAdmin, admin.ModelAdmin)``. The columns of records are not in the form, and saving the
    form does not write them, because a worker may have changed them.
    """

    list_display: tuple[Any, ...] = ("__str__", "record_state", "record_error", "record_queued", "record_attempts")
    list_filter: ClassVar[tuple[Any, ...]] = (RecordStateFilter, RecordWaitFilter)
    #: By the primary key, which has an index.
    ordering: ClassVar[tuple[Any, ...]] = ("-pk",)
    paginator = RecordPaginator
    change_list_template = "admin/django_jobchains/record/change_list.html"
    change_form_template = "admin/django_jobchains/record/change_form.html"

    # Permissions

    def has_view_payload_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may see failure messages and logs, by default with the permission for payloads."""
        return bool(request.user.has_perm(f"django_jobchains.{PERMISSION}"))

    # Columns of the list

    @admin.display(description=_("state"))
    def record_state(self, record: Any) -> SafeString:
        state = self.record_type.value(record, "state")
        return format_html(
            '<span class="jobchains-status jobchains-status-{}">{}</span>', state_style(state), state_label(state)
        )

    @admin.display(description=_("queued"))
    def record_queued(self, record: Any) -> SafeString | str:
        time = self.record_type.value(record, "queued_at")
        return Timestamps(record._state.db).timestamp(time, age).html if time else ""

    @admin.display(description=_("attempts"))
    def record_attempts(self, record: Any) -> str:
        return number(attempts_of(self.record_type, record))

    @admin.display(description=_("error"))
    def record_error(self, record: Any) -> SafeString | str:
        """Return the exception's type; ``get_list_display`` replaces it with a column that depends on the user."""
        return self._error(record, Payloads(is_allowed=False))

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        names = super().get_list_display(request)
        return [self._error_column(request) if name == "record_error" else name for name in names]

    def _error_column(self, request: HttpRequest) -> Callable[[Any], SafeString | str]:
        @admin.display(description=_("error"))
        def record_error(record: Any) -> SafeString | str:
            return self._error(record, self._payloads(request, record))

        return record_error

    def _error(self, record: Any, payloads: Payloads) -> SafeString | str:
        line = payloads.error_line(self.record_type.value(record, "failure_message"))
        return format_html('<span class="jobchains-error-line">{}</span>', line) if line else ""

    def _payloads(self, request: HttpRequest, record: Any) -> Payloads:
        return Payloads(is_allowed=self.has_view_payload_permission(request, record))

    # The list and the page

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Leave out rows that ``has_view_permission`` hides: from the list, its counts and actions, and other pages."""
        found, may_repeat = super().get_search_results(request, queryset, search_term)
        if self.sees_all_rows(request) or not has_own_view_permission(self):
            return found, may_repeat
        texts = (self.record_type.columns[name] for name in ("failure_message", "execution_logs"))
        rows = list((found.distinct() if may_repeat else found).defer(*texts)[: lists.MAX_CHECKED_ROWS + 1])
        request.has_unchecked_rows = len(rows) > lists.MAX_CHECKED_ROWS  # type: ignore[attr-defined]  # for the list
        checked = rows[: lists.MAX_CHECKED_ROWS]
        return queryset.filter(pk__in=[row.pk for row in checked if self.has_view_permission(request, row)]), False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RecordChangeList]:
        return RecordChangeList

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the section about the record to its page."""
        record = context.get("original")
        if record is not None:
            shown = record_view(self.record_type, record, self._payloads(request, record), Timestamps(record._state.db))
            context["record"] = shown
            context["actions"] = self.action_buttons(request, record)
            context["refresh_url"] = url_with(request) if shown.is_open and request.method == "GET" else ""
        return super().render_change_form(request, context, *args, **kwargs)

    # The form

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Omit the columns of records, except the time before which a new record is not processed."""
        hidden = {
            name
            for column, name in self.record_type.columns.items()
            if obj is not None or column not in _COLUMNS_OF_NEW
        }
        return [
            (title, {**options, "fields": _without(options["fields"], hidden)})
            for title, options in super().get_fieldsets(request, obj)
        ]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Write only the other columns: a worker may have changed the record since it was read."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        ours = set(self.record_type.columns.values())
        fields = [field for field in self.opts.concrete_fields if not (field.primary_key or field.generated)]
        obj.save(update_fields=[field.name for field in fields if field.name not in ours])

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
