"""An idle worker and its supervisor use almost no CPU."""

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import psutil
import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType, RunningJob
from django_jobchains.worker.health_server import HealthServer
from tests.support.waiting import until
from tests.worker.test_supervisor import ask, free_port, until_working

pytestmark = pytest.mark.slow

Types = list[JobType[Any, Any]]

#: For how long CPU time is measured.
MEASURED_SECONDS = 3.0
#: The limit in cores. A process uses about 0.02; a loop that does not wait uses all that is left of a core.
MAX_CORES = 0.08
THREADS = {
    "claim-loop",
    "outcome-writer",
    "maintenance",
    "lease-renewal",
    "stuck-attempts",
    "log-writer",
    "event-loop",
    "health",
}


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def listeners():
    """The names of the threads that listen for wake-ups with the project's notifier."""
    return {"listener-default"}


@pytest.fixture
def types(listeners, processors, gate, start_worker):
    """A type for threads and one for the event loop, whose handlers wait until the test ends if they have an input.

    The worker has all its optional threads, and has run some jobs.
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
    port = HealthServer("127.0.0.1", free_port(), worker.health)
    port.start()
    done = chains.enqueue_many([threaded.item(), on_loop.item()])
    until(lambda: all(chain.refresh().status == "completed" for chain in done))
    until(lambda: worker.health().is_ready, what=worker.health)
    yield [threaded, on_loop]
    port.close()


def until_quiet(listeners: set[str]) -> None:
    """Measure again if a busy machine has delayed work from before into the time of the measurement."""
    until(lambda: sum(cores_of_threads(listeners).values()) < MAX_CORES, what=lambda: cores_of_threads(listeners))


def cores_of_threads(listeners: set[str]) -> dict[str, float]:
    """Return how many cores each of the busiest threads of this process uses."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    assert {f"jobchains-{part}" for part in THREADS | listeners} <= set(names.values())
    before, since = cpu_seconds(), time.monotonic()
    time.sleep(MEASURED_SECONDS)
    seconds = time.monotonic() - since
    cores = {names.get(id_, str(id_)): (used - before.get(id_, 0)) / seconds for id_, used in cpu_seconds().items()}
    return dict(sorted(cores.items(), key=lambda item: -item[1])[:5])


def cpu_seconds() -> dict[int, float]:
    """Return the CPU time of each thread of this process by its native id."""
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}


def test_idle_worker_uses_almost_no_cpu(types, listeners):
    chains.enqueue_many([type_.item(delay=timedelta(hours=1)) for type_ in types])
    until_quiet(listeners)


def test_full_worker_with_waiting_handlers_uses_almost_no_cpu(types, listeners):
    chains.enqueue_many([type_.item(True) for type_ in types for _ in range(10)])
    until(lambda: Job.objects.with_status("running").count() >= 4)
    until_quiet(listeners)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="about processes, not the database")
def test_idle_supervisor_and_its_workers_use_almost_no_cpu(start_process):
    port = free_port()
    process = start_process("--processes", "2", "--reload", "--health-port", str(port))
    workers = until_working(process)
    until(lambda: not ask(port, "/")[1]["problems"], 60, lambda: process.output)
    processes = [psutil.Process(process.pid), *workers]
    until(lambda: max(cores_of_processes(processes)) < MAX_CORES, what=lambda: cores_of_processes(processes))


def cores_of_processes(processes: list[psutil.Process]) -> list[float]:
    """Return how many cores each process uses."""
    since, before = time.monotonic(), [sum(each.cpu_times()[:2]) for each in processes]
    time.sleep(MEASURED_SECONDS)
    used = [sum(each.cpu_times()[:2]) - earlier for each, earlier in zip(processes, before, strict=True)]
    return [seconds / (time.monotonic() - since) for seconds in used]
