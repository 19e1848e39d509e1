"""A worker writes what its jobs say: while they run, when they end, and when the database comes back."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection

from django_jobchains.models import Chain, Job, JobProgress, LogLine
from django_jobchains.processors import Processors, RunningJob
from django_jobchains.store import AttemptKey, Said, Store
from django_jobchains.worker import note_writer
from tests.notes.reading import progress, texts
from tests.worker.fixtures import Events, StartWorker
from tests.worker.waiting import stays, until, until_completed

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_jobchains", "tests.shop"])


class Gate:
    """Two handlers that wait until the test lets them go on."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def wait(self) -> None:
        assert self.opened.wait(20)


@pytest.fixture
def gate() -> Any:
    gate = Gate()
    yield gate
    gate.opened.set()


def kinds_of_handlers(processors: Processors, gate: Gate) -> dict[str, Any]:
    @processors.register("notes.plain")
    def plain(job: RunningJob[Any]) -> None:
        job.log("said")
        job.set_progress(0.5, "half")
        gate.wait()

    @processors.register("notes.atomic", mode="atomic")
    def atomic(job: RunningJob[Any]) -> None:
        plain.processor.function(job)

    @processors.register("notes.async")
    async def on_the_loop(job: RunningJob[Any]) -> None:
        job.log("said")
        job.set_progress(0.5, "half")
        while not gate.opened.is_set():
            await job.signal.async_wait(0.05)

    return {"plain": plain, "atomic": atomic, "async": on_the_loop}


@pytest.mark.parametrize("kind", ["plain", "atomic", "async"])
def test_it_is_seen_while_the_job_runs(
    start_worker: StartWorker, processors: Processors, gate: Gate, kind: str
) -> None:
    handlers = kinds_of_handlers(processors, gate)
    if kind == "atomic" and connection.vendor == "sqlite":
        pytest.skip("one transaction writes at a time: it is seen when that of the handler has ended")
    chain: Chain = handlers[kind].enqueue()
    start_worker()
    until(lambda: texts(chain) == ["said"] and JobProgress.objects.exists())
    assert (progress(chain), chain.refresh().status) == ((0.5, "half"), "running")
    gate.opened.set()
    until_completed(chain)


def test_the_last_lines_of_a_failing_attempt_are_there_soon(
    start_worker: StartWorker, processors: Processors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(note_writer, "GATHER_SECONDS", 3600)

    @processors.register("notes.failing", max_attempts=1)
    def fail(job: RunningJob[Any]) -> None:
        job.log("last words")
        raise ValueError("no")

    chain = fail.enqueue()
    start_worker()
    until(lambda: texts(chain) == ["last words"])


def test_what_is_said_at_the_end_is_written_before_the_worker_has_ended(
    make_worker: StartWorker, processors: Processors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(note_writer, "REST_SECONDS", 3600)

    @processors.register("notes.brief")
    def brief(job: RunningJob[Any]) -> None:
        job.log("brief")

    chains = [brief.enqueue() for _ in range(20)]
    make_worker().run_until_idle()
    assert [texts(chain) for chain in chains] == [["brief"]] * 20


def test_without_a_word_nothing_is_written(
    make_worker: StartWorker, processors: Processors, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(Store, "say", lambda store, said: calls.append(said) or set())

    @processors.register("notes.silent")
    def silent(job: RunningJob[Any]) -> None:
        return None

    chain = silent.enqueue()
    make_worker().run_until_idle()
    assert (chain.refresh().status, calls) == ("completed", [])


Say = Callable[[Store, list[Said]], set[AttemptKey]]


def spoil(monkeypatch: pytest.MonkeyPatch, spoiled: Callable[[list[Said]], Exception | None]) -> None:
    """Lets the store raise, for some of what it is told."""
    say: Say = Store.say

    def spoiled_say(store: Store, said: list[Said]) -> set[AttemptKey]:
        if error := spoiled(said):
            raise error
        return say(store, said)

    monkeypatch.setattr(Store, "say", spoiled_say)


@pytest.fixture
def talk(processors: Processors) -> Any:
    @processors.register("notes.talk")
    def talk(job: RunningJob[str]) -> None:
        job.log(job.input)

    return talk


def test_a_database_that_is_away_loses_no_job_and_gets_the_lines_later(
    start_worker: StartWorker, talk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = threading.Event()
    away.set()
    tried = threading.Semaphore(0)

    def is_away(said: list[Said]) -> Exception | None:
        tried.release()
        return OperationalError("the server is gone") if away.is_set() else None

    spoil(monkeypatch, is_away)
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.05)
    start_worker()
    first = talk.enqueue("first")
    until_completed(first)
    assert tried.acquire(timeout=10)
    second = talk.enqueue("second")
    until_completed(second)
    assert not LogLine.objects.exists()
    away.clear()
    until(lambda: (texts(first), texts(second)) == (["first"], ["second"]))


def test_what_cannot_be_stored_of_one_job_harms_no_other(
    start_worker: StartWorker, talk: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = talk.enqueue("bad")
    good = [talk.enqueue(f"good {number}") for number in range(3)]
    spoil(monkeypatch, lambda said: DataError("no") if any(one.job_id == bad.id for one in said) else None)
    worker = start_worker()
    for chain in [bad, *good]:
        until_completed(chain)
    until(lambda: LogLine.objects.count() == 3)
    assert worker.stop() == 0
    assert not worker.failed
    assert [texts(chain) for chain in good] == [["good 0"], ["good 1"], ["good 2"]]
    assert "cannot be stored; they go on: DataError: no" in caplog.text


def test_of_a_job_that_somebody_has_locked_it_is_tried_again(
    start_worker: StartWorker, talk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say: Say = Store.say
    refused: list[Said] = []

    def refuse_once(store: Store, said: list[Said]) -> set[AttemptKey]:
        if refused:
            return say(store, said)
        refused.extend(said)
        return {one.key for one in said}

    monkeypatch.setattr(Store, "say", refuse_once)
    monkeypatch.setattr(note_writer, "GATHER_SECONDS", 0.02)
    start_worker()
    chain = talk.enqueue("patient")
    until(lambda: texts(chain) == ["patient"])


def test_an_attempt_that_lost_its_job_is_heard_no_more(
    start_worker: StartWorker, processors: Processors, gate: Gate
) -> None:
    @processors.register("notes.slow")
    def slow(job: RunningJob[Any]) -> None:
        job.log("mine")
        gate.wait()
        job.log("not mine any more")
        job.set_progress(1)

    chain = slow.enqueue()
    worker = start_worker()
    until(lambda: texts(chain) == ["mine"])
    Job.objects.filter(pk=chain.id).update(status="cancelled", lease_number=9, leased_by=None, leased_until=None)
    gate.opened.set()
    until(lambda: not worker.running)
    worker.stop()
    assert (texts(chain), JobProgress.objects.count()) == (["mine"], 0)


def test_what_was_dropped_is_counted(
    start_worker: StartWorker, talk: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("django_jobchains.notes.MOST_CHARACTERS", 250)
    monkeypatch.setattr(note_writer, "GATHER_SECONDS", 3600)
    worker = start_worker(slots=1)
    worker.parts.notebook.ended = lambda key: None  # type: ignore[method-assign]
    chains = [talk.enqueue("x") for _ in range(4)]
    for chain in chains:
        until_completed(chain)
    worker.stop()
    assert sum(len(texts(chain)) for chain in chains) == 1
    assert "dropped 3 log lines of jobs" in caplog.text


def test_the_thread_ends_with_the_worker_and_closes_its_connection_when_nothing_is_said(
    start_worker: StartWorker, talk: Any, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()
    close_all = note_writer.close_all
    monkeypatch.setattr(note_writer, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(note_writer, "close_all", lambda: (close_all(), closed.set()))
    worker = start_worker()
    chain = talk.enqueue("a")
    until(lambda: texts(chain) == ["a"])
    closed.clear()
    assert closed.wait(10)
    worker.stop()
    assert not worker.parts.threads["notes"].is_alive
    assert stays(lambda: not worker.is_stuck, 0.05)
