"""Every error of the package, each with its message and its remedy.

JobchainsError
├── RegistryError                a job type or processor is declared wrongly
│   ├── InvalidDeclaration       an argument of a job type or its processor is wrong
│   ├── DuplicateJobType
│   ├── JobTypeNotFound
│   └── ProcessorNotFound
├── InvalidPayload               an input or output is not what the job type takes
│   ├── InvalidInput
│   ├── InvalidOutput
│   └── InvalidContext           what is bound for a job is not JSON
├── NotAnEntryType               the type may only be continued to
├── ContinuationNotAllowed       the type is not in ``continues_with``
├── InvalidBlockers              the same blocker twice, a type not accepted, a circle
├── DuplicateJobId
├── ChainNotFound
├── JobNotFound
├── JobNotRunnable               its status does not allow run_now() or reschedule()
├── JobAlreadyCompleted
├── JobNotCompletable            it failed or was cancelled: retry it first
├── JobTypeMismatch
├── ChainReferenced              a job outside the set waits for a chain that is to be deleted
├── ChainTimeout                 a chain did not end in time
│   └── ChainNotCommitted        it cannot end while the caller waits inside the transaction that enqueued it
├── ChainFailed                  the result of a chain that failed
├── ChainCancelled
├── InvalidCursor
├── PhaseError                   prepare(), complete() or continue_with() used out of order
├── QueryBudgetExceeded          a handler asks more than its ``QueryBudget`` allows
├── TransactionLeftOpen          a handler returned with a transaction of its own still open
├── TransactionEnded             the transaction of prepare() or complete() was ended before the handler returned
├── ConnectionLost               a database connection broke while the handler ran, and it went on
├── LeaseLost                    this attempt may not write any more
└── JobAborted                   raised by ``job.signal.raise_if_aborted()``

RescheduleJob, FailJob           raised *by* handlers to say how an attempt ends
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID


class JobchainsError(Exception):
    """The base of every error this package raises."""


class RegistryError(JobchainsError):
    """A job type or a processor is declared wrongly."""


class InvalidDeclaration(RegistryError):
    """An argument of ``JobType`` or ``register`` is wrong; ``type_name`` is the name of the type."""

    def __init__(self, type_name: str, problem: object) -> None:
        self.type_name = type_name
        super().__init__(f"Job type {type_name!r}: {problem}")


class DuplicateJobType(RegistryError):
    def __init__(self, name: str) -> None:
        super().__init__(f"Job type {name!r} is declared twice. Give one of them another name, or register a processor "
                         "for the existing JobType object: @processors.register(that_job_type).")  # fmt: skip


class JobTypeNotFound(RegistryError):
    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(f"No job type {name!r}. Is its app in INSTALLED_APPS, with a jobs module? Known: {names}.")


class ProcessorNotFound(RegistryError):
    def __init__(self, name: str) -> None:
        super().__init__(f"No processor for {name!r}: is its app in INSTALLED_APPS, with a jobs module?")


class InvalidPayload(JobchainsError, ValueError):
    """``path`` says where in the value, as in ``$.items[3].price``."""

    #: For a value that is no JSON.
    remedy = "annotate the handler with a dataclass that holds it, or pass a string or number"

    def __init__(self, message: str, path: str = "$") -> None:
        self.path = path
        super().__init__(message)


class InvalidInput(InvalidPayload):
    """The input is not what the job type takes, or is not JSON."""


class InvalidOutput(InvalidPayload):
    """The output is not what the job type returns, or is not JSON."""


class InvalidContext(InvalidPayload):
    """A value given to ``context.bound`` is not JSON; ``path`` begins with its name: ``$.tenant``."""

    remedy = "bind a string or number that stands for it, such as its key"


class NotAnEntryType(JobchainsError):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is declared with entry=False: it can only be continued to, not enqueued.")


class ContinuationNotAllowed(JobchainsError):
    def __init__(self, name: str, target: str, allowed: Iterable[str]) -> None:
        names = ", ".join(sorted(allowed)) or "nothing"
        super().__init__(f"{name!r} may continue with {names}, not with {target!r}: add it to continues_with.")


class DuplicateJobId(JobchainsError):
    def __init__(self, ids: Iterable[UUID]) -> None:
        self.ids = tuple(ids)
        text = ", ".join(map(str, self.ids)) or "one of the given ids"
        super().__init__(f"A job with this id exists already: {text}. Nothing was created; give another id, or none.")


class ChainNotFound(JobchainsError):
    def __init__(self, chain_id: UUID) -> None:
        self.chain_id = chain_id
        super().__init__(f"No chain {chain_id}: it was never committed, or it was deleted.")


class InvalidBlockers(JobchainsError, ValueError):
    """These chains cannot be the blockers of that job; the message says why."""


class JobNotFound(JobchainsError):
    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(f"No job {job_id}: it was never committed, or it was deleted. Nothing was changed.")


class JobNotRunnable(JobchainsError):
    """``status`` is the job's; ``run_now`` and ``reschedule`` move pending jobs only."""

    def __init__(self, job_id: UUID, status: str) -> None:
        self.job_id = job_id
        self.status = status
        remedy = {
            "blocked": "it waits for other chains",
            "running": "it runs already",
            "completed": "it has run",
        }.get(status, "use chains.retry")
        super().__init__(f"Job {job_id} is {status}, not pending: {remedy}. Nothing was changed.")


class JobAlreadyCompleted(JobchainsError):
    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(f"Job {job_id} is completed already, and what is completed stays so.")


class JobNotCompletable(JobchainsError):
    def __init__(self, job_id: UUID, status: str) -> None:
        self.job_id = job_id
        self.status = status
        super().__init__(f"Job {job_id} is {status}: use chains.retry first, then complete it.")


class JobTypeMismatch(JobchainsError):
    def __init__(self, job_id: UUID, expected: str, actual: str) -> None:
        self.job_id = job_id
        self.expected = expected
        self.actual = actual
        super().__init__(f"The chain's current job {job_id} is a {actual!r}, not a {expected!r}: it has gone on.")


class ChainReferenced(JobchainsError):
    """``references`` pairs each chain with a job outside the set that needs it."""

    def __init__(self, references: Iterable[tuple[UUID, UUID]]) -> None:
        self.references = tuple(references)
        text = ", ".join(f"{chain} by job {job}" for chain, job in self.references)
        super().__init__(f"Chains are needed as blockers: {text}. Delete those chains too, or cancel and delete them "
                         "first. Nothing was deleted.")  # fmt: skip


class ChainTimeout(JobchainsError, TimeoutError):
    """``status`` is the chain's when it was last read; None when it could not be read."""

    def __init__(self, chain_id: UUID, seconds: float, status: str | None = None) -> None:
        self.chain_id = chain_id
        self.status = status
        reason = {
            None: "the database did not answer",
            "pending": "it is pending, and no worker has started its next job yet. Check that a worker is running "
            "(manage.py run_jobworker); in a test without one, call django_jobchains.testing.run_due_jobs() first",
            "blocked": "it is blocked by other chains that have not completed",
        }.get(status, f"it is {status}")
        super().__init__(
            f"Chain {chain_id} did not end within {seconds:g} seconds: {reason}. Waiting changed nothing: you can wait "
            "again."
        )


class ChainNotCommitted(ChainTimeout):
    """Raised at once instead of waiting: no worker sees a chain before the transaction that enqueued it commits."""

    def __init__(self, chain_id: UUID) -> None:
        self.chain_id = chain_id
        self.status = None
        JobchainsError.__init__(
            self,
            f"Chain {chain_id} is not committed: it was enqueued in the transaction that is still open here, so no "
            "worker can run it. Wait after the 'with transaction.atomic():' block. In a TestCase, which never commits, "
            "call django_jobchains.testing.run_due_jobs() first.",
        )


class ChainFailed(JobchainsError):
    """``error`` is the last error of its last job."""

    def __init__(self, chain_id: UUID, error: str) -> None:
        self.chain_id = chain_id
        self.error = error
        super().__init__(f"Chain {chain_id} failed: {error}")


class ChainCancelled(JobchainsError):
    def __init__(self, chain_id: UUID) -> None:
        self.chain_id = chain_id
        super().__init__(f"Chain {chain_id} was cancelled.")


class InvalidCursor(JobchainsError, ValueError):
    def __init__(self, cursor: str) -> None:
        super().__init__(f"{cursor[:100]!r} is no cursor of such a page: start again without one.")


class PhaseError(JobchainsError):
    """prepare(), complete() or continue_with() was used out of order."""


class QueryBudgetExceeded(JobchainsError):
    """``most`` is the budget."""

    def __init__(self, type_name: str, most: int) -> None:
        self.most = most
        super().__init__(
            f"{type_name!r} makes more than {most} queries: fetch related rows at once (select_related, "
            "prefetch_related, bulk_create), or raise its QueryBudget."
        )


class TransactionLeftOpen(JobchainsError):
    def __init__(self, alias: str) -> None:
        super().__init__(f"The handler returned with a transaction open on database {alias!r}. It was rolled back: use "
                         "'with transaction.atomic():', job.prepare() or job.complete().")  # fmt: skip


class TransactionEnded(JobchainsError):
    def __init__(self) -> None:
        super().__init__("The transaction of job.prepare() or job.complete() was ended before the handler returned, by "
                         "a statement such as ROLLBACK or COMMIT. The job is not completed. Remove the statement: use "
                         "'with transaction.atomic():' for a savepoint; to roll back, raise an error.")  # fmt: skip


class ConnectionLost(JobchainsError):
    def __init__(self, alias: str) -> None:
        super().__init__(f"The connection to database {alias!r} was lost while the handler ran, and with it any "
                         "transaction that was open there. Do not catch the database error, so that the attempt fails "
                         "with it, or close the connection after you have handled it.")  # fmt: skip


class LeaseLost(JobchainsError):
    """The attempt's lease number is no longer the job's: nothing was written. ``reason`` is an abort reason."""

    def __init__(self, job_id: UUID, reason: str) -> None:
        self.job_id = job_id
        self.reason = reason
        super().__init__(f"This attempt may no longer write to job {job_id}: {reason.replace('_', ' ')}.")


class JobAborted(JobchainsError):
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"The attempt was asked to stop: {reason.replace('_', ' ')}.")


class HandlerStuck(JobchainsError):
    def __init__(self, reason: str, seconds: float) -> None:
        self.reason = reason
        super().__init__(f"The handler was asked to stop ({reason.replace('_', ' ')}) and did not within {seconds:g} "
                         "seconds. It is left alone and can write nothing to its job any more: look at job.signal, or "
                         "give calls that wait a time limit.")  # fmt: skip


class RescheduleJob(Exception):
    """Raise in a handler to try again exactly then, instead of after the backoff.

    ``delay``: a timedelta or seconds from now (database clock). ``run_at``: an aware datetime. Give one of them.
    It counts as a failed attempt, so ``max_attempts`` still bounds it.
    """

    def __init__(self, *, delay: timedelta | float | None = None, run_at: datetime | None = None) -> None:
        if (delay is None) == (run_at is None):
            raise TypeError("RescheduleJob takes delay= or run_at=, one of them.")
        self.delay = delay
        self.run_at = run_at
        super().__init__(f"rescheduled to {run_at}" if run_at else f"rescheduled in {delay}")


class FailJob(Exception):
    """Raise in a handler to give up now: status ``failed``, no retry."""

    def __init__(self, reason: str = "", *details: Any) -> None:
        super().__init__(reason, *details)
