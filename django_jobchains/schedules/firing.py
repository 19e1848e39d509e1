"""Fires schedules: stores the declared schedules, and enqueues the chains of due ticks."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction

from django_jobchains.db.ids import new_id
from django_jobchains.declare.job_types import Item, create_chains
from django_jobchains.declare.registry import Registry
from django_jobchains.declare.schedules import TickRule, digest_of
from django_jobchains.exceptions import ChainNotFound, InvalidInput
from django_jobchains.models import Chain
from django_jobchains.notifications.wakeups import report_after_commit
from django_jobchains.payloads.codecs import decode_json, decode_text
from django_jobchains.statuses import OPEN, Status
from django_jobchains.store import Store
from django_jobchains.store.errors import is_conflict, is_database_away
from django_jobchains.store.last_jobs import LastJob
from django_jobchains.store.schedules import FiredSchedule, ScheduleRow
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import Event, ScheduleFailed, ScheduleFired, TicksDropped
from django_jobchains.text.errors import describe

#: The limit of schedules in one transaction. With a lower limit, the chains of the first transaction would already run
#: and delay the next transactions.
BATCH_SIZE = 10_000
#: The limit for databases in which no other process can write during this time.
ONE_WRITER_BATCH_SIZE = 1_000
#: The limit of chains in one transaction, which the schedules share. The others follow in the next one.
MAX_CHAINS = 10_000
#: A later tick is missed.
LATE = timedelta(minutes=1)
#: How soon a schedule is tried again that could not fire here, or whose previous chain was just locked or deleted.
RETRY_SECONDS = 60.0
CONFLICT_SECONDS = 1.0
#: Missed ticks are counted up to this number, or up to ``max_catch_up`` if that is higher.
COUNT_LIMIT = 100


class DeclaredSchedules:
    """The schedules of a registry, which must be valid."""

    def __init__(self, registry: Registry, store: Store) -> None:
        self._registry = registry
        self._store = store
        self._rows, problems = registry.schedules()
        if problems:
            raise problems[0]
        self.names = {row["name"] for row in self._rows}
        self.digest = digest_of(self._rows)

    def store(self, live: Collection[str] = ()) -> None:
        """Store them, except those that a version with a digest in ``live`` has stored."""
        if not self._rows:
            return
        now = self._store.stats.time_ago(0)
        rows = [{**with_next_tick(row, now), "declarations": self.digest} for row in self._rows]
        self._store.schedules.store(rows, live)


def with_next_tick(row: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the columns of a schedule that begins now."""
    rule = TickRule(row["cron"], row["every_seconds"], row["timezone"], now)
    return {**row, "anchor_at": now, "next_tick_at": rule.next(now)}


@contextmanager
def row_transaction(store: Store) -> Iterator[None]:
    """Open a transaction, or a savepoint, that sees commits to a row from before it gets the row's lock."""
    with store.db.transaction() as is_own, nullcontext() if is_own else transaction.atomic(store.using):
        if is_own:
            store.db.begin()
            store.db.read_committed(links=True)
        yield


@dataclass
class Fired:
    """What a call of ``fire`` did, with ``count`` schedules that were due. ``is_full``: others may be due as well.

    ``failed``: the seconds after which schedules are tried again that could not fire here, by their names.
    """

    count: int = 0
    is_full: bool = False
    chains: list[Chain] = field(default_factory=list)
    failed: dict[str, float] = field(default_factory=dict)


def fire(
    store: Store, registry: Registry, declared: Collection[str], excluded: Collection[str] = (), *, worker: str = ""
) -> Fired:
    """Fire the schedules that are due, as many as one transaction may: those of ``declared``, and the admin's.

    A schedule that fails here keeps its tick, because another worker may know its job type, and its row has the error.
    """
    return _Firing(store, registry, declared, worker).run(excluded)


class _Firing:
    def __init__(self, store: Store, registry: Registry, declared: Collection[str], worker: str) -> None:
        self._store = store
        self._registry = registry
        self._declared = declared
        self._worker = worker
        self._fired = Fired()
        #: The schedules that the current transaction has locked.
        self._names: list[str] = []

    def run(self, excluded: Collection[str]) -> Fired:
        try:
            self._transaction(excluded, None)
        except Exception as error:
            self._failed(error, self._names)
        return self._fired

    def _failed(self, error: Exception, names: Sequence[str]) -> None:
        """Fire each half of the schedules in its own transaction, so that one that fails does not affect the others."""
        if not names or is_database_away(error):
            raise error
        if len(names) == 1:
            # The previous chain, which was found, has been deleted since.
            is_conflicting = is_conflict(error) or isinstance(error, ChainNotFound)
            self._fired.failed[names[0]] = CONFLICT_SECONDS if is_conflicting else RETRY_SECONDS
            if not is_conflicting:
                self._record({names[0]: describe(error)})
            return
        middle = len(names) // 2
        for half in (names[:middle], names[middle:]):
            try:
                self._transaction((), half)
            except Exception as other:
                self._failed(other, half)

    def _transaction(self, excluded: Collection[str], names: Collection[str] | None) -> None:
        with row_transaction(self._store):
            self._names = []
            limit = ONE_WRITER_BATCH_SIZE if self._store.db.has_one_writer else BATCH_SIZE
            due = self._store.schedules.due(limit, excluded, names)
            if names is None:
                self._fired.count, self._fired.is_full = len(due), len(due) == limit
            self._names = [schedule.name for schedule in due]
            cache = FiringCache(self._registry)
            max_chains = max(MAX_CHAINS // len(due), 1) if due else 0
            known = [each for each in due if each.source != "code" or each.name in self._declared]
            self._fired.failed |= dict.fromkeys(set(self._names) - {each.name for each in known}, RETRY_SECONDS)
            results = self._store.db.each_in_savepoint(lambda each: _Ready(each, cache, max_chains), known)
            ready: list[_Ready] = []
            errors: dict[str, str] = {}
            for schedule, result in zip(known, results, strict=True):
                if isinstance(result, _Ready):
                    ready.append(result)
                    continue
                # Its type or time zone is unknown here, or its input is not valid.
                self._fired.failed[schedule.name] = RETRY_SECONDS
                if decode_text(schedule.last_error or "") != describe(result):
                    errors[schedule.name] = describe(result)
            chains = self._enqueue(ready)
        self._fired.chains += chains
        self._record(errors)

    def _enqueue(self, ready: "Sequence[_Ready]") -> list[Chain]:
        """Enqueue the chains of these schedules, and set their next ticks."""
        if not ready:
            return []
        previous = {
            each.row.name: id_ for each in ready if each.row.overlap != "allow" and (id_ := each.row.last_chain_id)
        }
        last_jobs = self._store.last_jobs.read(set(previous.values())) if previous else {}
        for each in ready:
            each.decide(last_jobs.get(previous[each.row.name]) if each.row.name in previous else None)
        items = [item for each in ready for item in each.items]
        chains = create_chains(items, self._store.using)
        self._store.schedules.fired([each.fired() for each in ready])
        report_after_commit(self._store.using, [event for each in ready for event in each.events(self._worker)])
        return chains

    def _record(self, errors: Mapping[str, str]) -> None:
        if errors:
            self._store.schedules.fail(errors)
        for name, error in errors.items():
            report(ScheduleFailed(self._worker, name, error))


class FiringCache:
    """What schedules of one transaction have in common, computed once: the ticks of a rule, and the jobs of a type."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._ticks: dict[Any, tuple[list[datetime], datetime | None]] = {}
        #: Arguments of ``Item`` by type, queue and priority.
        self._jobs: dict[Any, dict[str, Any]] = {}
        #: The arguments that depend on the input, by type and stored input.
        self._inputs: dict[tuple[str, str], dict[str, Any]] = {}

    def ticks(self, row: ScheduleRow, limit: int) -> tuple[list[datetime], datetime | None]:
        """Return the last ``limit`` ticks that are due, and the tick that follows. Do not change the list."""
        first = row.next_tick_at or row.now
        anchor = row.anchor_at if row.every_seconds else max(first, row.anchor_at)
        key = row.cron, row.every_seconds, row.timezone, anchor, first, row.now, limit
        if key not in self._ticks:
            self._ticks[key] = rule_of(row).due(first, row.now, limit)
        return self._ticks[key]

    def check(self, row: ScheduleRow) -> None:
        """Raise ``JobTypeNotFound``, or ``InvalidInput`` if the input of a schedule does not fit the type."""
        place, stored = (row.type_name, row.queue, row.priority), (row.type_name, row.input)
        if place in self._jobs and stored in self._inputs:
            return
        job_type = self._registry.job_type(row.type_name)
        given = job_type.decode_input(row.input)
        own: dict[str, Any] = {"input": decode_json(row.input, InvalidInput)}
        if job_type.processor is not None and job_type.processor.limits is not None:
            keys = job_type.processor.limits.keys(job_type.name, given)
            own |= zip(("limit_key", "concurrency_key", "rate_key"), keys, strict=True)
        self._inputs[stored] = own
        if place not in self._jobs:
            item = job_type.item(given, queue=row.queue, priority=row.priority)
            self._jobs[place] = {each.name: getattr(item, each.name) for each in fields(item)}

    def new_item(self, row: ScheduleRow, tick: datetime | None = None) -> Item[Any]:
        """Return the first job of a new chain of a schedule that was checked.

        The input is passed on as stored: another version may know more fields.
        """
        id_ = new_id()
        own = {"id": id_, "chain_id": id_, "schedule_name": row.name, "scheduled_for": tick}
        of_place, of_input = self._jobs[row.type_name, row.queue, row.priority], self._inputs[row.type_name, row.input]
        return Item(**{**of_place, **of_input, **own})


class _Ready:
    """A schedule that is due and can fire here."""

    __slots__ = ("_cache", "_missed", "_next_tick", "_skipped", "_ticks", "items", "row")

    def __init__(self, row: ScheduleRow, cache: FiringCache, max_chains: int) -> None:
        cache.check(row)
        self.row = row
        self.items: list[Item[Any]] = []
        self._cache = cache
        self._skipped = 0
        limit = max(row.max_catch_up, COUNT_LIMIT) if row.on_missed == "run_all" else COUNT_LIMIT
        ticks, self._next_tick = cache.ticks(row, limit)
        self._ticks = self._wanted(ticks)
        self._missed = len(ticks) - len(self._ticks)
        limit = 1 if row.overlap == "queue" else max_chains
        if len(self._ticks) > limit:
            self._ticks, self._next_tick = self._ticks[:limit], self._ticks[limit]

    def _wanted(self, ticks: list[datetime]) -> list[datetime]:
        """Return the ticks that fire, unless the previous chain prevents that."""
        if self.row.on_missed == "run_all":
            return ticks[-self.row.max_catch_up :]
        is_late = self.row.now - ticks[-1] > LATE
        return [] if self.row.on_missed == "skip" and is_late else ticks[-1:]

    def decide(self, previous: LastJob | None) -> None:
        """Make the chains of the ticks. ``previous``: the last job of the previous chain, if it exists."""
        is_open = previous is not None and previous.status in OPEN
        #: A job waits at the beginning of its chain only for a chain of the same schedule.
        is_queued = previous is not None and previous.status == Status.BLOCKED and not previous.chain_index
        for tick in self._ticks:
            if is_open and (self.row.overlap == "skip" or is_queued):
                self._skipped += 1
                continue
            self.items.append(self._new_item(tick, previous.chain_id if is_open and previous else None))
            is_open = self.row.overlap != "allow"

    def _new_item(self, tick: datetime, waits_for: UUID | None) -> Item[Any]:
        item = self._cache.new_item(self.row, tick)
        if self.row.jitter_seconds:
            item.delay_seconds = random.uniform(0, self.row.jitter_seconds)  # noqa: S311
        if waits_for is not None:  # However that chain ends, this one runs then.
            item.blockers, item.accepted_blockers, item.on_blocker_failure = (waits_for,), None, "run"
        return item

    def fired(self) -> FiredSchedule:
        if not self.items:
            return FiredSchedule(self.row.name, self._next_tick)
        return FiredSchedule(self.row.name, self._next_tick, self.items[-1].scheduled_for, self.items[-1].id)

    def events(self, worker: str) -> list[Event]:
        name, type_name = self.row.name, self.row.type_name
        events: list[Event] = [
            ScheduleFired(worker, name, type_name, item.id, tick, (self.row.now - tick).total_seconds())
            for item in self.items
            if (tick := item.scheduled_for)
        ]
        for outcome, count in (("missed", self._missed), ("skipped", self._skipped)):
            if count:
                events.append(TicksDropped(worker, name, type_name, outcome, count))
        return events


def rule_of(row: ScheduleRow) -> TickRule:
    return TickRule(row.cron, row.every_seconds, row.timezone, row.anchor_at)
