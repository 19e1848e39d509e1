"""Middleware may observe and replace errors, but a job does not complete if it swallows one."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db.models import F

from django_jobchains.exceptions import FailJob
from django_jobchains.middleware import Middleware
from django_jobchains.models import FailedAttempt, Job
from tests.middleware.recording import AllHooks, Failing, Recording, Swallowing, processors_with
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection

pytestmark = committed

PHASES = ("handler", "prepare", "complete")


def in_phases(job):
    """Write in each phase, and fail in the one that the input names."""
    with job.prepare():
        Effect.objects.create(job_id=job.id, label="prepare")
        _fail_if(job.input == "prepare")
    _fail_if(job.input == "handler")
    with job.complete():
        Effect.objects.create(job_id=job.id, label="complete")
        _fail_if(job.input == "complete")
    _fail_if(job.input == "after")


def _fail_if(condition):
    if condition:
        raise RuntimeError("declined")


@pytest.mark.parametrize(("place", "seen_in"), [(name, name) for name in PHASES] + [("after", "handler")])
def test_middleware_observes_an_error_of_the_handler_in_its_phase(work, place, seen_in):
    seen = []
    processors = processors_with(Recording("it", seen))
    processors.register("fails")(in_phases)
    chain = processors.by_name["fails"].job_type.enqueue(place)
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.last_error) == ("pending", "RuntimeError: declined")
    assert f"< it {seen_in}: RuntimeError" in seen
    assert seen[-1] == "< it handler: RuntimeError"


@pytest.mark.parametrize("phase", PHASES)
def test_middleware_may_replace_an_error(work, phase):
    class Replacing(AllHooks):
        @contextmanager
        def around(self, name, job) -> Iterator[None]:
            try:
                yield
            except RuntimeError as error:
                raise FailJob("the card was declined") from error

    seen = []
    processors = processors_with(Recording("outer", seen), Replacing(), Recording("inner", seen))
    processors.register("fails")(in_phases)
    chain = processors.by_name["fails"].job_type.enqueue(phase)
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.last_error) == ("failed", "FailJob: the card was declined")
    assert (f"< inner {phase}: RuntimeError" in seen, seen[-1]) == (True, "< outer handler: FailJob")


@pytest.mark.parametrize("phase", PHASES)
def test_swallowed_error_fails_the_attempt_and_is_raised_in_outer_middleware(work, phase):
    seen = []
    processors = processors_with(Recording("outer", seen), Swallowing(phase))
    processors.register("fails")(in_phases)
    chain = processors.by_name["fails"].job_type.enqueue(phase)
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.last_error) == ("pending", "RuntimeError: declined")
    assert (f"< outer {phase}: RuntimeError" in seen, seen[-1]) == (True, "< outer handler: RuntimeError")
    assert f"Swallowing.around_{phase}() swallowed this error." in FailedAttempt.objects.get().traceback
    assert not Effect.objects.filter(label="complete").exists()


def test_swallowed_error_of_an_atomic_handler_rolls_back_its_writes(work):
    processors = processors_with(Swallowing("prepare"), Swallowing("handler"))

    @processors.register("atomic", mode="atomic")
    def atomic(job):
        Effect.objects.create(job_id=job.id, label="own")
        raise RuntimeError("declined")

    chain = atomic.enqueue()
    work(processors)
    assert chain.refresh().current_job.last_error == "RuntimeError: declined"
    assert not Effect.objects.exists()


@pytest.mark.parametrize("when", ["called", "entered", "left"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_error_of_middleware_fails_the_attempt(work, phase, when, mode):
    seen = []
    processors = processors_with(Recording("outer", seen), Failing(phase, when, RuntimeError("no tenant")))

    @processors.register("good", mode=mode)
    def good(job):
        if mode == "staged":
            with job.prepare():
                pass
        with job.complete():
            Effect.objects.create(job_id=job.id, label="complete")
        return "done"

    chain = good.enqueue()
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.last_error, job.output) == ("pending", "RuntimeError: no tenant", None)
    assert f"< outer {phase}: RuntimeError" in seen
    assert not Effect.objects.exists()


@pytest.mark.parametrize("phase", ["prepare", "complete"])
def test_error_of_middleware_in_a_phase_fails_the_attempt_even_if_the_handler_swallows_it(work, phase):
    processors = processors_with(Failing(phase, "entered", RuntimeError("no tenant")))

    @processors.register("swallows")
    def swallows(job):
        try:
            with job.prepare() if phase == "prepare" else job.complete():
                pass
        except RuntimeError:
            pass
        return "done"

    chain = swallows.enqueue()
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.last_error) == ("pending", "RuntimeError: no tenant")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError(), StopIteration("x")], ids=repr)
def test_failing_middleware_affects_neither_the_worker_nor_other_jobs(work, error):
    broken, good = processors_with(Failing("handler", "left", error)), processors_with()

    @broken.register("broken")
    def first(job):
        pass

    @good.register("good")
    def second(job):
        return 1

    failing = [first.enqueue() for _ in range(3)]
    completing = [second.enqueue() for _ in range(3)]
    work(broken, good, slots=1)
    assert {chain.refresh().status for chain in failing} == {"pending"}
    assert {chain.refresh().status for chain in completing} == {"completed"}
    assert {type(error).__name__ in str(chain.current_job.last_error) for chain in failing} == {True}


def test_stop_iteration_of_a_handler_is_not_changed(work):
    seen = []
    processors = processors_with(Recording("outer", seen), Middleware(), Recording("inner", seen))

    @processors.register("stops")
    def stops(job):
        raise StopIteration("no more")

    chain = stops.enqueue()
    work(processors)
    assert chain.refresh().current_job.last_error == "StopIteration: no more"
    assert seen[-2:] == ["< inner handler: StopIteration", "< outer handler: StopIteration"]


def test_lost_lease_cannot_be_swallowed(work):
    seen = []
    processors = processors_with(Recording("outer", seen), Swallowing("handler"))

    @processors.register("slow")
    def slow(job):
        on_own_connection(lambda: Job.objects.filter(pk=job.id).update(lease_number=F("lease_number") + 1))
        with job.complete():
            Effect.objects.create(job_id=job.id, label="late")

    chain = slow.enqueue()
    work(processors)
    assert chain.refresh().current_job.status == "running"
    assert seen[-1] == "< outer handler: LeaseLost"
    assert not Effect.objects.exists()
