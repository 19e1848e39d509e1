"""System checks of record workers: columns and their types, indexes, the queryset and the durations."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004
from django.core.exceptions import FieldDoesNotExist, FieldError, ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import (
    BooleanField,
    CharField,
    DateTimeField,
    DecimalField,
    Field,
    ForeignKey,
    IntegerField,
    JSONField,
    PositiveSmallIntegerField,
    Q,
    SmallIntegerField,
    TextField,
    UUIDField,
)

from django_jobchains.conf import get_settings
from django_jobchains.models.payload_fields import PayloadField, PayloadTextField
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import get_store
from django_jobchains.store.record_tables import COLUMNS, STATES

#: Columns that are empty for a record that has not been processed.
_NULLABLE = ("started_at", "last_heartbeat_at", "finished_at", "process_after")
#: Columns that are numbers from the beginning.
_COUNTERS = ("num_resets", "num_failures", "lease_number")
_DECODING = {"failure_message": PayloadTextField, "execution_logs": PayloadField}
#: How many heartbeats may be missing before a record is reset.
MIN_HEARTBEATS = 3
LONGEST_STATE = max(STATES, key=len)
#: The states of records that wait.
WAITING = ("queued", "errored")


class _Kind(NamedTuple):
    """What a column must be: a field of the model, and a type of PostgreSQL."""

    fields: tuple[type["Field[Any, Any]"], ...]
    types: tuple[str, ...]


_TEXT = _Kind((CharField, TextField), ("text", "character varying", "citext"))
_TIME = _Kind((DateTimeField,), ("timestamp with time zone",))
_COUNTER = _Kind((IntegerField,), ("integer", "bigint", "smallint"))
#: What a key of a limit can be.
_KEYS = (CharField, TextField, IntegerField, DecimalField, UUIDField)
_KINDS = {
    **dict.fromkeys(("state", "failure_message", "worker_hostname"), _TEXT),
    **dict.fromkeys(("queued_at", *_NULLABLE), _TIME),
    **dict.fromkeys(_COUNTERS, _COUNTER),
    "lease_number": _Kind((IntegerField,), ("integer", "bigint")),  # Each attempt increments it.
    "execution_logs": _Kind((JSONField,), ("jsonb", "json")),
    "cancel": _Kind((BooleanField,), ("boolean",)),
}


@register("jobchains")
def check_records(**kwargs: Any) -> list[CheckMessage]:
    kinds = _record_types()
    problems = [problem for kind in kinds for problem in (*problems_of(kind), *encoded_columns(kind))]
    return [*shared_tables(kinds), *problems]


@register(Tags.database)
def check_record_tables(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Return warnings, because errors would prevent the migration that corrects a table."""
    return [
        problem
        for using in databases or ()
        for kind in _record_types()
        if kind.is_in(using) and not any(model_problems(kind))
        for problem in (table_problems(kind, using) if _is_valid(get_store, using) else ())
    ]


def _is_valid(read: Callable[..., object], *arguments: str) -> bool:
    """Return whether the settings that a function reads are valid. Another check reports those that are not."""
    try:
        read(*arguments)
    except ImproperlyConfigured:
        return False
    return True


def _record_types() -> list[RecordType]:
    """Return the record workers, or none if the settings are invalid."""
    if not _is_valid(get_settings):
        return []
    config: Any = apps.get_app_config("django_jobchains")
    return list(config.registry.record_types())


def problems_of(kind: RecordType) -> Iterator[CheckMessage]:
    yield from model_problems(kind)
    if not any(_missing_columns(kind)):
        yield from _message_problems(kind)
        yield from _query_problems(kind)
        yield from _index_problem(kind, "queued", "process_after", "queued_at")
        if kind.retry_seconds is not None:
            yield from _index_problem(kind, "errored", "finished_at")
        if kind.limits is not None and kind.limits.field is not None and not any(_key_problems(kind)):
            yield from _key_index_problem(kind, kind.limits.field)
        yield from _duration_problems(kind)


def model_problems(kind: RecordType) -> Iterator[CheckMessage]:
    """Return the problems of a model with which no worker can run its records."""
    missing = list(_missing_columns(kind))
    yield from missing or _column_problems(kind)
    yield from _key_problems(kind)


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


def shared_tables(kinds: Iterable[RecordType]) -> Iterator[CheckMessage]:
    """Report a table that is registered with several sets of columns: see docs/decisions/0072."""
    first: dict[str, RecordType] = {}
    for kind in kinds:
        other = first.setdefault(kind.model._meta.db_table, kind)
        if other.columns != kind.columns:
            problem = (
                f"Records {kind.name!r} and {other.name!r} are registered for {kind.model.__qualname__} with different "
                "columns=, but a row has only one state, one lease and one handler at a time."
            )
            hint = "Use the same columns, or a separate model for the second one, with a OneToOneField to the first."
            yield Error(problem, hint=hint, id="jobchains.E021")


def _column_problems(kind: RecordType) -> Iterator[CheckMessage]:
    for column in COLUMNS:
        field = kind.model_field(column)
        name = f"Records {kind.name!r}: the field {kind.columns[column]!r} ({column})"
        expected = _KINDS[column].fields
        is_small = column == "lease_number" and isinstance(field, SmallIntegerField | PositiveSmallIntegerField)
        if is_small or not isinstance(field, expected):
            kinds = " or ".join(each.__name__ for each in expected)
            problem = f"{name} must be of the type {kinds}{' or larger' * is_small}, not {type(field).__name__}."
            yield Error(problem, hint="Change the field, and run makemigrations.", id="jobchains.E019")
        elif column in _NULLABLE and not field.null:
            hint = "Set null=True, and run makemigrations."
            yield Error(f"{name} must allow NULL.", hint=hint, id="jobchains.E014")
        elif column in _COUNTERS and field.null:
            hint = "Replace null=True with default=0, db_default=0, and run makemigrations."
            yield Error(f"{name} must not allow NULL.", hint=hint, id="jobchains.E014")
        elif column == "state":
            yield from _state_problems(name, field)


def _key_problems(kind: RecordType) -> Iterator[CheckMessage]:
    """Report a key of a limit that is not a column with texts, numbers or UUIDs."""
    name = None if kind.limits is None else kind.limits.field
    if name is None:
        return
    try:
        field: Any = kind.model._meta.get_field(name)
    except FieldDoesNotExist:
        field = None
    meta = field is not None and field.concrete and field.model._meta.concrete_model
    valued = field
    while isinstance(valued, ForeignKey):
        valued = valued.target_field
    # With a collation, texts may be equal that differ as keys of locks.
    is_key = isinstance(valued, _KEYS) and not getattr(valued, "db_collation", None)
    if meta != kind.model._meta.concrete_model or not is_key:
        problem = (
            f"Records {kind.name!r}: {name!r} is the key of a limit, but not a field in the table of "
            f"{kind.model.__qualname__} that contains texts without a collation, numbers or UUIDs."
        )
        hint = "Name a CharField, TextField, IntegerField, DecimalField, UUIDField or ForeignKey of the model."
        yield Error(problem, hint=hint, id="jobchains.E024")


def _state_problems(name: str, field: "Field[Any, Any]") -> Iterator[CheckMessage]:
    if field.max_length is not None and field.max_length < len(LONGEST_STATE):
        problem = f"{name} has max_length={field.max_length}, which is too short for {LONGEST_STATE!r}."
        hint = f"Set max_length={len(LONGEST_STATE)} or more, and run makemigrations."
        yield Error(problem, hint=hint, id="jobchains.E019")
    values = [value for value, _ in field.flatchoices]
    if values and (missing := [state for state in STATES if state not in values]):
        problem = f"{name} has choices without {', '.join(missing)}, which are states of records."
        hint = "Add them, rename the values and migrate the rows, or use another field: columns={'state': …}."
        yield Error(problem, hint=hint, id="jobchains.E020")


def table_problems(kind: RecordType, using: str) -> Iterator[Warning]:
    """Return the differences of the real table from the model. Only PostgreSQL has types that keep workers from it.

    Columns that a migration will add are not reported.
    """
    store, meta = get_store(using), kind.model._meta
    found = store.db.column_types(store.connection.ops.quote_name(meta.db_table))
    for column in COLUMNS if found else ():
        field: Any = kind.model_field(column)
        name = f"Records {kind.name!r}: the column {field.column!r} ({column}) of the table {meta.db_table}"
        for difference, remedy in _differences(kind, column, connections[using], *found.get(field.column, ("", None))):
            hint = f"Change it in a migration, or run: {remedy}"
            yield Warning(f"{name} {difference}.", hint=hint, id="jobchains.W010")


def _differences(
    kind: RecordType, column: str, connection: BaseDatabaseWrapper, full_type: str, is_required: bool | None
) -> Iterator[tuple[str, str]]:
    """Return the differences of a column with the SQL that removes them. ``is_required`` None: of a view."""
    field: Any = kind.model_field(column)
    if not full_type:
        if not kind.model._meta.managed:
            with connection.schema_editor(collect_sql=True, atomic=False) as editor:
                editor.add_field(kind.model, field)
            yield "does not exist", editor.collected_sql[0]
        return
    name, table = map(connection.ops.quote_name, (field.column, kind.model._meta.db_table))
    alter, own_type = f"ALTER TABLE {table} ALTER COLUMN {name}", field.db_type(connection)
    type_, _, length = full_type.rstrip(")").partition("(")
    needed = len(LONGEST_STATE) if column == "state" else field.max_length or math.inf
    if re.sub(r"\(\d+\)", "", full_type) not in _KINDS[column].types:
        change = f"TYPE {own_type}"
        if own_type == "jsonb":  # PostgreSQL converts neither the values nor a default by itself.
            convert = f"{change} USING to_jsonb({name})"
            change = f"DROP DEFAULT, ALTER COLUMN {name} {convert}, ALTER COLUMN {name} SET DEFAULT '[]'"
        yield f"has the type {full_type}", f"{alter} {change};"
    elif type_ == "json" and type(field).from_db_value is JSONField.from_db_value:
        yield "has the type json, which Django's JSONField cannot read", f"{alter} TYPE jsonb;"
    elif type_ == "character varying" and length and int(length) < needed:
        yield f"is too short ({full_type})", f"{alter} TYPE {own_type};"
    if is_required is True and column in _NULLABLE:
        yield "must allow NULL", f"{alter} DROP NOT NULL;"
    if is_required is False and column in _COUNTERS:
        yield "must not allow NULL", f"{alter} SET NOT NULL;"


def _message_problems(kind: RecordType) -> Iterator[CheckMessage]:
    limit = kind.model_field("failure_message").max_length
    if limit is not None and len(kind.reset_failure_message) > limit:
        problem = (
            f"Records {kind.name!r}: the reset_failure_message has {len(kind.reset_failure_message)} characters, and "
            f"the field {kind.columns['failure_message']!r} (failure_message) only {limit}."
        )
        hint = "Use a TextField, or pass a shorter reset_failure_message."
        yield Error(problem, hint=hint, id="jobchains.E018")


def encoded_columns(kind: RecordType) -> Iterator[CheckMessage]:
    """Report fields from which the project would read encoded values."""
    if not get_settings().PAYLOAD_CODEC or any(_missing_columns(kind)):
        return
    for column, decoding in _DECODING.items():
        field = kind.model_field(column)
        if not isinstance(field, decoding):
            problem = (
                f"Records {kind.name!r}: JOBCHAINS['PAYLOAD_CODEC'] encodes the column {column!r}, and the field "
                f"{kind.columns[column]!r} is a {type(field).__name__}, which does not decode it."
            )
            hint = f"Use {decoding.__name__} from django_jobchains.records, and run makemigrations."
            yield Warning(problem, hint=hint, id="jobchains.W011")


def _query_problems(kind: RecordType) -> Iterator[CheckMessage]:
    try:
        str(kind.queryset.order_by(*kind.order_by).values("pk").query)
    except FieldError as error:
        problem = f"Records {kind.name!r}: order_by={kind.order_by!r} cannot be used: {error}"
        yield Error(problem, hint="Name fields of the model, as for QuerySet.order_by().", id="jobchains.E015")


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


def _key_index_problem(kind: RecordType, key: str) -> Iterator[CheckMessage]:
    """Report that no index finds the keys of the records that wait."""
    state, planned, queued = (kind.columns[column] for column in ("state", "process_after", "queued_at"))
    key = kind.model._meta.get_field(key).name  # Not that of the column of a foreign key.
    indexes = [index for index in kind.model._meta.indexes if [name for name, _ in index.fields_orders][:1] == [key]]
    conditions = [index.condition for index in indexes]
    if any(each is None or all(_is_met(each, state, waiting) for waiting in WAITING) for each in conditions):
        return
    problem = (
        f"Records {kind.name!r}: {kind.model.__qualname__} has no index that begins with {key}, the key of its limit, "
        "so that each dequeue reads all records that wait."
    )
    hint = (
        f'Add models.Index(fields=["{key}", "{state}", "{planned}", "{queued}"], '
        f'condition=Q({state}__in=["queued", "errored"]), name=…).'
    )
    yield Warning(problem, hint=hint, id="jobchains.W012")


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
