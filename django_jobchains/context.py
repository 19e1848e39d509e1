"""Values that are stored with chains, such as a tenant, an actor or a request id.

``with context.bound(tenant="acme"): charge.enqueue(…)`` stores them with the job. Its continuations inherit them, and
handlers read them from ``job.context``. Bound values follow the code into ``await`` and ``sync_to_async``, but not into
threads that you start.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from django_jobchains.conf import Scope, bound_database, get_settings
from django_jobchains.exceptions import InvalidContext
from django_jobchains.payloads.codecs import decode_json
from django_jobchains.payloads.strict_json import decode, encode

__all__ = ("bound", "current")


class _Bound(NamedTuple):
    values: Mapping[str, Any]
    #: The JSON text that jobs store.
    text: str | None


#: The W3C header for a trace.
_TRACE_PARENT = re.compile("[0-9a-f]{2}-(?P<trace_id>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

_NOTHING = _Bound(MappingProxyType({}), None)
_bound: ContextVar[_Bound] = ContextVar("jobchains_context", default=_NOTHING)


def bound(**values: Any) -> Scope:
    """Add these values, and those of an outer ``bound``, to the context of chains that are enqueued in the block.

    Values are JSON. They are encoded immediately, so later changes to a list or dict have no effect. Raises
    ``InvalidContext``, which names the value. Can also be used as a decorator.
    """
    return Scope(partial(_bind, values))


def _bind(values: Mapping[str, Any]) -> AbstractContextManager[None]:
    text = encode(values, InvalidContext) if values else None
    return restore_context(merge_contexts(_bound.get().text, text))


def current() -> Mapping[str, Any]:
    """Return a dict of the values that are currently bound."""
    return _bound.get().values


def capture_context() -> str | None:
    """Return the bound values as the JSON text that jobs store, or None."""
    return _bound.get().text


@contextmanager
def restore_context(stored: str | None) -> Iterator[None]:
    """Bind the values of a stored context, instead of those that are bound here."""
    token = _bound.set(_NOTHING if stored is None else _Bound(MappingProxyType(decode_context(stored)), stored))
    try:
        yield
    finally:
        _bound.reset(token)


def begin_attempt(using: str) -> None:
    """Unbind all values, and use the database of the job, whatever is bound where the attempt runs."""
    _bound.set(_NOTHING)
    bound_database.set(using)


def merge_contexts(stored: str | None, override: str | None) -> str | None:
    """Merge two contexts; values of the second take precedence."""
    if override is None or stored is None or stored == override:
        return override or stored
    return encode(decode_context(stored) | decode_context(override), InvalidContext)


def trace_id_of(stored: str | None) -> str:
    """Return the id of the trace that a job is part of, as hexadecimal text, or "" if it was not recorded."""
    if stored is None:
        return ""
    try:
        return trace_id_in(decode_context(stored))
    except InvalidContext:
        return ""


def trace_id_in(context: object) -> str:
    """Return the trace id in a context that has been decoded, as ``job.context`` is; "" if there is none."""
    found = _TRACE_PARENT.fullmatch(str(context.get("traceparent"))) if isinstance(context, Mapping) else None
    return found["trace_id"] if found else ""


def trace_url_of(trace_id: str) -> str:
    """Return the address of a trace; "" if ``TRACE_URL`` is not set, or without a trace."""
    template = get_settings().TRACE_URL
    return template.replace("{trace_id}", trace_id) if template and trace_id else ""


def shared_context(stored: Sequence[str | None]) -> str | None:
    """Return the values that all contexts have in common."""
    if not stored or None in stored:
        return None
    first, *rest = (decode_context(text) for text in stored if text is not None)
    # Compared as JSON, because 1 and True are equal in Python.
    texts = [{name: encode(value) for name, value in other.items()} for other in rest]
    alike = {name: value for name, value in first.items() if all(text.get(name) == encode(value) for text in texts)}
    return encode(alike) if alike else None


def decode_context(stored: str) -> dict[str, Any]:
    """Return the values of a stored context; raise ``InvalidContext`` if it cannot be read."""
    values = decode(decode_json(stored, InvalidContext), InvalidContext)
    if not isinstance(values, dict):
        raise InvalidContext(f"The stored context is a {type(values).__name__}, not an object.")
    return values
