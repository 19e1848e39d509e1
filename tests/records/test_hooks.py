"""The hooks of record processors: when they are called, and what their results, errors and open transactions do."""

import threading

import pytest
from django.db import transaction
from django.db.models import Q

from django_jobchains.records import RecordProcessor
from tests.records.models import Repository, Upload
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


class Recording(RecordProcessor[Upload]):
    def __init__(self):
        self.calls = []
        self.before = True

    def pre_dequeue(self):
        self.calls.append("pre_dequeue")
        return self.before

    def pre_handle(self, record):
        self.calls.append(f"pre_handle {record.size}")
        if record.size == 13:
            raise ValueError("unlucky")

    def handle(self, record, run):
        self.calls.append(f"handle {record.size}")
        if record.size == 5:
            raise ValueError("no")

    def post_handle(self, record):
        self.calls.append(f"post_handle {record.size} {Upload.objects.get(pk=record.pk).state}")
        raise KeyError("only logged")


@pytest.fixture
def recording(processors):
    processors.records(Upload)(Recording)
    return processors.record_types["records.upload"].processor


@pytest.mark.parametrize(("size", "state"), [(1, "completed"), (5, "errored")])
def test_hooks_are_called_around_the_handler(recording, make_worker, size, state):
    upload = Upload.objects.create(size=size)
    make_worker(slots=1).run_until_idle(timeout=20)
    upload.refresh_from_db()
    assert upload.state == state
    calls = [call for call in recording.calls if call != "pre_dequeue"]
    assert calls == [f"pre_handle {size}", f"handle {size}", f"post_handle {size} {state}"]
    assert recording.calls[0] == "pre_dequeue"


def test_an_error_of_pre_handle_is_the_attempts_error(recording, make_worker):
    upload = Upload.objects.create(size=13)
    make_worker(slots=1).run_until_idle(timeout=20)
    upload.refresh_from_db()
    assert (upload.state, upload.failure_message) == ("errored", "ValueError: unlucky")
    calls = [call for call in recording.calls if call != "pre_dequeue"]
    assert calls == ["pre_handle 13", "post_handle 13 errored"]


@pytest.mark.parametrize(
    ("before", "handled"),
    [
        (False, []),
        (Q(size__lte=2), [1, 2]),
        (Q(size=1) | Q(size=3), [1, 3]),
        (Q(pk__in=[]), []),
        ("a text", []),
    ],
)
def test_pre_dequeue_decides_what_is_dequeued(recording, make_worker, before, handled):
    recording.before = before
    Upload.objects.bulk_create([Upload(size=size) for size in (1, 2, 3)])
    Upload.objects.create(size=1, state="uploading")
    make_worker(slots=1).run_until_idle(timeout=20)
    assert sorted(Upload.objects.filter(state="completed").values_list("size", flat=True)) == handled


def test_a_budget_is_lowered_before_the_next_record_is_dequeued(processors, make_worker):
    most = []

    @processors.records(Upload)
    class WithinBudget(RecordProcessor[Upload]):
        def __init__(self):
            self.headroom, self.lock = 10, threading.Lock()

        def pre_dequeue(self):
            return Q(size__lte=self.headroom) if self.headroom else False

        def pre_handle(self, record):
            with self.lock:
                self.headroom -= record.size
                most.append(self.headroom)

        def handle(self, record, run):
            run.signal.wait(0.01)

        def post_handle(self, record):
            with self.lock:
                self.headroom += record.size

    Upload.objects.bulk_create([Upload(size=size) for size in (6, 6, 4, 3, 7, 10)])
    worker = make_worker(slots=4, poll_seconds=0.02)
    worker.start()
    until(lambda: Upload.objects.filter(state="completed").count() == 6)
    worker.stop()
    assert min(most) >= 0


class Careless(RecordProcessor[Upload]):
    """Every method writes its name. The first call of the hook ``careless_in`` leaves its transaction open."""

    def __init__(self):
        self.careless_in = ""

    def _call(self, name):
        if name == self.careless_in:
            self.careless_in, name = "", "lost"
            transaction.atomic().__enter__()
        Repository.objects.create(name=name)

    def pre_dequeue(self):
        self._call("pre_dequeue")
        return True

    def pre_handle(self, record):
        self._call("pre_handle")

    def handle(self, record, run):
        self._call("handle")

    def post_handle(self, record):
        self._call("post_handle")


@pytest.mark.parametrize(
    ("hook", "message", "first"),
    [
        ("pre_dequeue", "No record of 'records.upload' is dequeued: TransactionLeftOpen", "completed"),
        ("pre_handle", "TransactionLeftOpen", "errored"),
        ("post_handle", "post_handle of record", "completed"),
    ],
)
def test_a_transaction_that_a_hook_leaves_open_is_reported_and_rolled_back(
    processors, start_worker, caplog, hook, message, first
):
    processors.records(Upload, poll_every=0.05)(Careless)
    processor = processors.record_types["records.upload"].processor
    processor.careless_in = hook
    for _ in range(2):
        Upload.objects.create()
    start_worker(slots=1)
    until(lambda: list(Upload.objects.order_by("pk").values_list("state", flat=True)) == [first, "completed"])
    until(lambda: message in caplog.text and "TransactionLeftOpen" in caplog.text)
    every_name = {"pre_dequeue", "pre_handle", "handle", "post_handle"}
    until(lambda: set(Repository.objects.values_list("name", flat=True)) == every_name)
