"""Read and change the limits that hold for all workers together, while workers run.

Every function joins the caller's transaction, takes ``using`` for a database other than the configured one, and has an
``a``-prefixed async twin. A change takes effect in every worker within two seconds of the commit.
"""

import builtins

from asgiref.sync import sync_to_async

from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.declare.limits import MAX_LIMIT, DeclaredLimit
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import LimitNotFound
from django_jobchains.monitoring.limits import KeyFacts, LimitFacts, limit_facts
from django_jobchains.notifications import notify_workers
from django_jobchains.notifications.wakeups import report_after_commit
from django_jobchains.store import Store, get_store
from django_jobchains.store.queues import Override
from django_jobchains.telemetry.events import LimitChanged
from django_jobchains.values import QUEUE, TYPE_NAME, Count

__all__ = ("KeyFacts", "LimitFacts", "LimitNotFound", "alist", "areset", "aset", "list", "reset", "set")

_LIMIT = Count(0, MAX_LIMIT)


@has_async_twin("limits")
def list(*, using: str | None = None) -> builtins.list[LimitFacts]:  # noqa: A001 - as in limits.list()
    """Return the limits of types, groups and records by name, followed by the limits of queues."""
    get_registry().add_tasks(get_store(using).task_names.read)
    return limit_facts(using)


@has_async_twin("limits")
def set(  # noqa: A001 - as in limits.set()
    name: str | None = None,
    *,
    queue: str | None = None,
    concurrency: int | None = None,
    rate: int | None = None,
    using: str | None = None,
) -> None:
    """Override a limit that the code declares, by the name of its type, group or records, or limit a queue.

    ``concurrency``: how many jobs may run at the same time, in all workers together. ``rate``: how many may start in
    the declared period. If the limit has keys, both numbers are for each key. With 0, no more jobs start, and running
    jobs continue. A number that is omitted does not change. Raises ``LimitNotFound`` if the code declares no limit with
    this name.
    """
    _check_target(name, queue)
    numbers = {part: number for part, number in (("concurrency", concurrency), ("rate", rate)) if number is not None}
    if not numbers:
        raise TypeError("Pass concurrency= or rate=. To remove an override, call reset().")
    for part, number in numbers.items():
        _LIMIT.check(part, number)
    store = get_store(using)
    if name is None:
        if concurrency is None or rate is not None:
            raise TypeError("A queue has no rate: pass concurrency=.")
        store.queues.limit(str(queue), concurrency)
    else:
        declared = _declared(store)
        if name not in declared:
            raise LimitNotFound(name, declared)
        for part, number in numbers.items():
            if getattr(declared[name], part) is None:
                raise ValueError(f"{part}={number}: {name!r} does not declare {part}=, so it cannot be overridden.")
        store.queues.override(name, Override(**numbers))
    _publish(store, name, queue, **numbers)


@has_async_twin("limits")
def reset(name: str | None = None, *, queue: str | None = None, using: str | None = None) -> None:
    """Return to the limit that the code declares for a type, a group or records, or remove the limit of a queue.

    Raises ``LimitNotFound`` if the name is neither declared nor overridden.
    """
    _check_target(name, queue)
    store = get_store(using)
    if name is None:
        store.queues.limit(str(queue), None)
    elif not store.queues.reset(name) and name not in (declared := _declared(store)):
        raise LimitNotFound(name, declared)
    _publish(store, name, queue)


alist = sync_to_async(list)
aset = sync_to_async(set)
areset = sync_to_async(reset)


def _check_target(name: str | None, queue: str | None) -> None:
    if (name is None) == (queue is None):
        raise TypeError("Pass the name of a type or a group, or queue=.")
    if name is None:
        QUEUE.check("queue", queue)
    else:
        TYPE_NAME.check("name", name)


def _declared(store: Store) -> dict[str, DeclaredLimit]:
    """Return the limits that the code declares, also the limits of tasks that this process has not used."""
    registry = get_registry()
    registry.add_tasks(store.task_names.read)
    return registry.limits()


def _publish(store: Store, name: str | None, queue: str | None, **numbers: int) -> None:
    changed = LimitChanged("", "queue" if name is None else "limit", name or queue or "", **numbers)
    report_after_commit(store.using, [changed])
    notify_workers(store.using)
