"""A failed job is retried after its backoff until its limit of attempts, unless a rule says that it has failed."""

import math

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, FailJob, Processors
from tests.shop.models import Effect
from tests.support.attempts import WITHOUT_WAKE_UPS, committed

pytestmark = committed


class Broken(Exception):
    pass


class VeryBroken(Broken):
    pass


def fail(job):
    raise Broken("no luck")


#: What a busy machine may add to a wait: its ends are written in two statements.
MARGIN_SECONDS = 30


def wait_of(chain):
    """Return the seconds from the end of the failed attempt to the next one, both by the database's clock."""
    job = chain.refresh().current_job
    failed = job.failed_attempts.latest("lease_number")
    return (job.run_at - failed.finished_at).total_seconds()


def test_job_that_raises_fail_job_is_not_retried(processors, work):
    @processors.register("hopeless")
    def hopeless(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            raise FailJob("no such order")

    chain = hopeless.enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.last_error) == ("failed", 1, "FailJob: no such order")
    assert (job.leased_by, job.leased_until, job.output) == (None, None, None)
    assert job.finished_at is not None
    assert job.failed_attempts.count() == 1
    assert not Effect.objects.exists()


@pytest.mark.parametrize(
    ("own", "processors_", "worker", "settings_", "given", "attempts"),
    [
        (None, None, None, 4, None, 4),
        (None, None, 3, 4, None, 3),
        (None, 2, 3, 4, None, 2),
        (1, 2, 3, 4, None, 1),
        (1, 2, 3, 4, 5, 5),
        (None, 4, 2, 1, None, 4),
    ],
)
def test_most_specific_limit_of_attempts_is_used(settings, work, own, processors_, worker, settings_, given, attempts):
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "MAX_ATTEMPTS": settings_}
    part = Processors(max_attempts=processors_, backoff=Backoff(initial_seconds=0))
    chain = part.register("broken", max_attempts=own)(fail).enqueue(max_attempts=given)
    work(part, max_attempts=worker)
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.last_error) == ("failed", attempts, "Broken: no luck")
    assert job.failed_attempts.count() == attempts


@pytest.mark.parametrize("level", ["enqueue", "processors", "settings"])
def test_limit_may_be_infinite_at_every_level(settings, work, level):
    limits = {"enqueue": 1, "processor": 1, "processors": 1, "worker": 1, "settings": 1}
    nearer = list(limits)[: list(limits).index(level)]
    limits |= {level: math.inf, **dict.fromkeys(nearer)}
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "MAX_ATTEMPTS": limits["settings"] or 1}
    part = Processors(max_attempts=limits["processors"], backoff=Backoff(initial_seconds=0))

    @part.register("broken", max_attempts=limits["processor"])
    def broken(job):
        if job.attempt < 30:
            raise Broken

    chain = broken.enqueue(max_attempts=limits["enqueue"])
    work(part, max_attempts=limits["worker"])
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.finite_max_attempts) == ("completed", 30, None)


def test_default_limit_is_25_attempts(settings, work):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    part = Processors(backoff=Backoff(initial_seconds=0))
    chain = part.register("broken")(fail).enqueue()
    work(part)
    assert (chain.refresh().status, chain.current_job.attempt) == ("failed", 25)


@pytest.mark.parametrize(
    ("own", "processors_", "worker", "settings_", "seconds"),
    [
        (None, None, None, {}, 9),
        (None, None, None, {"BACKOFF_INITIAL_SECONDS": 400, "BACKOFF_JITTER": 0}, 400),
        (None, None, 300, {"BACKOFF_INITIAL_SECONDS": 400}, 300),
        (None, 200, 300, {}, 200),
        (100, 200, 300, {}, 100),
    ],
)
def test_most_specific_backoff_is_used(settings, work, own, processors_, worker, settings_, seconds):
    def backoff(initial):
        return None if initial is None else Backoff(initial, jitter=0)

    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, **settings_}
    part = Processors(backoff=backoff(processors_))
    chain = part.register("broken", backoff=backoff(own))(fail).enqueue()
    work(part, backoff=backoff(worker))
    assert seconds - 0.1 <= wait_of(chain) < seconds + MARGIN_SECONDS


def test_crashes_are_not_counted_as_failures(work):
    part = Processors(backoff=Backoff(100, multiplier=3, maximum_seconds=500, jitter=0), max_attempts=2)
    chain = part.register("broken")(fail).enqueue()
    Job.objects.update(attempt=4, lease_number=4, crashes=4)  # the state after four crashes
    work(part)
    assert chain.refresh().status == "pending"
    assert 99.9 <= wait_of(chain) < 100 + MARGIN_SECONDS
    Job.objects.update(run_at=chain.created_at)
    work(part)
    assert (chain.refresh().status, chain.current_job.attempt) == ("failed", 6)


@pytest.mark.parametrize(
    ("rule", "error", "status"),
    [
        ({}, Broken, "pending"),
        ({"fail_on": Broken}, Broken, "failed"),
        ({"fail_on": (KeyError, Broken)}, VeryBroken, "failed"),
        ({"fail_on": VeryBroken}, Broken, "pending"),
        ({"fail_on": KeyboardInterrupt}, KeyboardInterrupt, "failed"),
        ({"retry_if": lambda error: isinstance(error, VeryBroken)}, Broken, "failed"),
        ({"retry_if": lambda error: isinstance(error, VeryBroken)}, VeryBroken, "pending"),
        ({"retry_if": lambda error: True, "fail_on": Broken}, Broken, "failed"),
        ({"retry_if": lambda error: False}, SystemExit, "failed"),
    ],
)
def test_fail_on_and_retry_if_decide_whether_an_error_fails_the_job(processors, work, rule, error, status):
    @processors.register("choosy", **rule)
    def choosy(job):
        raise error

    chain = choosy.enqueue()
    work()
    assert (chain.refresh().status, chain.current_job.attempt) == (status, 1)


def test_job_is_retried_if_its_limit_of_attempts_cannot_be_used(work):
    part = Processors()
    object.__setattr__(part.policy, "max_attempts", "three")  # past the validation
    chain = part.register("unruly")(fail).enqueue()
    work(part)
    assert (chain.refresh().status, chain.current_job.last_error) == ("pending", "Broken: no luck")


def exits(error):
    raise SystemExit


def divides(error):
    return bool(1 / 0)


@pytest.mark.parametrize(("rule", "name"), [(divides, "ZeroDivisionError"), (exits, "SystemExit")])
def test_job_is_retried_if_retry_if_fails_and_the_traceback_shows_it(processors, work, rule, name):
    chain = processors.register("unruly", retry_if=rule)(fail).enqueue()
    work()
    assert chain.refresh().status == "pending"
    failed = FailedAttempt.objects.get()
    assert failed.error == "Broken: no luck"
    assert name in failed.traceback
