"""The rows of running workers. Problems with these rows do not affect the jobs of the workers."""

import logging
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import override_settings

import django_jobchains
from django_jobchains import monitoring
from django_jobchains.models import WorkerPresence
from django_jobchains.monitoring import WorkerFacts
from django_jobchains.processors import JobType, RunningJob
from django_jobchains.store import get_store
from django_jobchains.store.workers import Beat
from django_jobchains.worker import Worker
from tests.support.jobs import database_now
from tests.support.statements import statements_of_others
from tests.support.waiting import stays, until, until_completed

OFTEN = {"HEARTBEAT_SECONDS": 0.05}
SELDOM = {"HEARTBEAT_SECONDS": 60}


@pytest.fixture
def quick(processors):
    return processors.register("presence.quick")(lambda job: None)


def present() -> list[WorkerFacts]:
    return list(monitoring.overview().workers)


def ids() -> list[str]:
    return [worker.id for worker in present()]


def test_a_worker_has_a_row_from_its_start_to_its_end(quick, start_worker):
    worker = start_worker(slots=3, queues=["b", "a"])
    [seen] = until(present)
    assert (seen.id, seen.host, seen.pid) == (worker.id, socket.gethostname(), os.getpid())
    assert (seen.slots, seen.busy, seen.stuck, seen.queues) == (3, 0, 0, ("b", "a"))
    assert (seen.type_names, seen.version) == (("presence.quick",), django_jobchains.__version__)
    assert not seen.is_stopping
    assert not seen.is_stale
    worker.stop()
    until(lambda: ids() == [])


def test_each_worker_has_its_own_row(quick, start_worker):
    first, second = start_worker(), start_worker()
    until(lambda: set(ids()) == {first.id, second.id})
    first.stop()
    until(lambda: ids() == [second.id])


def test_busy_slots_are_reported(processors, start_worker):
    gate = threading.Event()
    held: JobType[Any, Any] = processors.register("presence.held")(lambda job: gate.wait(30))
    with override_settings(JOBCHAINS=OFTEN):
        start_worker(slots=3)
        for _ in range(2):
            held.enqueue()
        try:
            until(lambda: [worker.busy for worker in present()] == [2])
        finally:
            gate.set()
        until(lambda: [worker.busy for worker in present()] == [0])


def test_stuck_slots_are_reported(processors, start_worker):
    gate = threading.Event()
    deaf: JobType[Any, Any] = processors.register("presence.deaf", timeout=0.05)(lambda job: gate.wait(30))
    with override_settings(JOBCHAINS={**OFTEN, "STUCK_SECONDS": 0.05}):
        start_worker(slots=2)
        deaf.enqueue()
        try:
            until(lambda: [worker.stuck > 0 for worker in present()] == [True])
        finally:
            gate.set()


def test_a_stopping_worker_is_reported_while_its_handlers_end(processors, start_worker):
    gate, started = threading.Event(), threading.Event()

    @processors.register("presence.held")
    def held(job: RunningJob[None]) -> None:
        started.set()
        gate.wait(30)

    with override_settings(JOBCHAINS=SELDOM):
        worker = start_worker()
    held.enqueue()
    assert started.wait(15)
    stopping = threading.Thread(target=worker.stop, args=[20])
    stopping.start()
    try:
        until(lambda: [(seen.is_stopping, seen.busy) for seen in present()] == [(True, 1)])
    finally:
        gate.set()
        stopping.join()
    until(lambda: ids() == [])


def test_a_retiring_worker_is_reported_as_stopping(quick, start_worker):
    with override_settings(JOBCHAINS=SELDOM):
        worker = start_worker()
    until(present)
    worker.retire()
    until(lambda: [seen.is_stopping for seen in present()] == [True])


def test_a_deleted_row_is_created_again(quick, start_worker):
    with override_settings(JOBCHAINS=OFTEN):
        worker = start_worker()
    for _ in range(3):
        until(lambda: ids() == [worker.id])
        WorkerPresence.objects.all().delete()
    until(lambda: ids() == [worker.id])


def test_the_row_of_a_dead_worker_is_deleted_by_another(quick, store, start_worker):
    died = Beat("died", "host", 1, "1", 1, 0, 0, None, (), False, 100.0, 0.01)
    store.workers.beat(died)
    until(lambda: [worker.is_stale for worker in present()] == [True])
    with override_settings(JOBCHAINS=OFTEN):
        worker = start_worker()
    until(lambda: ids() == [worker.id])


@pytest.mark.slow
def test_a_killed_worker_becomes_stale_and_is_then_deleted(quick, start_worker, start_process):
    process = start_process(jobchains={"HEARTBEAT_SECONDS": 0.3})
    [seen] = until(present, 60)
    process.kill()
    until(lambda: [(worker.id, worker.is_stale) for worker in present()] == [(seen.id, True)])
    with override_settings(JOBCHAINS=OFTEN):
        worker = start_worker()
    until(lambda: ids() == [worker.id])


def test_a_worker_runs_jobs_without_its_table(quick, make_worker, caplog):
    with override_settings(JOBCHAINS=OFTEN), _renamed_table(), caplog.at_level(logging.WARNING, "django_jobchains"):
        worker = make_worker()
        worker.start()
        until_completed(quick.enqueue())
        assert stays(lambda: not worker.failed, 1)
        assert worker.components.heartbeat.last_success_at is None
        until_completed(quick.enqueue())
        worker.stop()
    warnings = [record.getMessage() for record in caplog.records if "heartbeat" in record.getMessage()]
    assert len(warnings) == 1
    assert worker.id in warnings[0]


class _renamed_table:  # noqa: N801 - a context manager
    def __enter__(self) -> None:
        self._rename("django_jobchains_workerpresence", "elsewhere")

    def __exit__(self, *error: object) -> None:
        self._rename("elsewhere", "django_jobchains_workerpresence")

    def _rename(self, old: str, new: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


def test_the_time_of_the_last_heartbeat_is_known(quick, start_worker, store, monkeypatch):
    with override_settings(JOBCHAINS=OFTEN):
        worker = start_worker()
    first = until(lambda: worker.components.heartbeat.last_success_at) or 0.0
    assert first <= time.monotonic()
    until(lambda: (worker.components.heartbeat.last_success_at or 0) > first)
    monkeypatch.setattr(type(store.workers), "beat", _away)
    until(lambda: worker.components.heartbeat.failures.is_failing)
    last = worker.components.heartbeat.last_success_at
    assert stays(lambda: worker.components.heartbeat.last_success_at == last, 0.3)
    until_completed(quick.enqueue())
    monkeypatch.undo()
    until(lambda: worker.components.heartbeat.last_success_at != last)


def _away(*args: object) -> None:
    raise OperationalError("away")


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


def test_a_stopped_worker_does_not_create_its_row_again(quick, make_worker):
    worker = make_worker()
    worker.start()
    until(ids)
    worker.stop()
    until(lambda: ids() == [])
    worker.components.heartbeat.step()
    assert ids() == []


def test_heartbeats_take_few_statements(quick, start_worker):
    with override_settings(JOBCHAINS=SELDOM), statements_of_others() as statements:
        start_worker()
        until(ids)
        beats = ('INSERT INTO "django_jobchains_workerpresence"', 'DELETE FROM "django_jobchains_workerpresence"')
        assert stays(lambda: max(map(statements.count, beats)) <= 1, 1)


def test_a_heartbeat_does_not_read_constant_columns_again(quick, start_worker):
    with override_settings(JOBCHAINS=SELDOM):
        second = start_worker(queues=["mail"])
        until(ids)
    with override_settings(JOBCHAINS=OFTEN):
        first = start_worker()
        until(lambda: len(first.components.heartbeat._present) == 2)
        WorkerPresence.objects.filter(pk=second.id).update(queues=["not read"], slots=99)
        until(lambda: 99 in [worker.slots for worker in first.components.heartbeat._present])
        seen = {worker.id: worker for worker in first.components.heartbeat._present}
        assert seen[second.id].queues == ("mail",)


def test_one_worker_is_the_first(quick, start_worker):
    with override_settings(JOBCHAINS=OFTEN):
        first = start_worker()
        until(lambda: ids() == [first.id])
        second = start_worker()
        until(lambda: len(second.components.heartbeat._present) == 2)
        until(lambda: first.components.heartbeat.is_first and not second.components.heartbeat.is_first)
        first.stop()
        until(lambda: second.components.heartbeat.is_first)


def test_a_silent_worker_is_not_the_first(quick, start_worker):
    with override_settings(JOBCHAINS=OFTEN):
        gone = Beat("gone", "host", 1, "1", 1, 0, 0, None, ("presence.quick",), False, 3600.0, 60.0)
        get_store().workers.beat(gone)
        worker = start_worker()
        until(lambda: not worker.components.heartbeat.is_first)
        WorkerPresence.objects.filter(pk="gone").update(heartbeat_at=database_now() - timedelta(seconds=200))
        until(lambda: worker.components.heartbeat.is_first)


def test_run_until_idle_leaves_no_row(quick, make_worker):
    quick.enqueue()
    worker: Worker = make_worker()
    worker.run_until_idle(15)
    until(lambda: ids() == [])
