"""Read, pause, resume and run schedules, and create and change schedules that are not declared in code.

Every function joins the caller's transaction, takes ``using`` for a database other than the configured one, and has an
async twin with the prefix ``a``. Workers react to a wake-up, or at their next poll.
"""

import builtins
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, Unpack

from asgiref.sync import sync_to_async

from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.declare.job_types import JobType, create_chains
from django_jobchains.declare.registry import get_registry
from django_jobchains.declare.schedules import ScheduleOptions, checked_schedule
from django_jobchains.exceptions import (
    InvalidInput,
    InvalidSchedule,
    JobTypeNotFound,
    ScheduleDeclaredInCode,
    ScheduleExists,
    ScheduleNotFound,
)
from django_jobchains.models import Chain, Schedule
from django_jobchains.notifications import notify_workers
from django_jobchains.payloads.codecs import decode_json
from django_jobchains.payloads.strict_json import decode
from django_jobchains.schedules.firing import FiringCache, row_transaction, rule_of, with_next_tick
from django_jobchains.store import Store, get_store
from django_jobchains.store.schedules import ScheduleRow
from django_jobchains.values import SCHEDULE_NAME, Count, check_options

__all__ = (
    "InvalidSchedule",
    "Schedule",
    "ScheduleDeclaredInCode",
    "ScheduleExists",
    "ScheduleNotFound",
    "acreate",
    "adelete",
    "aget",
    "alist",
    "anext_ticks",
    "apause",
    "aresume",
    "arun_now",
    "aupdate",
    "create",
    "delete",
    "get",
    "list",
    "next_ticks",
    "pause",
    "resume",
    "run_now",
    "update",
)

#: The number of names that are compared with a name that does not exist, to suggest the nearest.
MAX_COMPARED = 1_000


@has_async_twin("schedules")
def list(*, using: str | None = None) -> builtins.list[Schedule]:  # noqa: A001 - as in schedules.list()
    """Return all schedules, ordered by name. Schedules that are declared in code are stored when a worker starts."""
    return builtins.list(Schedule.objects.using(get_store(using).using).with_orphans().order_by("name"))


@has_async_twin("schedules")
def get(name: str, *, using: str | None = None) -> Schedule:
    """Return a schedule. Raises ``ScheduleNotFound``."""
    return _get(name, get_store(using))


@has_async_twin("schedules")
def pause(*names: str, using: str | None = None) -> None:
    """Stop these schedules from firing until they are resumed. Raises ``ScheduleNotFound``, and then pauses none."""
    store = get_store(using)
    with row_transaction(store):
        store.schedules.pause([row.name for row in _locked(names, store)])
    notify_workers(store.using)


@has_async_twin("schedules")
def resume(*names: str, using: str | None = None) -> None:
    """Let these schedules fire again, from the next tick on. Raises ``ScheduleNotFound``, and then resumes none."""
    store = get_store(using)
    with row_transaction(store):
        paused = [row for row in _locked(names, store) if row.is_paused]
        store.schedules.resume({row.name: rule_of(row).next(row.now) for row in paused})
    notify_workers(store.using)


@has_async_twin("schedules")
def run_now(name: str, *, using: str | None = None) -> Chain:
    """Enqueue a chain of a schedule now, even if it is paused. The ticks of the schedule do not change.

    Raises ``ScheduleNotFound``, ``JobTypeNotFound``, and ``InvalidInput`` if the stored input does not fit the type.
    """
    store = get_store(using)
    with row_transaction(store):
        [row] = _locked([name], store)
        cache = FiringCache(get_registry())
        cache.check(row)
        [chain] = create_chains([cache.new_item(row)], store.using)
        store.schedules.run(name, chain.id)
    return chain


@has_async_twin("schedules")
def next_ticks(name: str, count: int = 5, *, using: str | None = None) -> builtins.list[datetime]:
    """Return the next ticks of a schedule by the database's time, in its time zone, whether or not it is paused.

    Returns fewer ticks if a cron expression matches no more times in the next fifty years. Raises ``ScheduleNotFound``.
    """
    Count().check("count", count)
    store = get_store(using)
    [row] = _found([name], store.schedules.read([name]), store)
    rule = rule_of(row)
    return [tick.astimezone(rule.zone) for tick in islice(rule.ticks(row.now), count)]


@has_async_twin("schedules")
def create(
    name: str, job_type: str | JobType[Any, Any], *, using: str | None = None, **options: Unpack[ScheduleOptions]
) -> Schedule:
    """Create a schedule that is not declared in code, with the arguments of ``Processors.schedule``.

    Raises ``ScheduleExists`` and ``InvalidSchedule``.
    """
    check_options("create", options, ScheduleOptions)
    store, registry = get_store(using), get_registry()
    row = checked_schedule(name, job_type, options, registry.job_type, calls_keys=True)
    row = {**with_next_tick(row, store.stats.time_ago(0)), "declarations": None}
    if name in registry.schedule_names or not store.schedules.create(row):
        raise ScheduleExists(name)
    notify_workers(store.using)
    return _get(name, store)


@has_async_twin("schedules")
def update(
    name: str,
    *,
    job_type: str | JobType[Any, Any] | None = None,
    using: str | None = None,
    **options: Unpack[ScheduleOptions],
) -> Schedule:
    """Change the passed arguments of a schedule that is not declared in code.

    ``update(name, cron="0 3 * * *", every=None)`` replaces the rule. A tick that is due still fires, and with another
    rule, the schedule begins again from now. Raises ``ScheduleNotFound``, ``ScheduleDeclaredInCode`` and
    ``InvalidSchedule``; then nothing is changed.
    """
    check_options("update", options, ScheduleOptions)
    store = get_store(using)
    with row_transaction(store):
        [before] = _locked([name], store)
        if before.source == Schedule.Source.CODE:
            raise ScheduleDeclaredInCode(name)
        given: Any = {**_options(before), **options}
        find, is_same_type = get_registry().job_type, getattr(job_type, "name", job_type) in (None, before.type_name)
        keeps_input = is_same_type and "input" not in options
        if keeps_input:  # It may have the form of an earlier version of the type.
            with suppress(JobTypeNotFound, InvalidInput):  # They are raised below, as InvalidSchedule.
                given["input"] = find(before.type_name).decode_input(before.input)
        wanted = before.type_name if job_type is None else job_type
        row = checked_schedule(name, wanted, given, find, calls_keys=True)
        changed = {**with_next_tick(row, before.now), "declarations": None}
        if keeps_input:
            changed["input"] = decode_json(before.input, InvalidInput)
        rule = ("cron", "every_seconds") if row["cron"] is None else ("cron", "every_seconds", "timezone")
        is_same_rule = all(row[column] == getattr(before, column) for column in rule)
        if is_same_rule:
            changed["anchor_at"] = before.anchor_at
        if is_same_rule or (before.next_tick_at is not None and before.next_tick_at <= before.now):
            changed["next_tick_at"] = before.next_tick_at
        store.schedules.update(changed)
    notify_workers(store.using)
    return _get(name, store)


@has_async_twin("schedules")
def delete(name: str, *, using: str | None = None) -> None:
    """Delete a schedule that is not declared in code, or is orphaned. Its chains are not deleted.

    Raises ``ScheduleNotFound`` and ``ScheduleDeclaredInCode``.
    """
    store = get_store(using)
    with row_transaction(store):
        _locked([name], store)
        schedule = _get(name, store)
        is_declared = name in get_registry().schedule_names or not schedule.is_orphaned
        if schedule.source == Schedule.Source.CODE and is_declared:
            raise ScheduleDeclaredInCode(name)
        store.schedules.delete(name)


alist = sync_to_async(list)
aget = sync_to_async(get)
apause = sync_to_async(pause)
aresume = sync_to_async(resume)
arun_now = sync_to_async(run_now)
anext_ticks = sync_to_async(next_ticks)
acreate = sync_to_async(create)
aupdate = sync_to_async(update)
adelete = sync_to_async(delete)


def _get(name: str, store: Store) -> Schedule:
    try:
        return Schedule.objects.using(store.using).with_orphans().get(name=SCHEDULE_NAME.check("name", name))
    except Schedule.DoesNotExist as error:
        raise _not_found([name], store) from error


def _locked(names: Sequence[str], store: Store) -> Sequence[ScheduleRow]:
    """Lock and return schedules. Raises ``ScheduleNotFound``."""
    if not names:
        raise TypeError("Pass the name of at least one schedule.")
    for name in names:
        SCHEDULE_NAME.check("name", name)
    return _found(names, store.schedules.lock(names), store)


def _found(names: Sequence[str], rows: Sequence[ScheduleRow], store: Store) -> Sequence[ScheduleRow]:
    if missing := sorted({*names}.difference(row.name for row in rows)):
        raise _not_found(missing, store)
    return rows


def _not_found(names: Sequence[str], store: Store) -> ScheduleNotFound:
    known = Schedule.objects.using(store.using).values_list("name", flat=True)
    return ScheduleNotFound(*names, known=known[:MAX_COMPARED])


def _options(row: ScheduleRow) -> dict[str, Any]:
    """Return the arguments that created a schedule."""
    input_ = decode(decode_json(row.input, InvalidInput), InvalidInput)
    rule = {"cron": row.cron, "every": row.every_seconds, "timezone": row.timezone, "jitter": row.jitter_seconds}
    names = ("overlap", "on_missed", "max_catch_up", "queue", "priority")
    return {"input": input_, **rule, **{name: getattr(row, name) for name in names}}
