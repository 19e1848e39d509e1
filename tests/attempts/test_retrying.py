"""When a job is tried again, and when it is given up."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.processors import Backoff, FailJob, Processors, RescheduleJob, RunningJob
from tests.attempts.work import WITHOUT_WAKE_UPS, Work, committed
from tests.shop.models import Effect

pytestmark = committed


class Broken(Exception):
    pass


class VeryBroken(Broken):
    pass


def fail(job: RunningJob[Any]) -> None:
    raise Broken("no luck")


def wait_of(chain: Chain) -> float:
    """Seconds from the end of the failed attempt to the next; the two are read off the database's clock."""
    job = chain.refresh().current_job
    failed = job.failed_attempts.latest("lease_number")
    return (job.run_at - failed.finished_at).total_seconds()


def reschedule(processors: Processors, **options: Any) -> Chain:
    @processors.register("later")
    def later(job: RunningJob[Any]) -> None:
        raise RescheduleJob(**options)

    return later.enqueue()


@pytest.mark.parametrize(
    ("delay", "seconds"), [(30, 30), (0.5, 0.5), (timedelta(minutes=2), 120), (timedelta(days=400), 34_560_000)]
)
def test_a_job_is_rescheduled_by_the_delay_it_asks_for(
    processors: Processors, work: Work, delay: Any, seconds: float
) -> None:
    chain = reschedule(processors, delay=delay)
    work()
    assert wait_of(chain) == pytest.approx(seconds, abs=0.1)
    assert chain.status == "pending"


def test_a_job_is_rescheduled_to_the_time_it_asks_for(processors: Processors, work: Work) -> None:
    run_at = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
    chain = reschedule(processors, run_at=run_at)
    work()
    assert chain.refresh().current_job.run_at == run_at


def test_a_time_in_another_zone_is_the_same_time(processors: Processors, work: Work) -> None:
    zone = datetime.fromisoformat("2091-02-03T04:05:06+05:30")
    chain = reschedule(processors, run_at=zone)
    work()
    assert chain.refresh().current_job.run_at == zone


@pytest.mark.parametrize("options", [{"run_at": datetime(2000, 1, 1, tzinfo=UTC)}, {"delay": 0}, {"delay": -5}])
def test_a_time_in_the_past_is_now(processors: Processors, work: Work, options: dict[str, Any]) -> None:
    seen: list[datetime] = []

    @processors.register("later", max_attempts=2)
    def later(job: RunningJob[Any]) -> None:
        seen.append(job.run_at)
        raise RescheduleJob(**options)

    later.enqueue()
    work()
    first, _ = FailedAttempt.objects.order_by("attempt")
    assert len(seen) == 2
    assert abs(seen[1] - first.finished_at) < timedelta(seconds=0.1)


def test_rescheduling_is_recorded_as_a_failed_attempt_with_its_reason(processors: Processors, work: Work) -> None:
    chain = reschedule(processors, delay=30)
    work()
    assert chain.refresh().current_job.last_error == "RescheduleJob: rescheduled in 30"


def test_rescheduling_counts_as_an_attempt(processors: Processors, work: Work) -> None:
    @processors.register("later", max_attempts=3)
    def later(job: RunningJob[Any]) -> None:
        raise RescheduleJob(delay=0)

    chain = later.enqueue()
    work()
    assert (chain.refresh().status, chain.current_job.attempt) == ("failed", 3)


def test_rescheduling_in_complete_undoes_its_writes(processors: Processors, work: Work) -> None:
    @processors.register("later")
    def later(job: RunningJob[Any]) -> None:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            raise RescheduleJob(delay=30)

    chain = later.enqueue()
    work()
    assert wait_of(chain) == pytest.approx(30, abs=0.1)
    assert not Effect.objects.exists()


@pytest.mark.parametrize(
    "options", [{}, {"delay": 1, "run_at": datetime(2091, 1, 1, tzinfo=UTC)}, {"delay": None, "run_at": None}]
)
def test_rescheduling_needs_one_of_delay_and_run_at(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="one of them"):
        RescheduleJob(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2091, 1, 1)},  # noqa: DTZ001
        {"run_at": "tomorrow"},
        {"delay": "a while"},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1e15},
        {"delay": timedelta.max},
    ],
)
def test_a_time_that_is_none_is_replaced_by_the_backoff(
    processors: Processors, work: Work, options: dict[str, Any]
) -> None:
    chain = reschedule(processors, **options)
    work()
    assert wait_of(chain) == pytest.approx(100, abs=0.1)
    failed = FailedAttempt.objects.get()
    assert "The backoff is used instead" in failed.traceback, "people are not told why"


def test_a_job_that_fails_itself_is_not_tried_again(processors: Processors, work: Work) -> None:
    @processors.register("hopeless")
    def hopeless(job: RunningJob[Any]) -> None:
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
    ("own", "slice_", "worker", "settings_", "given", "attempts"),
    [
        (None, None, None, 4, None, 4),
        (None, None, 3, 4, None, 3),
        (None, 2, 3, 4, None, 2),
        (1, 2, 3, 4, None, 1),
        (1, 2, 3, 4, 5, 5),
        (3, None, None, None, 1, 1),
    ],
)
def test_the_nearest_limit_of_attempts_holds(
    settings: Any,
    work: Work,
    own: int | None,
    slice_: int | None,
    worker: int | None,
    settings_: int | None,
    given: int | None,
    attempts: int,
) -> None:
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "MAX_ATTEMPTS": settings_}
    part = Processors(max_attempts=slice_, backoff=Backoff(initial_seconds=0))
    chain = part.register("broken", max_attempts=own)(fail).enqueue(max_attempts=given)
    work(part, max_attempts=worker)
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.last_error) == ("failed", attempts, "Broken: no luck")
    assert job.failed_attempts.count() == attempts


@pytest.mark.parametrize(
    ("own", "slice_", "worker", "settings_", "seconds"),
    [
        (None, None, None, {}, (9, 10)),
        (None, None, None, {"BACKOFF_INITIAL_SECONDS": 40, "BACKOFF_JITTER": 0}, (40, 40)),
        (None, None, 30, {"BACKOFF_INITIAL_SECONDS": 40}, (30, 30)),
        (None, 20, 30, {}, (20, 20)),
        (15, 20, 30, {}, (15, 15)),
    ],
)
def test_the_nearest_backoff_holds(
    settings: Any,
    work: Work,
    own: float | None,
    slice_: float | None,
    worker: float | None,
    settings_: dict[str, Any],
    seconds: tuple[float, float],
) -> None:
    def backoff(initial: float | None) -> Backoff | None:
        return None if initial is None else Backoff(initial, jitter=0)

    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, **settings_}
    part = Processors(backoff=backoff(slice_))
    chain = part.register("broken", backoff=backoff(own))(fail).enqueue()
    work(part, backoff=backoff(worker))
    least, most = seconds
    assert least - 0.1 <= wait_of(chain) <= most + 0.1


def test_crashes_are_not_counted_as_failures(work: Work) -> None:
    part = Processors(backoff=Backoff(10, multiplier=3, maximum_seconds=50, jitter=0), max_attempts=2)
    chain = part.register("broken")(fail).enqueue()
    Job.objects.update(attempt=4, lease_number=4, crashes=4)  # as four kills leave it
    work(part)
    assert (chain.refresh().status, round(wait_of(chain))) == ("pending", 10)
    Job.objects.update(run_at=chain.created_at)
    work(part)
    assert (chain.refresh().status, chain.current_job.attempt) == ("failed", 6)


def test_the_wait_grows_with_the_attempts_up_to_the_maximum(work: Work) -> None:
    part = Processors(backoff=Backoff(10, multiplier=3, maximum_seconds=50, jitter=0))
    chain = part.register("broken")(fail).enqueue()
    waits = []
    for _ in range(4):
        work(part)
        waits.append(round(wait_of(chain)))
        Job.objects.update(run_at=chain.created_at)
    assert waits == [10, 30, 50, 50]


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
def test_errors_that_are_not_worth_another_attempt_fail_the_job(
    processors: Processors, work: Work, rule: dict[str, Any], error: type[BaseException], status: str
) -> None:
    @processors.register("choosy", **rule)
    def choosy(job: RunningJob[Any]) -> None:
        raise error

    chain = choosy.enqueue()
    work()
    assert (chain.refresh().status, chain.current_job.attempt) == (status, 1)


def test_rules_about_errors_do_not_hold_for_rescheduling(processors: Processors, work: Work) -> None:
    @processors.register("later", fail_on=Exception, retry_if=lambda error: False)
    def later(job: RunningJob[Any]) -> None:
        raise RescheduleJob(delay=30)

    chain = later.enqueue()
    work()
    assert chain.refresh().status == "pending"


class StrangeBackoff(Backoff):
    """Answers with what it is given, or raises it."""

    def __init__(self, answer: Any) -> None:
        object.__setattr__(self, "answer", answer)

    def seconds(self, attempt: int, share: float | None = None) -> float:
        answer: Any = self.answer  # type: ignore[attr-defined]
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]


class RefusesNotes(Broken):
    def add_note(self, note: str) -> None:
        raise TypeError("never")


STRANGE_ANSWERS = [ZeroDivisionError(), SystemExit(), "soon", None, True, -1, math.nan, math.inf, 1e300, timedelta(1)]


@pytest.mark.parametrize("answer", STRANGE_ANSWERS, ids=repr)
@pytest.mark.parametrize("error", [Broken("no luck"), RefusesNotes("no luck")], ids=lambda error: type(error).__name__)
def test_after_a_backoff_that_itself_fails_the_default_holds_and_the_error_is_kept(
    work: Work, answer: Any, error: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    part = Processors(backoff=StrangeBackoff(answer))

    @part.register("unruly")
    def unruly(job: RunningJob[Any]) -> None:
        raise error

    chain = unruly.enqueue()
    work(part)
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.crashes) == ("pending", 1, 0)
    assert 8.9 <= wait_of(chain) <= 10.1
    failed = FailedAttempt.objects.get()
    assert failed.error == f"{type(error).__name__}: no luck"
    assert "The type's backoff failed, and the default was used instead" in caplog.text
    if not isinstance(error, RefusesNotes):
        assert "The type's backoff failed" in failed.traceback, "people are not told why"


def test_after_a_limit_of_attempts_that_itself_fails_the_job_is_tried_again(work: Work) -> None:
    part = Processors()
    object.__setattr__(part.policy, "max_attempts", "three")  # as nothing that is checked can be
    chain = part.register("unruly")(fail).enqueue()
    work(part)
    assert (chain.refresh().status, chain.current_job.last_error) == ("pending", "Broken: no luck")


def exits(error: BaseException) -> bool:
    raise SystemExit


def divides(error: BaseException) -> bool:
    return bool(1 / 0)


@pytest.mark.parametrize(("rule", "name"), [(divides, "ZeroDivisionError"), (exits, "SystemExit")])
def test_a_rule_that_itself_fails_means_another_attempt_and_says_so(
    processors: Processors, work: Work, rule: Callable[[BaseException], bool], name: str
) -> None:
    chain = processors.register("unruly", retry_if=rule)(fail).enqueue()
    work()
    assert chain.refresh().status == "pending"
    failed = FailedAttempt.objects.get()
    assert failed.error == "Broken: no luck"
    assert name in failed.traceback, "people are not told that retry_if failed"
