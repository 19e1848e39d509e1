"""Checks of the arguments of ``JobType``, ``Processors`` and ``register``."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.forms import BaseForm

from django_jobchains.exceptions import RegistryError
from django_jobchains.models import QUEUE_LENGTH, TYPE_NAME_LENGTH


def checked_name(name: object) -> str:
    """Return the name of a new job type; raise ``RegistryError`` if it is not valid."""
    if callable(name):
        raise RegistryError("register() takes the name of the job type first: @processors.register('app.name').")
    if not isinstance(name, str) or not 0 < len(name) <= TYPE_NAME_LENGTH or not name.isprintable():
        raise RegistryError(
            f"{name!r} is not a name for a job type: pass 1 to {TYPE_NAME_LENGTH} printable characters."
        )
    return name


def check_choice(argument: str, given: object, choices: Sequence[object]) -> None:
    """Raise ``ValueError`` unless the value is one of the choices. 1 is not ``True``."""
    if not any(given is choice or (isinstance(given, str) and given == choice) for choice in choices):
        raise ValueError(f"{argument}={given!r:.50} is not one of {', '.join(map(repr, choices))}.")


def check_options(function: str, options: Mapping[str, object], kind: type) -> None:
    """Raise ``TypeError`` for keyword arguments that are not among the options of this TypedDict."""
    known = kind.__annotations__
    if unknown := ", ".join(sorted(options.keys() - known.keys())):
        raise TypeError(f"{function}() does not take the argument {unknown}. It takes {', '.join(known)}.")


def checked_form(form: object) -> Any:
    """Return a Django form class or the dotted path of one; raise ``ValueError`` for anything else."""
    is_class = isinstance(form, type) and issubclass(form, BaseForm)
    if not (form is None or is_class or (isinstance(form, str) and "." in form)):
        raise ValueError(f"completion_form={form!r:.100}: a form class, or its dotted path as in 'shop.forms.Decide'.")
    return form


def checked_queue(name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > QUEUE_LENGTH or not name.isprintable():
        raise ValueError(f"{name!r} is not a valid queue name: use 1 to {QUEUE_LENGTH} printable characters.")
    return name


def checked_priority(priority: object) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or not -32_768 <= priority <= 32_767:
        raise ValueError(f"priority={priority!r}: a whole number from -32768 to 32767; higher runs first.")
    return priority
