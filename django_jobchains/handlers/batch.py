"""The batch that a handler with a ``batch_limit`` receives: several running jobs of a type, with separate outcomes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from django_jobchains.context import decode_context, shared_context
from django_jobchains.exceptions import FailJob, PhaseError, RescheduleJob
from django_jobchains.handlers.abort_signal import AbortReason, AbortSignal
from django_jobchains.handlers.running_job import (
    ContextT_contra,
    Continuation,
    HasContext,
    JobMethods,
    PrepareMode,
    RunningJob,
    Transactions,
)
from django_jobchains.models import Chain
from django_jobchains.store.rows import ClaimedJob
from django_jobchains.values import DurationLike

InputT = TypeVar("InputT")


class BatchSignal(AbortSignal):
    """The signal of a batch. Aborting it aborts all jobs, and it is aborted when all jobs are."""

    def __init__(self, parts: Sequence[AbortSignal]) -> None:
        super().__init__()
        self._parts = parts
        for part in parts:
            part.listeners.append(self._part_aborted)

    def abort(self, reason: AbortReason) -> None:
        super().abort(reason)
        for part in self._parts:
            part.abort(reason)

    def unlock_row(self) -> None:
        for part in self._parts:
            part.unlock_row()

    def end(self) -> bool:
        """Note that the handler has returned. Return False if one of the jobs was detached before."""
        are_own = [part.end() for part in self._parts]
        return all(are_own)

    def _part_aborted(self) -> None:
        if all(part.aborted for part in self._parts):
            super().abort(self._parts[-1].reason or "error")


class BatchJob(RunningJob[InputT]):
    """A job of a batch. Call at most one of its methods that end it. The other jobs are completed without an output."""

    def __init__(
        self,
        claimed: ClaimedJob,
        input: InputT,
        attempt: JobMethods,
        encode_output: Callable[[Any], str],
        blockers_of: Callable[[UUID], Sequence[Chain]],
    ) -> None:
        super().__init__(claimed, input, attempt)
        self._encode_output = encode_output
        self._blockers_of = blockers_of
        #: The encoded output, continuation or error that the job ends with, or None.
        self.ending: str | Continuation | Exception | None = None

    @property
    def blockers(self) -> Sequence[Chain]:  # type: ignore[override]
        return self._blockers_of(self.id)

    def finish(self, output: Any = None) -> None:
        """Complete this job when the handler has returned. Raises ``InvalidOutput``."""
        self._end(self._encode_output(output))

    if not TYPE_CHECKING:  # type checkers see the overloads of RunningJob

        def continue_with(self, job_type: Any, input: Any = None, **options: Any) -> Continuation:
            """Complete this job with a continuation when the handler has returned.

            See ``RunningJob.continue_with`` for the arguments and errors.
            """
            continuation = super().continue_with(job_type, input, **options)
            self._end(continuation)
            return continuation

    def fail(self, reason: str = "") -> None:
        """End this job with the status ``failed``, without a retry."""
        self._end(FailJob(reason))

    def retry(self, error: Exception | None = None) -> None:
        """Retry this job after its backoff. ``error``, an exception, is stored as the reason. Raises ``TypeError``."""
        if error is None:
            error = RuntimeError("The handler asked for another attempt.")
        if not isinstance(error, Exception):
            raise TypeError(f"error={error!r:.100} is not an exception: pass an instance, such as ValueError('…').")
        self._end(error)

    def reschedule(
        self, *, delay: DurationLike | None = None, run_at: datetime | None = None, reason: str = ""
    ) -> None:
        """Retry this job at this time, as ``raise RescheduleJob(…)`` does for a single job."""
        self._end(RescheduleJob(delay=delay, run_at=run_at, reason=reason))

    def prepare(self, mode: PrepareMode = "staged") -> AbstractContextManager[None]:
        raise PhaseError("A job of a batch does not have its own transaction: use 'with jobs.prepare():'.")

    def complete(self) -> AbstractContextManager[None]:
        raise PhaseError("A job of a batch does not have its own transaction: use 'with jobs.complete():'.")

    def _end(self, ending: str | Continuation | Exception) -> None:
        if self.ending is not None:
            raise PhaseError(f"Job {self.id} has already ended: end each job of a batch at most once.")
        self.ending = ending


class Batch(Sequence[BatchJob[InputT]], HasContext[ContextT_contra]):
    """Up to ``batch_limit`` running jobs of one type, the most urgent first.

    ``signal`` asks the handler to stop. ``job.signal`` is aborted if a single job was cancelled or lost. ``context``
    has the values that all jobs have in common, and the values that middleware adds. ``Batch[Order, Tenant]`` declares
    the type of the inputs, and the context that the handler needs.
    """

    def __init__(
        self, jobs: Sequence[BatchJob[InputT]], type_name: str, signal: AbortSignal, transactions: Transactions
    ) -> None:
        self._jobs = jobs
        self._transactions = transactions
        self.type_name = type_name
        self.signal = signal
        shared = shared_context([job.stored_context for job in jobs])
        self.context: dict[str, Any] = {} if shared is None else decode_context(shared)

    @overload
    def __getitem__(self, index: int) -> BatchJob[InputT]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchJob[InputT]]: ...

    def __getitem__(self, index: int | slice) -> BatchJob[InputT] | Sequence[BatchJob[InputT]]:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[BatchJob[InputT]]:
        return iter(self._jobs)

    def drop_ended(self) -> bool:
        """Drop the jobs that middleware has ended. Return whether any remain."""
        self._jobs = [job for job in self._jobs if job.ending is None]
        return bool(self._jobs)

    def prepare(self, mode: PrepareMode = "staged") -> AbstractContextManager[None]:
        """``RunningJob.prepare`` for all jobs: locks their rows and checks their leases."""
        return self._transactions.prepare(mode)

    def complete(self) -> AbstractContextManager[None]:
        """``RunningJob.complete`` for all jobs: one transaction, which is committed when the handler has returned.

        Raises ``LeaseLost`` if the lease of one of the jobs is lost, and ``JobLocked`` if another transaction locks one
        of them for more than two seconds. Nothing is written then, and the other jobs are returned to the queue.
        """
        return self._transactions.complete()
