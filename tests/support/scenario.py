"""Handlers that are written once, and run as plain handlers, as ``async def`` handlers and for batches.

A handler of a scenario is a generator function that gets a list of running jobs, and yields its steps:
``yield prepare(function)``, ``yield complete(function)`` or ``yield outside(function)``. A step returns what its
function returns, or raises its error. A handler returns its output; that of a batch is ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from django_jobchains.processors import Batch, RunningJob
from tests.shop.models import Effect

KINDS = ("plain", "async", "batch")
#: The number of jobs that each scenario enqueues.
COUNT = {"plain": 1, "async": 1, "batch": 2}


@dataclass
class Step:
    phase: str
    function: Callable[[], Any]
    mode: Any = "staged"


def prepare(function, mode="staged"):
    return Step("prepare", function, mode)


complete = partial(Step, "complete")
#: A step without a transaction. On an event loop it runs on another thread.
outside = partial(Step, "outside")


def write(jobs, label, error=None):
    """Return a function that writes a row for each job, and raises the error if there is one."""

    def function():
        for job in jobs:
            Effect.objects.create(job_id=job.id, label=label)
        if error is not None:
            raise error
        return label

    return function


def effects():
    """Return the labels of the rows, one for each different label, in their order."""
    return list(dict.fromkeys(Effect.objects.order_by("id").values_list("label", flat=True)))


class Scenario:
    """Registers handlers of one kind, and enqueues their jobs."""

    def __init__(self, kind, processors):
        self.kind = kind
        self._processors = processors

    def enqueue(self, handler, name="scenario", **options):
        """Register a handler, and return the chains of its jobs."""

        def plain(job: RunningJob[Any]) -> Any:
            return _drive(handler([job]), job)

        async def on_loop(job: RunningJob[Any]) -> Any:
            return await _adrive(handler([job]), job)

        def batch(jobs: Batch[Any]) -> None:
            _drive(handler(list(jobs)), jobs)

        if self.kind == "batch":
            options["batch_limit"] = 5
        function = {"plain": plain, "async": on_loop, "batch": batch}[self.kind]
        job_type = self._processors.register(name, **options)(function)
        return [job_type.enqueue() for _ in range(COUNT[self.kind])]


def _drive(steps, argument):
    proceed = partial(next, steps)
    while True:
        try:
            step = proceed()
        except StopIteration as end:
            return end.value
        try:
            if step.phase == "outside":
                result = step.function()
            else:
                with argument.complete() if step.phase == "complete" else argument.prepare(step.mode):
                    result = step.function()
            proceed = partial(steps.send, result)
        except BaseException as error:
            proceed = partial(steps.throw, error)


async def _adrive(steps, job):
    proceed = partial(next, steps)
    while True:
        try:
            step = proceed()
        except StopIteration as end:
            return end.value
        try:
            if step.phase == "outside":
                result = await sync_to_async(step.function)()
            elif step.phase == "complete":
                result = await job.acomplete(step.function)
            else:
                result = await job.aprepare(step.function, step.mode)
            proceed = partial(steps.send, result)
        except BaseException as error:
            proceed = partial(steps.throw, error)
