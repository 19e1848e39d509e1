"""Queues while workers run: pause, resume, limit the slots. Workers follow within a poll, mostly at once.

Every call joins the caller's transaction if one is open, takes ``using`` for another database than the configured one,
and has an ``a``-prefixed async twin. A queue is known by its name alone: one that holds no job yet may be paused too.
"""

from asgiref.sync import sync_to_async

from django_jobchains.job_types import checked_queue
from django_jobchains.models import QueueState
from django_jobchains.notifications import EVERY, job_scheduled, publish_after_commit
from django_jobchains.store import get_store

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

_MOST_SLOTS = 2**31 - 1


def pause(*names: str, using: str | None = None) -> None:
    """Lets no worker start jobs of these queues. What runs already goes on, and jobs can still be enqueued."""
    checked = _checked(names)
    store = get_store(using)
    store.pause_queues(checked)
    _tell_workers(store.using)


def resume(*names: str, using: str | None = None) -> None:
    """Lets workers start jobs of these queues again."""
    checked = _checked(names)
    store = get_store(using)
    store.resume_queues(checked)
    _tell_workers(store.using)


def set_limit(name: str, slots: int | None, *, using: str | None = None) -> None:
    """Lets at most so many slots *of each worker* run jobs of this queue at once; None: as many as it has.

    What runs already goes on. To start none at all, ``pause`` it.
    """
    checked = checked_queue(name)
    if slots is not None and not _is_count(slots):
        raise ValueError(
            f"slots={slots!r}: a whole number from 1; None for no limit. To start no jobs, pause the queue."
        )
    store = get_store(using)
    store.limit_queue(checked, slots)
    _tell_workers(store.using)


def states(*, using: str | None = None) -> list[QueueState]:
    """The queues that are paused or have a limit, in the order of their names."""
    said = QueueState.objects.using(get_store(using).using)
    rows = said.filter(paused_at__isnull=False) | said.filter(slot_limit__isnull=False)
    return list(rows.order_by("name"))


apause = sync_to_async(pause)
aresume = sync_to_async(resume)
aset_limit = sync_to_async(set_limit)
astates = sync_to_async(states)


def _checked(names: tuple[str, ...]) -> list[str]:
    if not names:
        raise TypeError("Name the queues: at least one.")
    return [checked_queue(name) for name in names]


def _is_count(slots: object) -> bool:
    return isinstance(slots, int) and not isinstance(slots, bool) and 0 < slots <= _MOST_SLOTS


def _tell_workers(using: str) -> None:
    publish_after_commit(using, [job_scheduled(EVERY)])
