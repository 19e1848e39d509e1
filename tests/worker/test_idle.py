"""A worker that waits uses about no CPU, with each of its parts, and neither does its supervisor."""

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psutil
import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, RunningJob
from django_jobchains.worker.health_port import HealthPort
from tests.worker.fixtures import StartWorker
from tests.worker.processes import StartProcess
from tests.worker.test_supervisor import ask, free_port, until_working
from tests.worker.waiting import until

pytestmark = pytest.mark.slow

Types = list[JobType[Any, Any]]

#: For how long CPU time is measured.
MEASURED_SECONDS = 3.0
#: Cores. A process uses two hundredths; a loop that does not wait uses a whole core, or what others leave of it.
MAX_CORES = 0.08
PARTS = {"claims", "completer", "reaper", "keeper", "watch", "notes", "event-loop", "health", "listener-default"}


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def types(
    processors: Processors, gate: threading.Event, start_worker: StartWorker
) -> Iterator[list[JobType[Any, Any]]]:
    """For the threads and for the event loop; with an input, their handlers wait until the test ends.

    The worker has every part there is, and has done some work.
    """

    @processors.register("worker.threaded")
    def threaded(job: RunningJob[Any]) -> None:
        if job.input:
            gate.wait(60)

    @processors.register("worker.on_loop")
    async def on_loop(job: RunningJob[Any]) -> None:
        if job.input:
            await asyncio.sleep(60)

    worker = start_worker(slots=2, async_slots=2, poll_seconds=1)
    port = HealthPort("127.0.0.1", free_port(), worker.health, worker=worker.id)
    port.start()
    done = chains.enqueue_many([threaded.item(), on_loop.item()])
    until(lambda: all(chain.refresh().status == "completed" for chain in done))
    until(lambda: worker.health().is_ready, what=worker.health)
    yield [threaded, on_loop]
    port.close()


def cores_of_threads() -> dict[str, float]:
    """How many cores the busiest threads of this process use."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    assert {f"jobchains-{part}" for part in PARTS} <= set(names.values())
    before, since = cpu_seconds(), time.monotonic()
    time.sleep(MEASURED_SECONDS)
    seconds = time.monotonic() - since
    cores = {names.get(id_, str(id_)): (used - before.get(id_, 0)) / seconds for id_, used in cpu_seconds().items()}
    return dict(sorted(cores.items(), key=lambda item: -item[1])[:5])


def cpu_seconds() -> dict[int, float]:
    """Of each thread of this process, by its system's id."""
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}


def test_an_idle_worker_uses_about_no_cpu(types: Types) -> None:
    chains.enqueue_many([type_.item(delay=timedelta(hours=1)) for type_ in types])
    cores = cores_of_threads()
    assert sum(cores.values()) < MAX_CORES, cores


def test_a_full_worker_whose_handlers_wait_uses_about_no_cpu(types: Types) -> None:
    chains.enqueue_many([type_.item(True) for type_ in types for _ in range(10)])
    until(lambda: Job.objects.with_status("running").count() >= 4)
    cores = cores_of_threads()
    assert sum(cores.values()) < MAX_CORES, cores


@pytest.mark.skipif(connection.vendor != "sqlite", reason="about processes, not the database")
def test_an_idle_supervisor_and_its_workers_use_about_no_cpu(start_process: StartProcess) -> None:
    port = free_port()
    process = start_process("--processes", "2", "--reload", "--health-port", str(port))
    workers = until_working(process)
    until(lambda: not ask(port, "/")[1]["problems"], 40, lambda: process.output)
    processes = [psutil.Process(process.pid), *workers]
    since, before = time.monotonic(), [sum(each.cpu_times()[:2]) for each in processes]
    time.sleep(MEASURED_SECONDS)
    used = [sum(each.cpu_times()[:2]) - earlier for each, earlier in zip(processes, before, strict=True)]
    assert max(used) < MAX_CORES * (time.monotonic() - since), used
