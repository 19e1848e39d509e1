"""The workers of a group derive their positions in the wake order from their heartbeats."""

from typing import Any

import pytest

from django_jobchains.processors import JobType
from django_jobchains.worker import Worker
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def order(worker: Worker) -> Any:
    """Return the position of a worker, and the number of workers in its group."""
    worker.components.maintenance.run_soon(worker.components.heartbeat)
    found = worker.components.wake_order._order
    return found and (found.position, len(found.free))


def test_each_worker_of_a_group_has_its_own_position(processors, start_worker):
    _: JobType[Any, Any] = processors.register("presence.quick")(lambda job: None)
    workers = [start_worker() for _ in range(3)]
    other = start_worker(queues=["mail"])
    until(lambda: {order(worker) for worker in workers} == {(0, 3), (1, 3), (2, 3)})
    until(lambda: order(other) == (0, 1))
    workers.pop().stop()
    until(lambda: {order(worker) for worker in workers} == {(0, 2), (1, 2)})
