"""What goes along with a chain: a tenant, an actor, the id of a request.

``with context.bound(tenant="acme"): charge.enqueue(…)`` stores it with the job. Its continuations have it too, and
every handler finds it in ``job.context``. It follows the code, also into ``await`` and ``sync_to_async``, not into
threads of your own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from django_jobchains.exceptions import InvalidContext
from django_jobchains.payloads import decode, encode

__all__ = ("bound", "current")


class _Bound(NamedTuple):
    values: Mapping[str, Any]
    #: As a job stores it.
    text: str | None


_NOTHING = _Bound(MappingProxyType({}), None)
_bound: ContextVar[_Bound] = ContextVar("jobchains_context", default=_NOTHING)


@contextmanager
def bound(**values: Any) -> Iterator[None]:
    """Chains that are enqueued inside have these values in their context, and those of the ``bound`` around it.

    Values are JSON; they are read here and now, later changes of a list or dict do not count. Raises
    ``InvalidContext``, which names the value. As a decorator it does the same for a function.
    """
    with restored(merged(_bound.get().text, encode(values, InvalidContext) if values else None)):
        yield


def current() -> Mapping[str, Any]:
    """What is bound here; empty when nothing is."""
    return _bound.get().values


def captured() -> str | None:
    """What is bound here as a job stores it; None when nothing is."""
    return _bound.get().text


@contextmanager
def restored(stored: str | None) -> Iterator[None]:
    """Binds what a job stores, in place of what is bound here."""
    token = _bound.set(_NOTHING if stored is None else _Bound(MappingProxyType(decoded(stored)), stored))
    try:
        yield
    finally:
        _bound.reset(token)


def unbind() -> None:
    """For the start of an attempt: what happens to be bound where it runs is not its job's."""
    _bound.set(_NOTHING)


def merged(stored: str | None, over: str | None) -> str | None:
    """Both as one; where they differ, the second counts."""
    if over is None or stored is None or stored == over:
        return over or stored
    return encode(decoded(stored) | decoded(over), InvalidContext)


def common(stored: Sequence[str | None]) -> str | None:
    """What all of them say alike."""
    if not stored or None in stored:
        return None
    first, *rest = (decoded(text) for text in stored if text is not None)
    alike = {name: value for name, value in first.items() if all(_same(value, name, other) for other in rest)}
    return encode(alike) if alike else None


def _same(value: Any, name: str, other: Mapping[str, Any]) -> bool:
    return name in other and encode(other[name]) == encode(value)  # 1 and True are equal in Python


def decoded(stored: str) -> dict[str, Any]:
    values = decode(stored, InvalidContext)
    if not isinstance(values, dict):
        raise InvalidContext(f"The stored context is a {type(values).__name__}, not an object.")
    return values
