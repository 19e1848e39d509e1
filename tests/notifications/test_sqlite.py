"""Without a server: another connection's commit changes ``PRAGMA data_version``."""

from typing import Any

import pytest
from django.db import connection, transaction

from django_jobchains.notifications import get_notifier
from django_jobchains.notifications.hints import LOOK
from django_jobchains.processors import JobType, Processors
from tests.chaos.app import jobs
from tests.notifications.contract import Heard
from tests.shop.models import Effect
from tests.worker.fixtures import StartWorker
from tests.worker.processes import StartProcess
from tests.worker.statements import statements_of_others
from tests.worker.waiting import stays, until, until_completed

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="needs SQLite"),
]

AT_ONCE = 1.0


@pytest.fixture
def quick(processors: Processors) -> JobType[Any, Any]:
    return processors.register("worker.quick")(lambda job: None)


def seconds_until_started(chain: Any) -> float:
    until(lambda: chain.refresh().current_job.last_attempt_at, 10)
    return float((chain.current_job.last_attempt_at - chain.created_at).total_seconds())


def test_a_commit_here_wakes_an_idle_worker_in_another_process(start_process: StartProcess) -> None:
    process = start_process(jobchains={"POLL_SECONDS": 60}).until_ready()
    first = jobs.nothing.enqueue()
    until_completed(first, 10, lambda: process.output)
    for _ in range(5):
        with transaction.atomic():
            chain = jobs.nothing.enqueue()
        assert seconds_until_started(chain) < AT_ONCE


def test_a_commit_in_another_process_wakes_a_worker_here(
    start_worker: StartWorker, start_process: StartProcess, registry: Any
) -> None:
    registry.add(jobs.processors)
    worker = start_worker(types=["chaos.step"])
    until(worker.parts.loop.idle.is_set)
    start_process("--type", "chaos.first", "--burst", jobchains={"POLL_SECONDS": 60})
    chain = jobs.first.enqueue(1)
    until(lambda: chain.refresh().status == "completed" and chain.jobs.count() == 3, 30)
    times = [(job.created_at, job.last_attempt_at) for job in chain.jobs if job.chain_index]
    assert all(started is not None and (started - created).total_seconds() < AT_ONCE for created, started in times)


def test_a_commit_is_heard_and_a_rollback_or_a_read_is_not() -> None:
    heard = Heard()
    listener = get_notifier("default").listen(heard)
    try:
        until(lambda: heard.hints == [*LOOK])
        with transaction.atomic():
            Effect.objects.create(job_id=jobs.nothing.item().job.id, label="x")
            transaction.set_rollback(True)
        list(Effect.objects.all())
        assert stays(lambda: heard.hints == [*LOOK], 0.2)
        Effect.objects.create(job_id=jobs.nothing.item().job.id, label="x")
        until(lambda: heard.hints == [*LOOK] * 2)
    finally:
        listener.close()


def test_a_claim_that_finds_nothing_wakes_nobody(quick: JobType[Any, Any], start_worker: StartWorker) -> None:
    """Two idle workers must not wake each other by looking."""
    with statements_of_others() as statements:
        workers = [start_worker(), start_worker()]
        until(lambda: all(worker.parts.loop.idle.is_set() for worker in workers))
        quick.enqueue(delay=3600)
        until(lambda: stays_quiet(statements))


def stays_quiet(statements: Any) -> bool:
    before = statements.count("UPDATE")
    return stays(lambda: statements.count("UPDATE") - before < 10, 0.7)


def test_a_listener_whose_file_fails_comes_back(
    quick: JobType[Any, Any], start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_jobchains.notifications import sqlite

    worker = start_worker()
    until(worker.parts.loop.idle.is_set)
    look, failures = sqlite._data_version, [OSError("disk"), ValueError("a bug")]

    def fails_first(cursor: Any) -> int:
        if failures:
            raise failures.pop()
        return look(cursor)

    monkeypatch.setattr(sqlite, "_data_version", fails_first)
    until(lambda: not failures)
    chain = quick.enqueue()
    until_completed(chain, 5)
