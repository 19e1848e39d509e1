"""A registry for each test, workers that end with the test, and the events that they report."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from django.db import connection

from django_jobchains.processors import Backoff, Lease, Processors, Registry
from django_jobchains.store import Store, get_store
from django_jobchains.telemetry import Event, add_sink, remove_sink
from django_jobchains.telemetry.events import WorkerStopped
from django_jobchains.worker import Worker
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.options import WorkerOptions
from tests.support.waiting import until

Kind = TypeVar("Kind", bound=Event)
StartWorker = Callable[..., Worker]


class Events:
    def __init__(self) -> None:
        self.all: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.all.append(event)

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.all if isinstance(event, kind)]


@pytest.fixture
def events():
    recorded = Events()
    add_sink(recorded)
    yield recorded
    remove_sink(recorded)


@pytest.fixture
def store(transactional_db):
    return get_store()


@pytest.fixture
def registry(transactional_db):
    return Registry()


@pytest.fixture
def processors(registry):
    """A slice whose jobs are retried at once."""
    part = Processors(backoff=Backoff(0.02, 1, 0.02, 0))
    registry.add(part)
    return part


@pytest.fixture
def make_worker(registry, events, monkeypatch):
    """Make workers with the registry of the test that poll once a minute. Running ones are stopped after the test."""
    if connection.vendor == "postgresql":  # a listener is closed between two ticks
        monkeypatch.setattr("django_jobchains.notifications.postgres.TICK_SECONDS", 0.05)
    workers: list[Worker] = []

    def make(**options: Any) -> Worker:
        worker = Worker(**{"registry": registry, "slots": 2, "poll_seconds": 60, "shutdown_seconds": 5, **options})
        workers.append(worker)
        return worker

    yield make
    stopped = {event.worker for event in events.of(WorkerStopped)}
    for worker in workers:
        if worker.id not in stopped:
            worker.stop(timeout=0)


def context_for(store: Store | None = None, **options: Any) -> WorkerContext:
    """Return what the components of a worker share, for a component that a test creates itself."""
    return WorkerContext(WorkerOptions("worker-1", store or get_store(), **options))


@pytest.fixture
def short_lease(monkeypatch):
    """A lease that is renewed every 1.5 seconds, and that a thread which stops for several seconds does not lose."""
    monkeypatch.setattr("django_jobchains.worker.held_leases.RENEW_SHARE", 0.01)
    return Lease(9)


@pytest.fixture
def patient_stop(monkeypatch):
    """Let a stopping worker wait longer for handlers that were asked to stop, and for its last writes."""
    for name in ("ABORT_GRACE_SECONDS", "STEP_SECONDS"):
        monkeypatch.setattr(f"django_jobchains.worker.shutdown.{name}", 15.0)


def time_out(worker: Worker, line: str = "gate.wait(30)") -> None:
    """End the timeout of an attempt whose handler is at this line. The timeouts of other attempts are not changed."""
    pools = worker.components.pools

    def find() -> Any:
        attempts = [(pool, attempt) for pool in pools for attempt in pool.attempts() if attempt.expires_at]
        return next((attempt for pool, attempt in attempts if line in pool.stack_of(attempt)), None)

    until(find).expires_at = 0.0


@pytest.fixture
def start_worker(make_worker):
    def start(**options: Any) -> Worker:
        worker = make_worker(**options)
        worker.start()
        return worker

    return start
