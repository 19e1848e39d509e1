"""When a worker is live, when it is ready, and what it says is wrong."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import OperationalError
from django.test import override_settings

from django_jobchains.processors import JobType, Processors, RunningJob
from django_jobchains.store import Store
from django_jobchains.worker import Worker, health
from django_jobchains.worker.health import Health, health_of_processes
from tests.worker.fixtures import StartWorker
from tests.worker.waiting import stays, until

JOBCHAINS = {"LIVENESS_SECONDS": 0.3, "REAP_SECONDS": 0.1, "SWEEP_SECONDS": 0.1}
#: Where nothing may be taken for dead that is only slow on a busy machine.
PATIENT = {**JOBCHAINS, "LIVENESS_SECONDS": 1.5}


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def waiting(processors: Processors, gate: threading.Event) -> JobType[Any, Any]:
    @processors.register("worker.waiting")
    def waiting(job: RunningJob[Any]) -> None:
        gate.wait(30)

    return waiting


@pytest.fixture
def ready_worker(start_worker: StartWorker, waiting: JobType[Any, Any]) -> Callable[..., Worker]:
    def start(**options: Any) -> Worker:
        worker = start_worker(**options)
        until(lambda: worker.health().is_ready, what=worker.health)
        return worker

    return start


def says(worker: Worker, words: str) -> Callable[[], bool]:
    return lambda: any(words in problem for problem in worker.health().problems)


@pytest.mark.usefixtures("waiting")
def test_a_worker_that_starts_or_stops_is_live_and_not_ready(make_worker: StartWorker) -> None:
    worker = make_worker()
    assert worker.health() == Health(worker.id, True, False, ("starting",), 2, 0)
    assert not worker.has_begun
    worker.start()
    until(lambda: worker.health() == Health(worker.id, True, True, (), 2, 0), what=worker.health)
    worker.stop()
    assert worker.health() == Health(worker.id, True, False, ("stopping",), 2, 0)


@override_settings(JOBCHAINS=JOBCHAINS)
@pytest.mark.usefixtures("waiting")
def test_a_worker_that_never_starts_is_not_live(make_worker: StartWorker) -> None:
    worker = make_worker()
    until(says(worker, "still starting"))
    assert not worker.health().is_live


@override_settings(JOBCHAINS={**PATIENT, "REAP_SECONDS": 20, "SWEEP_SECONDS": 20})
def test_a_worker_may_wait_for_longer_than_a_step_may_take(ready_worker: Callable[..., Worker]) -> None:
    worker = ready_worker(poll_seconds=60)
    assert stays(lambda: worker.health().is_live, 2.5), worker.health()


@override_settings(JOBCHAINS=PATIENT)
def test_a_handler_may_take_as_long_as_it_likes(
    ready_worker: Callable[..., Worker], waiting: JobType[Any, Any]
) -> None:
    worker = ready_worker()
    waiting.enqueue()
    until(lambda: worker.health().running == 1)
    assert stays(lambda: worker.health().is_live, 2.5), worker.health()


@override_settings(JOBCHAINS=JOBCHAINS)
@pytest.mark.parametrize(("method", "thread"), [("claim", "claims"), ("reap", "reaper"), ("finish", "completer")])
def test_a_loop_that_hangs_makes_it_not_live(
    ready_worker: Callable[..., Worker],
    waiting: JobType[Any, Any],
    store: Store,
    gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    thread: str,
) -> None:
    worker = ready_worker()
    whole, release = getattr(store, method), threading.Event()

    def hangs(*args: Any, **kwargs: Any) -> Any:
        release.wait(30)
        return whole(*args, **kwargs)

    monkeypatch.setattr(store, method, hangs)
    waiting.enqueue()
    gate.set()
    try:
        until(lambda: not worker.health().is_live, what=worker.health)
        assert any(f"jobchains-{thread} is busy" in problem for problem in worker.health().problems)
    finally:
        release.set()
    until(lambda: worker.health().is_ready, what=worker.health)


@override_settings(JOBCHAINS=JOBCHAINS)
def test_an_event_loop_that_stands_still_makes_it_not_live(
    ready_worker: Callable[..., Worker], processors: Processors, gate: threading.Event
) -> None:
    @processors.register("worker.blocking")
    async def blocking(job: RunningJob[Any]) -> None:
        gate.wait(30)

    worker = ready_worker(async_slots=7)
    assert worker.health().slots == 9
    blocking.enqueue()
    until(says(worker, "the event loop is busy"), what=worker.health)
    assert not worker.health().is_live
    gate.set()
    until(lambda: worker.health().is_ready, what=worker.health)


@override_settings(JOBCHAINS=JOBCHAINS)
def test_a_loop_that_has_ended_makes_it_not_live(ready_worker: Callable[..., Worker]) -> None:
    worker = ready_worker()
    worker.parts.threads["watch"].stop()
    until(says(worker, "jobchains-watch has ended"))
    assert not worker.health().is_live


@override_settings(JOBCHAINS=JOBCHAINS)
def test_without_its_database_it_is_live_and_not_ready(
    ready_worker: Callable[..., Worker], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("secret-host refused the connection")

    worker = ready_worker()
    with monkeypatch.context() as patch:
        patch.setattr(store, "reap", away)
        until(says(worker, "jobchains-reaper fails"))
        now = worker.health()
        assert (now.is_live, now.is_ready) == (True, False)
        assert "secret-host" not in str(now)
    until(lambda: worker.health().is_ready, what=worker.health)


@override_settings(JOBCHAINS={**JOBCHAINS, "LIVENESS_SECONDS": 60})
def test_a_database_that_was_not_reached_lately_makes_it_not_ready(
    ready_worker: Callable[..., Worker], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ready_worker()
    release = threading.Event()
    monkeypatch.setattr(health, "LATE_SECONDS", 0.1)
    monkeypatch.setattr(store, "reap", lambda *args: release.wait(30) and [])
    try:
        until(says(worker, "the database was last reached"))
        now = worker.health()
        assert (now.is_live, now.is_ready) == (True, False)
    finally:
        release.set()


def test_a_listener_that_is_deaf_makes_it_not_ready(
    ready_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ready_worker()
    monkeypatch.setattr(type(worker.parts.listener), "is_alive", property(lambda self: False))
    assert says(worker, "wake-ups are not heard")()
    assert (worker.health().is_live, worker.health().is_ready, worker.has_begun) == (True, False, True)


@override_settings(JOBCHAINS={"NOTIFIER": {"BACKEND": "django_jobchains.notifications.base.NullNotifier"}})
def test_a_worker_that_polls_needs_no_listener(ready_worker: Callable[..., Worker]) -> None:
    assert ready_worker(poll_seconds=1).health().is_ready


def test_health_is_plain_json() -> None:
    one = Health("mail:7:a", True, False, ("stopping",), 10, 3)
    both = Health("mail:1:supervisor", True, False, ("process 1: stopping",), 10, 3, (one,))
    assert Health.from_json(json.loads(json.dumps(both.as_json()))) == both


@dataclass
class Known:
    """A worker process as its supervisor knows it."""

    health: Health | None
    silent_seconds: float = 0.5


GOOD = Health("mail-1:7:a", True, True, (), 10, 3)
STOPPING = Health("mail-2:8:b", True, False, ("stopping",), 10, 3)
HUNG = Health("mail-3:9:c", False, False, ("jobchains-claims has ended",), 10, 3)


@pytest.mark.parametrize(
    ("processes", "live", "ready", "problems"),
    [
        ({1: Known(GOOD), 2: Known(GOOD)}, True, True, ()),
        ({1: Known(GOOD), 2: Known(STOPPING)}, True, True, ("process 2: stopping",)),
        ({1: Known(STOPPING)}, True, False, ("process 1: stopping",)),
        ({1: Known(GOOD), 3: Known(HUNG)}, False, True, ("process 3: jobchains-claims has ended",)),
        ({1: Known(GOOD), 2: None}, False, True, ("process 2: ended, and is to be started again",)),
        ({1: Known(None, 20)}, True, False, ("process 1: starting",)),
        ({1: Known(None, 70)}, False, False, ("process 1: not heard of for 70 s",)),
        ({1: Known(GOOD, 6)}, False, False, ("process 1: not heard of for 6 s",)),
    ],
)
def test_processes_are_live_when_all_are_and_ready_when_one_is(
    processes: dict[int, Known | None], live: bool, ready: bool, problems: tuple[str, ...]
) -> None:
    found = health_of_processes("mail:1:supervisor", processes, is_stopping=False, is_stuck=False)
    assert (found.is_live, found.is_ready, found.problems) == (live, ready, problems)
    stopping = health_of_processes("mail:1:supervisor", processes, is_stopping=True, is_stuck=False)
    assert (stopping.is_live, stopping.is_ready, stopping.problems) == (True, False, ("stopping",))
    stuck = health_of_processes("mail:1:supervisor", processes, is_stopping=False, is_stuck=True)
    assert (stuck.is_live, stuck.is_ready) == (False, False)
