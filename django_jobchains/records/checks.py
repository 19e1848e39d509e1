"""System checks of record workers: columns, indexes, the queryset and the durations."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004
from django.core.exceptions import FieldDoesNotExist, FieldError

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
    wanted = [kind.columns["state"], kind.columns["process_after"]]
    indexes = [[name for name, _ in index.fields_orders] for index in kind.model._meta.indexes]
    if any(fields[:2] == wanted for fields in indexes):
        return
    hint = (
        f'Inherit JobRecord.Meta in the model\'s class Meta, or add models.Index(fields=["{wanted[0]}", '
        f'"{wanted[1]}", "{kind.columns["queued_at"]}"], condition=Q({wanted[0]}="queued"), name=…).'
    )
    problem = f"Records {kind.name!r}: {kind.model.__qualname__} has no index on {' and '.join(wanted)}."
    yield Warning(problem, hint=hint, id="jobchains.W007")


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
