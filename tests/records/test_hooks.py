"""The hooks of record processors: when they are called, what their results and errors do, and what slow ones delay."""

import threading
import time
from datetime import timedelta
from functools import partial
from unittest import mock

import pytest
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from django_jobchains import records
from django_jobchains.attempts.record_attempt import RecordEnvironment
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.isolation import Isolation
from django_jobchains.models import Job
from django_jobchains.records import NonRetryable, RecordProcessor
from django_jobchains.store import get_store
from django_jobchains.telemetry.events import AttemptStuck
from django_jobchains.worker import records as worker_records
from django_jobchains.worker.isolated.isolated_attempt import IsolatedRecordAttempt
from tests.records.models import Export, Repository, Upload
from tests.support.connections import holding
from tests.support.waiting import stays, until
from tests.support.workers import time_out

pytestmark = pytest.mark.django_db(transaction=True)


class Hooked(RecordProcessor[Upload]):
    """Notes its calls, and does in each method what the test has set in ``does``."""

    def __init__(self):
        self.calls = []
        self.does = {}
        self.entered, self.released = threading.Event(), threading.Event()

    def _call(self, name, *args):
        self.calls.append(name)
        return self.does[name](*args) if name in self.does else None

    def pre_dequeue(self):
        result = self._call("pre_dequeue")
        return True if result is None else result

    def pre_handle(self, record):
        self._call("pre_handle", record)

    def handle(self, record, run):
        self._call("handle", record, run)

    def post_handle(self, record):
        self._call("post_handle", record)

    def blocks(self, *args):
        """Wait until the test releases the processor."""
        self.entered.set()
        self.released.wait(60)


@pytest.fixture
def hooked(processors):
    """The processor of uploads."""
    processors.records(Upload, poll_every=0.02, heartbeat_every=0.05, max_runtime=60)(Hooked)
    processor = processors.record_types["records.upload"].processor
    yield processor
    processor.released.set()


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("fails_in", "state", "calls"),
    [
        (None, "completed", ["pre_handle", "handle", "post_handle"]),
        ("handle", "errored", ["pre_handle", "handle", "post_handle"]),
        ("pre_handle", "errored", ["pre_handle", "post_handle"]),
        ("post_handle", "completed", ["pre_handle", "handle", "post_handle"]),
    ],
)
def test_hooks_are_called_around_the_handler(hooked, handled, fails_in, state, calls):
    seen = []
    hooked.does["post_handle"] = lambda record: seen.append(Upload.objects.get().state)
    if fails_in:
        hooked.does[fails_in] = lambda *args: fail(ValueError("unlucky"))
    upload = handled()
    message = "ValueError: unlucky" if state == "errored" else None
    assert (upload.state, upload.failure_message) == (state, message)
    assert seen == ([] if fails_in == "post_handle" else [state])
    assert hooked.calls[0] == "pre_dequeue"
    assert [call for call in hooked.calls if call != "pre_dequeue"] == calls


@pytest.mark.parametrize(
    ("before", "sizes"),
    [
        (False, []),
        (Q(size=1) | Q(size=3), [1, 3]),
        (Q(pk__in=[]), []),
        ("a text", []),
    ],
)
def test_pre_dequeue_decides_what_is_dequeued(hooked, make_worker, before, sizes):
    hooked.does["pre_dequeue"] = lambda: before
    Upload.objects.bulk_create([Upload(size=size) for size in (1, 2, 3)])
    Upload.objects.create(size=1, state="uploading")
    make_worker(slots=1).run_until_idle(timeout=20)
    assert sorted(Upload.objects.filter(state="completed").values_list("size", flat=True)) == sizes


@pytest.mark.parametrize(
    ("hook", "message", "first"),
    [
        ("pre_dequeue", "No record of 'records.upload' is dequeued: TransactionLeftOpen", "completed"),
        ("pre_handle", "TransactionLeftOpen", "errored"),
        ("post_handle", "post_handle of record", "completed"),
    ],
)
def test_a_transaction_that_a_hook_leaves_open_is_reported_and_rolled_back(
    hooked, start_worker, caplog, hook, message, first
):
    """Every method writes its name. The first call of the hook leaves its transaction open."""
    careless = [hook]

    def write(name):
        if name in careless:
            careless.remove(name)
            transaction.atomic().__enter__()
            name = "lost"
        Repository.objects.create(name=name)

    names = {"pre_dequeue", "pre_handle", "handle", "post_handle"}
    hooked.does = {name: lambda *args, name=name: write(name) for name in names}
    for _ in range(2):
        Upload.objects.create()
    start_worker(slots=1)
    until(lambda: list(Upload.objects.order_by("pk").values_list("state", flat=True)) == [first, "completed"])
    until(lambda: message in caplog.text and "TransactionLeftOpen" in caplog.text)
    until(lambda: set(Repository.objects.values_list("name", flat=True)) == names)


@pytest.mark.parametrize(
    ("interrupt", "heeds", "seen"),
    [
        (lambda worker: Upload.objects.update(cancel=True), True, ("cancelled", ["cancelled"])),
        (lambda worker: Upload.objects.update(cancel=True), False, ("cancelled", ["completed"])),
        (lambda worker: time_out(worker, "run.signal.wait(60)"), True, ("timed_out", ["errored"])),
        (lambda worker: Upload.objects.all().delete(), False, ("not_found", [])),
    ],
)
def test_post_handle_follows_an_interruption(hooked, start_worker, interrupt, heeds, seen):
    """A handler that ignores it completes its record."""
    reasons, found = [], []

    def handle(record, run):
        hooked.entered.set()
        run.signal.wait(60)
        reasons.append(run.signal.reason)
        if heeds:
            run.signal.raise_if_aborted()

    def post_handle(record):
        found.append((*reasons, list(Upload.objects.values_list("state", flat=True))))

    hooked.does = {"handle": handle, "post_handle": post_handle}
    Upload.objects.create()
    worker = start_worker()
    assert hooked.entered.wait(30)
    interrupt(worker)
    until(lambda: found)
    assert found == [seen]


LATER = timezone.now() + timedelta(hours=1)


@pytest.mark.parametrize(
    ("interrupt", "state"), [(records.cancel, "cancelled"), (partial(records.requeue, after=LATER), "queued")]
)
def test_an_attempt_that_is_aborted_during_pre_handle_does_not_call_the_handler(hooked, start_worker, interrupt, state):
    def pre_handle(record):
        interrupt(record)
        [attempt] = worker.components.pools[0].attempts()
        assert attempt.signal.wait(30)

    hooked.does["pre_handle"] = pre_handle
    worker = start_worker(slots=1)
    Upload.objects.create()
    until(lambda: "post_handle" in hooked.calls)
    assert "handle" not in hooked.calls
    assert Upload.objects.get().state == state


def test_an_attempt_that_is_aborted_before_it_has_a_child_process_does_not_call_the_handler(processors, register):
    register()
    upload, ended, pool = Upload.objects.create(state="processing", lease_number=1), [], mock.Mock()
    environment = RecordEnvironment(processors.record_types["records.upload"], get_store(), ended.append)
    attempt = IsolatedRecordAttempt(upload, (upload.pk, 1), environment, AbortSignal(), pool=pool, on_ended=print)
    pool.acquire.side_effect = lambda: (attempt.signal.abort("cancelled"), mock.DEFAULT)[1]
    attempt.run()
    pool.acquire.return_value.start.assert_not_called()
    assert [(each.end.kind, each.error) for each in ended] == [
        ("errored", "JobAborted: The attempt was asked to stop: cancelled.")
    ]


# Slow hooks


def test_the_time_limit_of_the_handler_starts_after_pre_handle(hooked, start_worker):
    limits = {}

    def note(name):
        [attempt] = worker.components.pools[0].attempts()
        limits[name] = attempt.expires_at

    def pre_handle(record):
        time.sleep(0.1)
        note("pre_handle")

    hooked.does = {"pre_handle": pre_handle, "handle": lambda record, run: note("handle")}
    worker = start_worker(slots=1)
    Upload.objects.create()
    until(lambda: "post_handle" in hooked.calls)
    assert limits["handle"] - limits["pre_handle"] >= 0.1


@pytest.mark.postgresql
def test_an_attempt_that_waits_for_the_write_of_its_end_is_not_stuck(hooked, start_worker, settings, events):
    """Another transaction locks its row."""
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.1}
    lockers = []
    hooked.does["handle"] = lambda record, run: lockers.append(
        holding(lambda store: list(Upload.objects.select_for_update(no_key=True)))
    )
    Upload.objects.create()
    worker = start_worker(slots=1)
    time_out(worker, "written.wait()")
    assert stays(lambda: not events.of(AttemptStuck), 0.5)
    lockers[0].result()
    until(lambda: "post_handle" in hooked.calls)
    until(lambda: worker.running == 0)
    assert (Upload.objects.get().state, events.of(AttemptStuck)) == ("completed", [])


@pytest.mark.parametrize("hook", ["pre_dequeue", "pre_handle", "post_handle"])
def test_a_hook_that_blocks_delays_nothing_else(hooked, processors, start_worker, hook):
    processors.records(Export, poll_every=0.02)(lambda record, run: None)
    note = processors.register("shop.note")(lambda job: None)
    hooked.does[hook] = hooked.blocks
    Upload.objects.create()
    start_worker(slots=2)
    assert hooked.entered.wait(20)
    for _ in range(3):
        Export.objects.create()
        note.enqueue()
    until(lambda: Export.objects.filter(state="completed").count() == 3)
    until(lambda: Job.objects.filter(status="completed").count() == 3)
    assert not hooked.released.is_set()
    hooked.released.set()
    until(lambda: Upload.objects.get().state == "completed")


def test_the_next_record_is_dequeued_after_pre_handle(hooked, start_worker, monkeypatch):
    monkeypatch.setattr(worker_records, "ANSWER_SECONDS", 60)
    hooked.does["pre_handle"] = hooked.blocks
    Upload.objects.bulk_create([Upload() for _ in range(3)])
    start_worker(slots=3)
    assert hooked.entered.wait(20)
    assert stays(lambda: hooked.calls == ["pre_dequeue", "pre_handle"], 0.2)
    assert Upload.objects.filter(state="processing").count() == 1
    hooked.released.set()
    until(lambda: Upload.objects.filter(state="completed").count() == 3)
    hooks = [call for call in hooked.calls if call.startswith("pre_")]
    assert hooks[:6] == ["pre_dequeue", "pre_handle"] * 3


def release_when(condition, hooked):
    """Release the processor, on another thread, when the condition holds."""
    threading.Thread(target=lambda: (until(condition), hooked.released.set()), daemon=True).start()


def test_a_worker_is_not_idle_while_a_hook_decides(hooked, handled):
    hooked.does["pre_dequeue"] = hooked.blocks
    release_when(hooked.entered.is_set, hooked)
    assert handled().state == "completed"


def test_post_handle_follows_each_pre_handle_of_a_worker_that_stops(hooked, start_worker):
    hooked.does["handle"] = hooked.blocks
    Upload.objects.bulk_create([Upload() for _ in range(3)])
    worker = start_worker(slots=1)
    assert hooked.entered.wait(20)
    release_when(lambda: worker.components.claim_loop._is_closed, hooked)
    worker.stop(timeout=20)
    assert hooked.calls.count("pre_handle") == hooked.calls.count("post_handle")
    assert Upload.objects.filter(state="queued").exists()


@pytest.mark.parametrize("hook", ["pre_handle", "post_handle"])
def test_a_hook_that_does_not_stop_loses_its_slot_if_the_handler_runs_in_a_child_process(
    hook, processors, start_worker, events, settings
):
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.1}
    isolation = Isolation("process", max_workers=1)
    processors.records(Upload, isolation=isolation, max_runtime=0.2, poll_every=0.02)(Hooked)
    hooked = processors.record_types["records.upload"].processor
    hooked.does["pre_handle"] = lambda record: fail(NonRetryable("The handler is not needed."))
    before = hooked.does.get(hook, lambda record: None)
    hooked.does[hook] = lambda record: (record.size and hooked.blocks(), before(record))

    def until_ended(count):
        until(lambda: Upload.objects.filter(state__in=["failed", "errored"]).count() == count)

    Upload.objects.create(size=1)
    worker = start_worker(slots=1)
    until(lambda: events.of(AttemptStuck))
    Upload.objects.create()
    until_ended(2)
    assert not hooked.released.is_set()
    hooked.released.set()
    until(lambda: not worker.components.slots.stuck)
    Upload.objects.create()
    until_ended(3)
