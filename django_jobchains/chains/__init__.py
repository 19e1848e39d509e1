"""Enqueue, read, wait for, complete, cancel, retry and delete chains.

Every function joins the caller's transaction if one is open, takes ``using`` for a database other than the configured
one, and has an async twin with the prefix ``a``. Functions that take ids accept a ``UUID``, its string, a ``Chain``, a
``Job``, or several of them. A chain has the id of its first job. In ``retry``, ``run_now`` and ``reschedule``, the id
of a chain refers to its current job, and the id of a later job to this job. In other functions, both refer to the
chain.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Any, Unpack, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from django_jobchains.chains.completion import (
    AsyncCurrentJob,
    CurrentJob,
    acomplete,
    acurrent_job,
    complete,
    current_job,
)
from django_jobchains.chains.pruning import aprune, prune
from django_jobchains.context import capture_context, merge_contexts
from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.db.ids import ChainRef, ChainRefs, as_list, chain_id_of, chain_ids_of, checked_id
from django_jobchains.db.times import resolve_schedule
from django_jobchains.declare.job_types import EnqueueOptions, Item, JobType, create_chains
from django_jobchains.declare.registry import get_registry
from django_jobchains.declare.slices import InputT, OutputT
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
    InvalidOutput,
    JobAlreadyCompleted,
    JobNotCompletable,
    JobNotFound,
    JobNotRunnable,
    JobTypeMismatch,
    JobTypeNotFound,
    NotAnEntryType,
    TransactionRequired,
)
from django_jobchains.models import Chain, Job
from django_jobchains.notifications.waiting import await_chain, wait
from django_jobchains.notifications.wakeups import announced, report_after_commit
from django_jobchains.payloads.types import Given, name_of
from django_jobchains.store import Store, get_store
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.telemetry import observes
from django_jobchains.telemetry.events import (
    ChainCancelRequested,
    ChainDeleted,
    DetailEvent,
    JobRescheduled,
    JobRetried,
    JobTriggered,
)
from django_jobchains.values import FLAG, DurationLike

__all__ = (
    "AsyncCurrentJob",
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
    "InvalidOutput",
    "Item",
    "Job",
    "JobAlreadyCompleted",
    "JobNotCompletable",
    "JobNotFound",
    "JobNotRunnable",
    "JobTypeMismatch",
    "JobTypeNotFound",
    "NotAnEntryType",
    "TransactionRequired",
    "acancel",
    "acomplete",
    "acurrent_job",
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
    "current_job",
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


@overload
def enqueue(
    job_type: JobType[None, OutputT], *, using: str | None = None, **options: Unpack[EnqueueOptions]
) -> Chain[OutputT]: ...
@overload
def enqueue(
    job_type: JobType[InputT, OutputT],
    input: Given[InputT],
    *,
    using: str | None = None,
    **options: Unpack[EnqueueOptions],
) -> Chain[OutputT]: ...
@overload
def enqueue(
    job_type: str, input: Any = None, *, using: str | None = None, **options: Unpack[EnqueueOptions]
) -> Chain: ...
def enqueue(job_type: Any, input: Any = None, *, using: Any = None, **options: Unpack[EnqueueOptions]) -> Any:
    """Start a chain of a ``JobType``, or of the type with this name; see ``JobType.enqueue``."""
    return get_registry().job_type(job_type).enqueue(input, using=using, **options)


# The overloads are written again, because sync_to_async keeps only the first.
@overload
async def aenqueue(
    job_type: JobType[None, OutputT], *, using: str | None = None, **options: Unpack[EnqueueOptions]
) -> Chain[OutputT]: ...
@overload
async def aenqueue(
    job_type: JobType[InputT, OutputT],
    input: Given[InputT],
    *,
    using: str | None = None,
    **options: Unpack[EnqueueOptions],
) -> Chain[OutputT]: ...
@overload
async def aenqueue(
    job_type: str, input: Any = None, *, using: str | None = None, **options: Unpack[EnqueueOptions]
) -> Chain: ...
async def aenqueue(job_type: Any, input: Any = None, *, using: Any = None, **options: Unpack[EnqueueOptions]) -> Any:
    """``enqueue`` for async code."""
    return await get_registry().job_type(job_type).aenqueue(input, using=using, **options)


def enqueue_many(items: Iterable[Item[OutputT]], *, using: str | None = None) -> list[Chain[OutputT]]:
    """Start the chains that ``job_type.item(…)`` describes, in order. If an item is invalid, no chain is started.

    ``items`` is any iterable, including generators. Raises ``TypeError`` if it contains anything but items.
    """
    remedy = "chains.enqueue_many() takes a list of items, as in [job_type.item(input) for input in inputs]"
    given: Any = items
    if not isinstance(given, Iterable):
        raise TypeError(f"{remedy}, not {type(given).__name__}.")
    all_items = list(given)  # Read before anything is written, because a generator may raise an error.
    bound = capture_context()
    for number, item in enumerate(all_items):
        if not isinstance(item, Item):
            raise TypeError(f"{remedy}: number {number} of them is {type(item).__name__}. Nothing was created.")
        if bound:  # Values that were bound where the item was described take precedence.
            item.context = merge_contexts(bound, item.context)
    return create_chains(all_items, using)


@overload
def get(chain_id: ChainRef, *, job_type: JobType[Any, OutputT], using: str | None = None) -> Chain[OutputT]: ...
@overload
def get(chain_id: ChainRef, *, job_type: str | None = None, using: str | None = None) -> Chain: ...
@has_async_twin("chains")
def get(chain_id: ChainRef, *, job_type: Any = None, using: str | None = None) -> Chain:
    """Return the chain with this id.

    Raises ``ChainNotFound``, and ``JobTypeMismatch`` if the chain does not start with ``job_type``.
    """
    chain = Chain.load(chain_id_of(chain_id), get_store(using).using)
    if job_type is not None and chain.type_name != name_of(job_type):
        raise JobTypeMismatch(chain.id, name_of(job_type), chain.type_name)
    chain.job_type = job_type if isinstance(job_type, JobType) else getattr(chain_id, "job_type", None)
    return chain


@overload
async def aget(chain_id: ChainRef, *, job_type: JobType[Any, OutputT], using: str | None = None) -> Chain[OutputT]: ...
@overload
async def aget(chain_id: ChainRef, *, job_type: str | None = None, using: str | None = None) -> Chain: ...
async def aget(chain_id: ChainRef, *, job_type: Any = None, using: str | None = None) -> Chain:
    """``get`` for async code."""
    return await sync_to_async(get)(chain_id, job_type=job_type, using=using)


@has_async_twin("chains")
def cancel(ids: ChainRefs, *, using: str | None = None) -> set[UUID]:
    """Cancel chains that may still run, and return their ids.

    Blocked, pending and scheduled jobs are cancelled immediately. A running job is asked to stop (``job.signal``), and
    is cancelled when its handler has stopped. If the handler completes the job anyway, its output is kept, but the
    chain does not continue. Chains that have ended are not changed. Raises ``ChainNotFound`` if one of the chains does
    not exist. No chain is cancelled in this case.
    """
    store = get_store(using)
    with announced(store) as effects:
        cancelled = store.chains.cancel(dict.fromkeys(chain_ids_of(ids)), effects)
    _report(ChainCancelRequested, cancelled, store)
    return cancelled


@has_async_twin("chains")
def retry(ids: ChainRefs, *, using: str | None = None) -> set[UUID]:
    """Make failed and cancelled jobs due now, for at least one more attempt, and return the ids of the changed jobs.

    The id of a chain refers to its current job.

    The counts of failed attempts and crashes are not reset: a job that has reached its limit gets one more attempt.

    A job whose blockers are not completed becomes blocked again. If its type sets ``on_blocker_failure="fail"`` and a
    blocker is still failed or cancelled, the job fails again immediately, so retry the blocker too. Jobs with other
    statuses are not changed. Raises ``JobNotFound`` if one of the jobs does not exist. No job is changed in this case.
    """
    store = get_store(using)
    with announced(store) as effects:
        moved = store.chains.retry(dict.fromkeys(_job_ids(ids)), effects)
    _report(JobRetried, moved, store)
    return moved


@has_async_twin("chains")
def run_now(ids: ChainRefs, *, using: str | None = None) -> None:
    """Make scheduled jobs and jobs in backoff due now. If one of them cannot be changed, none are.

    The id of a chain refers to its current job. Raises ``JobNotFound`` and ``JobNotRunnable``.
    """
    _move(ids, None, using)


@has_async_twin("chains")
def reschedule(
    ids: ChainRefs, run_at: datetime | None = None, *, delay: DurationLike | None = None, using: str | None = None
) -> None:
    """Make pending jobs due at another time. If one of them cannot be changed, none are.

    The id of a chain refers to its current job. ``run_at`` is an aware datetime. ``delay`` is a timedelta or a number
    of seconds from now. A time in the past means now. Raises ``JobNotFound`` and ``JobNotRunnable``.
    """
    run_at, delay_seconds = resolve_schedule(run_at, delay)
    if run_at is None and delay_seconds is None:
        raise TypeError("reschedule() takes run_at or delay; use run_now() to make a job due.")
    _move(ids, run_at, using, delay_seconds)


def _move(ids: ChainRefs, run_at: datetime | None, using: str | None, delay_seconds: float | None = None) -> None:
    store, targets = get_store(using), dict.fromkeys(_job_ids(ids))
    with announced(store) as effects:
        store.chains.move(targets, run_at, delay_seconds or 0, effects)
    is_now = run_at is None and delay_seconds is None
    _report(JobTriggered if is_now else JobRescheduled, targets, store)


@has_async_twin("chains")
def delete(ids: ChainRefs, cascade: bool = False, *, using: str | None = None) -> set[UUID]:
    """Delete chains with all their jobs, whatever their status, and return the ids of the deleted chains.

    ``cascade`` also deletes their blockers, recursively. The attempts of running jobs are aborted (``not_found``).
    Raises ``ChainNotFound``, and ``ChainReferenced`` if a job of another chain has one of the chains as a blocker and
    is not completed; it may be failed or cancelled. Nothing is deleted after an error.
    """
    FLAG.check("cascade", cascade)
    store = get_store(using)
    with announced(store) as effects:
        deleted = store.chains.delete(dict.fromkeys(chain_ids_of(ids)), cascade=cascade, effects=effects)
    _report(ChainDeleted, deleted, store)
    return deleted


def _report(kind: Callable[[str, UUID], DetailEvent], ids: Collection[UUID], store: Store) -> None:
    if ids and observes(kind):  # type: ignore[arg-type]
        report_after_commit(store.using, [kind("", id_) for id_ in ids])


def _job_ids(given: ChainRefs) -> list[UUID]:
    return [checked_id(part.id if isinstance(part, Chain | Job) else part, "ids") for part in as_list(given)]


aenqueue_many = sync_to_async(enqueue_many)
acancel = sync_to_async(cancel)
aretry = sync_to_async(retry)
arun_now = sync_to_async(run_now)
areschedule = sync_to_async(reschedule)
adelete = sync_to_async(delete)
