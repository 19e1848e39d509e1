"""The form fields for the members of an input or output, from the JSON Schema of its type."""

import json
from collections.abc import Callable
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.forms.utils import pretty_name
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.json_schemas import NO_DEFAULT, Member, Schema

#: Longer texts, and those without a limit, are entered in a field with several lines.
MAX_LINE_LENGTH = 255


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
    """Return the form field of a member: JSON if its type has no other field."""
    field = _field(member)
    field.label = _label(member)
    field.help_text = field.help_text or member.description
    if not isinstance(field, forms.BooleanField) or isinstance(field, forms.NullBooleanField):
        field.required = is_required(member)
        field.widget.is_required = field.required
    return field


def is_required(member: Member) -> bool:
    """Return whether the field may not be empty. An empty text is a text, if the type has one as its default."""
    if member.accepts_null:
        return False
    return member.is_required or (member.default is not NO_DEFAULT and not _is_text(member.schema))


def add_to(payload: dict[str, Any], member: Member, value: Any) -> None:
    """Add the value of a form field to the object. Without a value, the type's default applies."""
    if value not in (None, ""):
        payload[member.name] = value
    elif member.accepts_null and (member.is_required or member.default is not NO_DEFAULT):
        payload[member.name] = None
    elif member.default is not NO_DEFAULT:
        payload[member.name] = ""


def _label(member: Member) -> str:
    """Return the title, unless it is the one that pydantic derives from the name."""
    is_derived = member.title in ("", member.name.replace("_", " ").title())
    return pretty_name(member.name) if is_derived else member.title


def _field(member: Member) -> forms.Field:
    schema = member.schema
    if "const" in schema or isinstance(schema.get("enum"), list):
        return _choice_field(member)
    if _is_number_or_text(schema):
        return forms.CharField(initial=_initial(member), widget=forms.TextInput({"class": "vTextField"}))
    make = _FIELDS.get((str(schema.get("type")), str(schema.get("format", ""))))
    make = make or _FIELDS.get((str(schema.get("type")), ""))
    return make(member) if make else _json_field(member)


def _initial(member: Member) -> Any:
    return None if member.default is NO_DEFAULT else member.default


def _json_field(member: Member) -> forms.Field:
    is_filled = member.is_required or member.default is not NO_DEFAULT
    text = json.dumps(member.example, indent=2, ensure_ascii=False) if is_filled else ""
    return JSONMemberField(rows=3 + text.count("\n"), initial=text, help_text=_("As JSON."))


def _choice_field(member: Member) -> forms.Field:
    values = [member.schema["const"]] if "const" in member.schema else member.schema["enum"]
    choices = [(json.dumps(value), str(value)) for value in values]
    if member.default is NO_DEFAULT or member.accepts_null:
        choices = [("", "---------"), *choices]
    initial = None if member.default in (NO_DEFAULT, None) else json.dumps(member.default)
    return forms.TypedChoiceField(choices=choices, coerce=json.loads, empty_value=None, initial=initial)


def _boolean_field(member: Member) -> forms.Field:
    if member.accepts_null or not (member.is_required or member.default is not NO_DEFAULT):
        return forms.NullBooleanField(initial=_initial(member))
    return forms.BooleanField(required=False, initial=_initial(member))


def _integer_field(member: Member) -> forms.Field:
    return forms.IntegerField(initial=_initial(member), **_limits(member.schema))


def _float_field(member: Member) -> forms.Field:
    return forms.FloatField(initial=_initial(member), **_limits(member.schema))


def _limits(schema: Schema) -> dict[str, Any]:
    """Return the limits that the field can check. The type checks the other ones."""
    limits = {"min_value": schema.get("minimum"), "max_value": schema.get("maximum")}
    return {name: limit for name, limit in limits.items() if isinstance(limit, int | float)}


def _text_field(member: Member) -> forms.Field:
    length, schema = member.schema.get("maxLength"), member.schema
    is_line = "pattern" in schema or "format" in schema or (isinstance(length, int) and length <= MAX_LINE_LENGTH)
    attributes = {"class": "vTextField"} if is_line else {"class": "vLargeTextField", "rows": 2}
    widget = forms.TextInput(attributes) if is_line else forms.Textarea(attributes)
    max_length = length if isinstance(length, int) else None
    return forms.CharField(strip=False, widget=widget, max_length=max_length, initial=_initial(member))


def _date_field(member: Member) -> forms.Field:
    return forms.DateField(initial=_initial(member), widget=forms.DateInput({"type": "date"}, format="%Y-%m-%d"))


def _time_field(member: Member) -> forms.Field:
    widget = forms.TimeInput({"type": "time", "step": "1"}, format="%H:%M:%S")
    return forms.TimeField(initial=_initial(member), widget=widget)


def _datetime_field(member: Member) -> forms.Field:
    initial = parse_datetime(member.default) if isinstance(member.default, str) else None
    widget = forms.DateTimeInput({"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")
    return forms.DateTimeField(initial=initial, widget=widget)


def _uuid_field(member: Member) -> forms.Field:
    widget = forms.TextInput({"class": "vTextField"})
    return forms.UUIDField(initial=_initial(member), widget=widget)


#: By the type and the format in a JSON Schema.
_FIELDS: dict[tuple[str, str], Callable[[Member], forms.Field]] = {
    ("boolean", ""): _boolean_field,
    ("integer", ""): _integer_field,
    ("number", ""): _float_field,
    ("string", ""): _text_field,
    ("string", "date"): _date_field,
    ("string", "time"): _time_field,
    ("string", "date-time"): _datetime_field,
    ("string", "uuid"): _uuid_field,
}


def _is_text(schema: Schema) -> bool:
    return schema.get("type") == "string" and not {"const", "enum", "format"} & schema.keys()


def _is_number_or_text(schema: Schema) -> bool:
    """Return whether values are numbers that may be written as text, as pydantic describes a ``Decimal``."""
    return sorted(str(option.get("type")) for option in schema.get("anyOf", ())) == ["number", "string"]
