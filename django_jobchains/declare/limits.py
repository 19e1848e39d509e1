"""Limits of job types that hold for all workers together, and the keys that jobs are counted by."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from math import ceil
from operator import attrgetter, itemgetter
from types import MappingProxyType, NoneType
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from django_jobchains.declare.policies import check_function
from django_jobchains.exceptions import InvalidInput, RegistryError
from django_jobchains.store.deduplication import KEY_LENGTH
from django_jobchains.store.deduplication import TENANT_SEPARATOR as SEPARATOR
from django_jobchains.store.limits import KEY_BYTES, LimitedTypes
from django_jobchains.store.queues import Override
from django_jobchains.store.rates import StartRate
from django_jobchains.text.errors import describe
from django_jobchains.text.humanize import sentence
from django_jobchains.values import MAX_SECONDS, TYPE_NAME, Count, Duration, DurationLike, check_fields

#: The largest value of the database's integers.
MAX_LIMIT = 2**31 - 1
#: The name of a field of the input, or a function of the input.
LimitKey = str | Callable[[Any], Any]
#: Inputs of these types have no fields.
_WITHOUT_FIELDS = (NoneType, bool, int, float, str, bytes, UUID, Decimal)


@dataclass(frozen=True)
class Concurrency:
    """A limit of jobs that run at the same time, in all workers together.

    ``key``: the name of a field of the input, or a function that receives the input. The limit then holds for each
    value, which must be a text, a number or a UUID. ``group``: all types with the same group share one limit.
    """

    limit: Annotated[int, Count(1, MAX_LIMIT)]
    key: LimitKey | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        _check(self)

    def __str__(self) -> str:
        return str(self.limit)


@dataclass(frozen=True)
class Rate:
    """A limit of jobs that start in any period ``per``, such as 60 or "1m", in all workers together.

    Two starts are at least ``per / limit`` apart. ``burst``: up to this many jobs may start together after a pause. A
    period may then have ``limit + burst - 1`` starts. Each attempt counts as a start. For ``key`` and ``group``, see
    ``Concurrency``.
    """

    limit: Annotated[int, Count(1, MAX_LIMIT)]
    per: Annotated[DurationLike, Duration()]
    burst: Annotated[int, Count(1, MAX_LIMIT)] = 1
    key: LimitKey | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        _check(self)
        if self.start_rate.burst < self.burst:
            raise ValueError(f"burst={self.burst}: this rate allows this many starts only after a thousand years.")

    def __str__(self) -> str:
        burst = f", burst {self.burst}" if self.burst > 1 else ""
        return f"{self.limit} per {float(self.per):g} s{burst}"  # type: ignore[arg-type]

    @property
    def seconds(self) -> float:
        """The length of the period."""
        return float(self.per)  # type: ignore[arg-type]

    @property
    def start_rate(self) -> StartRate:
        return self.start_rate_at(self.limit)

    def start_rate_at(self, limit: int) -> StartRate:
        """Return the rate with another limit. A burst that takes more than a thousand years to fill is made smaller."""
        # Rounded up, so that the sum of the intervals is not shorter than the window.
        microseconds = ceil(self.seconds * 1e6 / limit)
        return StartRate(microseconds, max(1, min(self.burst, int(MAX_SECONDS * 1e6) // microseconds)))


def _check(limit: Concurrency | Rate) -> None:
    """Raise ``TypeError`` or ``ValueError`` for invalid fields."""
    check_fields(limit)
    if limit.key is not None:
        checked_key("key", limit.key)
    if limit.group is not None and SEPARATOR in TYPE_NAME.check("group", limit.group):
        raise ValueError(f"group={limit.group!r:.100} contains {SEPARATOR}.")


def checked_key(argument: str, given: Any) -> LimitKey:
    """Return a key of a limit. Raise ``TypeError`` unless it is the name of a field, or a plain function."""
    if isinstance(given, str):
        if not given.isidentifier():
            raise ValueError(f"{argument}={given!r:.100} is not the name of a field.")
        return given
    check_function(argument, given, 1, "the input")
    function: LimitKey = given
    return function


class LimitKeys(NamedTuple):
    """What is stored with a job of a limited type.

    All jobs of a type with the same ``turn`` are alike for every limit, and the turns alternate in claims.
    ``concurrency``: the key by which its running jobs are counted, None if they are not. ``rate``: the key by which its
    starts are counted.
    """

    turn: int
    concurrency: str | None
    rate: str | None


@dataclass(frozen=True)
class TypeLimits:
    """The limits of a job type, or of records. ``fair``: the key whose values take turns."""

    concurrency: Concurrency | None
    rate: Rate | None
    fair: LimitKey | None

    def slot_limit(self, type_name: str, overrides: Mapping[str, Override] = MappingProxyType({})) -> int | None:
        """Return how many of its jobs, or of each key or group, may run at the same time: 0 if none may start.

        ``overrides``: what replaces the declared numbers, by the name of the type or group.
        """
        if self.rate is not None and overrides.get(self.rate.group or type_name, Override()).rate == 0:
            return 0
        if self.concurrency is None:
            return None
        override = overrides.get(self.concurrency.group or type_name, Override())
        return self.concurrency.limit if override.concurrency is None else override.concurrency

    def start_rate(self, type_name: str, overrides: Mapping[str, Override] = MappingProxyType({})) -> StartRate | None:
        """Return how fast its jobs may start, or the jobs of each key or group."""
        if self.rate is None:
            return None
        override = overrides.get(self.rate.group or type_name, Override())
        return self.rate.start_rate_at(override.rate or self.rate.limit)

    def keys(self, type_name: str, input: Any) -> LimitKeys:
        """Return the keys of a job with this input, as its handler receives it. Raises ``InvalidInput``."""
        concurrency = _counted_by(self.concurrency, type_name, input)
        rate = _counted_by(self.rate, type_name, input)
        fair = "" if self.fair is None else _value(f"fair= of {type_name!r}", self.fair, input)
        # The hash is a small number in the index, and lets a worker begin anywhere among the keys.
        turn = blake2b(f"{concurrency}\0{rate}\0{fair}".encode(), digest_size=KEY_BYTES).digest()
        return LimitKeys(int.from_bytes(turn), concurrency, rate)

    def keys_or_shared(self, type_name: str, decode: Callable[[str], Any], stored: str) -> LimitKeys:
        """Return the keys of a job whose input was stored without them. Inputs without a valid key share one."""
        try:
            return self.keys(type_name, decode(stored) if self.declared_keys else None)
        except InvalidInput:
            concurrency = self.concurrency and replace(self.concurrency, key=None)
            return TypeLimits(concurrency, self.rate and replace(self.rate, key=None), None).keys(type_name, None)

    def turn_of(self, type_name: str, value: str) -> int | None:
        """Return the turn of the jobs whose rate has this value as its key. None: it depends on other keys too."""
        if self.rate is None or set(self.declared_keys) != {self.rate.key}:
            return None

        def given(input: Any) -> str:
            return value

        concurrency = self.concurrency and replace(self.concurrency, key=self.concurrency.key and given)
        limits = TypeLimits(concurrency, replace(self.rate, key=given), self.fair and given)
        return limits.keys(type_name, None).turn

    @property
    def declared_keys(self) -> list[LimitKey]:
        keys = self.fair, *(limit.key for limit in (self.concurrency, self.rate) if limit)
        return [key for key in keys if key is not None]

    @property
    def field(self) -> str | None:
        """The field of records whose values take turns. Each key of their limits is its name."""
        return next((key for key in self.declared_keys if isinstance(key, str)), None)

    def check_fields(self, annotation: Any) -> None:
        """Raise ``RegistryError`` for a key that is not a field of the input."""
        names = field_names(annotation)
        for key in self.declared_keys:
            if isinstance(key, str) and names is not None and key not in names:
                known = f"It has {', '.join(names)}." if names else "It has no fields."
                raise RegistryError(f"{key!r} is the key of a limit, but not a field of the input. {known}")


@dataclass(frozen=True)
class DeclaredLimit:
    """A limit, and the types that share it. It has the name of their group, or of its only type.

    ``record_types``: the names of the records that share it.
    """

    name: str
    types: tuple[str, ...] = ()
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    record_types: tuple[str, ...] = ()

    @property
    def is_group(self) -> bool:
        return any(limit is not None and limit.group is not None for limit in (self.concurrency, self.rate))

    @property
    def has_keys(self) -> bool:
        return any(limit is not None and limit.key is not None for limit in (self.concurrency, self.rate))


def declared_limits(
    types: Iterable[tuple[str, TypeLimits]], record_types: Iterable[tuple[str, TypeLimits]]
) -> dict[str, DeclaredLimit]:
    """Return the limits of these types and records by their names."""
    found: dict[str, DeclaredLimit] = {}
    named = [("types", *each) for each in types] + [("record_types", *each) for each in record_types]
    for kind, type_name, own in named:
        for declared in (own.concurrency, own.rate):
            if declared is not None:
                name = declared.group or type_name
                limit = found.get(name, DeclaredLimit(name))
                names: Any = {kind: tuple(dict.fromkeys((*getattr(limit, kind), type_name)))}
                limit = replace(limit, **names)
                if isinstance(declared, Rate):
                    found[name] = replace(limit, rate=declared)
                else:
                    found[name] = replace(limit, concurrency=declared)
    return found


def record_limits(concurrency: Concurrency | None, rate: Rate | None, fair: LimitKey | None) -> TypeLimits | None:
    """Return the limits of records; raise ``TypeError`` or ``ValueError`` for limits that only jobs can have."""
    given = (("key", concurrency and concurrency.key), ("key", rate and rate.key), ("fair", fair))
    keys = [(argument, key) for argument, key in given if key is not None]
    for argument, key in keys:
        if not isinstance(key, str):
            raise TypeError(f"{argument}={key!r:.100} is a function: for records, pass the name of a field.")
        if key != (first := keys[0][1]):
            raise ValueError(
                f"{argument}={key!r} is not the key of the limit, {first!r}, whose values take turns. Use the same "
                "field, or leave it out."
            )
    if concurrency is not None and concurrency.group is not None:
        raise ValueError(
            f"group={concurrency.group!r} is for job types: records are counted in their own table, and share no "
            "concurrency. A rate may have a group."
        )
    return TypeLimits(concurrency, rate, fair) if keys or concurrency or rate else None


def limited_types(
    leases: Mapping[str, float],
    limits: Mapping[str, TypeLimits | None],
    overrides: Mapping[str, Override] = MappingProxyType({}),
) -> LimitedTypes:
    """Return what a claim needs of types with limits: their leases in seconds, their limits, and what replaces them."""
    declared = {name: own for name in leases if (own := limits[name])}
    rates = {name: rate for name, own in declared.items() if (rate := own.start_rate(name, overrides))}
    counted = [(name, own.concurrency) for name, own in declared.items() if own.concurrency]
    shared = {name: concurrency.group or name for name, concurrency in counted if concurrency.key is None}
    slot_limits = {name: own.slot_limit(name, overrides) for name, own in declared.items()}
    return LimitedTypes(leases, slot_limits, rates, shared)


def group_problems(limits: Iterable[tuple[str, TypeLimits]]) -> Iterator[str]:
    """Describe types that share a group with an earlier one, but have another limit."""
    first: dict[tuple[type, str], tuple[str, Concurrency | Rate]] = {}
    for name, own in limits:
        for declared in (own.concurrency, own.rate):
            if declared is None or declared.group is None:
                continue
            other_name, other = first.setdefault((type(declared), declared.group), (name, declared))
            if replace(other, key=declared.key) != declared:
                kind = "limits" if isinstance(declared, Concurrency) else "rates"
                yield (
                    f"{other_name!r} and {name!r} share the group {declared.group!r}, but have different {kind}: "
                    f"{other} and {declared}"
                )


def _counted_by(limit: Concurrency | Rate | None, type_name: str, input: Any) -> str | None:
    """Return what a job is counted by: the name of the group or type, and the value of the key."""
    if limit is None:
        return None
    name = limit.group or type_name
    if limit.key is None:
        return name
    return name + SEPARATOR + _value(f"The {type(limit).__name__.lower()} of {type_name!r}", limit.key, input)


def field_names(annotation: Any) -> list[str] | None:
    """Return the names of the fields of an input, or None if they are not declared."""
    if annotation in _WITHOUT_FIELDS:
        return []
    if is_dataclass(annotation):
        return [field.name for field in fields(annotation)]
    declared: Any = getattr(annotation, "model_fields", None) or getattr(annotation, "_fields", None)
    is_typed_dict = isinstance(annotation, type) and hasattr(annotation, "__required_keys__")
    return list(declared or (annotation.__annotations__ if is_typed_dict else ())) or None


def _value(what: str, key: LimitKey, input: Any) -> str:
    """Return the value of a key as text. Raises ``InvalidInput``."""
    try:
        read = itemgetter if isinstance(input, Mapping) else attrgetter
        value = key(input) if callable(key) else read(key)(input)
    except Exception as error:
        raise InvalidInput(sentence(f"{what} has no key for this input: {describe(error)}")) from error
    if not isinstance(value, str | int | float | Decimal | UUID) or isinstance(value, bool):
        raise InvalidInput(f"{what} has the key {value!r:.100}, which is not a text, a number or a UUID.")
    text = str(value)
    if not 0 < len(text) <= KEY_LENGTH or not text.isprintable() or SEPARATOR in text:
        raise InvalidInput(
            f"{what} has the key {text!r:.100}: a key has 1 to {KEY_LENGTH} printable characters, and no {SEPARATOR}."
        )
    return text
