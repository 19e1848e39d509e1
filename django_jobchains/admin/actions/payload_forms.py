"""Forms for the input or output of a job: fields for the members of its type, or one field for its JSON."""

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.utils.translation import gettext

from django_jobchains.admin.actions.form_fields import JSONTextField, add_to, field_of
from django_jobchains.admin.actions.forms import ActionForm
from django_jobchains.exceptions import InvalidPayload
from django_jobchains.json_schemas import example_of, members_of
from django_jobchains.payloads import Codec, check_size


class PayloadForm(ActionForm):
    """Fields for the members of an input or output, or one field for its JSON if the type has no members.

    The value is ``cleaned_data["payload"]``.
    """

    def __init__(
        self, *args: Any, codec: Codec, error: type[InvalidPayload], json_label: Any, legend: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._codec, self._error = codec, error
        schema = codec.json_schema()
        self._members = {f"payload_{member.name}": member for member in members_of(schema)}
        self.legend = legend if self._members else ""
        self.schema = _indented(schema) if schema else ""
        self.fields |= {name: field_of(member) for name, member in self._members.items()} or {
            "payload": JSONTextField(label=json_label, initial=_indented(example_of(schema)) if schema else "")
        }

    def member_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self._members]

    def other_fields(self) -> list[forms.BoundField]:
        return [field for field in self.visible_fields() if field.name not in self._members]

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if {"payload", *self._members} & self.errors.keys():
            return values
        try:
            text = self._text(values)
            check_size(text, self._error)
            values["payload"] = self._codec.decode(text, self._error)
            self._codec.encode(values["payload"], self._error)
        except InvalidPayload as problem:
            self._add_problems(problem)
        return values

    def _text(self, values: Mapping[str, Any]) -> str:
        """Return the JSON text of the value."""
        if not self._members:
            return str(values["payload"])
        payload: dict[str, Any] = {}
        for name, member in self._members.items():
            add_to(payload, member, values[name])
        return written(payload)

    def _add_problems(self, problem: InvalidPayload) -> None:
        """Show each problem at its field."""
        names = {member.name: name for name, member in self._members.items()}
        if names:
            add_problems(self, problem, names)
        else:
            self.add_error("payload", _invalid(problem))


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
