"""Workers of one group find their places in an order by their heartbeats."""

from typing import Any

import pytest

from django_jobchains.processors import JobType, Processors
from django_jobchains.worker import Worker
from tests.worker.fixtures import StartWorker
from tests.worker.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def order(worker: Worker) -> Any:
    worker.parts.rounds.hasten(worker.parts.heartbeat)
    found = worker.parts.turns._order
    return found and (found.place, len(found.free))


def test_each_worker_of_a_group_has_a_place_of_its_own(processors: Processors, start_worker: StartWorker) -> None:
    _: JobType[Any, Any] = processors.register("presence.quick")(lambda job: None)
    workers = [start_worker() for _ in range(3)]
    other = start_worker(queues=["mail"])
    until(lambda: {order(worker) for worker in workers} == {(0, 3), (1, 3), (2, 3)})
    until(lambda: order(other) == (0, 1))
    workers.pop().stop()
    until(lambda: {order(worker) for worker in workers} == {(0, 2), (1, 2)})
