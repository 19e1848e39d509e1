"""Handlers that are written once, and run for every kind of work: as a row of a test, not as a file of tests.

A handler of a scenario is a generator function. It gets a list of running jobs, which are the jobs of a batch or the
run of a record, and yields its steps. A step returns what its function returns, or raises its error in the handler. A
handler returns its output; that of a batch or a record is ignored::

    @kinds(*JOBS, *RECORDS)
    def test_error_in_complete_rolls_back_its_writes(scenario):
        def broken(jobs):
            yield complete(write(jobs, "written", ValueError("no")))

        scenario.enqueue(broken)
        scenario.run()
        assert (scenario.states(), scenario.errors()) == ({"retried"}, {"ValueError: no"})
        assert effects() == []

The fixture ``scenario`` registers handlers in the fixture ``processors``. Without ``kinds``, a test runs for ``JOBS``.
Records are ``Export``s, whose keys are UUIDs like those of jobs; they have no ``prepare``. To abort or stop handlers,
use a running worker instead of ``scenario.run()``, and let the handler yield ``wait(gate)``.

Handlers are functions of the test, so they cannot run in child processes.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_jobchains import chains, records
from django_jobchains.models import Chain
from django_jobchains.processors import Backoff, Processors, Registry
from django_jobchains.worker import Worker
from tests.records.models import Export
from tests.shop.models import Effect

JOBS = ("plain", "async", "batch")
RECORDS = ("record", "async record")
#: The states of an attempt whose job or record has another name for them.
STATES = {"errored": "retried", "queued": "waiting", "processing": "running"}


def kinds(*names):
    """Let a test run once for each of these kinds.

    If it has other parameters, ``make test`` runs some of the combinations: see ``mark_combinations``.
    """
    return pytest.mark.parametrize("scenario", names, indirect=True)


def mark_combinations(tests):
    """Mark as ``exhaustive`` what remains when each case runs with one kind, and each kind with one case at least."""
    functions = defaultdict(list)
    for test in tests:
        if hasattr(test, "callspec") and "scenario" in test.callspec.params:
            kind = test.callspec.params["scenario"]
            functions[test.nodeid.partition("[")[0]].append((kind, test.callspec.id.replace(kind, "", 1), test))
    for rows in functions.values():
        names, cases = (list(dict.fromkeys(column)) for column in list(zip(*rows, strict=True))[:2])
        seen = set()
        # The first case with the first kind, the second one with the second kind, and so on.
        for kind, case, test in sorted(rows, key=lambda row: (names.index(row[0]) - cases.index(row[1])) % len(names)):
            if seen.issuperset({("kind", kind), ("case", case)}):
                test.add_marker("exhaustive")
            seen |= {("kind", kind), ("case", case)}


@dataclass
class Step:
    phase: str
    function: Any
    mode: Any = "staged"


def prepare(function, mode="staged"):
    return Step("prepare", function, mode)


complete = partial(Step, "complete")
#: A step without a transaction. On an event loop it runs on another thread.
outside = partial(Step, "outside")


def wait(gate, *, heeds=True):
    """Wait until the gate opens or, if it ``heeds`` that, until the attempt is asked to stop.

    The handler then gets ``JobAborted``, or on an event loop ``CancelledError``.
    """
    return Step("wait", gate, heeds)


def effect(job, label="written"):
    """Write a row that shows that a handler has run."""
    Effect.objects.create(job_id=job.id, label=label)


def write(jobs, label, error=None):
    """Return a function that writes a row for each job, and raises the error if there is one."""

    def function():
        for job in jobs:
            effect(job, label)
        if error is not None:
            raise error
        return label

    return function


def effects():
    """Return the labels of the rows, one for each different label, in their order."""
    return list(dict.fromkeys(Effect.objects.order_by("id").values_list("label", flat=True)))


class Scenario:
    """Registers handlers of one kind, and enqueues jobs or records for them."""

    def __init__(self, kind, processors):
        self.kind = kind
        self.processors = processors
        self.made = []

    def with_middleware(self, *middleware):
        """Return a scenario of this kind in a slice with this middleware, whose jobs are retried after the test."""
        return Scenario(self.kind, Processors(backoff=Backoff(initial_seconds=100, jitter=0), middleware=middleware))

    def enqueue(self, handler, name="scenario", inputs=None, **options):
        """Register a handler, and return its chains or records, one for each of ``inputs``.

        A ``timeout`` is the ``max_runtime`` of records.
        """

        def plain(job):
            return _drive(handler([job]), job)

        async def on_loop(job):
            return await _adrive(handler([job]), job)

        def batch(jobs):
            _drive(handler(list(jobs)), jobs)

        def record(record, run):
            _drive(handler([run]), run)

        async def arecord(record, run):
            await _adrive(handler([run]), run)

        if self.kind in RECORDS:
            if timeout := options.pop("timeout", None):
                options["max_runtime"] = timeout
            self.processors.records(Export, **options)(record if self.kind == "record" else arecord)
            made = [Export.objects.create() for _ in inputs or [None]]
        else:
            if self.kind == "batch":
                options["batch_limit"] = 5
            function = {"plain": plain, "async": on_loop, "batch": batch}[self.kind]
            job_type = self.processors.register(name, **options)(function)
            made = [job_type.enqueue(given) for given in inputs or [None] * (2 if self.kind == "batch" else 1)]
        self.made += made
        return made

    def run(self, **options):
        """Run what is due in a worker with one slot."""
        registry = Registry()
        registry.add(self.processors)
        Worker(registry=registry, **{"slots": 1, "poll_seconds": 0.05, **options}).run_until_idle()

    def cancel(self):
        if self.kind in RECORDS:
            records.cancel(Export.objects.all())
        else:
            chains.cancel(self.made)

    def states(self):
        """Return the different states: "completed", "retried", "failed", "cancelled", "running", or "waiting"."""
        return {_end_of(each)[0] for each in self.made}

    def errors(self):
        """Return the different errors that are stored, without those of earlier attempts of a completed job."""
        return {_end_of(each)[1] for each in self.made}


def _end_of(made):
    if not isinstance(made, Chain):
        made.refresh_from_db()
        return STATES.get(made.state, made.state), made.failure_message
    job = made.refresh().current_job
    if job.status != "pending":
        return job.status, job.last_error
    return "retried" if job.failed_attempts.exists() else "waiting", job.last_error


def _drive(steps, argument):
    proceed = partial(next, steps)
    while True:
        try:
            step = proceed()
        except StopIteration as end:
            return end.value
        try:
            if step.phase == "wait":
                result = _wait(argument.signal, gate=step.function, heeds=step.mode)
            elif step.phase == "outside":
                result = step.function()
            else:
                with argument.complete() if step.phase == "complete" else argument.prepare(step.mode):
                    result = step.function()
            proceed = partial(steps.send, result)
        except BaseException as error:
            proceed = partial(steps.throw, error)


def _wait(signal, *, gate, heeds):
    while not gate.wait(0.005) and not (heeds and signal.aborted):
        pass
    if heeds:
        signal.raise_if_aborted()


async def _adrive(steps, job):
    proceed = partial(next, steps)
    while True:
        try:
            step = proceed()
        except StopIteration as end:
            return end.value
        try:
            if step.phase == "wait":
                result = await _await(job.signal, gate=step.function, heeds=step.mode)
            elif step.phase == "outside":
                result = await sync_to_async(step.function)()
            elif step.phase == "complete":
                result = await job.acomplete(step.function)
            else:
                result = await job.aprepare(step.function, step.mode)
            proceed = partial(steps.send, result)
        except BaseException as error:
            proceed = partial(steps.throw, error)


async def _await(signal, *, gate, heeds):
    was_cancelled = False
    while not gate.is_set() or was_cancelled != signal.aborted:
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            was_cancelled = True
            if heeds:
                raise
