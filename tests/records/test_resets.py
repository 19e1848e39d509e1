"""When a worker resets records of others: not while their heartbeats were kept from being written."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_jobchains.declare.registry import get_registry
from django_jobchains.store import DequeueRequest, get_store
from django_jobchains.telemetry.events import RecordReset
from django_jobchains.worker.reaper import REAP_LIMIT, RecordResetter
from tests.records.models import Upload
from tests.support.clocks import Clock
from tests.support.connections import end_all, holding
from tests.support.workers import context_for

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _ended():
    yield
    end_all()


@pytest.fixture
def clock(monkeypatch):
    """The clock of resetters and keepers."""
    clock = Clock()
    for module in ("reaper", "held_leases"):
        monkeypatch.setattr(f"django_jobchains.worker.{module}.time", clock)
    return clock


class Process:
    """The records of one worker, and its resets."""

    def __init__(self):
        self.store = get_store()
        kinds = {kind.name: kind for kind in get_registry().record_types()}
        context = context_for(self.store, records=kinds)
        self.leases = context.record_leases
        self.resetter = RecordResetter(context)

    def dequeue(self, kind, clock):
        """Dequeue a record, and let its last heartbeat be long ago."""
        request = DequeueRequest(kind.select("default"), 1, "host", kind.queue)
        [found] = self.store.records.dequeue(kind.table("default"), request)
        self.leases[kind.name].hold(found.key, kind.stalled_seconds, clock() - HOUR.total_seconds(), kind.queue)
        Upload.objects.update(last_heartbeat_at=timezone.now() - HOUR)
        return found.key

    def beat(self):
        return [lost for leases in self.leases.values() for lost in leases.renew_due()]

    def reset(self, clock):
        """Reset all records that may be reset, with the pauses in between."""
        while self.resetter.step():
            clock.forward(self.resetter.rest_seconds)


def register(processors, **options):
    name = options.setdefault("name", "records.upload")
    processors.records(Upload, **options)(lambda record, run: None)
    return processors.record_types[name]


def put(count=1, **values):
    stalled = {"state": "processing", "last_heartbeat_at": timezone.now() - HOUR, "lease_number": 1, **values}
    Upload.objects.bulk_create([Upload(**stalled) for _ in range(count)])


def states():
    return set(Upload.objects.values_list("state", "num_resets"))


def row_lock():
    return holding(lambda store: list(Upload.objects.select_for_update()))


def table_lock(mode):
    return lambda: holding(lambda store: store.db.execute(f"LOCK TABLE {Upload._meta.db_table} IN {mode} MODE", []))


each_lock = pytest.mark.parametrize(
    "lock",
    [row_lock, table_lock("SHARE"), table_lock("ACCESS EXCLUSIVE")],
    ids=["row", "create index", "alter table"],
)


@pytest.mark.postgresql
@each_lock
def test_a_record_that_was_locked_for_long_keeps_its_worker(processors, clock, lock):
    kind = register(processors)
    Upload.objects.create()
    holder, other = Process(), Process()
    holder.dequeue(kind, clock)
    locker = lock()
    for _ in range(3):
        assert holder.beat() == []
        other.reset(clock)
        clock.forward(60)
    locker.result()
    other.resetter.step()
    assert states() == {("processing", 0)}
    assert holder.beat() == []
    clock.forward(60)
    other.reset(clock)
    assert states() == {("processing", 0)}


@pytest.mark.postgresql
@each_lock
def test_a_lock_after_the_first_look_starts_the_wait_again(processors, clock, lock):
    register(processors)
    process = Process()
    put()
    process.resetter.step()
    locker = lock()
    clock.forward(60)
    process.resetter.step()
    locker.result()
    process.resetter.step()
    assert states() == {("processing", 0)}
    process.reset(clock)
    assert states() == {("queued", 1)}


def test_a_record_without_a_worker_is_reset_when_there_was_time_for_a_heartbeat(processors, clock, events):
    register(processors, stalled_after=30, heartbeat_every=10)
    process = Process()
    put()
    for _ in range(2):
        assert process.resetter.step()
        assert (states(), process.resetter.rest_seconds) == ({("processing", 0)}, 2)
        clock.forward(1)
    process.resetter.step()
    assert states() == {("queued", 1)}
    assert [(event.type_name, event.state) for event in events.of(RecordReset)] == [("records.upload", "queued")]


def test_many_stalled_records_are_reset_without_a_pause(processors, clock):
    register(processors)
    process = Process()
    put(REAP_LIMIT + 10)
    assert process.resetter.step()
    clock.forward(2)
    assert (process.resetter.step(), process.resetter.rest_seconds) == (True, 0)
    process.resetter.step()
    assert states() == {("queued", 1)}


# A model that is registered twice


def test_registrations_of_one_model_do_not_reset_each_others_records(processors, clock):
    first, second = register(processors, name="first"), register(processors, name="second")
    process = Process()
    for kind in (first, second):
        Upload.objects.create()
        process.dequeue(kind, clock)
    process.reset(clock)
    assert states() == {("processing", 0)}


def test_the_longest_time_without_heartbeats_applies(processors, clock):
    register(processors, name="short", stalled_after=60)
    register(processors, name="long", stalled_after=7200)
    put()
    Process().reset(clock)
    assert states() == {("processing", 0)}
    put(last_heartbeat_at=timezone.now() - 3 * HOUR)
    Process().reset(clock)
    assert states() == {("processing", 0), ("queued", 1)}


def test_the_smallest_limit_of_resets_applies(processors, clock):
    register(processors, name="many", max_resets=5)
    register(processors, name="few", max_resets=1, reset_failure_message="too often")
    put(num_resets=1)
    Process().reset(clock)
    assert (states(), Upload.objects.get().failure_message) == ({("failed", 1)}, "too often")
