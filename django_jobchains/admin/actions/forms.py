"""The forms of the actions: for times, types of chains, and inputs and outputs with fields for their members."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.forms.utils import pretty_name
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.exceptions import InvalidPayload
from django_jobchains.payloads.schemas import NO_DEFAULT, Member, Schema, example_of, members_of
from django_jobchains.payloads.strict_json import check_size
from django_jobchains.payloads.types import Codec
from django_jobchains.values import MAX_SECONDS

#: Longer texts, and those without a limit, are entered in a field with several lines.
MAX_LINE_LENGTH = 255
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
        zone = timezone.get_current_timezone_name() if settings.USE_TZ else timezone.get_default_timezone_name()
        text = gettext("In the time zone %(zone)s. A time in the past means now.")
        self.fields["run_at"].help_text = text % {"zone": zone}

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


class PayloadForm(ActionForm):
    """Fields for the members of an input or output, or one field for its JSON if the type has no members.

    The value is ``cleaned_data["payload"]``. ``stored``: a value to change, which is shown as JSON, so that nothing of
    it is lost. If the user does not change it, ``cleaned_data`` has no payload.
    """

    def __init__(
        self,
        *args: Any,
        codec: Codec,
        error: type[InvalidPayload],
        json_label: Any,
        legend: Any,
        stored: Any = NO_DEFAULT,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._codec, self._error, self._is_stored = codec, error, stored is not NO_DEFAULT
        schema = codec.json_schema()
        members = () if self._is_stored else members_of(schema)
        self._members = {f"payload_{member.name}": member for member in members}
        shown = _indented(example_of(schema)) if schema else ""
        if self._is_stored:
            shown = _indented(stored)
        self.legend = legend if self._members else ""
        self.schema = _indented(schema) if schema else ""
        self.fields |= {name: field_of(member) for name, member in self._members.items()} or {
            "payload": JSONTextField(label=json_label, initial=shown, show_hidden_initial=self._is_stored)
        }

    def member_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self._members]

    def other_fields(self) -> list[forms.BoundField]:
        return [field for field in self.visible_fields() if field.name not in self._members]

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if {"payload", *self._members} & self.errors.keys():
            return values
        if self._is_stored and not self.has_changed():
            del values["payload"]  # It may need ``upgrade_input``, and another user may have changed it.
            return values
        try:
            text = self._text(values)
            check_size(text, self._error)
            values["payload"] = self._codec.decode(text, self._error)
            self._codec.encode(values["payload"], self._error)
        except InvalidPayload as problem:
            if self._members:
                add_problems(self, problem, {member.name: name for name, member in self._members.items()})
            else:
                self.add_error("payload", _invalid(problem))
        return values

    def _text(self, values: Mapping[str, Any]) -> str:
        """Return the JSON text of the value."""
        if not self._members:
            return str(values["payload"])
        payload: dict[str, Any] = {}
        for name, member in self._members.items():
            add_to(payload, member, values[name])
        return written(payload)


def written(value: Any) -> str:
    """Return the value of a form as JSON, not longer than ``payloads.encode`` would write it."""
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False, separators=(",", ":"))


def add_problems(form: forms.BaseForm, problem: InvalidPayload, names: Mapping[str, str]) -> None:
    """Show each problem at the field of its member. ``names``: the fields by the names of their members."""
    if not problem.problems:
        form.add_error(None, _invalid(problem))
    for path, text in problem.problems:
        inner = ".".join(map(str, path[1:]))
        form.add_error(names.get(str(path[0])) if path else None, _invalid(f"{inner}: {text}" if inner else text))


def _invalid(problem: object) -> ValidationError:
    return ValidationError(gettext("Invalid value: %(problem)s"), params={"problem": problem})


def _indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


class JSONTextField(forms.CharField):
    """JSON as text. Its value is the text, so that a codec can decode it."""

    def __init__(self, *, rows: int = 8, **options: Any) -> None:
        attributes = {"rows": rows, "cols": 80, "spellcheck": "false", "class": "vLargeTextField jobchains-json"}
        missing = {"required": _('Enter JSON, such as null, 5, "text" or {"key": 1}.')}
        super().__init__(widget=forms.Textarea(attributes), strip=False, error_messages=missing, **options)

    def clean(self, value: Any) -> Any:
        text: str = super().clean(value)
        if text.strip():
            read_json(text)
        return text


class JSONMemberField(JSONTextField):
    """JSON as text. Its value is the decoded JSON, or None without any."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        return read_json(text) if text.strip() else None


def read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValidationError(
            gettext("Invalid JSON: line %(line)s, column %(column)s: %(problem)s."),
            params={"line": error.lineno, "column": error.colno, "problem": error.msg},
        ) from error
    except (ValueError, RecursionError) as error:  # a number with too many digits, or too deep a nesting
        raise ValidationError(gettext("This JSON cannot be read: %(problem)s."), params={"problem": error}) from error


def field_of(member: Member) -> forms.Field:
    """Return the form field of a member, which is a JSON field for types without a special field."""
    field = _field(member)
    # pydantic derives a title from the name if there is none.
    has_title = member.title not in ("", member.name.replace("_", " ").title())
    field.label = member.title if has_title else pretty_name(member.name)
    field.help_text = field.help_text or member.description
    if not isinstance(field, forms.BooleanField) or isinstance(field, forms.NullBooleanField):
        field.required = is_required(member)
        field.widget.is_required = field.required
    return field


def is_required(member: Member) -> bool:
    """Return whether the field may not be empty. An empty text is a text, if the type has one as its default."""
    if member.accepts_null:
        return False
    is_text = member.schema.get("type") == "string" and not {"const", "enum", "format"} & member.schema.keys()
    return member.is_required or (member.default is not NO_DEFAULT and not is_text)


def add_to(payload: dict[str, Any], member: Member, value: Any) -> None:
    """Add the value of a form field to the object. Without a value, the type's default applies."""
    if value not in (None, ""):
        payload[member.name] = value
    elif member.accepts_null and (member.is_required or member.default is not NO_DEFAULT):
        payload[member.name] = None
    elif member.default is not NO_DEFAULT:
        payload[member.name] = ""


def _field(member: Member) -> forms.Field:
    schema, initial = member.schema, _initial(member)
    if "const" in schema or isinstance(schema.get("enum"), list):
        return _choice_field(member)
    # A number that may be written as text, as pydantic describes a ``Decimal``.
    if sorted(str(option.get("type")) for option in schema.get("anyOf", ())) == ["number", "string"]:
        return forms.CharField(initial=initial, widget=forms.TextInput({"class": "vTextField"}))
    match schema.get("type"):
        case "boolean":
            if member.accepts_null or not (member.is_required or member.default is not NO_DEFAULT):
                return forms.NullBooleanField(initial=initial)
            return forms.BooleanField(required=False, initial=initial)
        case "integer":
            return forms.IntegerField(initial=initial, **_limits(schema))
        case "number":
            return forms.FloatField(initial=initial, **_limits(schema))
        case "string":
            return _text_field(member)
    is_filled = member.is_required or member.default is not NO_DEFAULT
    text = json.dumps(member.example, indent=2, ensure_ascii=False) if is_filled else ""
    return JSONMemberField(rows=3 + text.count("\n"), initial=text, help_text=_("As JSON."))


def _initial(member: Member) -> Any:
    return None if member.default is NO_DEFAULT else member.default


def _choice_field(member: Member) -> forms.Field:
    values = [member.schema["const"]] if "const" in member.schema else member.schema["enum"]
    choices = [(json.dumps(value), str(value)) for value in values]
    if member.default is NO_DEFAULT or member.accepts_null:
        choices = [("", "---------"), *choices]
    initial = None if member.default in (NO_DEFAULT, None) else json.dumps(member.default)
    return forms.TypedChoiceField(choices=choices, coerce=json.loads, empty_value=None, initial=initial)


def _limits(schema: Schema) -> dict[str, Any]:
    """Return the limits that the field can check. The type checks the other ones."""
    limits = {"min_value": schema.get("minimum"), "max_value": schema.get("maximum")}
    return {name: limit for name, limit in limits.items() if isinstance(limit, int | float)}


def _text_field(member: Member) -> forms.Field:
    schema, initial = member.schema, _initial(member)
    widget: forms.Widget
    match schema.get("format"):
        case "date":
            return forms.DateField(initial=initial, widget=forms.DateInput({"type": "date"}, format="%Y-%m-%d"))
        case "time":
            widget = forms.TimeInput({"type": "time", "step": "1"}, format="%H:%M:%S")
            return forms.TimeField(initial=initial, widget=widget)
        case "date-time":
            moment = parse_datetime(initial) if isinstance(initial, str) else None
            widget = forms.DateTimeInput({"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")
            return forms.DateTimeField(initial=moment, widget=widget)
        case "uuid":
            return forms.UUIDField(initial=initial, widget=forms.TextInput({"class": "vTextField"}))
    length = schema.get("maxLength") if isinstance(schema.get("maxLength"), int) else None
    is_line = "pattern" in schema or "format" in schema or (length is not None and length <= MAX_LINE_LENGTH)
    attributes = {"class": "vTextField"} if is_line else {"class": "vLargeTextField", "rows": 2}
    widget = forms.TextInput(attributes) if is_line else forms.Textarea(attributes)
    return forms.CharField(strip=False, widget=widget, max_length=length, initial=initial)
