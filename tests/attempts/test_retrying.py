"""A failed job is retried after its backoff until its limit of attempts, unless a rule says that it has failed."""

import math
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st

from django_jobchains.attempts.outcome import crashed_try
from django_jobchains.declare.checks import check_settings
from django_jobchains.declare.policies import Policy, resolve
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.pools import ChildCrashed
from django_jobchains.processors import Backoff, FailJob, Lease, Processors
from django_jobchains.store import get_store
from tests.support.attempts import WITHOUT_WAKE_UPS, committed
from tests.support.jobs import running_job
from tests.support.scenario import effect, effects

#: What a busy machine may add to a wait: its ends are written in two statements.
MARGIN_SECONDS = 30
pytestmark = committed


class Broken(Exception):
    pass


class VeryBroken(Broken):
    pass


class RefusesNotes(Broken):
    def add_note(self, note):
        raise TypeError("never")


def fail(job):
    raise Broken("no luck")


def wait_of(chain):
    """Return the seconds from the end of the failed attempt to the next one, both by the database's clock."""
    job = chain.refresh().current_job
    failed = job.failed_attempts.latest("lease_number")
    return (job.run_at - failed.finished_at).total_seconds()


def assert_waits(chain, seconds):
    assert seconds - 0.1 <= wait_of(chain) < seconds + MARGIN_SECONDS


def make_due(chain):
    Job.objects.update(run_at=chain.created_at)


# The limit of attempts


@pytest.mark.parametrize(
    ("own", "processors_", "worker", "settings_", "given", "attempts"),
    [
        (None, None, None, None, None, 25),
        (None, None, None, 4, None, 4),
        (None, None, 3, 4, None, 3),
        (None, 2, 3, 4, None, 2),
        (1, 2, 3, 4, None, 1),
        (1, 2, 3, 4, 5, 5),
        (None, 4, 2, 1, None, 4),
        (1, 1, 1, 1, math.inf, math.inf),
        (None, math.inf, 1, 1, None, math.inf),
        (None, None, None, math.inf, None, math.inf),
    ],
)
def test_most_specific_limit_of_attempts_is_used(settings, work, own, processors_, worker, settings_, given, attempts):
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, **({"MAX_ATTEMPTS": settings_} if settings_ else {})}
    part = Processors(max_attempts=processors_, backoff=Backoff(initial_seconds=0))

    @part.register("broken", max_attempts=own)
    def broken(job):
        if job.attempt < 30:
            raise Broken("no luck")

    chain = broken.enqueue(max_attempts=given)
    work(part, max_attempts=worker)
    job = chain.refresh().current_job
    assert job.failed_attempts.count() == min(attempts, 29)
    if attempts is math.inf:
        assert (job.status, job.attempt, job.finite_max_attempts) == ("completed", 30, None)
    else:
        assert (job.status, job.attempt, job.last_error) == ("failed", attempts, "Broken: no luck")


def test_crashes_are_not_counted_as_failures(work):
    part = Processors(backoff=Backoff(100, multiplier=3, maximum_seconds=500, jitter=0), max_attempts=2)
    chain = part.register("broken")(fail).enqueue()
    Job.objects.update(attempt=4, lease_number=4, crashes=4)  # the state after four crashes
    work(part)
    assert chain.refresh().status == "pending"
    assert_waits(chain, 100)
    make_due(chain)
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


def test_job_that_raises_fail_job_is_not_retried(processors, work):
    @processors.register("hopeless")
    def hopeless(job):
        with job.complete():
            effect(job)
            raise FailJob("no such order")

    chain = hopeless.enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.last_error) == ("failed", 1, "FailJob: no such order")
    assert (job.leased_by, job.leased_until, job.output, effects()) == (None, None, None, [])
    assert job.finished_at is not None
    assert job.failed_attempts.count() == 1


def test_job_is_retried_if_its_limit_of_attempts_cannot_be_used(work):
    part = Processors()
    object.__setattr__(part.policy, "max_attempts", "three")  # past the validation
    chain = part.register("unruly")(fail).enqueue()
    work(part)
    assert (chain.refresh().status, chain.current_job.last_error) == ("pending", "Broken: no luck")


def exits(error):
    raise SystemExit


def divides(error):
    return 1 / 0


@pytest.mark.parametrize(("rule", "name"), [(divides, "ZeroDivisionError"), (exits, "SystemExit")])
def test_job_is_retried_if_retry_if_fails_and_the_traceback_shows_it(processors, work, rule, name):
    chain = processors.register("unruly", retry_if=rule)(fail).enqueue()
    work()
    assert chain.refresh().status == "pending"
    failed = FailedAttempt.objects.get()
    assert (failed.error, name in failed.traceback) == ("Broken: no luck", True)


# Failed attempts


def test_each_failed_attempt_has_a_row_and_the_next_one_reads_its_error(registry, work):
    part = Processors(backoff=Backoff(initial_seconds=0))
    seen = []

    def charge(card):
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            error = ValueError("the error")
            error.add_note("the note")
            raise error from cause

    @part.register("fails_twice")
    def fails_twice(job):
        seen.append(job.last_error)
        if job.attempt < 3:
            charge(f"{4000_0000 + job.input}")

    chain = fails_twice.enqueue(1234)
    work(part, name="mail")
    rows = list(FailedAttempt.objects.order_by("attempt"))
    assert [(row.job_id, row.attempt, row.lease_number, row.kind, row.error) for row in rows] == [
        (chain.id, number, number, "error", "ValueError: the error") for number in (1, 2)
    ]
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.last_error) == ("completed", 3, None)
    assert seen == [None, "ValueError: the error", "ValueError: the error"]
    for row in rows:
        assert row.worker.startswith("mail:")
        assert job.created_at <= row.started_at <= row.finished_at
    text = rows[0].traceback
    for words in ("KeyError: 'the cause'", "ValueError: the error", "the note", "in charge", "direct cause", __file__):
        assert words in text
    assert "40001234" not in text


# The backoff


def constant(seconds):
    return lambda failures, error: seconds


#: A function for ``JOBCHAINS["BACKOFF"]``.
of_settings = constant(400)
not_a_function = 5
PATH = f"{__name__}.of_settings"


@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize(
    ("own", "processors_", "worker", "settings_", "seconds"),
    [
        (None, None, None, {}, 9),
        (None, None, None, {"BACKOFF_INITIAL_SECONDS": 400, "BACKOFF_JITTER": 0}, 400),
        (None, None, None, {"BACKOFF": PATH}, 400),
        (None, None, 300, {"BACKOFF": PATH}, 300),
        (None, 200, 300, {}, 200),
        (100, 200, 300, {}, 100),
    ],
)
def test_most_specific_backoff_is_used(settings, work, own, processors_, worker, settings_, seconds, is_function):
    def backoff(initial):
        if initial is None:
            return None
        return constant(initial) if is_function else Backoff(initial, jitter=0)

    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, **settings_}
    part = Processors(backoff=backoff(processors_))
    chain = part.register("broken", backoff=backoff(own))(fail).enqueue()
    work(part, backoff=backoff(worker))
    assert_waits(chain, seconds)


def test_function_gets_the_failures_and_the_error(work):
    part = Processors(backoff=lambda failures, error: 1_000 * failures if isinstance(error, Broken) else 1)
    chain = part.register("broken")(fail).enqueue()
    for failures in (1, 2, 3):
        work(part)
        assert_waits(chain, 1_000 * failures)
        make_due(chain)


@pytest.mark.parametrize("name", ["missing", "not_a_function"])
def test_setting_that_is_not_a_function_fails_the_system_check(settings, name):
    settings.JOBCHAINS = {"BACKOFF": f"{__name__}.{name}"}
    with pytest.raises(ImproperlyConfigured, match=r"JOBCHAINS\['BACKOFF'\]=.* cannot be used"):
        resolve()
    assert [message.id for message in check_settings()] == ["jobchains.E010"]


INVALID_RESULTS = [ZeroDivisionError(), SystemExit(), "soon", None, True, -1, math.nan, math.inf, 1e300, timedelta(-1)]


@pytest.mark.parametrize(
    ("result", "error"),
    [*((result, Broken("no luck")) for result in INVALID_RESULTS), (-1, RefusesNotes("no luck"))],
    ids=repr,
)
def test_default_replaces_a_function_that_fails_and_the_error_of_the_handler_is_kept(
    settings, work, result, error, caplog
):
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "BACKOFF_INITIAL_SECONDS": 70, "BACKOFF_JITTER": 0}

    def backoff(failures, error):
        if isinstance(result, BaseException):
            raise result
        return result

    part = Processors(backoff=backoff)

    @part.register("unruly")
    def unruly(job):
        raise error

    chain = unruly.enqueue()
    work(part)
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.crashes) == ("pending", 1, 0)
    assert_waits(chain, 70)
    failed = FailedAttempt.objects.get()
    assert failed.error == f"{type(error).__name__}: no luck"
    text = "The backoff of type 'unruly' failed, and the default was used instead"
    assert caplog.text.count(text) == 1
    assert (text in failed.traceback) == (not isinstance(error, RefusesNotes))


def test_the_wait_after_each_crash_grows_until_the_limit_of_crashes(processors, registry, settings):
    settings.JOBCHAINS = {"MAX_CRASHES": 4}
    processors.register("ship")(lambda job: None)
    processor = registry.processor("ship")
    policy = resolve(Policy(Backoff(1, 10, 1000, jitter=0)))
    job = running_job(get_store())
    outcomes = [crashed_try(job._replace(crashes=n), processor, policy, ChildCrashed(-9), "") for n in range(4)]
    assert [outcome.failed and outcome.failed.delay_seconds for outcome in outcomes] == [1, 10, 100, None]


# ``Backoff`` computes min(initial * multiplier ** (attempt - 1), maximum), less a random part of the jitter.

times = st.floats(min_value=0, max_value=1e9, allow_nan=False)
multipliers = st.floats(min_value=1, max_value=100)
shares = st.floats(min_value=0, max_value=1)
numbers = st.integers(min_value=1, max_value=100_000)


def test_defaults_are_10_seconds_doubled_up_to_an_hour():
    waits = [Backoff().seconds(failures, share=0) for failures in range(1, 12)]
    assert waits == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
    assert Backoff(initial_seconds=0).seconds(100_000) == 0


@given(times, multipliers, times, shares, numbers)
def test_the_wait_follows_the_formula_and_jitter_reduces_it_by_at_most_its_share(
    initial, multiplier, maximum, jitter, attempt
):
    full = Backoff(initial, multiplier, maximum, jitter=0).seconds(attempt)
    try:
        assert full == min(initial * multiplier ** (attempt - 1), maximum)
    except OverflowError:
        assert full in (maximum, 0)
    wait = Backoff(initial, multiplier, maximum, jitter).seconds(attempt)
    assert full * (1 - jitter) - 1e-6 <= wait <= full


@given(times, multipliers, times, shares, numbers, numbers)
def test_later_attempts_never_wait_shorter(initial, multiplier, maximum, share, one, other):
    backoff = Backoff(initial, multiplier, maximum)
    first, second = sorted((one, other))
    assert backoff.seconds(first, share) <= backoff.seconds(second, share)


def test_jitter_spreads_the_retries_of_jobs_that_failed_together():
    waits = [Backoff(100, jitter=0.5).seconds(1) for _ in range(200)]
    assert (len(set(waits)) > 100, min(waits) < 70, max(waits) > 80) == (True, True, True)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (Backoff, {"initial_seconds": -1}, r"^initial_seconds=-1 is not a "),
        (Backoff, {"maximum_seconds": -1}, r"^maximum_seconds=-1 is not a "),
        (Backoff, {"multiplier": 0.5}, r"^multiplier=0.5 is not a "),
        (Backoff, {"jitter": -0.1}, r"^jitter=-0.1 is not a "),
        (Lease, {"seconds": 0}, r"lease=.* more than 0 seconds"),
        (Lease, {"seconds": math.nan}, r"lease=.* more than 0 seconds"),
    ],
)
def test_invalid_policies_are_refused(kind, options, words):
    with pytest.raises(ValueError, match=words):
        kind(**options)
