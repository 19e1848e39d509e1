"""The exceptions of the package. Each message explains the problem, and what to do about it::

    JobchainsError
    ├── RegistryError                the declaration of a job type or processor is invalid
    │   ├── InvalidDeclaration       an argument of a job type or its processor is invalid
    │   ├── DuplicateJobType
    │   ├── JobTypeNotFound
    │   ├── ProcessorNotFound
    │   └── TaskNotImported          the module of a task cannot be imported, or has no such task
    ├── InvalidPayload               an input or output does not fit the job type
    │   ├── InvalidInput
    │   ├── InvalidOutput
    │   └── InvalidContext           a value that is bound for a job is not JSON
    ├── NotAnEntryType               the type is for continuations only
    ├── ContinuationNotAllowed       the type is not in continues_with
    ├── InvalidBlockers              the same blocker twice, a type that is not accepted, or a cycle
    ├── DuplicateJobId
    ├── TransactionRequired          the settings do not allow enqueueing outside of a transaction
    ├── InvalidSchedule              an argument of a schedule is invalid
    ├── ScheduleNotFound
    ├── ScheduleExists
    ├── ScheduleDeclaredInCode       the schedule is declared in code, so only code can change or remove it
    ├── LimitNotFound                the code declares no limit with this name
    ├── ChainNotFound
    ├── JobNotFound
    ├── JobNotRunnable               the job's status does not allow run_now() or reschedule()
    ├── JobAlreadyCompleted
    ├── JobNotCompletable            the job failed or was cancelled: retry it first
    ├── JobTypeMismatch
    ├── ChainReferenced              a chain to be deleted is a blocker of a job in another chain
    ├── ChainTimeout                 a chain did not end in time
    │   └── ChainNotCommitted        it cannot end while the caller waits inside the transaction that enqueued it
    ├── ChainFailed                  the chain that the caller waits for has failed
    ├── ChainCancelled               the chain that the caller waits for was cancelled, or has expired
    ├── InvalidCursor
    ├── PhaseError                   prepare(), complete() or continue_with() was used out of order
    ├── QueryBudgetExceeded          a handler executes more queries than its QueryBudget allows
    ├── TransactionLeftOpen          a handler returned without closing its transaction
    ├── TransactionEnded             the transaction of prepare() or complete() was ended before the handler returned
    ├── ConnectionLost               a handler continued after it had lost a database connection
    ├── LeaseLost                    the attempt may no longer write
    ├── JobLocked                    another transaction has locked the job, or a job of a batch
    ├── JobAborted                   raised by job.signal.raise_if_aborted()
    ├── HandlerStuck                 a handler was asked to stop, but did not
    ├── PoolClosed                   the pool was terminated
    ├── PoolTimeout                  no child became free in time (a TimeoutError)
    ├── PoolKeyConflict              a strict pool has no room for a child of this key
    ├── ChildStartFailed             a strict pool could not start a child
    ├── ChildCrashed                 the child process died
    ├── ChildTimeout                 a call took too long, and its child was killed (a TimeoutError)
    └── RemoteError                  a function raised an error in its child

Handlers raise ``RescheduleJob`` and ``FailJob`` to end an attempt.
"""

import signal
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from django_jobchains.values import Duration, DurationLike, did_you_mean, seconds_text


class JobchainsError(Exception):
    """The base class of every error that this package raises."""

    def __reduce__(self: Exception) -> tuple[Any, ...]:
        # By default, a copy is made by calling the class with ``args``, but most classes here take other arguments.
        return type(self).__new__, (type(self),), {**vars(self), "args": self.args}


class RegistryError(JobchainsError):
    """The declaration of a job type or a processor is invalid."""


class InvalidDeclaration(RegistryError):
    """An argument of ``JobType`` or ``register`` is invalid. ``type_name`` is the name of the type."""

    def __init__(self, type_name: str, problem: object) -> None:
        self.type_name = type_name
        super().__init__(f"Job type {type_name!r}: {problem}")


class DuplicateJobType(RegistryError):
    """Two job types or records have the same name, or a job type has two processors. Rename one of them.

    ``first`` and ``second``: their processors, None without one.
    """

    def __init__(self, name: str, first: Any, second: Any) -> None:
        both = " and by ".join(
            f"{each.handler.__module__}.{each.handler.__qualname__}" if each else "a JobType without a processor"
            for each in (first, second)
        )
        super().__init__(
            f"Job type {name!r} is declared twice: by {both}. Give one of them another name, or register a processor "
            "for the existing JobType object: @processors.register(that_job_type)."
        )


class JobTypeNotFound(RegistryError):
    """No job type has this name. Check the name, and that the app with the type is in ``INSTALLED_APPS``."""

    def __init__(self, name: str, known: Collection[str] = ()) -> None:
        names, nearest = ", ".join(sorted(known)) or "none", did_you_mean(name, known)
        super().__init__(
            f"No job type {name!r}.{nearest} Is its app in INSTALLED_APPS, with a jobs module? Known: {names}."
        )


class ProcessorNotFound(RegistryError):
    """The job type has no processor in this process. Check that the app with it is in ``INSTALLED_APPS``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"No processor for {name!r}. Is its app in INSTALLED_APPS, with a jobs module?")


class TaskNotImported(RegistryError):
    """A task of Django's framework cannot be imported in this process. ``path`` is its module path."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"The task {path!r} cannot be imported: {problem}")


class InvalidPayload(JobchainsError, ValueError):
    """A value does not fit its type, or is not JSON. ``path`` locates the problem: ``$.items[3].price``.

    ``problems``: pairs of a path and a message, such as ``(("items", 3), "…")``, if the type reports them.
    """

    #: What to do about a value that is not JSON.
    remedy = "annotate the handler with a dataclass that holds it, or pass a string or number"

    def __init__(
        self, message: str, path: str = "$", problems: Iterable[tuple[tuple[str | int, ...], str]] = ()
    ) -> None:
        self.path = path
        self.problems = tuple(problems)
        super().__init__(message)

    def about(self, subject: str) -> Self:
        """Return the same error with a message that names the value."""
        message = str(self)
        return type(self)(f"{subject}: {message[:1].lower()}{message[1:]}", self.path, self.problems)


class InvalidInput(InvalidPayload):
    """The input does not fit the job type, or is not JSON."""


class InvalidOutput(InvalidPayload):
    """The output does not fit the job type, or is not JSON."""

    remedy = "annotate the handler's result with a dataclass that holds it, or return a string or number"


class InvalidContext(InvalidPayload):
    """A value that was passed to ``context.bound`` is not JSON. ``path`` begins with its name: ``$.tenant``."""

    remedy = "bind a string or number that stands for it, such as its key"


class NotAnEntryType(JobchainsError):
    """The job type is declared with ``entry=False``, so no chain can start with it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is declared with entry=False, so it cannot be enqueued. Continue another job with "
                         "it, or remove entry=False.")  # fmt: skip


class ContinuationNotAllowed(JobchainsError):
    """The job type is not one that may follow. Add it to ``continues_with``."""

    def __init__(self, name: str, target: str, allowed: Iterable[str]) -> None:
        names = ", ".join(sorted(allowed)) or "nothing"
        super().__init__(f"{name!r} may continue with {names}, but not with {target!r}. Add it to continues_with.")


class DuplicateJobId(JobchainsError):
    """Jobs with these ``ids`` exist already, so nothing was created."""

    def __init__(self, ids: Iterable[UUID]) -> None:
        self.ids = tuple(ids)
        text = ", ".join(map(str, self.ids)) or "one of the ids"
        advice = "Pass another id, or none, and an item of enqueue_many() only once."
        super().__init__(f"A job with this id exists already: {text}. Nothing was created. {advice}")


class TransactionRequired(JobchainsError):
    """A chain was enqueued outside of a transaction of the database ``using``, which the settings do not allow.

    ``other``: the alias of another database on which a transaction is open."""

    def __init__(self, using: str, other: str | None = None) -> None:
        self.using = using
        self.other = other
        if other is None:
            super().__init__(f"No transaction is open on database {using!r}, and JOBCHAINS['REQUIRE_TRANSACTION'] is "
                             "True. Nothing was created. Enqueue inside 'with transaction.atomic():', in async code in "
                             "a function that is called with sync_to_async. In a handler, use 'with job.complete():' "
                             "or 'await job.acomplete(function)'.")  # fmt: skip
        else:
            super().__init__(f"A chain is enqueued on database {using!r}, but the open transaction is on {other!r}: if "
                             f"that is rolled back, the chain remains. Open a transaction on {using!r} too, enqueue "
                             "after the block, or set JOBCHAINS['OTHER_TRANSACTION'] to 'ignore'.")  # fmt: skip


class InvalidSchedule(JobchainsError, ValueError):
    """An argument of a schedule is invalid. ``name`` is the name of the schedule.

    ``problem``: what is wrong. ``argument``: the name of the argument, or "" if several arguments are involved.
    """

    def __init__(self, name: object, problem: object, argument: str = "") -> None:
        self.name, self.problem, self.argument = name, problem, argument
        super().__init__(f"Schedule {name!r:.150}: {problem}")


class ScheduleNotFound(JobchainsError):
    """No schedules have these ``names``."""

    def __init__(self, *names: str, known: Iterable[str] = ()) -> None:
        self.names = names
        listed, nearest = ", ".join(map(repr, names)), did_you_mean(names[0], known)
        remedy = "Schedules that the code declares are stored when a worker starts."
        super().__init__(f"No schedule {listed}.{nearest or f' {remedy}'}")


class ScheduleExists(JobchainsError):
    """A schedule with this name exists. Choose another name, or update that schedule."""

    def __init__(self, name: str) -> None:
        super().__init__(f"A schedule {name!r} exists already. Choose another name, or update that schedule.")


class ScheduleDeclaredInCode(JobchainsError):
    """The schedule is declared in code, so it can only be changed there. It can be paused, resumed and run."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Schedule {name!r} is declared by processors.schedule(): change or remove it there. Here it "
                         "can be paused, resumed and run.")  # fmt: skip


class LimitNotFound(JobchainsError):
    """The code declares no limit with this name. ``known``: the names of the limits that it declares."""

    def __init__(self, name: str, known: Collection[str] = ()) -> None:
        self.name = name
        found = did_you_mean(name, known) or f" Declared: {', '.join(sorted(known)) or 'none'}."
        super().__init__(f"No type or group {name!r:.200} declares a limit.{found}")


class ChainNotFound(JobchainsError):
    """No chain has this id: it was never committed, or it was deleted."""

    def __init__(self, chain_id: UUID) -> None:
        self.chain_id = chain_id
        super().__init__(f"No chain {chain_id}: it was never committed, or it was deleted.")


class InvalidBlockers(JobchainsError, ValueError):
    """These chains cannot be the blockers of the job, for the reason in the message."""


class JobNotFound(JobchainsError):
    """No job has this id: it was never committed, or it was deleted. Nothing was changed."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(f"No job {job_id}: it was never committed, or it was deleted. Nothing was changed.")


class JobNotRunnable(JobchainsError):
    """``run_now`` and ``reschedule`` accept pending jobs only. ``status`` is the status of the job."""

    def __init__(self, job_id: UUID, status: str) -> None:
        self.job_id = job_id
        self.status = status
        remedy = {
            "blocked": "it waits for other chains",
            "running": "it is already running",
            "completed": "it has already run",
        }.get(status, "use chains.retry")
        super().__init__(f"Job {job_id} is {status}, not pending: {remedy}. Nothing was changed.")


class JobAlreadyCompleted(JobchainsError):
    """The job is completed, so it cannot be completed again or changed."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(f"Job {job_id} is already completed. A completed job cannot be completed again or changed.")


class JobNotCompletable(JobchainsError):
    """The job has failed or was cancelled, which is its ``status``. Retry it before you complete it."""

    def __init__(self, job_id: UUID, status: str) -> None:
        self.job_id = job_id
        self.status = status
        super().__init__(f"Job {job_id} is {status}: use chains.retry first, and then complete it.")


class JobTypeMismatch(JobchainsError):
    """The job, or the first job of the chain, does not have the expected type."""

    def __init__(self, job_id: UUID, expected: str, actual: str) -> None:
        self.job_id = job_id
        self.expected = expected
        self.actual = actual
        super().__init__(f"Job {job_id} is of type {actual!r}, not {expected!r}. If it is the current job of a chain, "
                         "the chain may have continued since then. Otherwise, check the id.")  # fmt: skip


class ChainReferenced(JobchainsError):
    """A chain cannot be deleted, because a job of another chain has it as a blocker and is not completed.

    ``references``: pairs of the id of a chain and the id of such a job."""

    def __init__(self, references: Iterable[tuple[UUID, UUID]]) -> None:
        self.references = tuple(references)
        text = ", ".join(f"{job} needs {chain}" for chain, job in self.references)
        super().__init__(f"Uncompleted jobs of other chains need their blockers: {text}. Delete the chains of these "
                         "jobs too. Nothing was deleted.")  # fmt: skip


class ChainTimeout(JobchainsError, TimeoutError):
    """A chain did not end in time. ``status`` is its last known status, or None if it could not be read.

    ``reason`` describes what the chain waits for, if this is known.
    """

    def __init__(self, chain_id: UUID, seconds: float, status: str | None = None, reason: str = "") -> None:
        self.chain_id = chain_id
        self.status = status
        reason = reason or ("the database did not answer" if status is None else f"it is {status}")
        super().__init__(f"Chain {chain_id} did not end within {seconds_text(seconds)}: {reason}. Waiting changed "
                         "nothing: you can wait again.")  # fmt: skip


class ChainNotCommitted(ChainTimeout):
    """The caller waits for a chain inside the transaction that enqueued it. No worker sees it before the commit."""

    def __init__(self, chain_id: UUID) -> None:
        self.chain_id = chain_id
        self.status = None
        problem = ("it was enqueued in the transaction that is still open here, so no worker can run it. Wait after "
                   "the 'with transaction.atomic():' block. If ATOMIC_REQUESTS opens it for the whole view, decorate "
                   "the view with @transaction.non_atomic_requests. In a TestCase, which never commits, call "
                   "django_jobchains.testing.run_due_jobs() first.")  # fmt: skip
        JobchainsError.__init__(self, f"Chain {chain_id} is not committed: {problem}")


class ChainFailed(JobchainsError):
    """A chain failed. ``error`` is the last error of its last job."""

    def __init__(self, chain_id: UUID, error: str) -> None:
        self.chain_id = chain_id
        self.error = error
        super().__init__(f"Chain {chain_id} failed: {error}")


class ChainCancelled(JobchainsError):
    """A chain was cancelled. ``is_expired``: whether this was because a job had not started when it expired."""

    def __init__(self, chain_id: UUID, *, is_expired: bool = False) -> None:
        self.chain_id = chain_id
        self.is_expired = is_expired
        how = "has expired: its job did not start in time" if is_expired else "was cancelled"
        super().__init__(f"Chain {chain_id} {how}.")


class InvalidCursor(JobchainsError, ValueError):
    """The text is not a cursor of these pages. Start again without one."""

    def __init__(self, cursor: str) -> None:
        super().__init__(f"{cursor[:100]!r} is not a cursor of these pages. Start again without one.")


class PhaseError(JobchainsError):
    """prepare(), complete() or continue_with() was used out of order."""


class QueryBudgetExceeded(JobchainsError):
    """A handler executed more queries than its budget allows. ``max_queries`` is the budget."""

    def __init__(self, type_name: str, max_queries: int) -> None:
        self.max_queries = max_queries
        super().__init__(f"{type_name!r} executes more than {max_queries} queries. Fetch related rows at once "
                         "(select_related, prefetch_related, bulk_create), or increase its QueryBudget.")  # fmt: skip


class TransactionLeftOpen(JobchainsError):
    """The handler returned with an open transaction, which was rolled back. End the transactions that you open."""

    def __init__(self, alias: str) -> None:
        super().__init__(f"The handler returned with an open transaction on database {alias!r}. It was rolled back. "
                         "Use 'with transaction.atomic():', job.prepare() or job.complete().")  # fmt: skip


class TransactionEnded(JobchainsError):
    """A statement in the handler ended its transaction, so the job is not completed. Remove the statement."""

    def __init__(self) -> None:
        super().__init__("The transaction of job.prepare() or job.complete() was ended before the handler returned, by "
                         "a statement such as ROLLBACK or COMMIT. The job is not completed. Remove the statement: use "
                         "'with transaction.atomic():' for a savepoint; to roll back, raise an error.")  # fmt: skip


class ConnectionLost(JobchainsError):
    """The handler continued after it had lost a database connection. Do not catch the database error."""

    def __init__(self, alias: str) -> None:
        super().__init__(f"The connection to database {alias!r} was lost while the handler ran, and with it any "
                         "transaction that was open there. Do not catch the database error, so that the attempt fails "
                         "with it, or close the connection after you have handled it.")  # fmt: skip


class LeaseLost(JobchainsError):
    """The attempt no longer holds the job, so nothing was written. ``reason`` is an abort reason."""

    def __init__(self, job_id: UUID, reason: str) -> None:
        self.job_id = job_id
        self.reason = reason
        super().__init__(f"This attempt may no longer write to job {job_id}: {reason.replace('_', ' ')}.")


class JobLocked(JobchainsError):
    """Another transaction has locked the job, or a job of the batch, for too long. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("Another transaction has locked the job, or one of the batch. Nothing was written, and no "
                         "attempt is counted: the jobs return to the queue, and the locked job waits.")  # fmt: skip


class JobAborted(JobchainsError):
    """Raised by ``job.signal.raise_if_aborted()``: the attempt was asked to stop. ``reason`` is an abort reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"The attempt was asked to stop: {reason.replace('_', ' ')}.")


class HandlerStuck(JobchainsError):
    """The handler was asked to stop, but did not in time. Check ``job.signal`` there. ``reason`` is an abort reason."""

    def __init__(self, reason: str, seconds: float) -> None:
        self.reason = reason
        super().__init__(f"The handler was asked to stop ({reason.replace('_', ' ')}) and did not within "
                         f"{seconds_text(seconds)}. It can no longer write to its job. Check job.signal in the "
                         "handler, or set timeouts for calls that wait.")  # fmt: skip


class RescheduleJob(Exception):
    """Raise this in a handler to retry at an exact time, instead of after the backoff.

    ``delay``: a timedelta or a number of seconds from now, by the database's clock. ``run_at``: an aware datetime. Pass
    one of them. ``reason`` is stored as the job's ``last_error``. Without it, the error after ``from`` is stored
    (``raise … from error``). A reschedule is not a failure: it does not count towards ``max_attempts``, and is not
    stored as a failed attempt.
    """

    def __init__(self, *, delay: DurationLike | None = None, run_at: datetime | None = None, reason: str = "") -> None:
        if (delay is None) == (run_at is None):
            raise TypeError("RescheduleJob takes delay= or run_at=. Pass one of them.")
        if not isinstance(reason, str):
            raise TypeError(f"reason={reason!r:.100} is not a string.")
        if delay is not None:
            Duration(least=0).check("delay", delay)
        self.delay = delay
        self.run_at = run_at
        self.reason = reason
        super().__init__(f"rescheduled to {run_at}" if run_at else f"rescheduled in {delay}")

    __reduce__ = JobchainsError.__reduce__


class FailJob(Exception):
    """Raise this in a handler to fail the job without a retry."""

    def __init__(self, reason: str = "", *details: Any) -> None:
        super().__init__(reason, *details)


class PoolClosed(JobchainsError):
    """The pool was terminated. Create a new one."""

    def __init__(self) -> None:
        super().__init__("The pool was terminated. Create a new one.")


class PoolTimeout(JobchainsError, TimeoutError):
    """No child became free, or started, within the ``timeout`` of ``acquire``."""

    def __init__(self, key: str, seconds: float) -> None:
        self.key = key
        super().__init__(f"No child for key {key!r} within {seconds_text(seconds)}. Release children sooner, increase "
                         "max_workers or the timeout, or check is_saturated() first.")  # fmt: skip


class PoolKeyConflict(JobchainsError):
    """A strict pool is full of children with other keys, which it does not replace."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"The pool is full of children with other keys than {key!r}, and strict=True forbids "
                         "replacing one. Increase max_workers, or use a pool for each key.")  # fmt: skip


class ChildStartFailed(JobchainsError):
    """A child could not start. ``level`` is the requested isolation."""

    def __init__(self, level: str, reason: str) -> None:
        self.level = level
        self.reason = reason
        super().__init__(f"No child with isolation {level!r} could start: {reason}")


class ChildCrashed(JobchainsError):
    """The child process of a call died. ``exitcode`` is negative if a signal killed it.

    ``stderr``: the last 4 KiB that the process wrote to its standard error.
    """

    def __init__(self, exitcode: int, stderr: str = "") -> None:
        self.exitcode = exitcode
        self.stderr = stderr
        last = "".join(f" Its last output: {line}" for line in stderr.strip().splitlines()[-1:])
        super().__init__(f"The child process {exit_text(exitcode)}.{last}")


class ChildTimeout(JobchainsError, TimeoutError):
    """A call did not return within its ``timeout``, and its child was killed."""

    def __init__(self, target: str, seconds: float) -> None:
        self.target = target
        super().__init__(f"{target!r} did not return within {seconds_text(seconds)}, and was stopped.")


class RemoteError(JobchainsError):
    """The function raised an error in its child, which continues to run. Contains only the text of the error."""

    #: The type with its module, if known.
    qualified_type_name: str | None = None

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        self.type_name = type_name
        self.message = message
        self.traceback = traceback
        super().__init__(f"{type_name}: {message}" if message else type_name)


def exit_text(exitcode: int) -> str:
    """Return an exit code in words: "was killed by SIGSEGV", "exited with code 3"."""
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"was killed by signal {-exitcode}"
