"""The page that creates a schedule, or changes one that does not come from code, and its form."""

from datetime import timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.admin.models import ADDITION, CHANGE
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.validators import MinValueValidator
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains import schedules
from django_jobchains.admin.actions.action import log_change
from django_jobchains.admin.actions.confirmed import Button
from django_jobchains.admin.actions.forms import ActionForm, PayloadForm, TypeForm
from django_jobchains.admin.display import MAX_TEXT_LENGTH
from django_jobchains.admin.schedule_admin import IN_CODE, ScheduleDetailAdmin, ScheduleListAdmin, reason_of
from django_jobchains.conf import current_database
from django_jobchains.declare.job_types import JobType
from django_jobchains.declare.schedules import CRON_LENGTH
from django_jobchains.exceptions import (
    InvalidInput,
    InvalidSchedule,
    ScheduleDeclaredInCode,
    ScheduleExists,
    ScheduleNotFound,
)
from django_jobchains.models import QUEUE_LENGTH, SCHEDULE_NAME_LENGTH, Schedule
from django_jobchains.payloads.codecs import Unreadable
from django_jobchains.payloads.schemas import NO_DEFAULT
from django_jobchains.text.redaction import redacted

#: The arguments of ``schedules.create`` that are fields of the form, in its parts.
RULE = ("name", "cron", "every", "timezone")
OPTIONS = ("overlap", "on_missed", "max_catch_up", "jitter", "queue", "priority")
#: With this parameter, the page that changes a schedule asks for another input.
INPUT_VAR = "input"


class ScheduleForm(ActionForm):
    """The arguments of a schedule, except its type and input. ``schedules.create`` and ``update`` validate them."""

    name = forms.CharField(
        label=_("Name"), max_length=SCHEDULE_NAME_LENGTH, widget=forms.TextInput({"class": "vTextField"})
    )
    cron = forms.CharField(
        label=_("Cron expression"),
        required=False,
        max_length=CRON_LENGTH,
        help_text=_("Minute, hour, day of the month, month and weekday, such as 0 3 * * * or 0 9 * * MON-FRI."),
    )
    every = forms.DurationField(
        label=_("Or interval"),
        required=False,
        validators=[MinValueValidator(timedelta(seconds=1))],
        help_text=_("As hours:minutes:seconds, such as 0:05:00, with days before it, such as 1 00:00:00."),
    )
    timezone = forms.CharField(label=_("Time zone"), required=False, max_length=64)
    overlap = forms.ChoiceField(
        label=_("If the previous chain has not ended"),
        choices=(
            (Schedule.Overlap.ALLOW, _("start another chain")),
            (Schedule.Overlap.SKIP, _("skip the tick")),
            (Schedule.Overlap.QUEUE, _("let one chain wait for it")),
        ),
    )
    on_missed = forms.ChoiceField(
        label=_("If ticks were missed"),
        choices=(
            (Schedule.OnMissed.RUN_ONCE, _("start one chain for the latest")),
            (Schedule.OnMissed.SKIP, _("skip them")),
            (Schedule.OnMissed.RUN_ALL, _("start a chain for each")),
        ),
    )
    max_catch_up = forms.IntegerField(
        label=_("For at most"), initial=100, help_text=_("The number of missed ticks for which chains are started.")
    )
    jitter = forms.DurationField(
        label=_("Jitter"),
        required=False,
        validators=[MinValueValidator(timedelta(0))],
        help_text=_("Each chain is delayed by a random time up to this one, given as hours:minutes:seconds."),
    )
    queue = forms.CharField(
        label=_("Queue"), required=False, max_length=QUEUE_LENGTH, help_text=_("Leave empty for the queue of the type.")
    )
    priority = forms.IntegerField(
        label=_("Priority"), required=False, help_text=_("Jobs with a higher number run first.")
    )

    def __init__(self, data: Any, schedule: Schedule | None = None) -> None:
        names = ("cron", "every", "timezone", *OPTIONS)
        super().__init__(data, initial={name: getattr(schedule, name) for name in names} if schedule else None)
        if schedule:
            del self.fields["name"]
            # Hidden fields with what the page showed: another user may have changed other arguments in the meantime.
            for field in self.fields.values():
                field.show_hidden_initial = True
        self._is_new = schedule is None
        text = gettext("Such as Europe/Berlin. Leave empty for %(zone)s.")
        self.fields["timezone"].help_text = text % {"zone": settings.TIME_ZONE or "UTC"}

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if not {"cron", "every"} & self.errors.keys():
            has_cron, has_interval = bool(values["cron"]), values["every"] is not None
            if has_cron and has_interval:
                raise ValidationError(gettext("Enter a cron expression or an interval, not both."))
            if not (has_cron or has_interval):
                raise ValidationError(gettext("Enter a cron expression or an interval."))
        return values

    def rule_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in RULE if name in self.fields]

    def option_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in OPTIONS]

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for ``schedules.create``, or the changed ones for ``update``."""
        names = {*RULE, *OPTIONS} if self._is_new else {*self.changed_data}
        if names & {"cron", "every"}:
            names |= {"cron", "every"}  # One replaces the other.
        values = {name: self.cleaned_data[name] for name in names - {"name"}}
        return {name: None if value in ("", timedelta(0)) else value for name, value in values.items()}

    def add_problem(self, error: InvalidSchedule) -> None:
        """Show what is wrong at the field of the argument."""
        problem = ValidationError(gettext("Invalid value: %(problem)s"), params={"problem": error.problem})
        self.add_error(error.argument if error.argument in self.fields else None, problem)


class ScheduleFormAdmin(ScheduleDetailAdmin, ScheduleListAdmin):
    """Adds the pages with the form to the schedule admin."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "add_schedule")

    def schedule_types(self, request: HttpRequest) -> dict[str, JobType[Any, Any]]:
        """Return the types of the schedules that this user may create, by name: the ``entry_types`` of the chain admin.

        Types with required blockers are not among them.
        """
        types = self.visibility(request).entry_types()
        return {name: job_type for name, job_type in types.items() if not job_type.blocker_slots}

    def get_urls(self) -> list[Any]:
        return [self.page_path(f"{self.row_route}/edit/", self.edit_view, "edit"), *super().get_urls()]

    def action_buttons(self, request: HttpRequest, target: Schedule) -> list[Button]:
        """Add a button that leads to the form."""
        buttons = super().action_buttons(request, target)
        if target.source == Schedule.Source.CODE or not self.may(request, "change_schedule", target):
            return buttons
        place = 1 if buttons and buttons[0].style == "primary" else 0
        buttons.insert(place, Button(_("Change"), self.page_url("edit", target.name), "secondary"))
        return buttons

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        if not (self.has_view_permission(request) and self.has_add_permission(request)):
            raise PermissionDenied
        return self._form_view(request, None)

    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not (self.has_view_permission(request) and self.may(request, "change_schedule")):
            raise PermissionDenied
        schedule = self.visible_row(request, self.key_of(unquote(object_id)))
        if schedule is None:
            raise Http404(gettext("This row does not exist."))
        if not self.may(request, "change_schedule", schedule):
            raise PermissionDenied
        if schedule.source == Schedule.Source.CODE:
            return self._refused(request, IN_CODE, schedule)
        return self._form_view(request, schedule)

    def _form_view(self, request: HttpRequest, schedule: Schedule | None) -> HttpResponse:
        """Show or save the form of a new schedule, or of this one."""
        types, data = self.schedule_types(request), request.GET.dict()
        if schedule and "type" not in data:
            data = {"type": schedule.type_name}
        type_form = TypeForm(data, types)
        context = {"type_form": type_form, "schedule": schedule, "input_var": INPUT_VAR}
        if not type_form.chosen:
            return self._form_page(request, context)
        job_type, posted = types[type_form.chosen], request.POST if request.method == "POST" else None
        form = ScheduleForm(posted, schedule)
        input_form = self._input_form(request, posted, job_type, schedule)
        # Both are validated, so that all errors are shown.
        if all([form.is_valid(), input_form is None or input_form.is_valid()]):
            response = self._save(request, schedule, job_type, form, input_form)
            if response is not None:
                return response
        return self._form_page(request, {**context, "form": form, "input_form": input_form})

    def _input_form(
        self, request: HttpRequest, posted: Any, job_type: JobType[Any, Any], schedule: Schedule | None
    ) -> PayloadForm | None:
        """Return the form of the input, or None if the page does not show it, and it stays as it is.

        The input of a schedule is shown if the user may view it, and if nothing of it is masked.
        """
        stored: Any = NO_DEFAULT
        if schedule and schedule.type_name == job_type.name and INPUT_VAR not in request.GET:
            stored = schedule.input
            is_allowed = self.visibility(request).payloads(schedule).is_allowed
            is_short = (schedule.input_size or 0) <= MAX_TEXT_LENGTH  # type: ignore[attr-defined]  # annotated
            if isinstance(stored, Unreadable) or not (is_allowed and is_short) or redacted(stored) != stored:
                return None
        labels = {"json_label": _("Input, as JSON"), "legend": _("Input")}
        return PayloadForm(posted, codec=job_type.input_codec, error=InvalidInput, stored=stored, **labels)

    def _save(
        self,
        request: HttpRequest,
        schedule: Schedule | None,
        job_type: JobType[Any, Any],
        form: ScheduleForm,
        input_form: PayloadForm | None,
    ) -> HttpResponse | None:
        """Create or update and log the schedule, or add the error to the form and return None."""
        options = form.options()
        if input_form and "payload" in input_form.cleaned_data:
            options["input"] = input_form.cleaned_data["payload"]
        try:
            with transaction.atomic(using=current_database()):
                if schedule is None:
                    saved = schedules.create(form.cleaned_data["name"], job_type, **options)
                    log_change(request, [saved], _("Added."), verb="create", flag=ADDITION)
                else:
                    if job_type.name != schedule.type_name:  # Another user may have changed it in the meantime.
                        options["job_type"] = job_type
                    saved = schedules.update(schedule.name, **options)
                    log_change(request, [saved], _("Changed."), verb="update", flag=CHANGE)
        except ScheduleExists:
            form.add_error("name", gettext("A schedule with this name already exists."))
            return None
        except InvalidSchedule as error:
            form.add_problem(error)
            return None
        except (ScheduleNotFound, ScheduleDeclaredInCode) as error:
            return self._refused(request, reason_of(error), schedule)
        text = gettext("The schedule was changed.") if schedule else gettext("The schedule was created.")
        messages.success(request, text)
        is_seen = self.visible_row(request, saved.name)
        return HttpResponseRedirect(self.page_url("change", saved.name) if is_seen else self.page_url("changelist"))

    def _refused(self, request: HttpRequest, reason: Any, schedule: Schedule | None) -> HttpResponse:
        messages.error(request, gettext("Nothing was changed: %(reason)s.") % {"reason": reason})
        return HttpResponseRedirect(self.page_url("change", schedule.name) if schedule else self.page_url("changelist"))

    def _form_page(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        schedule = context["schedule"]
        title = gettext("Change schedule %(name)s") % {"name": schedule.name} if schedule else gettext("Add a schedule")
        back_url = self.page_url("change", schedule.name) if schedule else self.page_url("changelist")
        page = {"title": title, "back_url": back_url, **context}
        return self.render(request, "admin/django_jobchains/schedule/form.html", page)
