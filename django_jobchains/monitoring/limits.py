"""Reads the limits that hold for all workers together, with the running and waiting jobs and the busiest keys of each.

The number of statements is constant. Running jobs, and the waiting jobs of each group, are counted up to a maximum.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import Count, Q

from django_jobchains.declare.limits import DeclaredLimit
from django_jobchains.declare.registry import get_registry
from django_jobchains.monitoring.facts import RecordFacts, record_overview
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store, get_store
from django_jobchains.store.deduplication import TENANT_SEPARATOR as SEPARATOR
from django_jobchains.store.queues import Override

#: The number up to which the waiting jobs of each queue, type and priority, and of each key, are counted.
COUNT_TO = 1_000
#: The number up to which running jobs are counted.
MAX_RUNNING = 10_000
#: The number of keys of each limit that are shown.
MAX_KEYS = 5


@dataclass(frozen=True)
class KeyFacts:
    """A key of a limit.

    ``running``: its running jobs and records in process. ``waiting``: its due jobs and records, counted up to
    ``COUNT_TO``. ``next_start_seconds``: the time until the rate allows the next start. None if it allows a start now,
    or if there is no rate.
    """

    key: str
    running: int
    waiting: int
    next_start_seconds: float | None = None


@dataclass(frozen=True)
class LimitFacts:
    """A limit that holds for all workers together.

    ``name``: the name of the type, group, record registration or queue. ``types`` and ``record_types``: the types that
    share the limit. ``concurrency``: how many jobs may run at the same time. ``rate``: how many may start in
    ``rate_seconds``. If ``has_keys`` is true, both are for each key. ``declared_concurrency`` and ``declared_rate``:
    the numbers in the code. Numbers without a limit are None. ``waiting``: due jobs and records, counted up to
    ``COUNT_TO`` for each queue, type and priority. ``keys``: the keys with the most running jobs, followed by the keys
    that wait longest for the next start.
    """

    kind: Literal["type", "group", "records", "queue"]
    name: str
    concurrency: int | None
    is_overridden: bool
    running: int
    waiting: int
    types: tuple[str, ...] = ()
    record_types: tuple[str, ...] = ()
    has_keys: bool = False
    declared_concurrency: int | None = None
    declared_rate: int | None = None
    rate: int | None = None
    rate_seconds: float | None = None
    keys: tuple[KeyFacts, ...] = ()

    @property
    def sharing(self) -> tuple[str, ...]:
        """The types and record registrations that share the limit."""
        return (*self.types, *self.record_types)

    @property
    def is_declared(self) -> bool:
        """Whether the limit is in effect: the code declares it, or it is the limit of a queue."""
        return self.kind == "queue" or bool(self.sharing)


def limit_facts(using: str | None = None) -> list[LimitFacts]:
    """Return the limits that are declared or overridden, by name, followed by the limits of queues."""
    store, declared = get_store(using), get_registry().limits()
    rules = store.queues.rules()
    limited = {rule.name: rule.slot_limit for rule in rules.queues if rule.slot_limit is not None}
    if not (declared or rules.overrides or limited):
        return []
    has_records = bool(limited) or any(limit.record_types for limit in declared.values())
    records = {kind.name: kind for kind in record_overview(using)} if has_records else {}
    reader = _Reader(store, declared, rules.overrides, records)
    names = sorted({*declared, *rules.overrides})
    return [*map(reader.of_name, names), *(reader.of_queue(*queue) for queue in limited.items())]


class _Reader:
    """Reads what runs and waits now. ``records``: by name, those of this database."""

    def __init__(
        self,
        store: Store,
        declared: Mapping[str, DeclaredLimit],
        overrides: Mapping[str, Override],
        records: Mapping[str, RecordFacts],
    ) -> None:
        self._store = store
        self._declared = declared
        self._overrides = overrides
        self._records = records
        self._running = store.stats.running_groups(MAX_RUNNING)
        self._waiting = store.stats.pending_groups(COUNT_TO)
        self._by_name, self._by_rate = self._running_by("concurrency_key"), self._running_by("rate_key")
        self._next_starts = self._read_next_starts()
        #: The keys that are shown of each limit, with their running jobs.
        self._busiest = {name: self._busiest_keys(name, limit) for name, limit in declared.items()}
        self._behind = self._read_waiting()

    def of_name(self, name: str) -> LimitFacts:
        """Return the limit of a type, a group or records."""
        limit, override = self._declared.get(name, DeclaredLimit(name)), self._overrides.get(name, Override())
        concurrency = limit.concurrency.limit if limit.concurrency else None
        rate = limit.rate.limit if limit.rate else None
        records = [self._records[each] for each in limit.record_types if each in self._records]
        jobs = sum(group.jobs for group in self._running if group.type_name in limit.types)
        if limit.concurrency is not None:
            jobs = self._by_name[name].total()
        due = sum(group.due for group in self._waiting if group.type_name in limit.types)
        return LimitFacts(
            kind="group" if limit.is_group else "records" if limit.record_types else "type",
            name=name,
            types=limit.types,
            record_types=limit.record_types,
            has_keys=limit.has_keys,
            declared_concurrency=concurrency,
            concurrency=_in_effect(concurrency, override.concurrency),
            declared_rate=rate,
            rate=_in_effect(rate, override.rate),
            rate_seconds=limit.rate.seconds if limit.rate else None,
            is_overridden=name in self._overrides,
            running=jobs + sum(kind.processing for kind in records),
            waiting=due + sum(kind.due for kind in records),
            keys=tuple(
                KeyFacts(key, count, self._behind[f"{name}{SEPARATOR}{key}"], self._next_starts[name].get(key))
                for key, count in self._busiest.get(name, ())
            ),
        )

    def of_queue(self, name: str, number: int) -> LimitFacts:
        records = [kind.processing for kind in self._records.values() if kind.queue == name]
        return LimitFacts(
            kind="queue",
            name=name,
            concurrency=number,
            is_overridden=True,
            running=sum([*records, *(group.jobs for group in self._running if group.queue == name)]),
            waiting=sum(group.due for group in self._waiting if group.queue == name),
        )

    def _running_by(self, column: str) -> defaultdict[str, Counter[str]]:
        """Return the number of running jobs of each key, by the name of the limit."""
        counts = defaultdict[str, Counter[str]](Counter)
        for group in self._running:
            name, _, key = (getattr(group, column) or "").partition(SEPARATOR)
            counts[name][key] += group.jobs
        return counts

    def _busiest_keys(self, name: str, limit: DeclaredLimit) -> list[tuple[str, int]]:
        counts = self._by_name[name] if limit.concurrency is not None else self._by_rate[name]
        for kind in self._keyed_records(limit):
            counts = counts + self._in_process(kind)
        starts = self._next_starts[name]
        keys = sorted({*counts, *starts} - {""}, key=lambda key: (-counts[key], -starts.get(key, 0), key))
        return [(key, counts[key]) for key in keys[:MAX_KEYS]]

    def _read_next_starts(self) -> defaultdict[str, dict[str, float]]:
        """Return the seconds until the next start of keys that may not start now, by the names of their limits."""
        rates = {name: limit.rate for name, limit in self._declared.items() if limit.rate and limit.rate.key}
        found = defaultdict[str, dict[str, float]](dict)
        for bucket in self._store.rates.recent(MAX_RUNNING) if rates else ():
            name, _, key = bucket.rate_key.partition(SEPARATOR)
            if key and (rate := rates.get(name)) is not None:
                number = self._overrides.get(name, Override()).rate or rate.limit
                if (seconds := bucket.seconds_to_next(rate.start_rate_at(number))) > 0:
                    found[name][key] = seconds
        return found

    def _keyed_records(self, limit: DeclaredLimit) -> list[RecordType]:
        """Return the record types of a limit whose records have keys, and whose tables could be read."""
        readable = [name for name in limit.record_types if name in self._records and not self._records[name].problem]
        return [get_registry().record_type(name) for name in readable] if limit.has_keys else []

    def _in_process(self, kind: RecordType) -> Counter[str]:
        """Return the number of records in process of each key."""
        field: Any = kind.limits and kind.limits.field
        rows = kind.queryset.using(self._store.using).filter(**{kind.columns["state"]: "processing"}).order_by()
        counts = rows.values_list(field).annotate(count=Count("pk"))
        return Counter({str(key): count for key, count in counts if key is not None})

    def _read_waiting(self) -> Counter[str]:
        """Return how many jobs and records of the keys that are shown are due, by the name of the limit and the key."""
        shown = [f"{name}{SEPARATOR}{key}" for name, keys in self._busiest.items() for key, _ in keys]
        limits = get_registry().type_limits()
        turns = [
            (group.queue, group.type_name, turn, f"{name}{SEPARATOR}{key}")
            for group in {(group.queue, group.type_name): group for group in self._waiting}.values()
            for name, keys in self._busiest.items()
            if group.type_name in self._declared[name].types and self._declared[name].concurrency is None
            for key, _ in keys
            if (turn := limits[group.type_name].turn_of(group.type_name, key)) is not None
        ]
        found = Counter(self._store.stats.waiting_with(shown, turns, COUNT_TO) if shown else {})
        for name, keys in self._busiest.items():
            for kind in self._keyed_records(self._declared[name]):
                table = kind.table(self._store.using)
                for key, _ in keys:
                    select = kind.select(self._store.using, Q(**{str(kind.limits and kind.limits.field): key}))
                    counts = self._store.records.count_by_state(table, select, COUNT_TO, kind.retry_seconds)
                    found[f"{name}{SEPARATOR}{key}"] += counts.due
        return found


def _in_effect(declared: int | None, override: int | None) -> int | None:
    """Return the number that is in effect. Without a declared number, an override has no effect."""
    return declared if declared is None or override is None else override
