"""Every call between components fails once on every thread of the worker: it continues, and every job ends."""

import threading
import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_jobchains import chains
from django_jobchains.attempts.job_attempt import JobAttempt
from django_jobchains.models import Job
from django_jobchains.notifications import get_notifier, ownership_lost
from django_jobchains.processors import (
    Backoff,
    FailJob,
    JobType,
    Lease,
    Processors,
    RescheduleJob,
    RunningJob,
)
from django_jobchains.store import get_store
from django_jobchains.worker.attempt_counter import AttemptCounter
from django_jobchains.worker.claim_wait import WakeUp
from django_jobchains.worker.end_writer import EndWriter
from django_jobchains.worker.held_leases import HeldLeases
from django_jobchains.worker.slots import Slots
from django_jobchains.worker.wake_order import WakeOrder
from tests.chaos.oracle import EXIT_SECONDS
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.waiting import until, until_completed

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


#: The errors in the order in which they are raised. If the second value is true, the error is raised after the call,
#: as when a connection breaks.
ERRORS = (
    (RuntimeError("a bug"), False),
    (SystemExit(3), True),
    (MemoryError(), False),
    (GeneratorExit(), True),
    (OperationalError("the server closed the connection"), False),
    (OperationalError("the answer was lost"), True),
)
#: The calls of each thread. Each line is one run of the test.
STEPS = {
    "claim-loop": [
        "store.jobs.claim store.jobs.next_due",
        "leases.hold slots.room slots.put slots.take_back",
        "wake.clear wake.record_query wake.wait",
        "attempt.__init__",
    ],
    "slot": ["attempt.run store.attempts.lock store.attempts.finish", "outcome_writer.put", "wake.set"],
    "outcome-writer": [
        "store.attempts.finish store.attempts.reschedule store.attempts.fail",
        "leases.release wake.set counter.ended worker.end_writer.publish",
    ],
    "maintenance": ["store.leases.reap store.blockers.sweep leases.held notifications.wakeups.publish"],
    "lease-renewal": ["leases.renew_due store.leases.renew leases.check store.leases.check"],
    "stuck-attempts": ["leases.abort_overdue"],
    "listener": ["wake_order.on_hint listening"],
}


@pytest.fixture(autouse=True)
def _impatient(settings, monkeypatch):
    settings.JOBCHAINS = {
        "REAP_SECONDS": 0.1,
        "SWEEP_SECONDS": 0.1,
        "BACKOFF_INITIAL_SECONDS": 0.02,
        "BACKOFF_MULTIPLIER": 1,
        "MAX_CRASHES": 1_000,
    }
    if connection.vendor == "postgresql":
        monkeypatch.setattr("django_jobchains.notifications.postgres.PROBE_SECONDS", 0)
    monkeypatch.setattr("django_jobchains.worker.threads.MAX_FAILURES", 1_000)
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.05)
    for module in ("worker.threads.FIRST_WAIT_SECONDS", "notifications.base.FIRST_RETRY_SECONDS"):
        monkeypatch.setattr(f"django_jobchains.{module}", 0.01)


def parts():
    return {
        "store.attempts": type(get_store().attempts),
        "store.blockers": type(get_store().blockers),
        "store.jobs": type(get_store().jobs),
        "store.leases": type(get_store().leases),
        "leases": HeldLeases,
        "slots": Slots,
        "outcome_writer": EndWriter,
        "counter": AttemptCounter,
        "wake": WakeUp,
        "wake_order": WakeOrder,
        "attempt": JobAttempt,
    }


class Faults:
    """Errors that the calls of a step raise, in the threads whose names start with ``thread``."""

    def __init__(self, thread, step):
        self.step = step
        self._thread = f"jobchains-{thread}"
        self._left = list(ERRORS)
        self._lock = threading.Lock()
        self.all_thrown = threading.Event()

    def __repr__(self):
        return f"{self._thread} {self.step}: not thrown: {self._left}"

    def call(self, function, *args, **kwargs):
        error, is_late = self._next()
        if error is None:
            return function(*args, **kwargs)
        if is_late:
            function(*args, **kwargs)
        raise error

    def _next(self):
        with self._lock:
            if not (self._left and threading.current_thread().name.startswith(self._thread)):
                return None, False
            if len(self._left) == 1:
                self.all_thrown.set()
            return self._left.pop(0)


def throw(faults, step, monkeypatch):
    if step == "listening":
        step = (
            "notifications.sqlite._data_version" if connection.vendor == "sqlite" else "notifications.postgres._probe"
        )
    place, _, name = step.rpartition(".")
    owner = parts().get(place) or import_module(f"django_jobchains.{place}")
    function = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: faults.call(function, *args, **kwargs))


@dataclass
class Work:
    write: JobType[Any, Any]
    step: JobType[Any, Any]
    attempt: JobType[Any, Any]
    last: JobType[Any, Any]

    def enqueue(self):
        items = [self.write.item(), self.step.item(2)]
        chains.enqueue_many([*items, *(self.attempt.item(kind) for kind in ("", "reschedule", "fail"))])

    def enqueue_until(self, faults, seconds):
        """Enqueue more and more slowly, so that each component is busy and idle in turn. Return the number of times."""
        deadline = time.monotonic() + seconds
        times = 0
        while not are_all_thrown(faults) and time.monotonic() < deadline:
            self.enqueue()
            times += 1
            time.sleep(min(times * 0.02, 0.5))
        return times


def are_all_thrown(faults):
    return all(some.all_thrown.is_set() for some in faults)


def declare(registry, faults):
    """Register types for each way to end, and one that runs as long as errors are raised."""
    processors = Processors(lease=Lease(1), backoff=Backoff(0.02, 1, 0.02, 0))
    registry.add(processors)

    def note(job: RunningJob[Any], label: str) -> None:
        Effect.objects.create(job_id=job.id, label=label)

    @processors.register("chaos.write")
    def write(job: RunningJob[None]) -> None:
        with job.complete():
            note(job, "written")

    @processors.register("chaos.step", continues_with=["chaos.step"])
    def step(job: RunningJob[int]) -> Any:
        with job.complete():
            note(job, "written")
            return job.continue_with("chaos.step", job.input - 1) if job.input else None

    @processors.register("chaos.attempt")
    def attempt(job: RunningJob[str]) -> None:
        note(job, f"attempt {job.attempt}")
        if job.input == "fail":
            raise FailJob("as told")
        if job.input == "reschedule" and not Effect.objects.filter(job_id=job.id, label="rescheduled").exists():
            note(job, "rescheduled")
            raise RescheduleJob(delay=0)

    @processors.register("chaos.last")
    def last(job: RunningJob[None]) -> None:
        while not are_all_thrown(faults):
            get_notifier("default").publish([ownership_lost(job.id)])
            job.signal.wait(0.05)
            job.signal.raise_if_aborted()  # the lease may have expired, so that the job is retried

    return Work(write, step, attempt, last)


def left():
    jobs = Job.objects.exclude(status__in=("completed", "failed"))
    return list(jobs.values_list("type_name", "status", "attempt", "crashes", "leased_by", "last_error"))


def has_ended():
    return not Job.objects.exclude(status__in=("completed", "failed")).exists()


@pytest.mark.parametrize(("thread", "steps"), [(thread, steps) for thread in STEPS for steps in STEPS[thread]])
def test_a_thread_that_fails_at_a_step_continues(registry, make_worker, monkeypatch, thread, steps):
    faults = [Faults(thread, step) for step in steps.split()]
    for some in faults:
        throw(some, some.step, monkeypatch)
    work = declare(registry, faults)
    work.last.enqueue()
    worker = make_worker(slots=3, poll_seconds=0.1)
    worker.start()
    times = work.enqueue_until(faults, 30)
    assert are_all_thrown(faults), faults
    until(has_ended, 20, left)

    until_completed(work.write.enqueue())
    assert Job.objects.with_status("failed").count() == times
    assert_invariants(all_completed=False)
    until(worker.components.claim_loop.idle.is_set, 10, lambda: vars(worker.components.outcome_writer))
    until(lambda: not len(worker.components.context.leases), 10, lambda: worker.components.context.leases.held())
    assert not worker.failed
    since = time.monotonic()
    assert worker.stop(timeout=0) == 0
    assert time.monotonic() - since < EXIT_SECONDS
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("jobchains-")])
