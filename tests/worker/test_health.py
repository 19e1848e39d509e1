"""When a worker is live and ready, and which problems it reports."""

import json
import threading
from dataclasses import dataclass

import pytest
from django.db import OperationalError
from django.test import override_settings

from django_jobchains.worker import health
from django_jobchains.worker.health import Health
from django_jobchains.worker.supervisor import health_of_processes
from tests.store.methods import method as method_of
from tests.store.methods import replace_method
from tests.support.pool_states import POOL
from tests.support.waiting import stays, until

JOBCHAINS = {"LIVENESS_SECONDS": 0.3, "REAP_SECONDS": 0.1, "SWEEP_SECONDS": 0.1}
PATIENT = {**JOBCHAINS, "LIVENESS_SECONDS": 60}


@pytest.fixture
def waiting(processors, gate):
    return processors.register("worker.waiting")(lambda job: gate.wait(30))


@pytest.fixture
def ready_worker(start_worker, waiting):
    def start(**options):
        worker = start_worker(**options)
        until_ready(worker)
        return worker

    return start


def until_ready(worker):
    until(lambda: worker.health().is_ready, what=worker.health)


def until_problem(worker, text):
    until(lambda: any(text in problem for problem in worker.health().problems), what=worker.health)
    return worker.health()


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
    assert not until_problem(make_worker(), "still starting").is_live


@pytest.mark.slow
@override_settings(JOBCHAINS={"LIVENESS_SECONDS": 4, "REAP_SECONDS": 20, "SWEEP_SECONDS": 20})
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
    replace_method(monkeypatch, store, method, lambda *args, **kw: release.wait(30) and original(*args, **kw))
    waiting.enqueue()
    gate.set()
    try:
        assert not until_problem(worker, f"jobchains-{thread} is busy").is_live
    finally:
        release.set()
    until_ready(worker)


@override_settings(JOBCHAINS=JOBCHAINS)
def test_blocked_event_loop_makes_the_worker_not_live(ready_worker, processors, gate):
    @processors.register("worker.blocking")
    async def blocking(job):
        gate.wait(30)

    worker = ready_worker(async_slots=7)
    assert worker.health().slots == 9
    blocking.enqueue()
    assert not until_problem(worker, "the event loop is busy").is_live
    gate.set()
    until_ready(worker)


@override_settings(JOBCHAINS=JOBCHAINS)
def test_loop_that_has_ended_makes_the_worker_not_live(ready_worker):
    worker = ready_worker()
    worker.components.threads["stuck-attempts"].stop()
    assert not until_problem(worker, "jobchains-stuck-attempts has ended").is_live


@override_settings(JOBCHAINS=PATIENT)
def test_worker_without_a_database_is_live_and_not_ready(ready_worker, store, monkeypatch):
    def unavailable(*args, **kwargs):
        raise OperationalError("secret-host refused the connection")

    worker = ready_worker()
    with monkeypatch.context() as patch:
        patch.setattr(store.leases, "reap", unavailable)
        now = until_problem(worker, "jobchains-maintenance fails")
        assert (now.is_live, now.is_ready) == (True, False)
        assert "secret-host" not in str(now)
    until_ready(worker)


@override_settings(JOBCHAINS=PATIENT)
def test_worker_that_has_not_reached_its_database_recently_is_not_ready(ready_worker, store, gate, monkeypatch):
    worker = ready_worker()
    monkeypatch.setattr(health, "LATE_SECONDS", 0.1)
    monkeypatch.setattr(store.leases, "reap", lambda *args, **kwargs: gate.wait(30) and [])
    now = until_problem(worker, "the database was last reached")
    assert (now.is_live, now.is_ready) == (True, False)


def test_worker_whose_listener_receives_nothing_is_not_ready(ready_worker, monkeypatch):
    worker = ready_worker()
    monkeypatch.setattr(type(worker.components.listener), "is_alive", property(lambda self: False))
    now = until_problem(worker, "the listener for wake-ups is not connected")
    assert (now.is_live, now.is_ready, worker.has_begun) == (True, False, True)


@override_settings(JOBCHAINS={"NOTIFIER": {"BACKEND": "django_jobchains.notifications.base.NullNotifier"}})
def test_worker_that_polls_needs_no_listener(ready_worker):
    ready_worker(poll_seconds=1)


def test_health_is_plain_json():
    one = Health("mail:7:a", True, False, ("stopping",), 10, 3, pools=(POOL,))
    both = Health("mail:1:supervisor", True, False, ("process 1: stopping",), 10, 3, (one,))
    assert Health.from_json(json.loads(json.dumps(both.as_json()))) == both


@dataclass
class Reported:
    """A worker process as its supervisor sees it."""

    health: Health | None
    silent_seconds: float = 0.5


GOOD = Reported(Health("mail-1:7:a", True, True, (), 10, 3))
STOPPING = Reported(Health("mail-2:8:b", True, False, ("stopping",), 10, 3))
HUNG = Reported(Health("mail-3:9:c", False, False, ("jobchains-claim-loop has ended",), 10, 3))


@pytest.mark.parametrize(
    ("processes", "live", "ready", "problems"),
    [
        ({1: GOOD, 2: GOOD}, True, True, ()),
        ({1: GOOD, 2: STOPPING}, True, True, ("process 2: stopping",)),
        ({1: STOPPING}, True, False, ("process 1: stopping",)),
        ({1: GOOD, 3: HUNG}, False, True, ("process 3: jobchains-claim-loop has ended",)),
        ({1: GOOD, 2: None}, False, True, ("process 2: ended, and will be restarted",)),
        ({1: Reported(None, 20)}, True, False, ("process 1: starting",)),
        ({1: Reported(None, 70)}, False, False, ("process 1: no report for 70 s",)),
        ({1: Reported(GOOD.health, 6)}, False, False, ("process 1: no report for 6 s",)),
    ],
)
def test_supervisor_is_live_if_all_processes_are_and_ready_if_one_is(processes, live, ready, problems):
    running = health_of_processes("mail:1:supervisor", processes, is_stopping=False, is_stuck=False)
    assert (running.is_live, running.is_ready, running.problems) == (live, ready, problems)
    stopping = health_of_processes("mail:1:supervisor", processes, is_stopping=True, is_stuck=False)
    assert (stopping.is_live, stopping.is_ready, stopping.problems) == (True, False, ("stopping",))
    stuck = health_of_processes("mail:1:supervisor", processes, is_stopping=False, is_stuck=True)
    assert (stuck.is_live, stuck.is_ready) == (False, False)
