"""Runs what is due in the thread, on the connection and in the transaction of the test."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from django_jobchains.async_attempts import AsyncAttempt, Result, apart
from django_jobchains.attempts import Attempt, Outcome
from django_jobchains.batch_attempts import BatchAttempt
from django_jobchains.hygiene import is_broken
from django_jobchains.leases import HeldLeases
from django_jobchains.notes import Notebook
from django_jobchains.policies import resolve
from django_jobchains.processors import get_registry
from django_jobchains.running import AbortSignal
from django_jobchains.store import ClaimedJob, Store, get_store
from django_jobchains.worker.completer import Completer

WORKER = "testing"
#: Beyond it the jobs make each other due without end.
MOST_ATTEMPTS = 10_000


def run_due_jobs(limit: int | None = None, *, raise_errors: bool = False, using: str | None = None) -> list[Outcome]:
    """Runs what is due, and what becomes due by it, one after the other in this thread; at most ``limit`` attempts.

    Each ends as with a worker: an error reschedules its job. ``raise_errors``: an attempt that was not completed is an
    ``AssertionError`` instead, with its traceback. Returns how the attempts ended (``.job``, ``.ending``, ``.error``).
    """
    store = get_store(using)
    completer = Completer(
        store,
        HeldLeases(store),
        worker=WORKER,
        is_busy=lambda: False,
        on_written=lambda has_due: None,
        on_ended=lambda outcome: None,
    )
    notebook = Notebook()
    outcomes: list[Outcome] = []
    while (limit is None or len(outcomes) < limit) and (jobs := _claim(store, limit and limit - len(outcomes))):
        ended = _run(jobs, store, notebook)
        while said := notebook.take():
            store.say(said)
        for outcome in ended:
            completer.put(outcome)
            completer.step()
            outcomes.append(outcome)
            if raise_errors and outcome.failed:
                name = f"{outcome.job.type_name} {outcome.job.id}"
                raise AssertionError(f"{name} was not completed.\n{outcome.failed.traceback}")
        if len(outcomes) >= MOST_ATTEMPTS:
            raise AssertionError(f"{MOST_ATTEMPTS} attempts and still jobs are due: give a limit.")
    return outcomes


def _claim(store: Store, limit: int | None) -> list[ClaimedJob]:
    """The next job, with others of its type if they are handled together."""
    processors = {processor.job_type.name: processor for processor in get_registry().processors()}
    leases = {name: resolve(*processor.policies).lease.seconds for name, processor in processors.items()}
    jobs = store.claim(WORKER, 1, leases)
    for job in jobs:
        most = min(processors[job.type_name].batch_limit or 1, limit or MOST_ATTEMPTS)
        jobs = [job, *store.claim(WORKER, most - 1, {job.type_name: leases[job.type_name]})]
    return jobs


def _run(jobs: list[ClaimedJob], store: Store, notebook: Notebook) -> list[Outcome]:
    run = _attempt(jobs, store, notebook)
    connection = store.connection
    if not connection.in_atomic_block:
        return run()
    # Not an atomic block: the handler may open durable ones, as with a worker. The test's transaction outlives a
    # database error of the handler, as a worker's connection does.
    savepoint = str(connection.savepoint())
    outcomes = run()
    if is_broken(connection):
        connection.needs_rollback = False
        connection.savepoint_rollback(savepoint)
    else:
        connection.savepoint_commit(savepoint)
    return outcomes


def _attempt(jobs: list[ClaimedJob], store: Store, notebook: Notebook) -> Callable[[], list[Outcome]]:
    registry = get_registry()
    processor = registry.processor(jobs[0].type_name)
    policy = resolve(*processor.policies)
    options: dict[str, Any] = {"policy": policy, "store": store, "registry": registry, "notebook": notebook}
    if processor.batch_limit:
        return BatchAttempt([(job, AbortSignal()) for job in jobs], processor, **options).outcomes
    if processor.is_async:
        attempt = AsyncAttempt(jobs[0], processor, threads=_ThisThread(), **options)
        # async_to_sync sets in its caller's context what was set in the task's.
        return partial(copy_context().run, async_to_sync(attempt.aoutcomes))
    return Attempt(jobs[0], processor, **options).outcomes


class _ThisThread:
    """The thread of a test, on whose connection, in whose transaction the functions of async handlers run."""

    def call(self, function: Callable[[], Any]) -> "asyncio.Future[Result[Any]]":
        return apart(sync_to_async(Result)(function))

    def post(self, call: Callable[[], object]) -> None:
        raise NotImplementedError  # only for what a worker gives up

    async def borrow(self) -> "_ThisThread":
        return self

    def give_back(self, thread: "_ThisThread") -> None:
        pass
