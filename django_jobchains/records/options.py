"""Checks of the arguments of ``Processors.records``. Each raises ``TypeError``, ``ValueError`` or ``RegistryError``."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict

from django.db.models import CompositePrimaryKey, Model, QuerySet

from django_jobchains.enqueue_options import MAX_SECONDS, seconds_of
from django_jobchains.exceptions import RegistryError
from django_jobchains.isolation import Isolation, Level, to_isolation
from django_jobchains.policies import check_max_attempts
from django_jobchains.records.declarations import CANCEL_SECONDS, RESET_MESSAGE
from django_jobchains.store.record_tables import COLUMNS


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
    check_max_attempts(options.get("max_attempts"))
    return {
        "queryset": _queryset(model, options.get("queryset")),
        "order_by": _order_by(options.get("order_by", ())),
        "columns": _columns(options.get("columns")),
        "slots": _count("slots", options.get("slots"), least=1),
        "own_max_attempts": options.get("max_attempts"),
        "retry_seconds": _seconds("retry_after", options.get("retry_after"), least=0),
        "own_stalled_seconds": _seconds("stalled_after", options.get("stalled_after")),
        "own_heartbeat_seconds": _seconds("heartbeat_every", options.get("heartbeat_every")),
        "own_max_resets": _count("max_resets", options.get("max_resets"), least=0),
        "reset_failure_message": _message(options.get("reset_failure_message")),
        "max_runtime_seconds": _runtime(options.get("max_runtime")),
        "own_poll_seconds": _seconds("poll_every", options.get("poll_every")),
        "cancel_seconds": _seconds("cancel_every", options.get("cancel_every")) or CANCEL_SECONDS,
        "own_isolation": to_isolation(options.get("isolation")),
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


def _count(argument: str, given: object, *, least: int) -> int | None:
    if given is not None and not (isinstance(given, int) and not isinstance(given, bool) and given >= least):
        raise ValueError(f"{argument}={given!r:.50} is not a whole number from {least}.")
    return given


def _seconds(argument: str, given: timedelta | float | None, *, least: float | None = None) -> float | None:
    if given is None:
        return None
    seconds = seconds_of(given, argument)
    is_long_enough = seconds > 0 if least is None else seconds >= least
    if not (is_long_enough and seconds <= MAX_SECONDS):
        raise ValueError(
            f"{argument}={given!r:.50}: pass a timedelta or seconds, {'more than 0' if least is None else '0 or more'}."
        )
    return seconds


def _runtime(given: timedelta | float | None) -> float:
    return math.inf if given is None or given == math.inf else _seconds("max_runtime", given) or math.inf


def _message(given: object) -> str:
    if given is None:
        return RESET_MESSAGE
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"reset_failure_message={given!r:.50} is not a text.")
    return given
