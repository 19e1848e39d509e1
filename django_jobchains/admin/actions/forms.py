"""The forms of the actions: times, types of chains, and whether to delete blockers."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.values import MAX_SECONDS

_MAX_MINUTES = int(MAX_SECONDS // 60)


class ActionForm(forms.Form):
    """A form without fields, for actions that only need a confirmation."""

    required_css_class = "required"


class TimeFields(forms.Form):
    """Fields for a time or a delay."""

    run_at = forms.DateTimeField(
        label=_("Time"),
        required=False,
        widget=forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    delay_minutes = forms.IntegerField(
        label=_("Or delay in minutes"), required=False, min_value=0, max_value=_MAX_MINUTES
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["run_at"].help_text = gettext("In the time zone %(zone)s. A time in the past means now.") % {
            "zone": _time_zone_name()
        }

    def clean_run_at(self) -> datetime | None:
        """Return the time in UTC. Without ``USE_TZ``, forms return naive times in the time zone of the project."""
        moment: datetime | None = self.cleaned_data["run_at"]
        if moment is None:
            return None
        if timezone.is_naive(moment):
            moment = timezone.make_aware(moment, timezone.get_default_timezone())
        try:
            return moment.astimezone(UTC)
        except OverflowError as error:
            raise ValidationError(gettext("This time cannot be converted to UTC.")) from error

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if values.get("run_at") is not None and values.get("delay_minutes") is not None:
            raise ValidationError(gettext("Enter a time or a delay, not both."))
        return values

    def when(self) -> dict[str, Any]:
        """Return the keyword arguments for ``chains``; empty if neither field was filled in."""
        run_at, minutes = self.cleaned_data["run_at"], self.cleaned_data["delay_minutes"]
        if run_at is not None:
            return {"run_at": run_at}
        return {} if minutes is None else {"delay": timedelta(minutes=minutes)}


def _time_zone_name() -> str:
    return timezone.get_current_timezone_name() if settings.USE_TZ else timezone.get_default_timezone_name()


class RescheduleForm(TimeFields, ActionForm):
    """Requires a time or a delay."""

    def clean(self) -> dict[str, Any]:
        values = super().clean()
        if not self.errors and not self.when():
            raise ValidationError(gettext("Enter a time or a delay."))
        return values


class DeleteForm(ActionForm):
    """Asks whether to delete blockers too."""

    cascade = forms.BooleanField(label=_("Also delete the chains that they waited for"), required=False)


class TypeForm(forms.Form):
    """The choice of a type, sent by GET because the other fields depend on it."""

    type = forms.ChoiceField(label=_("Type"))

    def __init__(self, data: Any, names: Iterable[str]) -> None:
        super().__init__(data if "type" in data else None)
        self.fields["type"].choices = [(name, name) for name in sorted(names)]  # type: ignore[attr-defined]

    @property
    def chosen(self) -> str:
        return str(self.cleaned_data["type"]) if self.is_valid() else ""


class NextTypeForm(TypeForm):
    """The choice of the type that a chain continues with, or none."""

    def __init__(self, data: Any, names: Iterable[str]) -> None:
        super().__init__(data, names)
        self.fields["type"].required = False
        nothing = ("", _("nothing (the chain ends)"))
        self.fields["type"].choices = [nothing, *self.fields["type"].choices]  # type: ignore[attr-defined]
