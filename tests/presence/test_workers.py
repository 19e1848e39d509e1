"""The rows of running workers. Problems with these rows do not affect the jobs of the workers."""

import logging
import os
import socket
import threading
import time
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.test import override_settings

import django_jobchains
from django_jobchains import monitoring
from django_jobchains.models import WorkerPresence
from django_jobchains.store.workers import Beat
from tests.support.databases import without_table
from tests.support.jobs import database_now
from tests.support.statements import statements_of_others
from tests.support.waiting import stays, until, until_completed

OFTEN = override_settings(JOBCHAINS={"HEARTBEAT_SECONDS": 0.05})
SELDOM = override_settings(JOBCHAINS={"HEARTBEAT_SECONDS": 60})


def present():
    return list(monitoring.overview().workers)


def ids():
    return [worker.id for worker in present()]


@pytest.fixture
def held(processors, gate):
    return processors.register("presence.held", timeout=60)(lambda job: gate.wait(30))


def test_a_worker_has_a_row_from_its_start_to_its_end(quick, start_worker):
    worker, other = start_worker(slots=3, queues=["b", "a"]), start_worker()
    until(lambda: set(ids()) == {worker.id, other.id})
    other.stop()
    until(lambda: ids() == [worker.id])
    [seen] = present()
    assert (seen.host, seen.pid) == (socket.gethostname(), os.getpid())
    assert (seen.slots, seen.busy, seen.stuck, seen.queues) == (3, 0, 0, ("b", "a"))
    assert (seen.type_names, seen.version) == (("worker.quick",), django_jobchains.__version__)
    assert (seen.is_stopping, seen.is_stale) == (False, False)
    worker.stop()
    until(lambda: ids() == [])
    worker.components.heartbeat.step()
    assert ids() == []


@OFTEN
def test_busy_slots_are_reported(held, gate, start_worker):
    start_worker(slots=3)
    for _ in range(2):
        held.enqueue()
    until(lambda: [worker.busy for worker in present()] == [2])
    gate.set()
    until(lambda: [worker.busy for worker in present()] == [0])


@override_settings(JOBCHAINS={"HEARTBEAT_SECONDS": 0.05, "STUCK_SECONDS": 0.05})
def test_stuck_slots_are_reported(processors, gate, start_worker):
    processors.register("presence.deaf", timeout=0.05)(lambda job: gate.wait(30)).enqueue()
    start_worker(slots=2)
    until(lambda: [worker.stuck > 0 for worker in present()] == [True])


@SELDOM
@pytest.mark.parametrize("retires", [False, True])
def test_a_stopping_or_retiring_worker_is_reported_while_its_handlers_end(held, gate, start_worker, retires):
    worker = start_worker()
    held.enqueue()
    until(lambda: worker.running == 1)
    stopping = threading.Thread(target=worker.retire if retires else worker.stop)
    stopping.start()
    until(lambda: [(seen.is_stopping, seen.busy) for seen in present()] == [(True, 1)])
    gate.set()
    stopping.join()


@OFTEN
def test_a_deleted_row_is_created_again(quick, start_worker):
    worker = start_worker()
    for _ in range(3):
        until(lambda: ids() == [worker.id])
        WorkerPresence.objects.all().delete()
    until(lambda: ids() == [worker.id])


@OFTEN
def test_the_row_of_a_dead_worker_is_deleted_by_another(quick, store, start_worker):
    store.workers.beat(Beat("died", "host", 1, "1", 1, 0, 0, None, (), False, 100.0, 0.01))
    until(lambda: [worker.is_stale for worker in present()] == [True])
    worker = start_worker()
    until(lambda: ids() == [worker.id])


@OFTEN
def test_a_worker_runs_jobs_without_its_table(quick, start_worker, caplog):
    with without_table("django_jobchains_workerpresence"), caplog.at_level(logging.WARNING, "django_jobchains"):
        worker = start_worker()
        until_completed(quick.enqueue())
        assert stays(lambda: not worker.failed, 1)
        assert worker.components.heartbeat.last_success_at is None
        until_completed(quick.enqueue())
        worker.stop()
    [warning] = [record.getMessage() for record in caplog.records if "heartbeat" in record.getMessage()]
    assert worker.id in warning


@OFTEN
def test_the_time_of_the_last_heartbeat_is_known(quick, start_worker, store, monkeypatch):
    def fail(*args):
        raise OperationalError("away")

    heartbeat = start_worker().components.heartbeat
    first = until(lambda: heartbeat.last_success_at)
    assert first <= time.monotonic()
    until(lambda: heartbeat.last_success_at > first)
    monkeypatch.setattr(type(store.workers), "beat", fail)
    until(lambda: heartbeat.failures.is_failing)
    last = heartbeat.last_success_at
    assert stays(lambda: heartbeat.last_success_at == last, 0.3)
    until_completed(quick.enqueue())
    monkeypatch.undo()
    until(lambda: heartbeat.last_success_at != last)


def test_a_database_that_does_not_respond_does_not_delay_the_stop(quick, start_worker, store, monkeypatch):
    released = threading.Event()
    worker = start_worker()
    until(ids)
    monkeypatch.setattr(type(store.workers), "leave", lambda *args: released.wait(60))
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    stopping.join(30)
    try:
        assert not stopping.is_alive()
    finally:
        released.set()
        until(lambda: not [thread for thread in threading.enumerate() if thread.name == "jobchains-leave"])
        stopping.join()
    assert ids() == [worker.id]


@SELDOM
def test_heartbeats_take_few_statements(quick, start_worker):
    with statements_of_others() as statements:
        start_worker()
        until(ids)
        beats = ('INSERT INTO "django_jobchains_workerpresence"', 'DELETE FROM "django_jobchains_workerpresence"')
        assert stays(lambda: max(map(statements.count, beats)) <= 1, 1)


def test_a_heartbeat_does_not_read_constant_columns_again(quick, start_worker):
    with SELDOM:
        second = start_worker(queues=["mail"])
        until(ids)
    with OFTEN:
        heartbeat = start_worker().components.heartbeat
        until(lambda: len(heartbeat._present) == 2)
        WorkerPresence.objects.filter(pk=second.id).update(queues=["not read"], slots=99)
        until(lambda: 99 in [worker.slots for worker in heartbeat._present])
        assert {worker.id: worker.queues for worker in heartbeat._present}[second.id] == ("mail",)


@OFTEN
def test_one_worker_that_is_not_silent_is_the_first(quick, start_worker, store):
    store.workers.beat(Beat("gone", "host", 1, "1", 1, 0, 0, None, ("worker.quick",), False, 3600.0, 60.0))
    first = start_worker()
    until(lambda: len(first.components.heartbeat._present) == 2 and not first.components.heartbeat.is_first)
    WorkerPresence.objects.filter(pk="gone").update(heartbeat_at=database_now() - timedelta(seconds=200))
    until(lambda: first.components.heartbeat.is_first)
    second = start_worker()
    until(lambda: second.id in [worker.id for worker in second.components.heartbeat._present])
    until(lambda: first.components.heartbeat.is_first and not second.components.heartbeat.is_first)
    first.stop()
    until(lambda: second.components.heartbeat.is_first)


def test_each_worker_of_a_group_has_its_own_position_in_the_wake_order(quick, start_worker):
    def position(worker):
        """Return the position of a worker, and the number of workers in its group."""
        worker.components.maintenance.run_soon(worker.components.heartbeat)
        found = worker.components.wake_order._order
        return found and (found.position, len(found.free))

    workers = [start_worker() for _ in range(3)]
    other = start_worker(queues=["mail"])
    until(lambda: {position(worker) for worker in workers} == {(0, 3), (1, 3), (2, 3)})
    until(lambda: position(other) == (0, 1))
    workers.pop().stop()
    until(lambda: {position(worker) for worker in workers} == {(0, 2), (1, 2)})


def test_run_until_idle_leaves_no_row(quick, make_worker):
    quick.enqueue()
    make_worker().run_until_idle(15)
    until(lambda: ids() == [])
