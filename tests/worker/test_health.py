"""When a worker is live and ready, and which problems it reports."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import OperationalError
from django.test import override_settings

from django_jobchains.processors import RunningJob
from django_jobchains.worker import Worker, health
from django_jobchains.worker.health import Health, health_of_processes
from tests.store.methods import method as method_of
from tests.store.methods import replace_method
from tests.support.pool_states import POOL
from tests.support.waiting import stays, until

JOBCHAINS = {"LIVENESS_SECONDS": 0.3, "REAP_SECONDS": 0.1, "SWEEP_SECONDS": 0.1}
#: Long enough that a thread on a busy machine seldom counts as hanging.
PATIENT_SETTINGS = {**JOBCHAINS, "LIVENESS_SECONDS": 4}


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def waiting(processors, gate):
    @processors.register("worker.waiting")
    def waiting(job: RunningJob[Any]) -> None:
        gate.wait(30)

    return waiting


@pytest.fixture
def ready_worker(start_worker, waiting):
    def start(**options: Any) -> Worker:
        worker = start_worker(**options)
        until(lambda: worker.health().is_ready, what=worker.health)
        return worker

    return start


def reports_problem(worker: Worker, text: str) -> Callable[[], bool]:
    return lambda: any(text in problem for problem in worker.health().problems)


@pytest.mark.usefixtures("waiting")
def test_starting_or_stopping_worker_is_live_and_not_ready(make_worker):
    worker = make_worker()
    assert worker.health() == Health(worker.id, True, False, ("starting",), 2, 0)
    assert not worker.has_begun
    worker.start()
    until(lambda: worker.health() == Health(worker.id, True, True, (), 2, 0), what=worker.health)
    worker.stop()
    assert worker.health() == Health(worker.id, True, False, ("stopping",), 2, 0)


@override_settings(JOBCHAINS=JOBCHAINS)
@pytest.mark.usefixtures("waiting")
def test_worker_that_never_starts_is_not_live(make_worker):
    worker = make_worker()
    until(reports_problem(worker, "still starting"))
    assert not worker.health().is_live


@pytest.mark.slow
@override_settings(JOBCHAINS={**PATIENT_SETTINGS, "REAP_SECONDS": 20, "SWEEP_SECONDS": 20})
def test_waiting_and_long_handlers_do_not_affect_health(ready_worker, waiting):
    """For longer than ``LIVENESS_SECONDS``, threads wait for their next step and a handler runs."""
    worker = ready_worker(poll_seconds=60)
    waiting.enqueue()
    until(lambda: worker.health().running == 1)
    until(lambda: stays(lambda: worker.health().is_live, 5), 30, worker.health)


@override_settings(JOBCHAINS=JOBCHAINS)
@pytest.mark.parametrize(
    ("method", "thread"),
    [("jobs.claim", "claim-loop"), ("leases.reap", "maintenance"), ("attempts.finish", "outcome-writer")],
)
def test_hanging_loop_makes_the_worker_not_live(ready_worker, waiting, store, gate, monkeypatch, method, thread):
    worker = ready_worker()
    original, release = method_of(store, method), threading.Event()

    def hanging(*args: Any, **kwargs: Any) -> Any:
        release.wait(30)
        return original(*args, **kwargs)

    replace_method(monkeypatch, store, method, hanging)
    waiting.enqueue()
    gate.set()
    try:
        until(reports_problem(worker, f"jobchains-{thread} is busy"), what=worker.health)
        assert not worker.health().is_live
    finally:
        release.set()
    until(lambda: worker.health().is_ready, what=worker.health)


@override_settings(JOBCHAINS=JOBCHAINS)
def test_blocked_event_loop_makes_the_worker_not_live(ready_worker, processors, gate):
    @processors.register("worker.blocking")
    async def blocking(job: RunningJob[Any]) -> None:
        gate.wait(30)

    worker = ready_worker(async_slots=7)
    assert worker.health().slots == 9
    blocking.enqueue()
    until(reports_problem(worker, "the event loop is busy"), what=worker.health)
    assert not worker.health().is_live
    gate.set()
    until(lambda: worker.health().is_ready, what=worker.health)


@override_settings(JOBCHAINS=JOBCHAINS)
def test_loop_that_has_ended_makes_the_worker_not_live(ready_worker):
    worker = ready_worker()
    worker.components.threads["stuck-attempts"].stop()
    until(reports_problem(worker, "jobchains-stuck-attempts has ended"))
    assert not worker.health().is_live


@override_settings(JOBCHAINS={**JOBCHAINS, "LIVENESS_SECONDS": 60})
def test_worker_without_a_database_is_live_and_not_ready(ready_worker, store, monkeypatch):
    def unavailable(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("secret-host refused the connection")

    worker = ready_worker()
    with monkeypatch.context() as patch:
        patch.setattr(store.leases, "reap", unavailable)
        until(reports_problem(worker, "jobchains-maintenance fails"))
        now = worker.health()
        assert (now.is_live, now.is_ready) == (True, False)
        assert "secret-host" not in str(now)
    until(lambda: worker.health().is_ready, what=worker.health)


@override_settings(JOBCHAINS={**JOBCHAINS, "LIVENESS_SECONDS": 60})
def test_worker_that_has_not_reached_its_database_recently_is_not_ready(ready_worker, store, monkeypatch):
    worker = ready_worker()
    release = threading.Event()
    monkeypatch.setattr(health, "LATE_SECONDS", 0.1)
    monkeypatch.setattr(store.leases, "reap", lambda *args: release.wait(30) and [])
    try:
        until(reports_problem(worker, "the database was last reached"))
        now = worker.health()
        assert (now.is_live, now.is_ready) == (True, False)
    finally:
        release.set()


def test_worker_whose_listener_receives_nothing_is_not_ready(ready_worker, monkeypatch):
    worker = ready_worker()
    monkeypatch.setattr(type(worker.components.listener), "is_alive", property(lambda self: False))
    assert reports_problem(worker, "the listener for wake-ups is not connected")()
    assert (worker.health().is_live, worker.health().is_ready, worker.has_begun) == (True, False, True)


@override_settings(JOBCHAINS={"NOTIFIER": {"BACKEND": "django_jobchains.notifications.base.NullNotifier"}})
def test_worker_that_polls_needs_no_listener(ready_worker):
    assert ready_worker(poll_seconds=1).health().is_ready


def test_health_is_plain_json():
    one = Health("mail:7:a", True, False, ("stopping",), 10, 3, pools=(POOL,))
    both = Health("mail:1:supervisor", True, False, ("process 1: stopping",), 10, 3, (one,))
    assert Health.from_json(json.loads(json.dumps(both.as_json()))) == both


@dataclass
class ReportedProcess:
    """A worker process as its supervisor sees it."""

    health: Health | None
    silent_seconds: float = 0.5


GOOD = Health("mail-1:7:a", True, True, (), 10, 3)
STOPPING = Health("mail-2:8:b", True, False, ("stopping",), 10, 3)
HUNG = Health("mail-3:9:c", False, False, ("jobchains-claim-loop has ended",), 10, 3)


@pytest.mark.parametrize(
    ("processes", "live", "ready", "problems"),
    [
        ({1: ReportedProcess(GOOD), 2: ReportedProcess(GOOD)}, True, True, ()),
        ({1: ReportedProcess(GOOD), 2: ReportedProcess(STOPPING)}, True, True, ("process 2: stopping",)),
        ({1: ReportedProcess(STOPPING)}, True, False, ("process 1: stopping",)),
        (
            {1: ReportedProcess(GOOD), 3: ReportedProcess(HUNG)},
            False,
            True,
            ("process 3: jobchains-claim-loop has ended",),
        ),
        ({1: ReportedProcess(GOOD), 2: None}, False, True, ("process 2: ended, and will be restarted",)),
        ({1: ReportedProcess(None, 20)}, True, False, ("process 1: starting",)),
        ({1: ReportedProcess(None, 70)}, False, False, ("process 1: no report for 70 s",)),
        ({1: ReportedProcess(GOOD, 6)}, False, False, ("process 1: no report for 6 s",)),
    ],
)
def test_supervisor_is_live_if_all_processes_are_and_ready_if_one_is(processes, live, ready, problems):
    running = health_of_processes("mail:1:supervisor", processes, is_stopping=False, is_stuck=False)
    assert (running.is_live, running.is_ready, running.problems) == (live, ready, problems)
    stopping = health_of_processes("mail:1:supervisor", processes, is_stopping=True, is_stuck=False)
    assert (stopping.is_live, stopping.is_ready, stopping.problems) == (True, False, ("stopping",))
    stuck = health_of_processes("mail:1:supervisor", processes, is_stopping=False, is_stuck=True)
    assert (stuck.is_live, stuck.is_ready) == (False, False)
