"""The outcome writer gathers ends while claimed jobs wait for a slot, and begins to write when half a batch waits."""

from contextlib import nullcontext
from threading import Thread
from types import SimpleNamespace

import pytest

from django_jobchains.worker import end_writer
from django_jobchains.worker.end_writer import MAX_BATCH_SIZE, EndWriter, Sink
from tests.support.waiting import stays, until

ENOUGH = MAX_BATCH_SIZE // 2


class Written(Sink):
    """Collects the sizes of the batches."""

    def __init__(self):
        self.sizes = []

    def accept(self, end):
        return True

    def groups(self, batch):
        return [list(batch)]

    def write(self, ends, uncertain):
        self.sizes.append(len(ends))
        return []

    def release(self, ends):
        pass


@pytest.fixture
def sink(monkeypatch):
    monkeypatch.setattr(end_writer, "GATHER_SECONDS", 3600)
    return Written()


@pytest.fixture
def writer(sink):
    connection = SimpleNamespace(ensure_connection=lambda: None)
    store = SimpleNamespace(connection=connection, db=SimpleNamespace(waits_at_most=lambda seconds: nullcontext()))
    return EndWriter(SimpleNamespace(store=store, backlogs=[["a claimed job"]]), sink)


def put(writer, count):
    for _ in range(count):
        writer.put(SimpleNamespace())


def test_writes_as_soon_as_half_a_batch_waits(writer, sink):
    thread = Thread(target=writer.step, daemon=True)
    thread.start()
    put(writer, 1)
    until(lambda: not writer._queue.qsize())  # It waits for more.
    put(writer, ENOUGH - 1)
    assert stays(lambda: not sink.sizes, 0.1)
    put(writer, 1)
    thread.join(10)
    assert sink.sizes == [ENOUGH + 1]


def test_writes_immediately_if_no_job_waits_for_a_slot(writer, sink):
    writer._context.backlogs = [[]]
    put(writer, 3)
    writer.step()
    assert sink.sizes == [3]


def test_writes_a_whole_batch_if_more_have_come(writer, sink):
    put(writer, MAX_BATCH_SIZE + 5)
    writer._context.backlogs = [[]]
    writer.step()
    writer.step()
    assert sink.sizes == [MAX_BATCH_SIZE, 5]
