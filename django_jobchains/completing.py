"""Completing jobs without a worker: an approval, a webhook, a person in the admin."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction

from django_jobchains.announcing import announce
from django_jobchains.exceptions import ChainNotFound, InvalidOutput, JobTypeMismatch, JobTypeNotFound
from django_jobchains.ids import chain_id_of
from django_jobchains.job_types import JobType, name_of, new_continuation
from django_jobchains.models import Chain, Job
from django_jobchains.payloads import encode
from django_jobchains.processors import get_registry
from django_jobchains.running import ContinuationOptions
from django_jobchains.store import Effects, Store, Tail, get_store

ResultT = TypeVar("ResultT")


@contextmanager
def complete(
    chain_id: UUID | Chain | Job, job_type: str | JobType[Any, Any] | None = None, *, using: str | None = None
) -> Iterator["CurrentJob"]:
    """Opens a transaction that locks the chain's current job; the block may complete it, and the jobs after it.

    Doing nothing in the block changes nothing. An exception undoes the block. A handler that runs the job is told
    (``already_completed``), and can no longer write. Raises ``ChainNotFound``, and ``JobTypeMismatch`` when the current
    job is not of ``job_type``.
    """
    store, effects = get_store(using), Effects()
    chain_id, expected = chain_id_of(chain_id), None if job_type is None else name_of(job_type)
    with transaction.atomic(using=store.using):
        tail = store.lock_tails([chain_id]).get(chain_id)
        if tail is None:
            raise ChainNotFound(chain_id)
        if expected is not None and tail.type_name != expected:
            raise JobTypeMismatch(tail.job_id, expected, tail.type_name)
        yield CurrentJob(chain_id, store, effects)
        announce(store.using, effects)


async def acomplete(
    chain_id: UUID | Chain | Job,
    function: "Callable[[CurrentJob], ResultT]",
    job_type: str | JobType[Any, Any] | None = None,
    *,
    using: str | None = None,
) -> ResultT:
    """``complete`` for async code: calls a sync function with the current job inside the transaction."""

    def run() -> ResultT:
        with complete(chain_id, job_type, using=using) as current:
            return function(current)

    return await sync_to_async(run)()


class CurrentJob:
    """The job a chain is at, locked. After ``continue_with`` it is the next one."""

    def __init__(self, chain_id: UUID, store: Store, effects: Effects) -> None:
        self._chain_id = chain_id
        self._store = store
        self._effects = effects

    @property
    def job(self) -> Job:
        """The job as it is now."""
        return Job.objects.using(self._store.using).get(pk=self._tail.job_id)

    @property
    def _tail(self) -> Tail:
        """Read each time: a savepoint in the block may have undone a step."""
        return self._store.tails([self._chain_id])[self._chain_id]

    def finish(self, output: Any = None) -> None:
        """Completes the job, and with it the chain.

        Raises ``InvalidOutput``, ``JobAlreadyCompleted``, and ``JobNotCompletable`` (it failed or was cancelled).
        """
        tail = self._tail
        own = _declared(tail.type_name)
        text = encode(output, InvalidOutput) if own is None else own.encode_output(output)
        self._store.complete(tail, text, None, self._effects)

    def continue_with(
        self, job_type: str | JobType[Any, Any], input: Any = None, **options: Unpack[ContinuationOptions]
    ) -> None:
        """Completes the job and creates the next one of the chain, which becomes the current job.

        The arguments and errors of ``job.continue_with`` in a handler, and the errors of ``finish``.
        """
        tail = self._tail
        target = get_registry().job_type(job_type)
        continuation = new_continuation(tail, _declared(tail.type_name), target, input, options)
        self._store.complete(tail, None, continuation, self._effects)


def _declared(type_name: str) -> JobType[Any, Any] | None:
    """None for a type that no app declares any more: its jobs can still be completed."""
    try:
        return get_registry().job_type(type_name)
    except JobTypeNotFound:
        return None
