"""A worker does not grow with the number of its jobs."""

import psutil
import pytest

from django_jobchains import chains
from django_jobchains.models import Job
from tests.support.invariants import assert_invariants
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.support.worker_processes import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

JOBS = 20_000
BATCH = 2_000
MEGABYTE = 1024 * 1024


def test_twenty_thousand_jobs_leave_threads_files_and_memory_as_they_were(start_process):
    process = start_process().until_ready()
    worker = psutil.Process(process.pid)
    sizes: list[tuple[int, int, int]] = []
    for enqueued in range(BATCH, JOBS + 1, BATCH):
        chains.enqueue_many([jobs.nothing.item({"text": "x" * 200}) for _ in range(BATCH)])
        until_count(enqueued, process)
        sizes.append((worker.num_threads(), worker.num_fds(), worker.memory_info().rss))
    # Of several sizes, because a thread or a connection may live only for a moment.
    warm = [max(size) for size in zip(*sizes[:3], strict=True)]
    last = [min(size) for size in zip(*sizes[-3:], strict=True)]
    assert last[0] <= warm[0], sizes
    assert last[1] <= warm[1] + 2, sizes
    assert last[2] - warm[2] < 16 * MEGABYTE, sizes
    assert_invariants()


def until_count(count: int, process: WorkerProcess) -> None:
    completed = Job.objects.with_status("completed")
    until(lambda: completed.count() == count, 60, lambda: process.output[-2_000:])
