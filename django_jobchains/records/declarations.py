"""The declaration of a record worker: a model with its processor and options, under a name like a job type's."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from django.core.exceptions import EmptyResultSet, FieldDoesNotExist
from django.db import connections, router
from django.db.models import (
    BooleanField,
    CompositePrimaryKey,
    DecimalField,
    Field,
    ForeignKey,
    Manager,
    Model,
    Q,
    QuerySet,
    UUIDField,
)
from django.db.models.expressions import RawSQL

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import RegistryError
from django_jobchains.handlers.running_job import plain_function
from django_jobchains.isolation import Isolation, Level, to_isolation
from django_jobchains.payloads.codecs import decode_text, decoded_value
from django_jobchains.records.processor import RecordProcessor, handler_of, hooks_of, is_async
from django_jobchains.records.saving import extend_save
from django_jobchains.store.queues import Override
from django_jobchains.store.record_limits import LimitedRecords, RecordRate
from django_jobchains.store.record_tables import COLUMNS, IdsSelect, QuerySetSQL, RecordIds, RecordTable
from django_jobchains.values import ATTEMPTS_LIMIT, MAX_ATTEMPTS, TIMEOUT, Count, Duration, DurationLike, Value

if TYPE_CHECKING:
    from django_jobchains.declare.limits import TypeLimits

#: The longest time between two queries for records, unless ``poll_every`` is set.
MAX_POLL_SECONDS = 1.0
#: How often workers check for requests to cancel and for deleted rows, unless ``cancel_every`` is set.
CANCEL_SECONDS = 5.0
#: The failure message if ``reset_failure_message`` is not set.
RESET_MESSAGE = "The worker stopped sending heartbeats while it handled this record, more often than max_resets allows."


class _Place(NamedTuple):
    """The place of a parameter in a cached SELECT."""

    number: int


@dataclass(eq=False)
class RecordType:
    """A registered record worker. Fields named ``own_…`` are None if the setting for jobs applies."""

    name: str
    model: type[Model]
    processor: RecordProcessor[Any]
    queryset: QuerySet[Any]
    order_by: tuple[Any, ...] = ()
    #: The field for each of our columns.
    columns: Mapping[str, str] = field(default_factory=lambda: {name: name for name in COLUMNS})
    own_queue: str | None = None
    slots: int | None = None
    own_max_attempts: float | None = None
    #: None: errored records are not tried again.
    retry_seconds: float | None = None
    own_stalled_seconds: float | None = None
    own_heartbeat_seconds: float | None = None
    own_max_resets: int | None = None
    reset_failure_message: str = RESET_MESSAGE
    max_runtime_seconds: float = math.inf
    own_poll_seconds: float | None = None
    cancel_seconds: float = CANCEL_SECONDS
    #: From the registration, or else from its slice.
    own_isolation: Isolation | None = None
    limits: "TypeLimits | None" = None
    #: Middleware of the slice, the outermost first.
    middleware: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.is_async = is_async(self.processor)
        self.hooks = hooks_of(self.processor)
        extend_save(self.model)
        self._tables: dict[str, RecordTable] = {}
        #: Cached SELECTs without a condition from ``pre_dequeue``, because compiling them takes longer than running
        #: them. The parameters are placeholders.
        self._selects: dict[Any, QuerySetSQL | None] = {}

    @property
    def handler(self) -> Any:
        """The function, or the method ``handle`` of the processor."""
        return plain_function(handler_of(self.processor))

    @property
    def queue(self) -> str:
        return self.own_queue or get_settings().QUEUE

    @property
    def max_attempts(self) -> int:
        """The limit of failures, in the form that the store expects."""
        limit = self.own_max_attempts or get_settings().MAX_ATTEMPTS
        return ATTEMPTS_LIMIT if limit == math.inf else int(limit)

    @property
    def stalled_seconds(self) -> float:
        return self.own_stalled_seconds or get_settings().LEASE_SECONDS

    @property
    def heartbeat_seconds(self) -> float:
        return self.own_heartbeat_seconds or self.stalled_seconds / 3

    @property
    def max_resets(self) -> int:
        return get_settings().MAX_CRASHES if self.own_max_resets is None else self.own_max_resets

    def poll_seconds(self, of_worker: float) -> float:
        return self.own_poll_seconds or min(of_worker, MAX_POLL_SECONDS)

    def is_in(self, using: str) -> bool:
        """Return whether the database may have the table of the model, as the project's routers decide."""
        return router.allow_migrate_model(using, self.model)

    def value(self, record: Any, column: str) -> Any:
        """Return one of our columns of a record, decoded, also if the model's own field does not decode it."""
        value = getattr(record, self.columns[column])
        if column == "failure_message":
            return value and decode_text(value)
        return decoded_value(value) if column == "execution_logs" else value

    def model_field(self, column: str) -> "Field[Any, Any]":
        """Return the model's field for one of our columns; raise ``FieldDoesNotExist``."""
        found: Any = self.model._meta.get_field(self.columns[column])
        if not (isinstance(found, Field) and found.concrete):
            raise FieldDoesNotExist(f"{self.columns[column]} is not a column.")
        return found

    def table(self, using: str) -> RecordTable:
        """Return the SQL names of the table; raise ``FieldDoesNotExist`` if a column is missing."""
        if using not in self._tables:
            self._tables[using] = self._named(using)
        return self._tables[using]

    def _named(self, using: str) -> RecordTable:
        connection = connections[using]
        quote = connection.ops.quote_name
        meta = self.model._meta
        key: Any = meta.pk
        fields = {name: self.model_field(name) for name in COLUMNS}
        names = {name: quote(field.column or "").replace("%", "%%") for name, field in fields.items()}
        return RecordTable(
            name=quote(meta.db_table).replace("%", "%%"),
            id=quote(key.column),
            id_type=key.rel_db_type(connection),
            no_message="NULL" if fields["failure_message"].null else "''",
            ids=_ids(key, using),
            **names,
        )

    def limited(self, using: str, overrides: Mapping[str, Override] = MappingProxyType({})) -> LimitedRecords | None:
        """Return the limits as the store expects them, or None without limits.

        ``overrides``: what replaces the declared numbers, by the name of the registration or group.
        """
        if self.limits is None:
            return None
        concurrency, rate, name = self.limits.concurrency, self.limits.rate, self.limits.field
        key: Any = name and self.model._meta.get_field(name)
        is_keyed = concurrency is not None and concurrency.key is not None
        start_rate = self.limits.start_rate(self.name, overrides)
        record_rate = None
        if rate is not None and start_rate is not None:
            record_rate = RecordRate(rate.group or self.name, start_rate, rate.key is not None)
        return LimitedRecords(
            self.name,
            self.limits.slot_limit(self.name, overrides),
            is_keyed,
            key and connections[using].ops.quote_name(key.column).replace("%", "%%"),
            bool(key and key.null),
            key and _key_text(key, using),
            self.select(using, column=name if is_keyed and name else "pk"),
            record_rate,
        )

    def select(self, using: str, condition: Q | None = None, column: str = "pk") -> IdsSelect:
        """Return the function with which the store selects a column of the records of the queryset, in its order."""

        def select_values(where: str, params: Sequence[Any], order: Sequence[str]) -> QuerySetSQL | None:
            if condition is not None:
                return self._compiled(using, condition, column, where, params, order)
            key = (using, column, where, *order)
            if key not in self._selects:
                places = [_Place(number) for number in range(len(params))]
                self._selects[key] = self._compiled(using, None, column, where, places, order)
            found = self._selects[key]
            if found is None:
                return None
            values = [params[value.number] if isinstance(value, _Place) else value for value in found.params]
            return found._replace(params=values)

        return select_values

    def _compiled(
        self, using: str, condition: Q | None, column: str, where: str, params: Sequence[Any], order: Sequence[str]
    ) -> QuerySetSQL | None:
        found = self.queryset.using(using)
        if condition is not None:
            found = found.filter(condition)
        # The store's own condition: values are parameters.
        found = found.filter(RawSQL(where, params, BooleanField()))  # noqa: S611
        order_by = [self.columns[name] for name in order] or self.order_by
        try:
            sql, compiled = found.order_by(*order_by).values(column).query.get_compiler(using).as_sql()
        except EmptyResultSet:  # For example for Q(pk__in=[]).
            return None
        return QuerySetSQL(sql, compiled, has_values=len(compiled) > len(params))


#: The places and lengths of the parts of a UUID.
_UUID_PARTS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))


def _key_text(key: Any, using: str) -> str:
    """Return a template of SQL of a key as text, the same as for jobs, which may share its limit."""
    while isinstance(key, ForeignKey):
        key = key.target_field
    connection = connections[using]
    if isinstance(key, UUIDField) and not connection.features.has_native_uuid_field:
        return " || '-' || ".join(f"substr({{0}}, {start}, {size})" for start, size in _UUID_PARTS)
    if isinstance(key, DecimalField) and connection.vendor == "sqlite":
        return f"printf('%%.{key.decimal_places}f', {{0}})"
    return "CAST({0} AS text)"


def _ids(key: Any, using: str) -> RecordIds:
    connection = connections[using]
    column = key.get_col(key.model._meta.db_table)
    converters = [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)]

    def from_column(value: Any) -> Any:
        for convert in converters:
            value = convert(value, column, connection)
        return value

    return RecordIds(lambda value: key.get_db_prep_value(value, connection), from_column)


class RecordOptions(TypedDict, total=False):
    """The keyword arguments of ``Processors.records``, except its limits."""

    queryset: QuerySet[Any] | None
    order_by: Sequence[Any]
    columns: Mapping[str, str] | None
    queue: str | None
    slots: int | None
    isolation: Isolation | Level | None
    max_attempts: float | None
    retry_after: DurationLike | None
    stalled_after: DurationLike | None
    heartbeat_every: DurationLike | None
    max_resets: int | None
    reset_failure_message: str | None
    max_runtime: DurationLike | None
    poll_every: DurationLike | None
    cancel_every: DurationLike | None


def checked_model(given: object) -> type[Model]:
    """Return the model of a registration, which must have its own table."""
    if not (isinstance(given, type) and issubclass(given, Model)):
        raise RegistryError(f"records() takes a model first, not {given!r:.100}: @processors.records(Upload).")
    if given._meta.abstract or given._meta.proxy:
        raise RegistryError(f"{given.__qualname__} is abstract or a proxy: pass a concrete model.")
    if isinstance(given._meta.pk, CompositePrimaryKey):
        raise RegistryError(f"{given.__qualname__} has a composite primary key. Records need one of a single column.")
    return given


def checked_options(model: type[Model], options: RecordOptions) -> dict[str, Any]:
    """Return the fields of a ``RecordType`` for these options, without the queue."""
    given: Mapping[str, Any] = {name: value for name, value in options.items() if value is not None}
    message, order_by = given.get("reset_failure_message", RESET_MESSAGE), options.get("order_by", ())
    if not isinstance(message, str) or not message.strip():
        raise ValueError(f"reset_failure_message={message!r:.50} is not a text.")
    if isinstance(order_by, str) or not isinstance(order_by, Iterable):
        raise TypeError(f"order_by={order_by!r:.100} is not a list: write order_by=['priority', 'id'].")
    return {
        "queryset": _queryset(model, given.get("queryset")),
        "order_by": tuple(order_by),
        "columns": _columns(given.get("columns")),
        "reset_failure_message": message,
        "own_isolation": to_isolation(given.get("isolation")),
        **{field: kind.check(name, given[name]) for name, (field, kind) in _VALUES.items() if name in given},
    }


#: The field of each option, and its kind of value.
_VALUES: Mapping[str, tuple[str, Value[Any]]] = {
    "slots": ("slots", Count()),
    "max_attempts": ("own_max_attempts", MAX_ATTEMPTS),
    "retry_after": ("retry_seconds", Duration(least=0)),
    "stalled_after": ("own_stalled_seconds", Duration()),
    "heartbeat_every": ("own_heartbeat_seconds", Duration()),
    "max_resets": ("own_max_resets", Count(least=0)),
    "max_runtime": ("max_runtime_seconds", TIMEOUT),
    "poll_every": ("own_poll_seconds", Duration()),
    "cancel_every": ("cancel_seconds", Duration()),
}


def _queryset(model: type[Model], given: object) -> QuerySet[Any]:
    if given is None:
        return model._default_manager.all()
    if isinstance(given, Manager):
        raise TypeError(f"queryset= is a manager, not a QuerySet: pass {model.__qualname__}.{given.name}.all().")
    if not isinstance(given, QuerySet):
        raise TypeError(f"queryset={given!r:.100} is not a QuerySet of {model.__qualname__}.")
    if given.model is not model:  # Its repr would run a query.
        raise TypeError(f"queryset= is a QuerySet of {given.model.__qualname__}, not of {model.__qualname__}.")
    query: Any = given.query
    if query.is_sliced or query.combinator or query.distinct or query.group_by is not None or given._fields:  # type: ignore[attr-defined]
        raise ValueError(
            "queryset= must select rows of the table that can be locked: remove slices, distinct(), values(), "
            "union() and aggregates."
        )
    if query.select_for_update or not query.standard_ordering:
        raise ValueError(
            "queryset= must leave locks and the order to the worker: remove select_for_update() and reverse(), and use "
            "order_by= of the registration."
        )
    joins = [join for alias, join in query.alias_map.items() if join.parent_alias and query.alias_refcount[alias]]
    if any(getattr(join.join_field, "multiple", False) for join in joins):
        raise ValueError(
            "queryset= joins a table that may have several rows for a record, which would then count several times: "
            "use Exists(…) instead, and ~Exists(…) instead of isnull=True."
        )
    return given


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
