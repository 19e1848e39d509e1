"""What a worker reports about its child processes: in its row, by its health and in ``status``."""

from io import StringIO

import psutil
import pytest
from django.core.management import call_command

from django_jobchains.models import WorkerPresence
from django_jobchains.monitoring import overview
from tests.isolation.app import hostile_jobs
from tests.isolation.ends import output
from tests.support.waiting import until

pytestmark = pytest.mark.slow


def pool_of(key):
    [worker] = overview().workers
    return next(pool for pool in worker.pools if pool.key == key)


def test_a_row_reports_each_pool_with_its_children_and_their_deaths(start_isolated):
    start_isolated("--slots", "6", jobchains={"ISOLATION": "process", "HEARTBEAT_SECONDS": 0.2})
    assert output(hostile_jobs.dies.enqueue("SIGKILL")) == 2
    attempts = output(hostile_jobs.hangs.enqueue("heeds SIGTERM"))
    until(lambda: (pool_of("default").crashed, pool_of("hanging").killed) == (1, attempts - 1), 60, overview)
    default, hanging = pool_of("default"), pool_of("hanging")
    assert (default.killed, default.recycled, hanging.crashed, hanging.max_workers) == (0, 0, 0, 4)
    assert default.workers == 1
    assert default.rss_bytes == default.largest_rss_bytes > 10 * 1024**2
    assert {pool.level for worker in overview().workers for pool in worker.pools} == {"process"}


def test_a_pool_is_saturated_while_all_its_children_are_busy(start_isolated):
    start_isolated("--slots", "6", jobchains={"HEARTBEAT_SECONDS": 0.2})
    chains = [hostile_jobs.hangs_for_ever.enqueue() for _ in range(4)]
    until(WorkerPresence.objects.exists, 60)
    until(lambda: pool_of("hanging").is_saturated, 60, overview)
    assert (pool_of("hanging").busy, pool_of("small").is_saturated) == (4, False)
    written = StringIO()
    call_command("jobchains", "status", stdout=written)
    line = next(line for line in written.getvalue().splitlines() if "process hanging" in line)
    assert "4 of 4" in line
    assert "saturated" in line
    assert len(chains) == 4


def test_a_worker_without_isolated_types_reports_no_pools(start_process):
    worker = start_process(jobchains={"HEARTBEAT_SECONDS": 0.2}).until_ready()
    until(WorkerPresence.objects.exists, 60)
    assert overview().workers[0].pools == ()
    assert psutil.Process(worker.pid).children() == []
