"""The limits that hold for all workers together: declared and effective, what runs, what waits, and the busiest keys.

A constant number of statements. Running jobs, and the waiting jobs of each group, are counted up to a limit.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Literal

from django_jobchains.declare.limits import DeclaredLimit
from django_jobchains.declare.registry import get_registry
from django_jobchains.monitoring.facts import record_overview
from django_jobchains.store import get_store
from django_jobchains.store.deduplication import TENANT_SEPARATOR as SEPARATOR
from django_jobchains.store.queues import Override

#: The limit up to which the waiting jobs of each queue, type and priority are counted, and those of each key.
COUNT_TO = 1_000
#: The limit up to which running jobs are counted.
MAX_RUNNING = 10_000
#: The number of keys of each limit that are shown.
MAX_KEYS = 5


@dataclass(frozen=True)
class KeyFacts:
    """A key of a limit with its running jobs. ``waiting``: the due jobs that wait behind them, or ``COUNT_TO``."""

    key: str
    running: int
    waiting: int


@dataclass(frozen=True)
class LimitFacts:
    """A limit that holds for all workers together.

    ``name``: of the type, group, records or queue. ``types`` and ``record_types``: those that share it.
    ``concurrency``: how many jobs may run at once, and ``rate``: how many may start in ``rate_seconds``, of each key if
    ``has_keys``. ``declared_…``: what the code declares. All are None if there is no such limit. ``waiting``: due jobs
    and records, counted up to ``COUNT_TO`` for each queue, type and priority. ``keys``: those with the most running
    jobs.
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
    def is_declared(self) -> bool:
        """Whether the code declares it, or it is of a queue. An override that is left of older code has no effect."""
        return self.kind == "queue" or bool(self.types or self.record_types)


def limit_facts(using: str | None = None) -> list[LimitFacts]:
    """Return the limits of types and groups, also those that are overridden but no longer declared, then of queues."""
    store, declared = get_store(using), get_registry().limits()
    rules = store.queues.rules()
    limited = {rule.name: rule.slot_limit for rule in rules.queues if rule.slot_limit is not None}
    if not (declared or rules.overrides or limited):
        return []
    has_records = bool(limited) or any(limit.record_types for limit in declared.values())
    records = {kind.name: kind for kind in record_overview(using)} if has_records else {}
    running = store.stats.running_groups(MAX_RUNNING)
    waiting = store.stats.pending_groups(COUNT_TO)
    by_name = defaultdict[str, Counter[str]](Counter)
    for group in running:
        name, _, key = (group.concurrency_key or "").partition(SEPARATOR)
        by_name[name][key] += group.jobs
    busiest = {name: by_name[name].most_common(MAX_KEYS) for name in declared}
    shown = [f"{name}{SEPARATOR}{key}" for name, keys in busiest.items() for key, _ in keys if key]
    behind = store.stats.waiting_with(shown, COUNT_TO) if shown else {}
    found = []
    for name in sorted({*declared, *rules.overrides}):
        limit, override = declared.get(name, DeclaredLimit(name, ())), rules.overrides.get(name, Override())
        concurrency = limit.concurrency.limit if limit.concurrency else None
        rate = limit.rate.limit if limit.rate else None
        jobs = sum(group.jobs for group in running if group.type_name in limit.types)
        due = sum(group.due for group in waiting if group.type_name in limit.types)
        if limit.concurrency is not None:
            jobs = by_name[name].total()
        for kind in (records[each] for each in limit.record_types if each in records):
            jobs, due = jobs + kind.processing, due + kind.due
        keys = [KeyFacts(key, jobs, behind.get(f"{name}{SEPARATOR}{key}", 0)) for key, jobs in busiest.get(name, ())]
        found.append(
            LimitFacts(
                kind="group" if limit.is_group else "records" if limit.record_types else "type",
                name=name,
                types=limit.types,
                record_types=limit.record_types,
                has_keys=limit.has_keys,
                declared_concurrency=concurrency,
                concurrency=concurrency if override.concurrency is None else override.concurrency,
                declared_rate=rate,
                rate=rate if override.rate is None else override.rate,
                rate_seconds=limit.rate.seconds if limit.rate else None,
                is_overridden=name in rules.overrides,
                running=jobs,
                waiting=due,
                keys=tuple(each for each in keys if each.key),
            )
        )
    for name, number in limited.items():
        found.append(
            LimitFacts(
                kind="queue",
                name=name,
                concurrency=number,
                is_overridden=True,
                running=sum(group.jobs for group in running if group.queue == name)
                + sum(kind.processing for kind in records.values() if kind.queue == name),
                waiting=sum(group.due for group in waiting if group.queue == name),
            )
        )
    return found
