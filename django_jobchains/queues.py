"""Pause, resume and limit queues while workers run. Workers react to a wake-up, or at their next poll.

Every function joins the caller's transaction, takes ``using`` for a database other than the configured one, and has an
async twin with the prefix ``a``. A queue that has no jobs yet can also be paused.
"""

from asgiref.sync import sync_to_async

from django_jobchains import limits
from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.models import QueueState
from django_jobchains.notifications import notify_workers
from django_jobchains.store import get_store
from django_jobchains.values import QUEUE, Count, Or

__all__ = (
    "QueueState",
    "apause",
    "aresume",
    "aset_limit",
    "astates",
    "pause",
    "resume",
    "set_limit",
    "states",
)


@has_async_twin("queues")
def pause(*names: str, using: str | None = None) -> None:
    """Stop workers from starting jobs of these queues. Running jobs continue, and jobs can still be enqueued."""
    checked = _checked(names)
    store = get_store(using)
    store.queues.pause(checked)
    notify_workers(store.using)


@has_async_twin("queues")
def resume(*names: str, using: str | None = None) -> None:
    """Let workers start jobs of these queues again."""
    checked = _checked(names)
    store = get_store(using)
    store.queues.resume(checked)
    notify_workers(store.using)


@has_async_twin("queues")
def set_limit(name: str, slots: int | None, *, using: str | None = None) -> None:
    """Limit how many jobs of this queue run at the same time, in all workers together; None removes the limit.

    Running jobs continue. To start no more jobs, ``pause`` the queue. To limit the slots of a single worker, see
    ``queue_slots`` of ``Worker``.
    """
    checked = QUEUE.check("queue", name)
    try:
        limit = Or(Count(1, 2**31 - 1), None).check("slots", slots)
    except ValueError as error:
        raise ValueError(f"{error} To start no jobs, pause the queue.") from None
    if limit is None:
        limits.reset(queue=checked, using=using)
    else:
        limits.set(queue=checked, concurrency=limit, using=using)


@has_async_twin("queues")
def states(*, using: str | None = None) -> list[QueueState]:
    """Return the queues that are paused or have a limit, ordered by name."""
    stored = QueueState.objects.using(get_store(using).using)
    rows = stored.filter(paused_at__isnull=False) | stored.filter(slot_limit__isnull=False)
    return list(rows.order_by("name"))


apause = sync_to_async(pause)
aresume = sync_to_async(resume)
aset_limit = sync_to_async(set_limit)
astates = sync_to_async(states)


def _checked(names: tuple[str, ...]) -> list[str]:
    if not names:
        raise TypeError("Pass the name of at least one queue.")
    return [QUEUE.check("queue", name) for name in names]
