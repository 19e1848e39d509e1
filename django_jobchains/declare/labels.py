"""Labels of jobs: a short text about the input, such as "Order 7", that distinguishes the jobs of a type.

A label is made when it is shown, and never stored. It is made from the input with its secrets masked, so it cannot
contain one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from string import Formatter
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.declare.limits import field_names
from django_jobchains.declare.policies import check_function
from django_jobchains.exceptions import InvalidPayload, RegistryError
from django_jobchains.payloads.codecs import decode_json
from django_jobchains.payloads.strict_json import decode, encode, write_json
from django_jobchains.text.errors import log_error
from django_jobchains.text.redaction import redacted, redacted_text

logger = getLogger("django_jobchains")

#: A format string of the fields of the input, such as "Order {order_id}", or a function of the input.
Label = str | Callable[[Any], Any]
#: Longer inputs, in characters of JSON, have no label.
MAX_INPUT_LENGTH = 10_000
#: The characters of a label that are shown.
MAX_LENGTH = 80
#: The fields of the input that are shown for a type without a label.
MAX_FIELDS = 3
#: The types whose label has failed in this process, which is logged once.
_reported: set[str] = set()


def checked_label(given: object) -> Any:
    """Return a label as declared. Raise ``TypeError`` or ``ValueError`` if it is not valid for any input."""
    if isinstance(given, str):
        if not all(name.isidentifier() for name in _names(given)):
            raise ValueError(f"label={given!r:.100}: name the fields of the input, as in 'Order {{order_id}}'.")
    elif given is not None:
        check_function("label", given, 1, "the input")
    return given


def check_label(label: Label | None, annotation: Any) -> None:
    """Raise ``RegistryError`` if a format string names what is not a field of the input."""
    known = field_names(annotation)
    if known is None or not isinstance(label, str):
        return
    for name in _names(label):
        if name not in known:
            fields = f"It has {', '.join(known)}." if known else "It has no fields: pass a function of the input."
            raise RegistryError(f"label={label!r:.100} names {name!r}, which is not a field of the input. {fields}")


def _names(text: str) -> list[str]:
    """Return the fields that a format string names. Raise ``ValueError`` if it is not a format string."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ValueError(f"label={text!r:.100} is not a format string: {error}.") from error
    return [re.split(r"[.\[]", name)[0] for name in names]


def label_of(job_type: Any, stored: str | None) -> str:
    """Return the label of a job with this stored input, in one line. Without ``label=``, it has the first fields.

    ``job_type`` is None for a type that no app declares.
    The label is empty if the input is None or too long, or cannot be decoded. Errors of a declared label do not matter.
    """
    if stored is None or len(stored) > MAX_INPUT_LENGTH:
        return ""
    try:
        value = redacted(decode(decode_json(stored, InvalidPayload)))
    except (InvalidPayload, ImproperlyConfigured, OSError):
        return ""
    made = None
    if job_type is not None and job_type.label is not None:
        try:
            label, decoded = job_type.label, job_type.decode_input(encode(value, is_limited=False))
            made = label(decoded) if callable(label) else _FieldFormatter().format(label, decoded)
        except Exception as error:
            if job_type.name not in _reported:
                _reported.add(job_type.name)
                log_error(logger, error, "The label of %s failed, so the first fields are shown: %s", job_type.name)
    text = _first_fields(value, job_type) if made is None else redacted_text(str(made))
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 10 * MAX_LENGTH]).split())
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


class _FieldFormatter(Formatter):
    """Formats the fields of one input, whether it is a mapping or an object."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        [decoded] = args
        return decoded[key] if isinstance(decoded, Mapping) else getattr(decoded, str(key))


def _first_fields(value: Any, job_type: Any) -> str:
    """Return the first fields in the order of their declaration. PostgreSQL stores them in another one."""
    if isinstance(value, dict):
        declared = (field_names(job_type.input_codec.annotation) if job_type is not None else None) or ()
        names = list(dict.fromkeys([*(name for name in declared if name in value), *value]))[:MAX_FIELDS]
        return ", ".join(f"{name}: {_text(value[name])}" for name in names)
    return "" if value is None else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else write_json(value)
