"""Handlers that are interrupted: ``post_handle`` follows, and a handler that ignores it completes its record."""

import threading

import pytest

from django_jobchains.records import RecordProcessor
from tests.records.models import Upload
from tests.support.waiting import until
from tests.support.workers import time_out

pytestmark = pytest.mark.django_db(transaction=True)

INTERRUPTIONS = {
    "cancelled": lambda worker: Upload.objects.update(cancel=True),
    "not_found": lambda worker: Upload.objects.all().delete(),
    "timed_out": lambda worker: time_out(worker, "run.signal.wait(60)"),
}


class Interrupted(RecordProcessor[Upload]):
    """Waits for an interruption, and then stops or, unless it ``heeds`` it, returns."""

    def __init__(self):
        self.heeds = True
        self.started = threading.Event()
        #: What ``post_handle`` has seen: the reason of the interruption, and the states of all records.
        self.seen = []
        self._reason = None

    def handle(self, record, run):
        self.started.set()
        run.signal.wait(60)
        self._reason = run.signal.reason
        if self.heeds:
            run.signal.raise_if_aborted()

    def post_handle(self, record):
        self.seen.append((self._reason, list(Upload.objects.values_list("state", flat=True))))


@pytest.mark.parametrize(
    ("reason", "heeds", "states"),
    [
        ("cancelled", True, ["canceled"]),
        ("cancelled", False, ["completed"]),
        ("timed_out", True, ["errored"]),
        ("timed_out", False, ["completed"]),
        ("not_found", True, []),
        ("not_found", False, []),
    ],
)
def test_post_handle_follows_an_interruption(processors, start_worker, reason, heeds, states):
    processors.records(Upload, heartbeat_every=0.05)(Interrupted)
    processor = processors.record_types["records.upload"].processor
    processor.heeds = heeds
    Upload.objects.create()
    worker = start_worker()
    assert processor.started.wait(30)
    INTERRUPTIONS[reason](worker)
    until(lambda: processor.seen)
    assert processor.seen == [(reason, states)]
