"""Middleware that every slice must have of which a worker runs jobs: a tenant check that nobody can forget."""

from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_jobchains.conf import get_settings
from django_jobchains.middleware.hooks import Middleware

Kind = type[Middleware]


def required_kinds(more: Iterable[Kind | str] = ()) -> tuple[Kind, ...]:
    """What ``JOBCHAINS["REQUIRED_MIDDLEWARE"]`` and a worker require; raises ``ImproperlyConfigured``."""
    return tuple(dict.fromkeys(_kind(one) for one in (*_many(get_settings().REQUIRED_MIDDLEWARE), *_many(more))))


def lacking(given: Iterable[Middleware], required: Iterable[Kind]) -> list[Kind]:
    """Those of the required of which there is no instance, nor one of a subclass."""
    parts = tuple(given)
    return [kind for kind in required if not any(isinstance(part, kind) for part in parts)]


def described(lacks: Iterable[tuple[str, Iterable[Kind]]]) -> str:
    """Every slice by its name, with all that it lacks."""
    return "; ".join(
        f"{name} lacks {', '.join(f'{kind.__module__}.{kind.__qualname__}' for kind in kinds)}" for name, kinds in lacks
    )


def _many(given: Any) -> Iterable[Any]:
    if isinstance(given, str | type) or not isinstance(given, Iterable):
        raise ImproperlyConfigured(f"Required middleware is a list of classes or dotted paths, not {given!r}.")
    return given


def _kind(given: Any) -> Kind:
    kind: Any = given
    if isinstance(given, str):
        try:
            kind = import_string(given)
        except ImportError as error:
            raise ImproperlyConfigured(f"Required middleware {given!r} cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Middleware)):
        raise ImproperlyConfigured(f"Required middleware {given!r} is no subclass of Middleware.")
    return kind
