"""Chains: enqueue, ask, wait, complete, cancel, retry, delete.

Every call joins the caller's transaction if one is open, takes ``using`` for another database than the configured one,
and has an ``a``-prefixed async twin. Ids may be given one or many: a ``UUID``, a ``Chain`` or ``Job``, or several. A
job stands for its chain where chains are asked for, a chain for its current job where jobs are.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from django_jobchains.announcing import announce
from django_jobchains.completing import CurrentJob, acomplete, complete
from django_jobchains.deduplication import Deduplicate
from django_jobchains.exceptions import (
    ChainCancelled,
    ChainFailed,
    ChainNotCommitted,
    ChainNotFound,
    ChainReferenced,
    ChainTimeout,
    DuplicateJobId,
    InvalidBlockers,
    InvalidInput,
    JobAlreadyCompleted,
    JobNotCompletable,
    JobNotFound,
    JobNotRunnable,
    JobTypeMismatch,
    JobTypeNotFound,
    NotAnEntryType,
)
from django_jobchains.ids import as_list, chain_id_of, chain_ids_of, checked_id
from django_jobchains.job_types import Item, JobType, check_choice, create_chains
from django_jobchains.models import Chain, Job
from django_jobchains.processors import get_registry
from django_jobchains.pruning import aprune, prune
from django_jobchains.schedules import when
from django_jobchains.store import Effects, Store, get_store
from django_jobchains.waiting import await_chain, wait

__all__ = (
    "Chain",
    "ChainCancelled",
    "ChainFailed",
    "ChainNotCommitted",
    "ChainNotFound",
    "ChainReferenced",
    "ChainTimeout",
    "CurrentJob",
    "Deduplicate",
    "DuplicateJobId",
    "InvalidBlockers",
    "InvalidInput",
    "Item",
    "Job",
    "JobAlreadyCompleted",
    "JobNotCompletable",
    "JobNotFound",
    "JobNotRunnable",
    "JobTypeMismatch",
    "JobTypeNotFound",
    "NotAnEntryType",
    "acancel",
    "acomplete",
    "adelete",
    "aenqueue",
    "aenqueue_many",
    "aget",
    "aprune",
    "areschedule",
    "aretry",
    "arun_now",
    "await_chain",
    "cancel",
    "complete",
    "delete",
    "enqueue",
    "enqueue_many",
    "get",
    "prune",
    "reschedule",
    "retry",
    "run_now",
    "wait",
)

Ids = UUID | Chain | Job | Iterable[UUID | Chain | Job]


def enqueue(job_type: str | JobType[Any, Any], input: Any = None, **options: Any) -> Chain:
    """Starts a chain of a JobType or of a registered name; the arguments and errors of ``JobType.enqueue``."""
    return get_registry().job_type(job_type).enqueue(input, **options)


def enqueue_many(items: Iterable[Item], *, using: str | None = None) -> list[Chain]:
    """Starts the chains that ``job_type.item(…)`` describes, in order: all of them or, after an error, none.

    ``items`` may be any iterable, also a generator. Raises ``TypeError`` for anything that is not an ``Item``; then
    nothing was created.
    """
    return create_chains(_checked_items(items), using)


def _checked_items(given: Iterable[Item]) -> list[Item]:
    """Reads all items before anything is written: a generator is used up by the first look at it, and may raise."""
    remedy = "chains.enqueue_many() takes a list of items, as in [job_type.item(input) for input in inputs]"
    if not isinstance(given, Iterable):
        raise TypeError(f"{remedy}, not {type(given).__name__}.")
    items = list(given)
    for number, item in enumerate(items):
        if not isinstance(item, Item):
            raise TypeError(f"{remedy}: number {number} of them is {type(item).__name__}. Nothing was created.")
    return items


def get(chain_id: UUID | Chain | Job, *, using: str | None = None) -> Chain:
    """Reads a chain; raises ``ChainNotFound``."""
    return Chain.load(chain_id_of(chain_id), get_store(using).using)


def cancel(chain_ids: Ids, *, using: str | None = None) -> set[UUID]:
    """Cancels chains that may still run, and returns their ids.

    A job that is blocked, pending or scheduled is cancelled at once. A running one is asked to stop (``job.signal``):
    it is cancelled when its handler has stopped. What a handler completes nevertheless stays, but its chain does not go
    on. Chains that have ended are left as they are. Raises ``ChainNotFound``, and has cancelled none of them then.
    """
    store, effects = get_store(using), Effects()
    cancelled = store.cancel(dict.fromkeys(chain_ids_of(chain_ids)), effects)
    announce(store.using, effects)
    return cancelled


def retry(job_ids: Ids, *, using: str | None = None) -> set[UUID]:
    """Makes failed and cancelled jobs due now, for one more attempt at least, and returns the ids of those it moved.

    A job whose blockers have not completed becomes blocked again. If its type sets ``on_blocker_failure="fail"`` and a
    blocker is still failed or cancelled, it fails again at once: retry the blocker too. Jobs of other statuses are left
    as they are. Raises ``JobNotFound``, and has moved none then.
    """
    store, effects = get_store(using), Effects()
    retried = store.retry(dict.fromkeys(_job_ids(job_ids, store)), effects)
    announce(store.using, effects)
    return retried


def run_now(job_ids: Ids, *, using: str | None = None) -> None:
    """Makes jobs due that are scheduled or back off: all, or after ``JobNotFound`` or ``JobNotRunnable`` none."""
    _move(job_ids, None, using)


def reschedule(
    job_ids: Ids, run_at: datetime | None = None, *, delay: timedelta | float | None = None, using: str | None = None
) -> None:
    """Moves pending jobs to another time: all of them, or after ``JobNotFound`` or ``JobNotRunnable`` none.

    ``run_at`` is aware; ``delay`` is a timedelta or seconds from now. A time in the past is now.
    """
    run_at, delay_seconds = when(run_at, delay)
    if run_at is None and delay_seconds is None:
        raise TypeError("reschedule() takes run_at or delay; use run_now() to make a job due.")
    _move(job_ids, run_at, using, delay_seconds)


def _move(job_ids: Ids, run_at: datetime | None, using: str | None, delay_seconds: float | None = None) -> None:
    store, effects = get_store(using), Effects()
    store.move(dict.fromkeys(_job_ids(job_ids, store)), run_at, delay_seconds or 0, effects)
    announce(store.using, effects)


def delete(chain_ids: Ids, *, cascade: bool = False, using: str | None = None) -> set[UUID]:
    """Deletes chains with all their jobs, whatever their status; returns the ids of the deleted chains.

    ``cascade`` deletes the chains they had as blockers too, and the blockers of those. Raises ``ChainNotFound``, and
    ``ChainReferenced`` when a job of a chain outside the set, not completed, has one of them as a blocker; then nothing
    was deleted. The attempts of running jobs are told (``not_found``).
    """
    check_choice("cascade", cascade, (True, False))
    store, effects = get_store(using), Effects()
    deleted = store.delete(dict.fromkeys(chain_ids_of(chain_ids)), cascade=cascade, effects=effects)
    announce(store.using, effects)
    return deleted


def _job_ids(given: Ids, store: Store) -> list[UUID]:
    """The ids of jobs; a chain stands for its current job."""
    parts = as_list(given)
    ids = [checked_id(part.id if isinstance(part, Chain | Job) else part, "job_ids") for part in parts]
    chain_ids = [part.id for part in parts if isinstance(part, Chain)]
    tails = store.tails(chain_ids) if chain_ids else {}
    for chain_id in chain_ids:
        if chain_id not in tails:
            raise ChainNotFound(chain_id)
    return [tails[part.id].job_id if isinstance(part, Chain) else id_ for part, id_ in zip(parts, ids, strict=True)]


aenqueue = sync_to_async(enqueue)
aenqueue_many = sync_to_async(enqueue_many)
aget = sync_to_async(get)
acancel = sync_to_async(cancel)
aretry = sync_to_async(retry)
arun_now = sync_to_async(run_now)
areschedule = sync_to_async(reschedule)
adelete = sync_to_async(delete)
