"""A handler whose job is completed by hand is aborted at once, and can write nothing."""

import threading
from dataclasses import dataclass, field
from functools import partial

import pytest
from django.db import connections

from django_jobchains import chains
from django_jobchains.chains import JobAlreadyCompleted, JobTypeMismatch
from django_jobchains.exceptions import LeaseLost
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import FailJob, JobType, Lease, RescheduleJob
from django_jobchains.telemetry import events as facts
from tests.completing.work import approval, finish
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.scenario import effect
from tests.support.waiting import until, until_completed

pytestmark = committed

#: A lease that is renewed only after minutes: a handler that is aborted earlier was notified by a hint.
LONG_LEASE = Lease(600)


@dataclass
class Observed:
    """What a handler observed: the reason of its abort, and the errors of its writes."""

    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    reasons: list[str | None] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)


@pytest.fixture
def observed():
    return Observed()


def complete(job, end=lambda job: "stale"):
    with job.complete():
        effect(job, "stale")
        return end(job)


def prepare(job):
    with job.prepare():
        effect(job, "stale")


def go_on(job):
    return job.continue_with(approval)


def raises(error):
    def end(job):
        raise error

    return end


def raise_if_aborted(job):
    job.signal.raise_if_aborted()


WRITES = (complete, partial(complete, end=go_on), prepare)
WAYS_TO_END = (
    *WRITES,
    lambda job: "stale",
    go_on,
    raises(ValueError("stale")),
    raises(FailJob("stale")),
    raises(RescheduleJob(delay=0)),
    raise_if_aborted,
)


def ends_when_aborted(processors, observed, end, lease):
    """Register a type whose handler waits for its abort, and then ends in this way."""

    @processors.register("completing.long", lease=lease)
    def long(job):
        observed.started.set()
        job.signal.wait(60)
        observed.reasons.append(job.signal.reason)
        try:
            return end(job)
        except BaseException as error:
            observed.errors.append(error)
            raise
        finally:
            observed.ended.set()

    return long


@pytest.mark.parametrize("end", WAYS_TO_END)
def test_a_hint_aborts_the_handler_and_it_can_write_nothing(processors, start_worker, observed, events, end):
    chain = ends_when_aborted(processors, observed, end, LONG_LEASE).enqueue()
    worker = start_worker()
    assert observed.started.wait(30)
    finish(chain, "by hand")
    after = Job.objects.values().get(pk=chain.id)
    assert observed.ended.wait(30)
    assert observed.reasons == ["already_completed"]
    if end in WRITES:
        [error] = observed.errors
        assert isinstance(error, LeaseLost)
        assert (error.job_id, error.reason) == (chain.id, "already_completed")
    worker.stop(timeout=30)
    assert [(fact.job_id, fact.reason) for fact in events.of(facts.AttemptAbandoned)][:1] == [
        (chain.id, "already_completed")
    ]
    assert Job.objects.values().get() == after
    assert (chain.refresh().output, chain.current_job.completed_by) == ("by hand", None)
    assert not Effect.objects.exists()
    assert not FailedAttempt.objects.exists()


def test_the_handler_is_aborted_too_if_the_chain_continues(processors, start_worker, observed):
    processors.register("completing.next")(lambda job: job.input)
    chain = ends_when_aborted(processors, observed, raise_if_aborted, LONG_LEASE).enqueue()
    start_worker(slots=2)
    assert observed.started.wait(30)
    with chains.current_job(chain.id) as current:
        current.continue_with(JobType("completing.next"), "next")
    assert observed.ended.wait(30)
    assert observed.reasons == ["already_completed"]
    until_completed(chain)
    assert [job.completed_by is None for job in chain.jobs] == [True, False]
    assert chain.output == "next"


def test_other_handlers_of_the_worker_are_not_aborted(processors, start_worker, observed, events):
    gate = threading.Event()

    @processors.register("completing.other", lease=LONG_LEASE)
    def other(job):
        gate.wait(60)
        return job.signal.reason

    chain = ends_when_aborted(processors, observed, raise_if_aborted, LONG_LEASE).enqueue()
    untouched = other.enqueue()
    start_worker(slots=2)
    until(lambda: Job.objects.with_status("running").count() == 2)
    assert observed.started.wait(30)
    finish(chain)
    assert observed.ended.wait(30)
    gate.set()
    until_completed(untouched)
    assert untouched.output is None
    assert {fact.job_id for fact in events.of(facts.AttemptAbandoned)} == {chain.id}


def test_many_simultaneous_completions_complete_each_job_once(processors, start_worker):
    @processors.register("completing.contested")
    def contested(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="worker")
            return "worker"

    created = chains.enqueue_many([contested.item() for _ in range(60)])
    start_worker(slots=2)
    people = [Person(f"person {number}", created[number::2] + created[:20]) for number in range(2)]
    for person in people:
        person.join(60)
    assert [person.error for person in people] == [None, None]
    until(lambda: not Job.objects.incomplete().exists())
    labels = dict(Effect.objects.values_list("job_id", "label"))
    assert Effect.objects.count() == len(labels) == 60
    assert {chain.id: chain.refresh().output for chain in created} == labels
    assert not FailedAttempt.objects.exists()


class Person(threading.Thread):
    """Completes chains one after the other, unless they are completed already."""

    def __init__(self, name, created):
        super().__init__(name=name, daemon=True)
        self._chains = created
        self.error = None
        self.start()

    def run(self):
        try:
            for chain in self._chains:
                self._complete(chain)
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def _complete(self, chain):
        try:
            with chains.current_job(chain.id, "completing.contested") as current:
                Effect.objects.create(job_id=chain.id, label=self.name)
                current.finish(self.name)
        except (JobAlreadyCompleted, JobTypeMismatch):
            pass
