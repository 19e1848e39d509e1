"""A worker whose heartbeats fail for too long: its handlers are asked to stop, and their records are not blamed."""

import asyncio
import threading
import time

import pytest
from django.db import connection

from django_jobchains.store import RecordEnd, get_store
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptStuck, RecordReset
from django_jobchains.worker.held_leases import HeldRecords
from tests.records.models import Letter, Upload
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


class Outage:
    """Lets the heartbeats of a worker fail until the first attempt has been aborted."""

    def __init__(self, monkeypatch):
        self._patch = monkeypatch
        self._is_over = threading.Event()
        self.reasons = []

    def begin(self, worker):
        beat = worker.store.records.beat

        def fail(*args):
            if not self._is_over.is_set():
                raise ValueError("the database does not answer")
            return beat(*args)

        self._patch.setattr(worker.store.records, "beat", fail)

    def note(self, run):
        """Note why the attempt was aborted. Heartbeats are written again from now on."""
        self.reasons.append(run.signal.reason)
        self._is_over.set()


@pytest.fixture
def outage(monkeypatch):
    return Outage(monkeypatch)


def until_completed():
    until(lambda: Upload.objects.filter(state="completed").exists(), 60, lambda: vars(Upload.objects.get()))
    return Upload.objects.get()


def test_a_handler_that_stops_hands_its_record_back(register, make_worker, events, outage):
    def handle(record, run):
        if run.signal.wait(30 if record.lease_number == 1 else 0):
            outage.note(run)
            run.signal.raise_if_aborted()

    register(handle, stalled_after=3, heartbeat_every=0.1, poll_every=0.02)
    Upload.objects.create()
    worker = make_worker()
    outage.begin(worker)
    worker.start()
    upload = until_completed()
    assert outage.reasons == ["error"]
    assert [event.reason for event in events.of(AttemptAbandoned)] == ["error"]
    assert (upload.lease_number, upload.num_failures, upload.num_resets) == (2, 0, 0)


def test_an_async_handler_that_stops_hands_its_record_back(register, make_worker, outage):
    async def handle(record, run):
        try:
            await asyncio.sleep(30 if record.lease_number == 1 else 0)
        except asyncio.CancelledError:
            outage.note(run)
            raise

    register(handle, stalled_after=3, heartbeat_every=0.1, poll_every=0.02)
    Upload.objects.create()
    worker = make_worker()
    outage.begin(worker)
    worker.start()
    upload = until_completed()
    assert outage.reasons == ["error"]
    assert (upload.lease_number, upload.num_failures, upload.num_resets) == (2, 0, 0)


def test_the_record_of_a_handler_that_does_not_stop_is_reset(register, make_worker, settings, events, outage):
    settings.JOBCHAINS = {
        "STUCK_SECONDS": 0.1,
        "REAP_SECONDS": 0.05,
        "BACKOFF_INITIAL_SECONDS": 0.05,
        "BACKOFF_JITTER": 0,
    }
    released = threading.Event()

    def handle(record, run):
        if record.lease_number == 1:
            until(lambda: run.signal.aborted)
            outage.note(run)
            released.wait(60)

    register(handle, stalled_after=3, heartbeat_every=0.1, poll_every=0.02)
    Upload.objects.create()
    worker = make_worker(slots=1)
    outage.begin(worker)
    worker.start()
    upload = until_completed()
    released.set()
    until(lambda: worker.running == 0)
    assert [event.reason for event in events.of(AttemptStuck)] == ["error"]
    assert [event.state for event in events.of(RecordReset)] == ["queued"]
    assert (upload.lease_number, upload.num_failures, upload.num_resets) == (2, 0, 1)


class TestOverdueRecords:
    """The heartbeats of a record are overdue when the worker checks them."""

    @pytest.fixture
    def kind(self, register, processors):
        register()
        return processors.record_types["records.upload"]

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
        assert leases.release([key]) == set()

    def test_an_attempt_that_has_ended_is_not_reported(self, leases, key):
        self.signal.end()
        assert leases.abort_overdue() == {}
        assert leases.release([key]) == {key}


@pytest.fixture
def failing_heartbeats():
    """Reject heartbeats of letters in the database, for a worker in another process."""
    table, name = Letter._meta.db_table, "no_heartbeats"
    is_server = connection.vendor == "postgresql"
    trigger = f"CREATE TRIGGER {name} BEFORE UPDATE OF beat ON {table} FOR EACH ROW WHEN (OLD.status = 'processing')"
    with connection.cursor() as cursor:
        if is_server:
            body = "BEGIN RAISE EXCEPTION 'no heartbeats'; END"
            cursor.execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
            cursor.execute(f"{trigger} EXECUTE FUNCTION {name}()")
        else:
            cursor.execute(f"{trigger} BEGIN SELECT RAISE(ABORT, 'no heartbeats'); END")
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"DROP FUNCTION {name} CASCADE" if is_server else f"DROP TRIGGER {name}")


@pytest.mark.slow
def test_a_child_process_that_is_killed_hands_its_record_back(start_process, failing_heartbeats):
    Letter.objects.create(code="hang")
    settings = {"DJANGO_SETTINGS_MODULE": "tests.records.worker_settings"}
    start_process("--type", "records.letter", jobchains={"SHUTDOWN_SECONDS": 0.1}, **settings).until_ready()
    until(lambda: Letter.objects.get().attempt_number == 2, 60, lambda: vars(Letter.objects.get()))
    letter = Letter.objects.get()
    assert (letter.failures, letter.resets) == (0, 0)


@pytest.mark.parametrize("query", [HeldRecords.renew_due, HeldRecords.check])
@pytest.mark.parametrize("is_announced", [True, False])
def test_an_attempt_in_a_child_that_has_committed_its_end_has_not_lost_its_record(
    register, processors, query, is_announced
):
    """The worker may not have read yet that the child was about to commit. Then the loss is not reported yet."""
    register()
    [kind] = processors.record_types.values()
    key = (Upload.objects.create(state="processing", lease_number=1).pk, 1)
    leases = HeldRecords(kind, get_store())
    signal = leases.hold(key, kind.stalled_seconds, time.monotonic() - 3600, kind.queue)
    signal.ends_elsewhere = True
    if is_announced:
        signal.end()
    get_store().records.end(kind.table("default"), [RecordEnd(*key, "completed")])
    assert query(leases) == {}
    assert signal.aborted != is_announced
    assert leases.release([key])
