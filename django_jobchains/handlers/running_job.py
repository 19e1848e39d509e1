"""The running job that a handler receives, and the continuation that it may return."""

import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import GenericAlias, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Protocol, TypedDict, Unpack, overload
from uuid import UUID

from asgiref.sync import iscoroutinefunction

from django_jobchains.context import decode_context
from django_jobchains.db.ids import ChainRefs
from django_jobchains.exceptions import RegistryError
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.job_log import AttemptLog, JobLogBuffer
from django_jobchains.handlers.log_entries import (
    checked_fraction,
    clean_log_text,
    clean_progress_text,
    encode_fields,
    level_number,
)
from django_jobchains.models import Chain
from django_jobchains.payloads.codecs import decode_text
from django_jobchains.payloads.types import Given, HasTypes
from django_jobchains.store.rows import ClaimedJob, NewJob
from django_jobchains.values import DurationLike

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    class _AnyChain(Chain[Any]):
        """Stands for ``Chain[Any]``, with which mypy would ignore the types in the annotation of a handler."""

    BlockersT_co = TypeVar("BlockersT_co", default=Sequence[_AnyChain], covariant=True)
    #: The classes of the context that middleware must provide, as a union. A job that has more of them fits too.
    ContextT_contra = TypeVar("ContextT_contra", default=Never, contravariant=True)
else:
    from typing import TypeVar

    BlockersT_co = TypeVar("BlockersT_co", covariant=True)
    ContextT_contra = TypeVar("ContextT_contra", contravariant=True)

InputT = TypeVar("InputT")
NextT = TypeVar("NextT")
ResultT = TypeVar("ResultT")
PrepareMode = Literal["staged", "atomic"]

#: Shared by all jobs, because most of them never log.
_log_lock = threading.Lock()


class ContinuationOptions(TypedDict, total=False):
    """The keyword arguments of ``continue_with``, documented at ``JobType.item``."""

    run_at: datetime | None
    delay: DurationLike | None
    blockers: ChainRefs
    priority: int | None
    queue: str | None
    id: UUID | str | None
    expires: DurationLike | datetime | None


@dataclass(frozen=True)
class Continuation:
    """The next job of a chain, which ``job.continue_with`` describes. It is created when the handler returns it."""

    job: NewJob


class Transactions(Protocol):
    """The methods of an attempt that open its transaction."""

    def prepare(self, mode: PrepareMode) -> AbstractContextManager[None]: ...
    def complete(self) -> AbstractContextManager[None]: ...


class JobMethods(Transactions, Protocol):
    """The part of an attempt that a running job uses."""

    signal: AbortSignal

    @property
    def log_buffer(self) -> JobLogBuffer: ...
    @property
    def max_attempts(self) -> float: ...
    def continue_with(
        self,
        job_type: Any,
        input: Any,
        **options: Unpack[ContinuationOptions],
    ) -> Continuation: ...

    def blockers(self) -> Any: ...
    def aprepare(self, function: Callable[[], ResultT], mode: PrepareMode) -> Coroutine[Any, Any, ResultT]: ...
    def acomplete(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]: ...
    def ablockers(self) -> Coroutine[Any, Any, Any]: ...


class HasContext(Generic[ContextT_contra]):
    """What a handler and middleware receive: the attempt at a job, a batch or a record."""

    if not TYPE_CHECKING:
        #: Accepts one to three types, as in ``RunningJob[Order]``: only type checkers know the defaults.
        __class_getitem__ = classmethod(GenericAlias)
    #: The context that middleware has provided, by its class. Read with ``of()`` of the middleware.
    provided: Mapping[type, Any] = MappingProxyType({})


class RunningJob(HasContext[ContextT_contra], Generic[InputT, BlockersT_co, ContextT_contra]):
    """A job while its handler runs. ``attempt`` counts from 1. Times are aware.

    ``RunningJob[Order]`` has an ``input`` of this type. The second type is the type of ``blockers``:
    ``RunningJob[Order, tuple[Chain[Charge], Chain[Parcel]]]``. The third type is the context that middleware provides:
    ``RunningJob[Order, Any, Tenant]``, or a union of several. ``last_attempt_at`` is the time at which the job was
    claimed for this attempt, and ``worker`` is the id of the worker that runs it. ``max_attempts`` is ``math.inf`` for
    a job without a limit.
    """

    def __init__(
        self,
        claimed: ClaimedJob,
        input: InputT,
        attempt: JobMethods,
    ) -> None:
        self.id: UUID = claimed.id
        self.chain_id: UUID = claimed.chain_id
        self.chain_index: int = claimed.chain_index
        self.chain_type_name: str = claimed.chain_type_name
        self.type_name: str = claimed.type_name
        self.input: InputT = input
        self.attempt: int = claimed.attempt
        self.last_error: str | None = claimed.last_error and decode_text(claimed.last_error)
        self.created_at: datetime = claimed.created_at
        self.run_at: datetime = claimed.run_at
        self.priority: int = claimed.priority
        self.queue: str = claimed.queue
        self.last_attempt_at: datetime = claimed.last_attempt_at
        self.worker: str = claimed.worker
        #: The name of the schedule that enqueued the chain, and the tick for which it did. None for other chains.
        self.schedule_name: str | None = claimed.schedule_name
        self.scheduled_for: datetime | None = claimed.scheduled_for
        #: The values that were bound when the chain was enqueued, as a JSON text, or None.
        self.stored_context: str | None = claimed.context
        #: The same values as a dict. Middleware and the handler may add values for this attempt, which are not stored.
        self.context: dict[str, Any] = {} if claimed.context is None else decode_context(claimed.context)
        self.signal = attempt.signal
        self._attempt = attempt
        self._claimed = claimed
        self._log: AttemptLog | None = None

    @property
    def max_attempts(self) -> float:
        return self._attempt.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job ends as failed if this attempt fails, because it has then failed ``max_attempts`` times."""
        return self._claimed.failures >= self.max_attempts

    @property
    def blockers(self) -> BlockersT_co:
        """The chains that this job waited for, in the order in which they were passed, each with its ``output``."""
        return self._attempt.blockers()  # type: ignore[no-any-return]

    def ablockers(self) -> Coroutine[Any, Any, BlockersT_co]:
        """``blockers`` for async handlers. After ``await job.ablockers()``, ``job.blockers`` can also be used."""
        return self._attempt.ablockers()

    def prepare(self, mode: PrepareMode = "staged") -> AbstractContextManager[None]:
        """Open a transaction that locks the job row and checks the lease. Call it at most once, as the first phase.

        ``"staged"`` commits at the end of the block. ``"atomic"`` keeps the transaction open until the handler returns.
        """
        return self._attempt.prepare(mode)

    def complete(self) -> AbstractContextManager[None]:
        """Open the final transaction, which locks the job row and checks the lease. Call it at most once.

        It is committed after the handler has returned, together with the output or the continuation. An exception after
        the block also rolls back the block. Raises ``LeaseLost`` if this attempt may no longer write.
        """
        return self._attempt.complete()

    def aprepare(self, function: Callable[[], ResultT], mode: PrepareMode = "staged") -> Coroutine[Any, Any, ResultT]:
        """``prepare`` for async handlers: call a sync function without arguments inside the transaction, in a thread.

        ``await job.aprepare(function)`` returns the result of the function.
        """
        return self._attempt.aprepare(function, mode)

    def acomplete(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]:
        """``complete`` for async handlers: call a sync function without arguments inside the transaction, in a thread.

        ``await job.acomplete(function)`` returns the result of the function. The transaction is committed after the
        handler has returned. Return soon, because until then the job row is locked and a thread is occupied.
        """
        return self._attempt.acomplete(function)

    def log(self, text: str, /, level: str | int = "info", **fields: Any) -> None:
        """Add a line to the job log, which the admin shows about a second later, however this attempt ends.

        Can be called in any thread, in any phase and on the event loop, because it does not query the database or
        block. ``level`` is "debug", "info", "warning", "error", "critical", or the number in ``logging``. ``fields``
        are stored as JSON; values that are not JSON are converted with ``str``. Long texts are cut. If there are many
        lines, the first and the last ones are kept. Raises ``TypeError`` if ``text`` is not a string, and
        ``ValueError`` for an unknown level.
        """
        self._attempt_log().add(level_number(level), clean_log_text(text), encode_fields(fields))

    def set_progress(self, fraction: float, text: str = "") -> None:
        """Set the progress of this attempt, from 0 to 1, with an optional text. Can be called wherever ``log`` can.

        Raises ``TypeError`` for wrong types, and ``ValueError`` for a number outside of this range.
        """
        self._attempt_log().set_progress(checked_fraction(fraction), clean_progress_text(text))

    def _attempt_log(self) -> AttemptLog:
        with _log_lock:
            if self._log is None:
                self._log = self._attempt.log_buffer.log_of(self._claimed)
            return self._log

    # Only one overload has an input, so that type checkers report what is wrong with it instead of all overloads.
    @overload
    def continue_with(
        self, job_type: HasTypes[None, Any] | str, **options: Unpack[ContinuationOptions]
    ) -> Continuation: ...
    @overload
    def continue_with(
        self,
        job_type: HasTypes[NextT, Any] | str,
        input: Given[NextT],
        **options: Unpack[ContinuationOptions],
    ) -> Continuation: ...
    def continue_with(self, job_type: Any, input: Any = None, **options: Unpack[ContinuationOptions]) -> Continuation:
        """Describe the next job of the chain. *Return* it to complete this job and create the next one atomically.

        ``job_type`` is a JobType or its name. ``priority`` and ``queue`` default to the values of its processor, or
        else of this job. For the other options, see ``JobType.item``. Raises ``ContinuationNotAllowed``,
        ``JobTypeNotFound`` and ``InvalidInput``, and after the handler has returned, ``ChainNotFound`` or
        ``InvalidBlockers``.
        """
        return self._attempt.continue_with(job_type, input, **options)


# The functions that are registered as handlers: partials, methods and callable objects too


def plain_function(function: Any) -> Any:
    """Return the function behind a partial or a callable object, which has the annotations."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function).__call__


def is_async_function(function: Any) -> bool:
    """Return whether a handler is an ``async def`` function. Raise ``RegistryError`` if it is a generator."""
    plain = plain_function(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise RegistryError(f"{plain.__qualname__!r} is a generator: remove 'yield' from it.")
    return iscoroutinefunction(function) or iscoroutinefunction(plain)
