"""What people fill in: outputs and inputs as JSON, times, and which chain to start."""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.deduplication import KEY_LENGTH, Deduplicate
from django_jobchains.exceptions import InvalidInput, InvalidOutput, InvalidPayload
from django_jobchains.job_types import JobType, checked_queue
from django_jobchains.models import QUEUE_LENGTH
from django_jobchains.payloads import Codec
from django_jobchains.schedules import MOST_SECONDS

_MOST_MINUTES = int(MOST_SECONDS // 60)


class ActionForm(forms.Form):
    """Nothing to fill in: to confirm is enough."""

    required_css_class = "required"


class PayloadField(forms.CharField):
    """JSON, checked and rebuilt by a job type's own codec."""

    widget = forms.Textarea

    def __init__(self, codec: Codec, error: type[InvalidPayload], **options: Any) -> None:
        self._codec, self._error = codec, error
        attributes = {"rows": 8, "cols": 80, "spellcheck": "false", "class": "vLargeTextField jobchains-json"}
        missing = {"required": _('Write JSON, such as null, 5, "text" or {"key": 1}.')}
        super().__init__(widget=forms.Textarea(attributes), strip=False, error_messages=missing, **options)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        _check_json(text)
        try:
            payload = self._codec.decode(text, self._error)
            self._codec.encode(payload, self._error)
        except InvalidPayload as error:
            raise ValidationError(gettext("Not accepted: %(problem)s"), params={"problem": error}) from error
        return payload


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise ValidationError(
            gettext("This is no JSON: line %(line)s, column %(column)s: %(problem)s."),
            params={"line": error.lineno, "column": error.colno, "problem": error.msg},
        ) from error
    except (ValueError, RecursionError) as error:  # a number too long to be read, or nested too deep
        raise ValidationError(gettext("This JSON cannot be read: %(problem)s."), params={"problem": error}) from error


def shape_of(codec: Codec) -> str:
    """The JSON Schema as text; empty when any JSON will do."""
    schema = codec.json_schema()
    return json.dumps(schema, indent=2, ensure_ascii=False) if schema else ""


class _TimeFields(forms.Form):
    """A date, or a delay."""

    run_at = forms.DateTimeField(
        label=_("At"),
        required=False,
        widget=forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    delay_minutes = forms.IntegerField(
        label=_("Or in so many minutes"), required=False, min_value=0, max_value=_MOST_MINUTES
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["run_at"].help_text = gettext("In the time zone %(zone)s. A time in the past is now.") % {
            "zone": _zone_name()
        }

    def clean_run_at(self) -> datetime | None:
        """Without ``USE_TZ`` forms give naive times, in the project's zone."""
        moment: datetime | None = self.cleaned_data["run_at"]
        if moment is None:
            return None
        if timezone.is_naive(moment):
            moment = timezone.make_aware(moment, timezone.get_default_timezone())
        try:
            return moment.astimezone(UTC)
        except OverflowError as error:
            raise ValidationError(gettext("There is no such time in UTC.")) from error

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if values.get("run_at") is not None and values.get("delay_minutes") is not None:
            raise ValidationError(gettext("Give a time or a delay, not both."))
        return values

    def when(self) -> dict[str, Any]:
        """As ``chains`` takes it; empty when neither was given."""
        run_at, minutes = self.cleaned_data["run_at"], self.cleaned_data["delay_minutes"]
        if run_at is not None:
            return {"run_at": run_at}
        return {} if minutes is None else {"delay": timedelta(minutes=minutes)}


def _zone_name() -> str:
    return timezone.get_current_timezone_name() if settings.USE_TZ else timezone.get_default_timezone_name()


class RescheduleForm(_TimeFields, ActionForm):
    def clean(self) -> dict[str, Any]:
        values = super().clean()
        if not self.errors and not self.when():
            raise ValidationError(gettext("Give a time or a delay."))
        return values


class DeleteForm(ActionForm):
    cascade = forms.BooleanField(label=_("Also delete the chains they waited for"), required=False)


class CompleteForm(ActionForm):
    """The output of one job, or of several of a type."""

    #: The jobs that the page showed: a chain that has gone on to another is left alone.
    job = forms.Field(widget=forms.MultipleHiddenInput)
    #: Of the next job; empty: the chain ends.
    type = forms.CharField(widget=forms.HiddenInput, required=False, strip=False)
    #: With what the chain goes on; None: not at all.
    target: JobType[Any, Any] | None = None

    @property
    def target_name(self) -> str:
        """For the template, which would call the type itself; "" without one."""
        return self.target.name if self.target else ""

    def __init__(self, *args: Any, shown: Sequence[UUID], codec: Codec, **options: Any) -> None:
        super().__init__(*args, **options)
        self.initial.update(job=shown, type=self.target_name)
        self.fields["payload"] = PayloadField(codec, InvalidOutput, label=_("Output, as JSON"))
        self.shape = shape_of(codec)

    def clean_type(self) -> str:
        """What was meant as an input must never end a chain: the type may be gone since the page was shown."""
        name: str = self.cleaned_data["type"]
        if name != self.target_name:
            raise ValidationError(gettext("The chain cannot go on with this type. Choose again how it ends."))
        return name


class ContinueForm(CompleteForm):
    """The input of the next job instead."""

    def __init__(self, *args: Any, target: JobType[Any, Any], **options: Any) -> None:
        self.target = target
        super().__init__(*args, codec=target.input_codec, **options)
        label = _("Input of the next step, as JSON")
        self.fields["payload"] = PayloadField(target.input_codec, InvalidInput, label=label)


class TypeForm(forms.Form):
    """Which type; asked by GET, for what else is asked depends on it."""

    type = forms.ChoiceField(label=_("Type"))

    def __init__(self, data: Any, names: Iterable[str]) -> None:
        super().__init__(data if "type" in data else None)
        self.fields["type"].choices = [(name, name) for name in sorted(names)]  # type: ignore[attr-defined]

    @property
    def chosen(self) -> str:
        return str(self.cleaned_data["type"]) if self.is_valid() else ""


class NextTypeForm(TypeForm):
    """With which type a chain goes on, or none."""

    def __init__(self, data: Any, names: Iterable[str]) -> None:
        super().__init__(data, names)
        self.fields["type"].required = False
        nothing = ("", _("nothing: the chain ends"))
        self.fields["type"].choices = [nothing, *self.fields["type"].choices]  # type: ignore[attr-defined]


class EnqueueForm(_TimeFields, ActionForm):
    queue = forms.CharField(label=_("Queue"), required=False, max_length=QUEUE_LENGTH)
    priority = forms.IntegerField(
        label=_("Priority"),
        required=False,
        min_value=-32_768,
        max_value=32_767,
        help_text=_("A higher number runs first."),
    )
    deduplication_key = forms.CharField(
        label=_("Deduplication key"),
        required=False,
        max_length=KEY_LENGTH,
        help_text=_("While a chain of this type and key may still run, no other is started."),
    )
    field_order = ("payload", "queue", "priority", "run_at", "delay_minutes", "deduplication_key")

    def __init__(self, *args: Any, job_type: JobType[Any, Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["payload"] = PayloadField(job_type.input_codec, InvalidInput, label=_("Input, as JSON"))
        self.fields["queue"].help_text = gettext("Empty: the queue of the type.")
        self.shape = shape_of(job_type.input_codec)
        self.order_fields(self.field_order)

    def clean_queue(self) -> Any:
        return _accepted(checked_queue, self.cleaned_data["queue"], gettext("Use printable characters only."))

    def clean_deduplication_key(self) -> Any:
        return _accepted(Deduplicate, self.cleaned_data["deduplication_key"], gettext("Use printable characters only."))

    def options(self) -> dict[str, Any]:
        """As ``chains.enqueue`` takes them."""
        values = self.cleaned_data
        named = {
            "queue": values["queue"],
            "priority": values["priority"],
            "deduplicate": values["deduplication_key"],
        }
        return {name: value for name, value in named.items() if value is not None} | self.when()


def _accepted(take: Callable[[str], Any], text: str, problem: str) -> Any:
    """None for an empty text; a form error for one that is refused."""
    if not text:
        return None
    try:
        return take(text)
    except ValueError as error:
        raise ValidationError(problem) from error
