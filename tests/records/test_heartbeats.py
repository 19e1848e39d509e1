"""Heartbeats and resets: what a worker writes and loses, and when it resets the records of others."""

import math
import threading
import time
from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_jobchains.declare.registry import get_registry
from django_jobchains.store import get_store
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.store.records import DequeueRequest
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptStuck, RecordReset
from django_jobchains.worker.caretakers import REAP_LIMIT, RecordResetter
from django_jobchains.worker.held_leases import HeldRecords
from tests.records.conftest import refusing
from tests.records.models import Export, Letter, Upload
from tests.support.clocks import Clock
from tests.support.connections import holding
from tests.support.waiting import until
from tests.support.workers import context_for

pytestmark = pytest.mark.django_db(transaction=True)


def beating(kinds, count):
    """Dequeue this number of records of each model, and return the statements of their heartbeats."""
    store = get_store()
    held = [HeldRecords(kind, store) for kind in kinds]
    for kind, leases in zip(kinds, held, strict=True):
        kind.model._base_manager.bulk_create([kind.model() for _ in range(count)])
        request = DequeueRequest(kind.select(store.using), count, "host", kind.queue)
        for found in reversed(store.records.dequeue(kind.table(store.using), request)):
            leases.hold(found.key, kind.stalled_seconds, -math.inf, kind.queue)
        kind.model._base_manager.update(last_heartbeat_at=None)
    assert [len(leases) for leases in held] == [count] * len(kinds)
    with CaptureQueriesContext(store.connection) as captured:
        assert not any(leases.renew_due() for leases in held)
    return [query["sql"] for query in captured if "UPDATE" in query["sql"]]


def test_a_model_has_one_statement_for_all_its_records(processors):
    for model in (Upload, Export):
        processors.records(model)(lambda record, run: None)
    assert len(beating(list(processors.record_types.values()), 20)) == 2
    assert not Upload.objects.filter(last_heartbeat_at=None).exists()


def test_requests_to_cancel_are_looked_for_with_one_query_for_each_model(processors):
    store, held, signals = get_store(), [], []
    for model, cancel_every in ((Upload, 0.001), (Export, 3600)):
        processors.records(model, cancel_every=cancel_every, heartbeat_every=3600, stalled_after=36_000)(
            lambda record, run: None
        )
    for kind in processors.record_types.values():
        kind.model._base_manager.bulk_create([kind.model(state="processing", lease_number=1) for _ in range(20)])
        keys = [(pk, 1) for pk in kind.model._base_manager.values_list("pk", flat=True)]
        held.append(HeldRecords(kind, store))
        signals += [held[-1].hold(key, kind.stalled_seconds, time.monotonic() - 10, kind.queue) for key in keys]
        kind.model._base_manager.update(cancel=True)
    with CaptureQueriesContext(store.connection) as captured:
        for leases in held:
            leases.renew_due()
    assert ["SELECT" in query["sql"] for query in captured if Upload._meta.db_table in query["sql"]] == [True]
    assert not any(Export._meta.db_table in query["sql"] for query in captured)
    assert [signal.reason for signal in signals] == ["cancelled"] * 20 + [None] * 20


@pytest.mark.postgresql
def test_rows_are_locked_in_the_order_of_their_ids(processors):
    processors.records(Upload)(lambda record, run: None)
    [statement] = beating(list(processors.record_types.values()), 5)
    assert 'ORDER BY free."id" FOR NO KEY UPDATE OF free SKIP LOCKED' in statement


# Heartbeats that fail for too long: handlers are asked to stop, and their records are not blamed


@pytest.fixture
def outage(register, make_worker, monkeypatch):
    """Let a worker handle a record while its heartbeats fail, until the first attempt notes why it was aborted."""

    def handled(handle):
        reasons = []
        register(
            lambda record, run: handle(record, run, reasons), stalled_after=3, heartbeat_every=0.1, poll_every=0.02
        )
        Upload.objects.create()
        worker = make_worker(slots=1)
        beat = worker.store.records.beat

        def fail(*args):
            if not reasons:
                raise ValueError("the database does not answer")
            return beat(*args)

        monkeypatch.setattr(worker.store.records, "beat", fail)
        worker.start()
        until(lambda: Upload.objects.filter(state="completed").exists(), 60, lambda: vars(Upload.objects.get()))
        upload = Upload.objects.get()
        assert (reasons, upload.lease_number, upload.num_failures) == (["error"], 2, 0)
        return upload.num_resets

    return handled


@pytest.mark.usefixtures("quick_resets")
def test_the_record_of_a_handler_that_stops_is_reset(events, outage):
    def handle(record, run, reasons):
        if run.signal.wait(30 if record.lease_number == 1 else 0):
            reasons.append(run.signal.reason)
            run.signal.raise_if_aborted()

    assert outage(handle) == 1
    assert [event.reason for event in events.of(AttemptAbandoned)] == ["error"]
    assert [event.state for event in events.of(RecordReset)] == ["queued"]


@pytest.mark.usefixtures("quick_resets")
def test_the_record_of_a_handler_that_does_not_stop_is_reset(settings, events, outage):
    settings.JOBCHAINS = {**settings.JOBCHAINS, "STUCK_SECONDS": 0.1}
    released = threading.Event()

    def handle(record, run, reasons):
        if record.lease_number == 1:
            until(lambda: run.signal.aborted)
            reasons.append(run.signal.reason)
            released.wait(60)

    assert outage(handle) == 1
    released.set()
    assert [event.reason for event in events.of(AttemptStuck)] == ["error"]
    assert [event.state for event in events.of(RecordReset)] == ["queued"]


class TestOverdueRecords:
    """The heartbeats of a record are overdue when the worker checks them."""

    @pytest.fixture
    def leases(self, kind):
        return HeldRecords(kind, get_store())

    @pytest.fixture
    def key(self, kind, leases):
        key = (Upload.objects.create(state="processing", lease_number=1).pk, 1)
        self.signal = leases.hold(key, kind.stalled_seconds, time.monotonic() - 3600, kind.queue)
        return key

    @pytest.mark.parametrize("is_found", [True, False])
    def test_a_loss_is_reported_once(self, leases, key, is_found):
        assert leases.abort_overdue() == {key: "error"}
        assert leases.abort_overdue() == {}
        if is_found:  # by a heartbeat, before the attempt has ended
            Upload.objects.update(lease_number=2)
            assert leases.renew_due() == {}
        [holding] = leases.release([key])
        assert holding is None or holding.is_reported

    def test_an_attempt_that_has_ended_is_not_reported(self, leases, key):
        self.signal.end()
        assert leases.abort_overdue() == {}
        assert not leases.release([key])[0].is_reported

    @pytest.mark.parametrize("query", [HeldRecords.renew_due, HeldRecords.check])
    @pytest.mark.parametrize("is_announced", [True, False])
    def test_an_attempt_in_a_child_that_has_committed_its_end_has_not_lost_its_record(
        self, kind, leases, key, query, is_announced
    ):
        """The worker may not have read yet that the child was about to commit. Then the loss is not reported yet."""
        self.signal.ends_elsewhere = True
        if is_announced:
            self.signal.end()
        get_store().records.end(kind.table("default"), [RecordEnd(*key, "completed")])
        assert query(leases) == {}
        assert self.signal.aborted != is_announced
        assert not leases.release([key])[0].is_reported


@pytest.mark.slow
def test_the_record_of_a_child_process_that_is_killed_is_reset(start_process):
    """The database rejects its heartbeats, for a worker in another process."""
    Letter.objects.create(code="hang")
    settings = {"DJANGO_SETTINGS_MODULE": "tests.records.worker_settings"}
    with refusing("OLD.status = 'processing'", table=Letter._meta.db_table, columns="OF beat"):
        jobchains = {"SHUTDOWN_SECONDS": 0.1, "REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 0.1}
        start_process("--type", "records.letter", jobchains=jobchains, **settings).until_ready()
        until(lambda: Letter.objects.get().attempt_number == 2, 60, lambda: vars(Letter.objects.get()))
    letter = Letter.objects.get()
    assert (letter.failures, letter.resets) == (0, 1)


# Resets: not while the heartbeats of others were kept from being written


HOUR = timedelta(hours=1)


@pytest.fixture
def clock(monkeypatch):
    """The clock of resetters and keepers."""
    clock = Clock()
    for module in ("caretakers", "held_leases"):
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


def register_uploads(processors, **options):
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
    kind = register_uploads(processors)
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
    register_uploads(processors)
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
    register_uploads(processors, stalled_after=30, heartbeat_every=10)
    process = Process()
    put(REAP_LIMIT + 10)
    for _ in range(2):
        assert process.resetter.step()
        assert (states(), process.resetter.rest_seconds) == ({("processing", 0)}, 2)
        clock.forward(1)
    assert (process.resetter.step(), process.resetter.rest_seconds) == (True, 0)  # There are more.
    process.resetter.step()
    assert states() == {("queued", 1)}
    assert {(event.type_name, event.state) for event in events.of(RecordReset)} == {("records.upload", "queued")}


# A model that is registered twice


def test_registrations_of_one_model_do_not_reset_each_others_records(processors, clock):
    first, second = register_uploads(processors, name="first"), register_uploads(processors, name="second")
    process = Process()
    for kind in (first, second):
        Upload.objects.create()
        process.dequeue(kind, clock)
    process.reset(clock)
    assert states() == {("processing", 0)}


def test_the_longest_time_without_heartbeats_and_the_smallest_limit_of_resets_apply(processors, clock):
    register_uploads(processors, name="short", stalled_after=60, max_resets=1, reset_failure_message="too often")
    register_uploads(processors, name="long", stalled_after=7200, max_resets=5)
    put()
    Process().reset(clock)
    assert states() == {("processing", 0)}
    for num_resets in (0, 1):
        put(last_heartbeat_at=timezone.now() - 3 * HOUR, num_resets=num_resets)
    Process().reset(clock)
    assert states() == {("processing", 0), ("queued", 1), ("failed", 1)}
    assert Upload.objects.get(state="failed").failure_message == "too often"
