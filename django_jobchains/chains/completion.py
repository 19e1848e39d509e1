"""Completing jobs from outside of a worker: by an approval, a webhook or a person in the admin."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction

from django_jobchains.db.async_transactions import entered_on_thread
from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.db.connections import call_after_commit
from django_jobchains.db.ids import ChainRef, chain_id_of
from django_jobchains.declare.job_types import JobType, new_continuation
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import InvalidOutput, JobTypeMismatch
from django_jobchains.handlers.running_job import ContinuationOptions
from django_jobchains.models import Chain, Job
from django_jobchains.notifications.wakeups import announced, report_after_commit, report_created
from django_jobchains.payloads.types import Given, HasTypes, name_of, output_codec
from django_jobchains.store import Store, get_store
from django_jobchains.store.errors import retried
from django_jobchains.store.last_jobs import LastJob
from django_jobchains.store.rows import Effects, NewJob
from django_jobchains.telemetry import observes
from django_jobchains.telemetry.events import CompletedWithoutWorker
from django_jobchains.telemetry.tracing import active, start_completion, start_sending

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: ``CurrentJob`` without a type is ``CurrentJob[Any]``.
    OutputT = TypeVar("OutputT", default=Any)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

InputT = TypeVar("InputT")
NextOutputT = TypeVar("NextOutputT")


@has_async_twin("chains")
def complete(
    chain_id: ChainRef,
    output: Any = None,
    job_type: str | JobType[Any, Any] | None = None,
    *,
    using: str | None = None,
) -> Chain:
    """Complete the chain's current job, and with it the chain, and return the chain.

    If a handler runs the job, its attempt is aborted (``already_completed``) and can no longer write. Unless it is part
    of the caller's transaction, the call is run again after a conflict. Raises ``ChainNotFound``, ``JobTypeMismatch``
    if the current job has another type than ``job_type``, ``InvalidOutput``, ``JobAlreadyCompleted``, and
    ``JobNotCompletable`` if the job failed or was cancelled.
    """
    return _complete(get_store(using), chain_id, output, job_type)


@retried
def _complete(store: Store, chain_id: ChainRef, output: Any, job_type: str | JobType[Any, Any] | None) -> Chain:
    with current_job(chain_id, job_type, using=store.using) as current:
        current.finish(output)
        return current.chain


acomplete = sync_to_async(complete)


@overload
def current_job(
    chain_id: ChainRef, job_type: JobType[Any, OutputT], *, using: str | None = None
) -> "AbstractContextManager[CurrentJob[OutputT]]": ...
@overload
def current_job(
    chain_id: ChainRef, job_type: str | None = None, *, using: str | None = None
) -> "AbstractContextManager[CurrentJob[Any]]": ...
@has_async_twin("chains", "async with chains.acurrent_job(…)")
@contextmanager
def current_job(
    chain_id: ChainRef, job_type: str | JobType[Any, Any] | None = None, *, using: str | None = None
) -> Iterator["CurrentJob[Any]"]:
    """Open a transaction that locks the chain's current job, so that the block can complete it and the jobs after it.

    A block that does nothing changes nothing. An exception rolls back the block. If a handler runs the job, completing
    it aborts the attempt (``already_completed``), which can no longer write. Raises ``ChainNotFound``, and
    ``JobTypeMismatch`` if the current job has another type than ``job_type``.
    """
    store = get_store(using)
    id_, expected = chain_id_of(chain_id), None if job_type is None else name_of(job_type)
    with transaction.atomic(using=store.using), announced(store) as effects:
        last_job = store.last_jobs.lock_chain_of(id_)
        if expected is not None and last_job.type_name != expected:
            raise JobTypeMismatch(last_job.job_id, expected, last_job.type_name)
        yield CurrentJob(last_job.chain_id, store, effects, job_type if isinstance(job_type, JobType) else None)


@overload
def acurrent_job(
    chain_id: ChainRef, job_type: JobType[Any, OutputT], *, using: str | None = None
) -> "AbstractAsyncContextManager[AsyncCurrentJob[OutputT]]": ...
@overload
def acurrent_job(
    chain_id: ChainRef, job_type: str | None = None, *, using: str | None = None
) -> "AbstractAsyncContextManager[AsyncCurrentJob[Any]]": ...
@asynccontextmanager
async def acurrent_job(
    chain_id: ChainRef, job_type: Any = None, *, using: str | None = None
) -> AsyncIterator["AsyncCurrentJob[Any]"]:
    """``current_job`` for async code: ``async with chains.acurrent_job(chain_id) as current:``.

    Other queries of the block, such as ``await order.asave()``, are part of its transaction. Await nothing slow in the
    block: until it ends, the job is locked, and a thread and a connection are occupied.
    """
    block = partial(current_job, chain_id, job_type, using=using)
    async with entered_on_thread(block, get_store(using).using) as current:
        yield await sync_to_async(AsyncCurrentJob)(current)


class CurrentJob(Generic[OutputT]):
    """The current job of a chain, which is locked. After ``continue_with``, it is the next job of the chain."""

    def __init__(self, chain_id: UUID, store: Store, effects: Effects, job_type: JobType[Any, OutputT] | None) -> None:
        self._job_type = job_type
        self._chain_id = chain_id
        self._store = store
        self._effects = effects

    @property
    def job(self) -> Job:
        """The current job, read from the database."""
        return Job.objects.using(self._store.using).get(pk=self._last_job.job_id)

    @property
    def chain(self) -> Chain:
        """The chain, read from the database."""
        return Chain.load(self._chain_id, self._store.using)

    @property
    def _last_job(self) -> LastJob:
        """Read each time, because a savepoint in the block may have rolled back a step."""
        return self._store.last_jobs.read([self._chain_id])[self._chain_id]

    @overload
    def finish(self: "CurrentJob[None]") -> None: ...
    @overload
    def finish(self, output: OutputT) -> None: ...
    def finish(self, output: Any = None) -> None:
        """Complete the job, and with it the chain.

        Raises ``InvalidOutput``, ``JobAlreadyCompleted``, and ``JobNotCompletable`` if it failed or was cancelled.
        """
        last_job = self._last_job
        try:
            text = output_codec(last_job.type_name, self._job_type).encode(output, InvalidOutput)
        except InvalidOutput as error:
            raise error.about(f"Output of {last_job.type_name!r}") from None
        self._complete(last_job, text, None)

    @overload
    def continue_with(
        self, job_type: HasTypes[None, NextOutputT], **options: Unpack[ContinuationOptions]
    ) -> "CurrentJob[NextOutputT]": ...
    @overload
    def continue_with(
        self, job_type: HasTypes[InputT, NextOutputT], input: Given[InputT], **options: Unpack[ContinuationOptions]
    ) -> "CurrentJob[NextOutputT]": ...
    @overload
    def continue_with(
        self, job_type: str, input: Any = None, **options: Unpack[ContinuationOptions]
    ) -> "CurrentJob[Any]": ...
    def continue_with(self, job_type: Any, input: Any = None, **options: Unpack[ContinuationOptions]) -> Any:
        """Complete the job and create the next one of the chain, which becomes the current job.

        Takes the arguments of ``job.continue_with``, and raises the same errors as that method and ``finish``. Returns
        this object, as a ``CurrentJob`` with the next type for type checkers.
        """
        last_job, registry = self._last_job, get_registry()
        source, target = self._type_of(last_job), registry.job_type(job_type)
        continuation = new_continuation(last_job, source, target, input, options)
        self._complete(last_job, None, continuation)
        self._job_type = target
        return self

    def _complete(self, last_job: LastJob, output: str | None, continuation: NewJob | None) -> None:
        """Complete the job. Its events are dropped if a savepoint in the block is rolled back."""
        store, new = self._store, [continuation] if continuation else []
        span = start_completion(last_job)
        with active(span):
            sent = start_sending(new, store.chains.contexts) if new else None
            store.chains.complete(last_job, output, continuation, self._effects)
        report_created(store.using, new, self._effects, sent)
        if span is not None:
            call_after_commit(store.using, span.end)
        if observes(CompletedWithoutWorker):
            next_type = continuation.type_name if continuation else None
            event = CompletedWithoutWorker("", last_job.job_id, last_job.chain_id, last_job.type_name, next_type)
            report_after_commit(store.using, [event])

    def _type_of(self, job: LastJob) -> JobType[Any, Any] | None:
        """Return the type of a job, or None if no app declares it. The job can still be completed."""
        known = self._job_type
        return known if known is not None and known.name == job.type_name else get_registry().find(job.type_name)


class AsyncCurrentJob(Generic[OutputT]):
    """The current job of a chain in async code. After ``acontinue_with``, it is the next job of the chain."""

    def __init__(self, current: CurrentJob[OutputT]) -> None:
        self._current = current
        #: The current job, as it was read at the beginning of the block or after the last call.
        self.job = current.job

    @overload
    async def afinish(self: "AsyncCurrentJob[None]") -> None: ...
    @overload
    async def afinish(self, output: OutputT) -> None: ...
    async def afinish(self, output: Any = None) -> None:
        """``CurrentJob.finish`` for async code."""
        await self._call(partial(self._current.finish, output))

    @overload
    async def acontinue_with(
        self, job_type: HasTypes[None, NextOutputT], **options: Unpack[ContinuationOptions]
    ) -> "AsyncCurrentJob[NextOutputT]": ...
    @overload
    async def acontinue_with(
        self, job_type: HasTypes[InputT, NextOutputT], input: Given[InputT], **options: Unpack[ContinuationOptions]
    ) -> "AsyncCurrentJob[NextOutputT]": ...
    @overload
    async def acontinue_with(
        self, job_type: str, input: Any = None, **options: Unpack[ContinuationOptions]
    ) -> "AsyncCurrentJob[Any]": ...
    async def acontinue_with(self, job_type: Any, input: Any = None, **options: Unpack[ContinuationOptions]) -> Any:
        """``CurrentJob.continue_with`` for async code."""
        await self._call(partial(self._current.continue_with, job_type, input, **options))
        return self

    @sync_to_async
    def _call(self, complete: Callable[[], object]) -> None:
        complete()
        self.job = self._current.job
