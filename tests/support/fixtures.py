"""The fixtures that tests of any folder may request. A folder may replace one of them."""

import signal
import threading
from contextlib import contextmanager

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connection, connections
from django.db.models import F

from django_jobchains.models import Job
from django_jobchains.processors import Backoff, Lease, Processors, Registry
from django_jobchains.store import get_store
from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.events import WorkerStopped
from django_jobchains.testing.contracts.concurrency import at_once
from django_jobchains.worker import Worker
from tests.support import notifiers
from tests.support.attempts import on_own_connection
from tests.support.connections import end_all
from tests.support.databases import database, sqlite_database
from tests.support.scenario import JOBS, Scenario
from tests.support.worker_processes import started_processes
from tests.support.workers import Events


@pytest.fixture
def store(db):
    """The store of the default database."""
    store = get_store()
    yield store
    store.db.ahead_seconds = 0


@pytest.fixture(autouse=True)
def _end_actors():
    yield
    end_all()


@pytest.fixture
def events():
    recorded = Events()
    add_sink(recorded)
    yield recorded
    remove_sink(recorded)


def only_slice(**options):
    """Return a fixture: the only slice of the project during the test, with these options."""

    @pytest.fixture
    def processors(registry):
        registry.add(part := Processors(**options))
        return part

    return processors


@pytest.fixture
def registry(monkeypatch):
    """The registry of workers and of the project, for one test."""
    registry = Registry()
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    return registry


@pytest.fixture
def processors(transactional_db, registry):
    """A slice whose jobs are retried at once."""
    part = Processors(backoff=Backoff(0.02, 1, 0.02, 0))
    registry.add(part)
    return part


@pytest.fixture
def make_worker(transactional_db, registry, events, monkeypatch):
    """Make workers with the registry of the test that poll once a minute. Running ones are stopped after the test."""
    if connection.vendor == "postgresql":  # a listener is closed between two ticks
        monkeypatch.setattr("django_jobchains.notifications.postgres.TICK_SECONDS", 0.05)
    workers = []

    def make(**options):
        worker = Worker(**{"registry": registry, "slots": 2, "poll_seconds": 60, "shutdown_seconds": 5, **options})
        workers.append(worker)
        return worker

    yield make
    stopped = {event.worker for event in events.of(WorkerStopped)}
    for worker in workers:
        if worker.id not in stopped:
            worker.stop(timeout=0)


@pytest.fixture
def start_worker(make_worker):
    def start(**options):
        worker = make_worker(**options)
        worker.start()
        return worker

    return start


@pytest.fixture
def gate(make_worker):
    """An event that handlers wait for. It is set at the end of the test, before its workers are stopped."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def quick(processors):
    """A job type whose handler returns the number of the attempt."""
    return processors.register("worker.quick")(lambda job: job.attempt)


@pytest.fixture
def short_lease(monkeypatch):
    """A lease that is renewed every 1.5 seconds, and that a thread which stops for several seconds does not lose."""
    monkeypatch.setattr("django_jobchains.worker.held_leases.HeldJobs.renew_share", 0.01)
    return Lease(9)


@pytest.fixture
def patient_stop(monkeypatch):
    """Let a stopping worker wait longer for handlers that were asked to stop, and for its last writes."""
    for name in ("ABORT_GRACE_SECONDS", "STEP_SECONDS"):
        monkeypatch.setattr(f"django_jobchains.worker.shutdown.{name}", 15.0)


@pytest.fixture
def start_process(transactional_db, tmp_path):
    """Start worker processes."""
    with started_processes(tmp_path, {}) as start:
        yield start


@pytest.fixture
def heeded_hang_ups():
    """Make processes that the test starts react to SIGHUP, even if the test run ignores it, as under ``nohup``."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: None)  # unlike SIG_IGN, a handler is not inherited
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def work(processors):
    """Return a function that runs all due jobs of ``processors``, or of the processors that it gets."""

    def run(*parts, slots=2, **options):
        registry = Registry()
        for part in parts or (processors,):
            registry.add(part)
        Worker(slots=slots, registry=registry, **options).run_until_idle()

    return run


@pytest.fixture(params=JOBS)
def scenario(request, processors):
    return Scenario(request.param, processors)


@pytest.fixture
def steal():
    """Return a function that changes a job's lease number over another connection, as another worker's claim does."""

    def bump(job_id):
        Job.objects.filter(pk=job_id).update(lease_number=F("lease_number") + 1)

    return lambda job_id: on_own_connection(bump, job_id)


@pytest.fixture
def sent():
    """Yield the published hints, each entry the database alias and the subjects of hints sent together."""
    notifiers.sent.clear()
    with notifiers.notifier("RecordingNotifier"):
        yield notifiers.sent
    notifiers.sent.clear()


@contextmanager
def url_configuration(urls):
    """Use these URLs. Unlike ``pytest.mark.urls``, it keeps the resolvers, whose creation takes longer than a page."""
    wrapped, before = settings._wrapped, settings.ROOT_URLCONF
    try:
        wrapped.ROOT_URLCONF = urls
        settings.__dict__.pop("ROOT_URLCONF", None)  # the cached value
        yield
    finally:
        wrapped.ROOT_URLCONF = before
        settings.__dict__.pop("ROOT_URLCONF", None)


@pytest.fixture
def record_site():
    """Use an admin site with models of records."""
    with url_configuration("tests.admin.records.site"):
        yield


@pytest.fixture
def second_alias(tmp_path, transactional_db, django_db_blocker):
    """The alias of a second database, which is a SQLite file."""
    with sqlite_database("second", str(tmp_path / "second.sqlite3"), django_db_blocker) as alias:
        yield alias


@pytest.fixture
def small_pool(monkeypatch):
    """Let new threads use Django's connection pool, with two connections."""
    pool = {"min_size": 2, "max_size": 2, "timeout": 1}
    options = {**connections.settings["default"]["OPTIONS"], "pool": pool}
    monkeypatch.setitem(connections.settings, "default", {**connections.settings["default"], "OPTIONS": options})
    yield
    at_once([lambda: connections["default"].close_pool()])


@pytest.fixture
def empty_database(transactional_db, django_db_blocker, tmp_path):
    """Add a database of the same vendor without tables."""
    settings = {"OPTIONS": {"options": "-c search_path=nowhere"}}
    if connection.vendor == "sqlite":
        settings = {"NAME": str(tmp_path / "empty.sqlite3")}
    with database("empty", settings, django_db_blocker) as alias:
        yield alias


@pytest.fixture
def private_memory(transactional_db, django_db_blocker):
    """Add a database in memory for each thread."""
    with sqlite_database("memory", ":memory:", django_db_blocker) as alias:
        yield alias


@pytest.fixture
def memory(transactional_db, django_db_blocker):
    """Add a database in memory that the threads of this process share, like Django's test databases."""
    with sqlite_database("memory", "file:jobchains?mode=memory&cache=shared", django_db_blocker) as alias:
        yield alias
