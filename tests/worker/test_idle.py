"""An idle worker and its supervisor use almost no CPU."""

import asyncio
import threading
import time
from datetime import timedelta

import psutil
import pytest

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.worker.health_server import HealthServer
from tests.support.waiting import until
from tests.support.worker_processes import ask, free_port
from tests.support.workers import completed

pytestmark = pytest.mark.slow

#: For how long CPU time is measured.
MEASURED_SECONDS = 3.0
#: The limit in cores. A process uses about 0.02; a loop that does not wait uses all that is left of a core.
MAX_CORES = 0.08
THREADS = {
    "claim-loop", "outcome-writer", "maintenance", "lease-renewal", "stuck-attempts", "log-writer", "event-loop",
    "health",
}  # fmt: skip


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
    def threaded(job):
        if job.input:
            gate.wait(60)

    @processors.register("worker.on_loop")
    async def on_loop(job):
        if job.input:
            await asyncio.sleep(60)

    worker = start_worker(slots=2, async_slots=2, poll_seconds=1)
    port = HealthServer("127.0.0.1", free_port(), worker.health)
    port.start()
    chains.enqueue_many([threaded.item(), on_loop.item()])
    until(lambda: completed() == 2)
    until(lambda: worker.health().is_ready, what=worker.health)
    yield [threaded, on_loop]
    port.close()


def until_quiet(cpu_seconds):
    """Measure again if a busy machine has delayed work from before into the time of the measurement."""
    used = {}

    def is_quiet():
        before, since = cpu_seconds(), time.monotonic()
        time.sleep(MEASURED_SECONDS)
        seconds = time.monotonic() - since
        used.update({name: (now - before.get(name, 0)) / seconds for name, now in cpu_seconds().items()})
        return sum(used.values()) < MAX_CORES

    until(is_quiet, what=used)


def of_threads():
    """Return the CPU time of each thread of this process."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    threads = psutil.Process().threads()
    return {names.get(thread.id, str(thread.id)): thread.user_time + thread.system_time for thread in threads}


def test_idle_worker_uses_almost_no_cpu(types, listeners):
    chains.enqueue_many([type_.item(delay=timedelta(hours=1)) for type_ in types])
    assert {f"jobchains-{part}" for part in THREADS | listeners} <= of_threads().keys()
    until_quiet(of_threads)


def test_full_worker_with_waiting_handlers_uses_almost_no_cpu(types):
    chains.enqueue_many([type_.item(True) for type_ in types for _ in range(10)])
    until(lambda: Job.objects.with_status("running").count() >= 4)
    until_quiet(of_threads)


def test_idle_supervisor_and_its_workers_use_almost_no_cpu(start_process):
    port = free_port()
    process = start_process("--processes", "2", "--reload", "--health-port", str(port))
    workers = process.until_working(2)
    until(lambda: not ask(port, "/")[1]["problems"], 60, lambda: process.output)
    for each in [psutil.Process(process.pid), *workers]:
        until_quiet(lambda each=each: {each.pid: sum(each.cpu_times()[:2])})
