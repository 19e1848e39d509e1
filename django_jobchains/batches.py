"""What a handler with a ``batch_limit`` receives: several running jobs of a type, each with an outcome of its own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, Unpack, overload
from uuid import UUID

from django_jobchains.context import common, decoded
from django_jobchains.exceptions import FailJob, PhaseError, RescheduleJob
from django_jobchains.models import Chain
from django_jobchains.notes import Notebook
from django_jobchains.running import (
    AbortReason,
    AbortSignal,
    Continuation,
    ContinuationOptions,
    Phases,
    PrepareMode,
    RunningJob,
)
from django_jobchains.store import ClaimedJob

InputT = TypeVar("InputT")


class BatchSignal(AbortSignal):
    """Asks the handler of a batch to stop: aborted when all of its jobs are, and when it is, all of them are."""

    def __init__(self, parts: Sequence[AbortSignal]) -> None:
        super().__init__()
        self._parts = parts
        for part in parts:
            part.listeners.append(self._part_aborted)

    def abort(self, reason: AbortReason) -> None:
        super().abort(reason)
        for part in self._parts:
            part.abort(reason)

    def _part_aborted(self) -> None:
        if all(part.aborted for part in self._parts):
            super().abort(self._parts[-1].reason or "error")


class BatchTransactions(Protocol):
    """What the attempt does for a batch."""

    def prepare(self, mode: PrepareMode) -> AbstractContextManager[None]: ...
    def complete(self) -> AbstractContextManager[None]: ...


class BatchJob(RunningJob[InputT]):
    """One job of a batch. Say at most once how it ends; of what is not said, returning completes it, without output."""

    def __init__(
        self,
        claimed: ClaimedJob,
        input: InputT,
        signal: AbortSignal,
        phases: Phases,
        notebook: Notebook,
        *,
        encode_output: Callable[[Any], str],
        blockers_of: Callable[[UUID], Sequence[Chain]],
    ) -> None:
        super().__init__(claimed, input, signal, phases, notebook)
        self._encode_output = encode_output
        self._blockers_of = blockers_of
        #: The encoded output, the continuation, or the error it ends with; None: nothing was said.
        self.ending: str | Continuation | Exception | None = None

    @property
    def blockers(self) -> Sequence[Chain]:
        return self._blockers_of(self.id)

    def finish(self, output: Any = None) -> None:
        """Completes this job when the handler has returned. Raises ``InvalidOutput``."""
        self._end(self._encode_output(output))

    def continue_with(self, job_type: Any, input: Any = None, **options: Unpack[ContinuationOptions]) -> Continuation:
        """Completes this job with a continuation when the handler has returned, which need not return it.

        The arguments and errors of ``RunningJob.continue_with``.
        """
        continuation = super().continue_with(job_type, input, **options)
        self._end(continuation)
        return continuation

    def fail(self, reason: str = "") -> None:
        """Gives this job up: status ``failed``, no retry."""
        self._end(FailJob(reason))

    def retry(self, error: Exception | None = None) -> None:
        """Tries this job again after its backoff; ``error`` is kept as the reason."""
        self._end(error or RuntimeError("The handler asked for another attempt."))

    def reschedule(self, *, delay: timedelta | float | None = None, run_at: datetime | None = None) -> None:
        """Tries this job again exactly then, as ``raise RescheduleJob(…)`` does for a single one."""
        self._end(RescheduleJob(delay=delay, run_at=run_at))

    def prepare(self, mode: PrepareMode = "staged") -> AbstractContextManager[None]:
        raise PhaseError("A job of a batch has no transaction of its own: use 'with jobs.prepare():'.")

    def complete(self) -> AbstractContextManager[None]:
        raise PhaseError("A job of a batch has no transaction of its own: use 'with jobs.complete():'.")

    def _end(self, ending: str | Continuation | Exception) -> None:
        if self.ending is not None:
            raise PhaseError(f"It was said already how job {self.id} ends.")
        self.ending = ending


class Batch(Sequence[BatchJob[InputT]], Generic[InputT]):
    """Up to ``batch_limit`` running jobs of one type, the most urgent first.

    ``signal`` asks the handler to stop as a whole; a job that was cancelled or lost alone says so in ``job.signal``.
    ``context`` is what the contexts of all its jobs have in common, and what middleware adds.
    """

    def __init__(
        self, jobs: Sequence[BatchJob[InputT]], type_name: str, signal: AbortSignal, transactions: BatchTransactions
    ) -> None:
        self._jobs = jobs
        self._transactions = transactions
        self.type_name = type_name
        self.signal = signal
        shared = common([job.stored_context for job in jobs])
        self.context: dict[str, Any] = {} if shared is None else decoded(shared)

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

    def leave_out_ended(self) -> bool:
        """Those of which middleware has said how they end are not the handler's any more; whether any is left."""
        self._jobs = [job for job in self._jobs if job.ending is None]
        return bool(self._jobs)

    def prepare(self, mode: PrepareMode = "staged") -> AbstractContextManager[None]:
        """``RunningJob.prepare`` for all jobs at once: locks their rows and checks their leases."""
        return self._transactions.prepare(mode)

    def complete(self) -> AbstractContextManager[None]:
        """``RunningJob.complete`` for all jobs at once: one transaction, committed when the handler has returned.

        Raises ``LeaseLost`` when one of them may no longer be written: then nothing is, and the others are handed back.
        """
        return self._transactions.complete()
