"""Runs due jobs in the thread, on the connection and in the transaction of a test, with a clock that the test moves.

Also checks which jobs were enqueued.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar
from unittest.mock import ANY

from asgiref.sync import async_to_sync, sync_to_async

from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.job_attempt import Environment, JobAttempt
from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.db.connections import is_broken, opened_connections
from django_jobchains.declare.job_types import JobType
from django_jobchains.declare.limits import limited_types
from django_jobchains.declare.policies import resolve
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import InvalidInput
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.models import Chain, Job
from django_jobchains.notifications.wakeups import announced
from django_jobchains.payloads.strict_json import decode
from django_jobchains.schedules.firing import DeclaredSchedules, fire
from django_jobchains.store import Store, get_store
from django_jobchains.store.limits import BEFORE_ALL_KEYS, Rotation
from django_jobchains.store.rows import ClaimedJob, ExpiredJob
from django_jobchains.testing.records import RecordOutcome, RecordRunner, ThisThread
from django_jobchains.values import Duration, DurationLike
from django_jobchains.worker.end_writer import EndWriter, JobSink
from django_jobchains.worker.options import WorkerContext, WorkerOptions
from django_jobchains.worker.queue_limits import ClaimSpec

ResultT = TypeVar("ResultT")

WORKER = "testing"
#: The default limit of attempts, so that jobs which make each other due endlessly do not run forever.
ATTEMPTS_LIMIT = 10_000


@dataclass(frozen=True)
class JobOutcome:
    """How an attempt at a job ended, and its error in one line, or "".

    ``job`` is the job as it was stored after the attempt, with the ``input`` that its handler received.
    """

    job: Job
    ending: OutcomeKind
    error: str

    @property
    def record(self) -> NoReturn:
        raise AttributeError("This is the outcome of a job, which has no record: use outcome.job.")


@has_async_twin("testing")
def run_due_jobs(
    limit: int | None = None, *, raise_errors: bool = False, using: str | None = None
) -> list[JobOutcome | RecordOutcome]:
    """Run due jobs and ready records in this thread, including jobs that become due. At most ``limit`` attempts.

    Attempts end as in a worker, so an error does not propagate: its job is retried later. With ``raise_errors``, an
    attempt that does not complete its job raises an ``AssertionError`` with the traceback. Returns a ``JobOutcome``
    (``.job``, ``.ending``, ``.error``) or a ``RecordOutcome`` (``.record`` instead of ``.job``) for each attempt. Jobs
    run before records, and limited types after other types. A job that its rate does not allow yet runs after ``clock``
    has advanced. Expired jobs are cancelled without an attempt.
    """
    store = get_store(using)
    # Other processes may have enqueued them, or this one before the settings changed.
    get_registry().add_tasks(store.task_names.read)
    with announced(store) as effects:
        while store.chains.expire(ATTEMPTS_LIMIT, effects):
            pass
    records = {kind.name: kind for kind in get_registry().record_types() if kind.is_in(store.using)}
    context = WorkerContext(WorkerOptions(WORKER, store, name=socket.gethostname(), records=records))
    outcome_writer, log_buffer = EndWriter(context, JobSink(context)), context.log_buffer
    outcomes: list[JobOutcome | RecordOutcome] = []
    record_runner = RecordRunner(context)
    rotation = Rotation(BEFORE_ALL_KEYS)
    while limit is None or len(outcomes) < limit:
        if len(outcomes) >= ATTEMPTS_LIMIT:
            raise AssertionError(f"Jobs are still due after {ATTEMPTS_LIMIT} attempts: pass a limit.")
        jobs = _claim(context, rotation, limit and limit - len(outcomes))
        if not jobs:
            record = record_runner.next()
            if record is None:
                break
            ended = _in_savepoints(partial(record_runner.handle, record))
            outcomes.append(record_runner.conclude(record, ended, raise_errors=raise_errors))
            continue
        stored = Job.objects.using(store.using).in_bulk([job.id for job in jobs])
        job_outcomes = _in_savepoints(_attempt(jobs, context))
        while entries := log_buffer.take():
            store.logs.write(entries)
        for outcome in job_outcomes:
            outcome_writer.put(outcome)
            outcome_writer.step()
            context.observers.run()
            outcomes.append(_with_job(outcome, stored[outcome.job.id]))
            if raise_errors and outcome.failed:
                name = f"{outcome.job.type_name} {outcome.job.id}"
                raise AssertionError(f"{name} was not completed.\n{outcome.failed.traceback}")
    return outcomes


@has_async_twin("testing")
def fire_schedules(*, using: str | None = None) -> list[Chain]:
    """Store the schedules that are declared in code, fire their due ticks, and return the chains.

    Ticks are due by the clock of the test. The first tick of ``every=`` is one interval after the first call. Call
    ``run_due_jobs`` to run the chains. Raises ``InvalidSchedule``.
    """
    store, registry = get_store(using), get_registry()
    declared = DeclaredSchedules(registry, store)
    declared.store()
    chains: list[Chain] = []
    failed: dict[str, float] = {}
    while (fired := fire(store, registry, declared.names, [*failed])).count:
        chains += fired.chains
        failed |= fired.failed
    return chains


def _with_job(outcome: Outcome, job: Job) -> JobOutcome:
    with suppress(Job.DoesNotExist):  # The handler has deleted its chain.
        job.refresh_from_db()
    with suppress(InvalidInput):  # The stored value is kept.
        job.input = get_registry().job_type(job.type_name).input_codec.decode(outcome.job.input, InvalidInput)
    return JobOutcome(job, outcome.ending, outcome.error)


def _claim(context: WorkerContext, rotation: Rotation, limit: int | None) -> list[ClaimedJob]:
    """Claim the next job, with others of its type if its handler takes batches. Types without limits come first, and
    limited queues come last."""
    store, queues = context.store, context.queues
    processors = {processor.job_type.name: processor for processor in get_registry().processors()}
    leases = {name: resolve(*processor.policies).lease.seconds for name, processor in processors.items()}
    limited = {name for name, processor in processors.items() if processor.limits}
    expired: list[ExpiredJob] = []

    def claim(size: int, names: set[str]) -> list[ClaimedJob]:
        found: list[ClaimedJob] = []
        for spec in sorted(queues.claims_for(size), key=lambda spec: spec.within.name if spec.within else ""):
            start = partial(claim_now, names, spec)
            found += queues.start(spec.within, min(spec.limit, size - len(found)), start)
        return found

    def claim_now(names: set[str], spec: ClaimSpec, size: int) -> list[ClaimedJob]:
        served = {name: seconds for name, seconds in leases.items() if name in names}
        if names.isdisjoint(limited):
            return store.jobs.claim(WORKER, size, served, spec.queues, spec.excluded, expired)
        types = limited_types(served, {name: processors[name].limits for name in names}, queues.overrides)
        return store.limits.claim(WORKER, size, types, rotation, spec.queues, spec.excluded, expired)

    jobs = claim(1, leases.keys() - limited) or claim(1, limited)
    for job in jobs:
        size = min(processors[job.type_name].batch_limit or 1, limit or ATTEMPTS_LIMIT)
        jobs = [job, *claim(size - 1, {job.type_name})]
    if expired:  # They expired after the call had begun.
        with announced(store) as effects:
            store.attempts.hand_back([job.key for job in expired], effects, has_begun=False)
    return jobs if jobs or not expired else _claim(context, rotation, limit)


def _in_savepoints(run: Callable[[], ResultT]) -> ResultT:
    # Not atomic blocks, because the handler may open durable ones, as in a worker. The savepoints keep the
    # transactions of the test usable after a database error of the handler. A broken transaction cannot have one.
    used = [each for each in opened_connections() if each.in_atomic_block and not is_broken(each)]
    savepoints = [(each, str(each.savepoint())) for each in used]
    outcomes = run()
    for connection, savepoint in savepoints:
        if is_broken(connection):
            connection.needs_rollback = False
            connection.savepoint_rollback(savepoint)
        else:
            connection.savepoint_commit(savepoint)
    return outcomes


def _attempt(jobs: list[ClaimedJob], context: WorkerContext) -> Callable[[], list[Outcome]]:
    registry = get_registry()
    processor = registry.processor(jobs[0].type_name)
    environment = Environment(
        processor,
        resolve(*processor.policies),
        context.store,
        registry,
        context.log_buffer,
        observers=context.observers,
    )
    if processor.batch_limit:
        return BatchAttempt([(job, AbortSignal()) for job in jobs], environment).run
    if processor.is_async:
        attempt = JobAttempt(jobs[0], environment, AbortSignal(), ThisThread())
        # async_to_sync sets in its caller's context what was set in the task's.
        return partial(copy_context().run, async_to_sync(attempt.arun))
    return JobAttempt(jobs[0], environment, AbortSignal()).run


class Clock:
    """The database's clock, as seen by the chains of this process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def advance(self, by: DurationLike) -> None:
        """Advance the clock by a duration. It then continues to run."""
        self._store.db.ahead_seconds += Duration(least=0).check("by", by)


@contextmanager
def clock(*, using: str | None = None) -> Iterator[Clock]:
    """Return a clock that a test can move forward. After the block, it is as before."""
    store = get_store(using)
    before = store.db.ahead_seconds
    try:
        yield Clock(store)
    finally:
        store.db.ahead_seconds = before


@has_async_twin("testing")
def assert_enqueued(
    job_type: str | JobType[Any, Any], input: Any = ANY, count: int = 1, *, using: str | None = None
) -> list[Job]:
    """Assert that there are ``count`` jobs of a type, and with this input if it is passed. Continuations count.

    Returns the jobs, oldest first. Pass the input as for ``enqueue``.
    """
    job_type = get_registry().job_type(job_type)
    jobs = list(Job.objects.using(get_store(using).using).of_type(job_type.name).order_by("created_at", "id"))
    expected = None if input is ANY else decode(job_type.input_codec.encode(input, InvalidInput))
    found = [job for job in jobs if input is ANY or job.input == expected]
    if len(found) != count:
        others = "".join(f"\n  {job.status}: {job.input!r}" for job in jobs) or " none"
        with_input = "" if input is ANY else f" with input {expected!r}"
        counts = f"expected {count}, found {len(found)}"
        raise AssertionError(f"Jobs of {job_type.name!r}{with_input}: {counts}. All jobs of the type:{others}")
    return found


arun_due_jobs = sync_to_async(run_due_jobs)
afire_schedules = sync_to_async(fire_schedules)
aassert_enqueued = sync_to_async(assert_enqueued)
