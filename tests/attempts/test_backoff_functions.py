"""A backoff may be a function of the number of failures and the error. If it fails, the default is used."""

import math
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.declare.checks import check_settings
from django_jobchains.declare.policies import resolve
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, Processors
from tests.attempts.test_retrying import MARGIN_SECONDS, Broken, fail, wait_of
from tests.support.attempts import WITHOUT_WAKE_UPS, committed

pytestmark = committed


class RefusesNotes(Broken):
    def add_note(self, note):
        raise TypeError("never")


def by_error(failures, error):
    return 1_000 * failures if isinstance(error, Broken) else 1


def constant(seconds):
    return lambda failures, error: seconds


#: A function for ``JOBCHAINS["BACKOFF"]``.
of_settings = constant(400)
not_a_function = 5


def assert_waits(chain, seconds):
    assert seconds - 0.1 <= wait_of(chain) < seconds + MARGIN_SECONDS


def test_function_gets_the_failures_and_the_error(work):
    part = Processors(backoff=by_error)
    chain = part.register("broken")(fail).enqueue()
    for failures in (1, 2, 3):
        work(part)
        assert_waits(chain, 1_000 * failures)
        Job.objects.update(run_at=chain.created_at)


@pytest.mark.parametrize(
    ("own", "processors_", "worker", "path", "seconds"),
    [
        (None, None, None, f"{__name__}.of_settings", 400),
        (None, None, 300, f"{__name__}.of_settings", 300),
        (None, 200, 300, None, 200),
        (100, 200, 300, None, 100),
    ],
)
def test_function_of_the_most_specific_level_is_used(settings, work, own, processors_, worker, path, seconds):
    def function(wait):
        return None if wait is None else constant(wait)

    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "BACKOFF": path}
    part = Processors(backoff=function(processors_))
    chain = part.register("broken", backoff=function(own))(fail).enqueue()
    work(part, backoff=function(worker))
    assert_waits(chain, seconds)


@pytest.mark.parametrize("name", ["missing", "not_a_function"])
def test_setting_that_is_not_a_function_fails_the_system_check(settings, name):
    settings.JOBCHAINS = {"BACKOFF": f"{__name__}.{name}"}
    with pytest.raises(ImproperlyConfigured, match=r"JOBCHAINS\['BACKOFF'\]=.* cannot be used"):
        resolve()
    assert [message.id for message in check_settings()] == ["jobchains.E010"]


INVALID_RESULTS = [ZeroDivisionError(), SystemExit(), "soon", None, True, -1, math.nan, math.inf, 1e300, timedelta(1)]


@pytest.mark.parametrize(
    ("result", "error"),
    [*((result, Broken("no luck")) for result in INVALID_RESULTS), (-1, RefusesNotes("no luck"))],
    ids=repr,
)
def test_default_replaces_a_function_that_fails_and_the_error_of_the_handler_is_kept(work, result, error, caplog):
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
    assert_waits(chain, 9)
    failed = FailedAttempt.objects.get()
    assert failed.error == f"{type(error).__name__}: no luck"
    assert "The type's backoff failed, and the default was used instead" in caplog.text
    if not isinstance(error, RefusesNotes):
        assert "The type's backoff failed" in failed.traceback


def test_default_comes_from_the_settings(settings, work):
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "BACKOFF_INITIAL_SECONDS": 70, "BACKOFF_JITTER": 0}
    part = Processors(backoff=constant(-1))
    chain = part.register("unruly")(fail).enqueue()
    work(part)
    assert_waits(chain, 70)
    assert Backoff().initial_seconds != 70
