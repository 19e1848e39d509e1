"""Required middleware: workers refuse to run a slice without it, such as a slice that lacks the tenant check."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_jobchains.conf import get_settings
from django_jobchains.middleware.hooks import Middleware

Kind = type[Middleware[Any]]


def required_middleware(more: Iterable[Kind | str] = ()) -> tuple[Kind, ...]:
    """Return the classes in ``JOBCHAINS["REQUIRED_MIDDLEWARE"]`` and ``more``; raise ``ImproperlyConfigured``."""
    return tuple(dict.fromkeys(_kind(given) for given in (*_many(get_settings().REQUIRED_MIDDLEWARE), *_many(more))))


def middleware_problem(given: Iterable[Middleware[Any]], required: Sequence[Kind]) -> str:
    """Return what is wrong with the middleware of a slice, or "".

    It has an instance of each required class, or of a subclass, in the required order. Other middleware may be
    anywhere in the list.
    """
    parts = list(given)
    if lacks := [kind for kind in required if not any(isinstance(part, kind) for part in parts)]:
        return f"lacks {_names(lacks)}"
    for kind in required:
        while parts and not isinstance(parts[0], kind):
            parts.pop(0)
    return "" if parts or not required else f"has it in another order than {_names(required)}"


def _names(kinds: Iterable[Kind]) -> str:
    return ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


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
        raise ImproperlyConfigured(f"Required middleware {given!r} is not a subclass of Middleware.")
    return kind
