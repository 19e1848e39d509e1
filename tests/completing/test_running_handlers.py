"""A handler whose job somebody else completes is told at once, and writes nothing any more."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, JobAlreadyCompleted, JobTypeMismatch
from django_jobchains.exceptions import LeaseLost
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.notifications.base import NullNotifier
from django_jobchains.processors import FailJob, JobType, Lease, Processors, RescheduleJob, RunningJob
from django_jobchains.telemetry import events as facts
from tests.attempts.work import committed
from tests.completing.work import approval, finish
from tests.shop.models import Effect
from tests.worker.fixtures import Events, StartWorker
from tests.worker.waiting import until, until_completed

pytestmark = committed

#: Renewed long after every deadline: who is told sooner was told by the hint.
LONG_LEASE = Lease(600)


@dataclass
class Told:
    """What a handler was told, and what came of its writing."""

    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    reasons: list[str | None] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told()
    yield told
    told.ended.set()


def complete(job: RunningJob[Any]) -> str:
    with job.complete():
        Effect.objects.create(job_id=job.id, label="stale")
        return "stale"


def complete_and_continue(job: RunningJob[Any]) -> Any:
    with job.complete():
        Effect.objects.create(job_id=job.id, label="stale")
        return job.continue_with(approval)


def prepare(job: RunningJob[Any]) -> str:
    with job.prepare():
        Effect.objects.create(job_id=job.id, label="stale")
    return "stale"


def answer(job: RunningJob[Any]) -> str:
    return "stale"


def go_on(job: RunningJob[Any]) -> Any:
    return job.continue_with(approval)


def fail(job: RunningJob[Any]) -> None:
    raise ValueError("stale")


def give_up(job: RunningJob[Any]) -> None:
    raise FailJob("stale")


def try_again(job: RunningJob[Any]) -> None:
    raise RescheduleJob(delay=0)


def obey(job: RunningJob[Any]) -> None:
    job.signal.raise_if_aborted()


WAYS_TO_END = (complete, complete_and_continue, prepare, answer, go_on, fail, give_up, try_again, obey)


def until_told(processors: Processors, told: Told, end: Callable[..., Any], lease: Lease) -> JobType[Any, Any]:
    @processors.register("completing.long", lease=lease)
    def long(job: RunningJob[Any]) -> Any:
        told.started.set()
        job.signal.wait(60)
        told.reasons.append(job.signal.reason)
        try:
            return end(job)
        except BaseException as error:
            told.errors.append(error)
            raise
        finally:
            told.ended.set()

    return long


@pytest.mark.parametrize("end", WAYS_TO_END)
def test_it_is_told_by_the_hint_and_writes_nothing(
    processors: Processors, start_worker: StartWorker, told: Told, events: Events, end: Callable[..., Any]
) -> None:
    chain = until_told(processors, told, end, LONG_LEASE).enqueue()
    worker = start_worker()
    assert told.started.wait(30)
    finish(chain, "by hand")
    after = Job.objects.values().get(pk=chain.id)
    assert told.ended.wait(30)
    assert told.reasons == ["already_completed"]
    if end in (complete, complete_and_continue, prepare):
        [error] = told.errors
        assert isinstance(error, LeaseLost)
        assert (error.job_id, error.reason) == (chain.id, "already_completed")
    worker.stop(timeout=30)
    assert [(fact.job_id, fact.reason) for fact in events.of(facts.LeaseLost)][:1] == [(chain.id, "already_completed")]
    assert Job.objects.values().get() == after
    assert (chain.refresh().output, chain.current_job.completed_by) == ("by hand", None)
    assert not Effect.objects.exists()
    assert not FailedAttempt.objects.exists()


def test_it_is_told_as_well_when_the_chain_goes_on(
    processors: Processors, start_worker: StartWorker, told: Told
) -> None:
    processors.register("completing.next")(lambda job: job.input)
    chain = until_told(processors, told, obey, LONG_LEASE).enqueue()
    start_worker(slots=2)
    assert told.started.wait(30)
    with chains.complete(chain.id) as current:
        current.continue_with(JobType("completing.next"), "next")
    assert told.ended.wait(30)
    assert told.reasons == ["already_completed"]
    until_completed(chain)
    assert [job.completed_by is None for job in chain.jobs] == [True, False]
    assert chain.output == "next"


def test_without_hints_it_is_told_at_the_renewal(
    settings: Any, processors: Processors, start_worker: StartWorker, told: Told
) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": f"{NullNotifier.__module__}.NullNotifier"}}
    chain = until_told(processors, told, complete, Lease(1)).enqueue()
    start_worker()
    assert told.started.wait(30)
    finish(chain, "by hand")
    assert told.ended.wait(30)
    assert told.reasons == ["already_completed"]
    assert not Effect.objects.exists()


def test_other_handlers_of_the_worker_are_left_alone(
    processors: Processors, start_worker: StartWorker, told: Told, events: Events
) -> None:
    gate = threading.Event()

    @processors.register("completing.other", lease=LONG_LEASE)
    def other(job: RunningJob[Any]) -> str | None:
        gate.wait(60)
        return job.signal.reason

    chain = until_told(processors, told, obey, LONG_LEASE).enqueue()
    untouched = other.enqueue()
    start_worker(slots=2)
    until(lambda: Job.objects.with_status("running").count() == 2)
    assert told.started.wait(30)
    finish(chain)
    assert told.ended.wait(30)
    gate.set()
    until_completed(untouched)
    assert untouched.output is None
    assert {fact.job_id for fact in events.of(facts.LeaseLost)} == {chain.id}


def test_a_storm_of_people_and_a_worker_completes_each_job_once(
    processors: Processors, start_worker: StartWorker
) -> None:
    @processors.register("completing.contested")
    def contested(job: RunningJob[Any]) -> str:
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
    """Completes chains one after the other, if they are not completed yet."""

    def __init__(self, name: str, created: list[Chain]) -> None:
        super().__init__(name=name, daemon=True)
        self._chains = created
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        from django.db import connections

        try:
            for chain in self._chains:
                self._complete(chain)
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def _complete(self, chain: Chain) -> None:
        try:
            with chains.complete(chain.id, "completing.contested") as current:
                Effect.objects.create(job_id=chain.id, label=self.name)
                current.finish(self.name)
        except (JobAlreadyCompleted, JobTypeMismatch):
            pass
