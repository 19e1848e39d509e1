"""Checks of the arguments of ``JobType``, ``Processors`` and ``register``."""

from collections.abc import Mapping
from typing import Any

from django.forms import BaseForm

from django_jobchains.exceptions import RegistryError
from django_jobchains.values import TYPE_NAME


def checked_name(name: object) -> str:
    """Return the name of a new job type; raise ``RegistryError`` if it is not valid."""
    if callable(name):
        raise RegistryError("register() takes the name of the job type first: @processors.register('app.name').")
    try:
        return TYPE_NAME.check("name", name)
    except ValueError as error:
        raise RegistryError(str(error)) from error


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
