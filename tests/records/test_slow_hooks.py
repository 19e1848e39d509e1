"""A slow hook delays only its own model: jobs and the records of other models are handled in the meantime."""

import threading

import pytest

from django_jobchains.isolation import Isolation
from django_jobchains.models import Job
from django_jobchains.processors import RunningJob
from django_jobchains.records import NonRetryable, RecordProcessor
from django_jobchains.telemetry.events import AttemptStuck
from django_jobchains.worker import records as worker_records
from tests.records.models import Export, Upload
from tests.support.connections import holding
from tests.support.waiting import stays, until
from tests.support.workers import time_out

pytestmark = pytest.mark.django_db(transaction=True)


class Blocking(RecordProcessor[Upload]):
    """Blocks in the hook that ``blocks_in`` names, until it is released."""

    def __init__(self):
        self.blocks_in = ""
        self.entered, self.released = threading.Event(), threading.Event()
        self.calls = []

    def _call(self, name):
        self.calls.append(name)
        if name == self.blocks_in:
            self.entered.set()
            self.released.wait(60)

    def pre_dequeue(self):
        self._call("pre_dequeue")
        return True

    def pre_handle(self, record):
        self._call("pre_handle")

    def handle(self, record, run):
        self._call("handle")

    def post_handle(self, record):
        self._call("post_handle")


@pytest.fixture
def blocking(processors):
    """The processor of a model. The worker also runs a job type and another model."""
    processors.records(Upload, poll_every=0.02)(Blocking)
    processors.records(Export, poll_every=0.02)(lambda record, run: None)

    @processors.register("shop.note")
    def note(job: RunningJob[None]) -> None: ...

    processor = processors.record_types["records.upload"].processor
    yield processor
    processor.released.set()


@pytest.mark.postgresql
def test_an_attempt_that_waits_for_the_write_of_its_end_is_not_stuck(processors, start_worker, settings, events):
    """Another transaction locks its row."""
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.1}
    lockers = []

    class Locked(Blocking):
        def handle(self, record, run):
            lockers.append(holding(lambda store: list(Upload.objects.select_for_update(no_key=True))))

    processors.records(Upload, poll_every=0.02)(Locked)
    Upload.objects.create()
    worker = start_worker(slots=1)
    time_out(worker, "written.wait()")
    assert stays(lambda: not events.of(AttemptStuck), 0.5)
    lockers[0].result()
    processor = processors.record_types["records.upload"].processor
    until(lambda: "post_handle" in processor.calls)
    until(lambda: worker.running == 0)
    assert (Upload.objects.get().state, events.of(AttemptStuck)) == ("completed", [])


@pytest.mark.parametrize("hook", ["pre_dequeue", "pre_handle", "post_handle"])
def test_a_hook_that_blocks_delays_nothing_else(blocking, processors, start_worker, hook):
    blocking.blocks_in = hook
    Upload.objects.create()
    start_worker(slots=2)
    assert blocking.entered.wait(20)
    for _ in range(3):
        Export.objects.create()
        processors.by_name["shop.note"].job_type.enqueue()
    until(lambda: Export.objects.filter(state="completed").count() == 3)
    until(lambda: Job.objects.filter(status="completed").count() == 3)
    assert not blocking.released.is_set()
    blocking.released.set()
    until(lambda: Upload.objects.get().state == "completed")


def test_the_next_record_is_dequeued_after_pre_handle(blocking, start_worker, monkeypatch):
    monkeypatch.setattr(worker_records, "ANSWER_SECONDS", 60)
    blocking.blocks_in = "pre_handle"
    Upload.objects.bulk_create([Upload() for _ in range(3)])
    start_worker(slots=3)
    assert blocking.entered.wait(20)
    assert stays(lambda: blocking.calls == ["pre_dequeue", "pre_handle"], 0.2)
    assert Upload.objects.filter(state="processing").count() == 1
    blocking.released.set()
    until(lambda: Upload.objects.filter(state="completed").count() == 3)
    hooks = [call for call in blocking.calls if call.startswith("pre_")]
    assert hooks[:6] == ["pre_dequeue", "pre_handle"] * 3


def test_a_worker_is_not_idle_while_a_hook_decides(blocking, make_worker):
    blocking.blocks_in = "pre_dequeue"
    Upload.objects.create()

    def release():
        blocking.entered.wait(20)
        blocking.released.set()

    threading.Thread(target=release, daemon=True).start()
    make_worker(slots=1).run_until_idle(timeout=30)
    assert Upload.objects.get().state == "completed"


def release(blocking, worker):
    """Release the handler when the worker claims no more records."""
    until(lambda: worker.components.claim_loop._is_closed)
    blocking.released.set()


def test_post_handle_follows_each_pre_handle_of_a_worker_that_stops(blocking, start_worker):
    blocking.blocks_in = "handle"
    Upload.objects.bulk_create([Upload() for _ in range(3)])
    worker = start_worker(slots=1)
    assert blocking.entered.wait(20)
    threading.Thread(target=release, args=[blocking, worker], daemon=True).start()
    worker.stop(timeout=20)
    assert blocking.calls.count("pre_handle") == blocking.calls.count("post_handle")
    assert Upload.objects.filter(state="queued").exists()


@pytest.mark.parametrize("hook", ["pre_handle", "post_handle"])
def test_a_hook_that_does_not_stop_loses_its_slot_if_the_handler_runs_in_a_child_process(
    hook, processors, start_worker, events, settings
):
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.1}
    released = threading.Event()

    class Hanging(RecordProcessor[Upload]):
        def pre_handle(self, record):
            self._hang("pre_handle", record)
            raise NonRetryable("The handler is not needed.")

        def handle(self, record, run): ...

        def post_handle(self, record):
            self._hang("post_handle", record)

        def _hang(self, name, record):
            if record.size and name == hook:
                released.wait(60)

    processors.records(Upload, isolation=Isolation("process", max_workers=1), max_runtime=0.2, poll_every=0.02)(Hanging)
    Upload.objects.create(size=1)
    worker = start_worker(slots=1)
    until(lambda: events.of(AttemptStuck))
    Upload.objects.create()
    until(lambda: Upload.objects.filter(state__in=["failed", "errored"]).count() == 2)
    assert not released.is_set()
    released.set()
    until(lambda: not worker.components.slots.stuck)
    Upload.objects.create()
    until(lambda: Upload.objects.filter(state__in=["failed", "errored"]).count() == 3)
