"""Workers, waiters and wake-ups of two databases in one process, with the same job ids on both."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from django_jobchains import chains, waiting
from django_jobchains.ids import new_id
from django_jobchains.models import Chain, Job
from django_jobchains.notifications import (
    EVERY,
    Hint,
    chain_finished,
    get_notifier,
    job_scheduled,
    ownership_lost,
)
from django_jobchains.processors import JobType, Processors, RunningJob
from tests.shop.models import Effect
from tests.worker.fixtures import StartWorker
from tests.worker.waiting import stays, until

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

IN_PROCESS = {"BACKEND": "django_jobchains.notifications.in_process.InProcessNotifier"}


@pytest.fixture(params=["own", "in_process"])
def _notifiers(request: Any, other: str, settings: Any) -> None:
    """Those made for the vendors, or the one within the process for both."""
    if request.param == "in_process":
        settings.JOBCHAINS = {"NOTIFIER": IN_PROCESS, "DATABASES": {other: {"NOTIFIER": IN_PROCESS}}}


@pytest.fixture
def _polls_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_SECONDS", 1_000)


@pytest.mark.usefixtures("_notifiers", "_polls_are_rare")
def test_each_worker_runs_the_jobs_of_its_database_and_wakes_those_who_wait_there(
    other: str, start_worker: StartWorker, processors: Processors
) -> None:
    @processors.register("work.who")
    def who(job: RunningJob[Any]) -> str:
        return "done"

    workers = {using: start_worker(using=using, name=using) for using in ("default", other)}
    for _ in range(3):
        id_ = new_id()
        started = {using: who.enqueue(id=id_, using=using) for using in workers}
        for using, chain in started.items():
            assert chains.wait(chain.id, 30, using=using) == "done"
            assert Job.objects.using(using).get(pk=id_).completed_by == workers[using].id
    assert {Chain.objects.using(using).count() for using in workers} == {3}


@pytest.mark.usefixtures("_notifiers", "_polls_are_rare")
def test_a_waiter_is_not_woken_by_the_same_chain_of_another_database(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_: JobType[Any, Any] = JobType("work.outside")
    id_ = new_id()
    looks: list[str] = []
    original = waiting._look

    def look(chain_ids: Any, using: str) -> Any:
        looks.append(using)
        return original(chain_ids, using)

    monkeypatch.setattr(waiting, "_look", look)
    for using in ("default", other):
        type_.enqueue(id=id_, using=using)
    with waits(id_, "default") as result:
        until(lambda: "default" in looks and get_notifier("default")._subscribers.is_alive)
        until(lambda: is_quiet(looks))  # a second look follows the listener's first hint
        before = looks.count("default")
        with chains.complete(id_, using=other) as current:
            current.finish("there")
        assert chains.wait(id_, 30, using=other) == "there"
        assert stays(lambda: looks.count("default") == before, 0.3)
        assert result == []
        with chains.complete(id_) as current:
            current.finish("here")
        until(lambda: result == ["here"])


def is_quiet(looks: list[str]) -> bool:
    before = looks.count("default")
    return stays(lambda: looks.count("default") == before, 0.5)


@contextmanager
def waits(id_: UUID, using: str) -> Iterator[list[Any]]:
    """Somebody waits for a chain, on a thread; its output comes into the list."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(chains.wait(id_, 60, using=using))
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield result
    finally:
        thread.join()


def test_a_cancelled_attempt_is_that_of_its_database(
    other: str, start_worker: StartWorker, processors: Processors
) -> None:
    goes_on = threading.Event()

    @processors.register("work.long")
    def long(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="running")
        while not goes_on.is_set() and not job.signal.wait(0.01):
            pass
        job.signal.raise_if_aborted()

    workers = [start_worker(using=using) for using in ("default", other)]
    id_ = new_id()
    for using in ("default", other):
        long.enqueue(id=id_, using=using)
    until(lambda: Effect.objects.count() == 2)
    chains.cancel(id_, using=other)
    until(lambda: Chain.objects.using(other).get().status == "cancelled")
    assert Job.objects.get().cancel_requested_at is None
    goes_on.set()
    until(lambda: Chain.objects.get().status == "completed")
    assert len(workers) == 2


def test_hints_reach_those_who_listen_to_their_database(other: str) -> None:
    """The last one shows that those before it would have come."""
    heard: dict[str, list[Hint]] = {"default": [], other: []}
    with ExitStack() as stack:
        for using, hints in heard.items():
            stack.callback(get_notifier(using).listen(hints.append).close)
        until(lambda: all(len(hints) >= 3 for hints in heard.values()))
        for using in heard:
            for hint in (job_scheduled(f"of.{using}"), chain_finished(new_id()), ownership_lost(new_id())):
                get_notifier(using).publish([hint])
        for using, hints in heard.items():
            if connections[using].vendor == "postgresql":
                until(lambda using=using, hints=hints: job_scheduled(f"of.{using}") in hints)
            for hint in hints:
                assert hint.subject == EVERY or hint.kind != "job_scheduled" or hint.subject == f"of.{using}"
