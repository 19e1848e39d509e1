"""Checks of the arguments of ``Processors.records``. Each raises ``TypeError``, ``ValueError`` or ``RegistryError``."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict

from django.db.models import CompositePrimaryKey, Model, QuerySet

from django_jobchains.exceptions import RegistryError
from django_jobchains.isolation import Isolation, Level, to_isolation
from django_jobchains.records.declarations import CANCEL_SECONDS, RESET_MESSAGE
from django_jobchains.store.record_tables import COLUMNS
from django_jobchains.values import MAX_ATTEMPTS, TIMEOUT, Count, Duration, Value


class RecordOptions(TypedDict, total=False):
    """The keyword arguments of ``Processors.records``."""

    queryset: QuerySet[Any] | None
    order_by: Sequence[Any]
    columns: Mapping[str, str] | None
    queue: str | None
    slots: int | None
    isolation: Isolation | Level | None
    max_attempts: float | None
    retry_after: timedelta | float | None
    stalled_after: timedelta | float | None
    heartbeat_every: timedelta | float | None
    max_resets: int | None
    reset_failure_message: str | None
    max_runtime: timedelta | float | None
    poll_every: timedelta | float | None
    cancel_every: timedelta | float | None


def checked_model(given: object) -> type[Model]:
    """Return the model of a registration, which must have its own table."""
    if not (isinstance(given, type) and issubclass(given, Model)):
        raise RegistryError(f"records() takes a model first, not {given!r:.100}: @processors.records(Upload).")
    if given._meta.abstract or given._meta.proxy:
        raise RegistryError(f"{given.__qualname__} has no table of its own: pass the concrete model.")
    if isinstance(given._meta.pk, CompositePrimaryKey):
        raise RegistryError(f"{given.__qualname__} has a composite primary key. Records need one of a single column.")
    return given


def checked_options(model: type[Model], options: RecordOptions) -> dict[str, Any]:
    """Return the fields of a ``RecordType`` for these options, without the queue."""
    values = {name: kind.check_or(name, options.get(name), None) for name, kind in _VALUES.items()}
    return {
        "queryset": _queryset(model, options.get("queryset")),
        "order_by": _order_by(options.get("order_by", ())),
        "columns": _columns(options.get("columns")),
        "slots": values["slots"],
        "own_max_attempts": values["max_attempts"],
        "retry_seconds": values["retry_after"],
        "own_stalled_seconds": values["stalled_after"],
        "own_heartbeat_seconds": values["heartbeat_every"],
        "own_max_resets": values["max_resets"],
        "reset_failure_message": _message(options.get("reset_failure_message")),
        "max_runtime_seconds": values["max_runtime"] or math.inf,
        "own_poll_seconds": values["poll_every"],
        "cancel_seconds": values["cancel_every"] or CANCEL_SECONDS,
        "own_isolation": to_isolation(options.get("isolation")),
    }


_VALUES: Mapping[str, Value[Any]] = {
    "slots": Count(),
    "max_attempts": MAX_ATTEMPTS,
    "retry_after": Duration(least=0),
    "stalled_after": Duration(),
    "heartbeat_every": Duration(),
    "max_resets": Count(least=0),
    "max_runtime": TIMEOUT,
    "poll_every": Duration(),
    "cancel_every": Duration(),
}


def _queryset(model: type[Model], given: object) -> QuerySet[Any]:
    if given is None:
        return model._default_manager.all()
    if not isinstance(given, QuerySet) or given.model is not model:
        raise TypeError(f"queryset={given!r:.100} is not a QuerySet of {model.__qualname__}.")
    query: Any = given.query
    if query.is_sliced or query.combinator or query.distinct or query.group_by is not None or given._fields:  # type: ignore[attr-defined]
        raise ValueError(
            "queryset= must select rows of the table that can be locked: remove slices, distinct(), values(), "
            "union() and aggregates."
        )
    return given


def _order_by(given: object) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"order_by={given!r:.100} is not a list: write order_by=['priority', 'id'].")
    return tuple(given)


def _columns(given: Mapping[str, str] | None) -> dict[str, str]:
    names = {name: name for name in COLUMNS}
    if given is None:
        return names
    named: Any = given
    if not (isinstance(named, Mapping) and all(isinstance(value, str) for value in named.values())):
        raise TypeError(f"columns={given!r:.100} is not a dict of names: columns={{'state': 'status'}}.")
    if unknown := ", ".join(sorted(map(str, given.keys() - names.keys()))):
        raise ValueError(f"columns= has the unknown keys {unknown}. Known: {', '.join(COLUMNS)}.")
    return names | dict(given)


def _message(given: object) -> str:
    if given is None:
        return RESET_MESSAGE
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"reset_failure_message={given!r:.50} is not a text.")
    return given
