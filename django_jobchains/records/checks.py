"""System checks of record workers: columns, indexes, the queryset and the durations."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004
from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db.models import Q

from django_jobchains.records.declarations import RecordType

#: Columns that are empty for a record that has not been processed.
_NULLABLE = ("started_at", "last_heartbeat_at", "finished_at", "process_after")
#: Columns that are numbers from the beginning.
_COUNTERS = ("num_resets", "num_failures", "lease_number")
#: How many heartbeats may be missing before a record is reset.
MIN_HEARTBEATS = 3


@register("jobchains")
def check_records(**kwargs: Any) -> list[CheckMessage]:
    config: Any = apps.get_app_config("django_jobchains")
    return [problem for kind in config.registry.record_types() for problem in problems_of(kind)]


def problems_of(kind: RecordType) -> Iterator[CheckMessage]:
    missing = list(_missing_columns(kind))
    yield from missing
    if missing:
        return
    yield from _column_problems(kind)
    yield from _message_problems(kind)
    yield from _query_problems(kind)
    yield from _index_problems(kind)
    yield from _duration_problems(kind)


def _missing_columns(kind: RecordType) -> Iterator[CheckMessage]:
    for column, name in kind.columns.items():
        try:
            field = kind.model_field(column)
        except FieldDoesNotExist:
            problem = (
                f"Records {kind.name!r}: {kind.model.__qualname__} has no field {name!r} for the column {column!r}."
            )
            hint = f"Inherit JobRecord, add the field, or name another: columns={{{column!r}: …}}."
            yield Error(problem, hint=hint, id="jobchains.E013")
        else:
            if field.model._meta.concrete_model is not kind.model._meta.concrete_model:
                problem = f"Records {kind.name!r}: the field {name!r} is in the table of {field.model.__qualname__}."
                hint = f"Register {field.model.__qualname__}, which has the columns of the record."
                yield Error(problem, hint=hint, id="jobchains.E013")


def _column_problems(kind: RecordType) -> Iterator[CheckMessage]:
    for column in _NULLABLE:
        if not kind.model_field(column).null:
            problem = f"Records {kind.name!r}: the field {kind.columns[column]!r} ({column}) must allow NULL."
            yield Error(problem, hint="Set null=True, and run makemigrations.", id="jobchains.E014")
    for column in _COUNTERS:
        if kind.model_field(column).null:
            problem = f"Records {kind.name!r}: the field {kind.columns[column]!r} ({column}) must not allow NULL."
            hint = "Replace null=True by default=0, db_default=0, and run makemigrations."
            yield Error(problem, hint=hint, id="jobchains.E014")


def _message_problems(kind: RecordType) -> Iterator[CheckMessage]:
    limit = kind.model_field("failure_message").max_length
    if limit is not None and len(kind.reset_failure_message) > limit:
        problem = (
            f"Records {kind.name!r}: the reset_failure_message has {len(kind.reset_failure_message)} characters, and "
            f"the field {kind.columns['failure_message']!r} (failure_message) only {limit}."
        )
        hint = "Use a TextField, or pass a shorter reset_failure_message."
        yield Error(problem, hint=hint, id="jobchains.E018")


def _query_problems(kind: RecordType) -> Iterator[CheckMessage]:
    try:
        str(kind.queryset.order_by(*kind.order_by).values("pk").query)
    except FieldError as error:
        problem = f"Records {kind.name!r}: order_by={kind.order_by!r} cannot be used: {error}"
        yield Error(problem, hint="Name fields of the model, as for QuerySet.order_by().", id="jobchains.E015")


def _index_problems(kind: RecordType) -> Iterator[CheckMessage]:
    yield from _index_problem(kind, "queued", "process_after", "queued_at")
    if kind.retry_seconds is not None:
        yield from _index_problem(kind, "errored", "finished_at")


def _index_problem(kind: RecordType, state: str, *order: str) -> Iterator[CheckMessage]:
    """Report that no index finds the records in a state by the first column of this order."""
    names = [kind.columns[column] for column in ("state", *order)]
    indexes = [
        index for index in kind.model._meta.indexes if [name for name, _ in index.fields_orders][:2] == names[:2]
    ]
    if any(index.condition is None or _is_met(index.condition, names[0], state) for index in indexes):
        return
    problem = (
        f"Records {kind.name!r}: {kind.model.__qualname__} has no index on {' and '.join(names[:2])} with all records "
        f"in the state {state}."
    )
    fields = ", ".join(f'"{name}"' for name in names)
    excludes = f"The condition of the index {indexes[0].name} excludes some of them. " if indexes else ""
    hint = (
        f"{excludes}Inherit JobRecord.Meta in the model's class Meta, or add models.Index(fields=[{fields}], "
        f'condition=Q({names[0]}="{state}"), name=…).'
    )
    yield Warning(problem, hint=hint, id="jobchains.W007")


def _is_met(condition: Any, name: str, state: str) -> bool | None:
    """Return whether records in a state meet a condition, None if it also depends on other columns than the state."""
    if isinstance(condition, Q):
        results = {_is_met(child, name, state) for child in condition.children}
        decisive = condition.connector == Q.OR
        result = decisive if decisive in results else None if None in results else not decisive
        return None if result is None else result != condition.negated
    if isinstance(condition, tuple):
        lookup, value = condition
        if lookup in (name, f"{name}__exact"):
            return bool(value == state)
        if lookup == f"{name}__in":
            return state in value
    return None


def _duration_problems(kind: RecordType) -> Iterator[CheckMessage]:
    if kind.own_heartbeat_seconds and kind.stalled_seconds < MIN_HEARTBEATS * kind.heartbeat_seconds:
        problem = (
            f"Records {kind.name!r}: stalled_after ({kind.stalled_seconds:g} s) is less than {MIN_HEARTBEATS} times "
            f"heartbeat_every ({kind.heartbeat_seconds:g} s), so a late heartbeat resets a running record."
        )
        hint = "Raise stalled_after, or lower heartbeat_every, which defaults to a third of it."
        yield Error(problem, hint=hint, id="jobchains.E016")
    if kind.own_max_attempts is not None and kind.own_max_attempts > 1 and kind.retry_seconds is None:
        problem = f"Records {kind.name!r}: max_attempts={kind.own_max_attempts}, but errored records are not retried."
        hint = "Set retry_after to the wait before the next attempt, or remove max_attempts."
        yield Warning(problem, hint=hint, id="jobchains.W008")
