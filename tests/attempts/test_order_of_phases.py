"""``prepare()`` and ``complete()`` may each be used once and in this order, and a continuation must be returned."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.exceptions import ContinuationNotAllowed, InvalidInput, JobTypeNotFound, LeaseLost, PhaseError
from django_jobchains.models import Job
from django_jobchains.processors import JobType, RunningJob
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.scenario import complete, effects, prepare, write
from tests.support.waiting import until

pytestmark = committed

Handler = Callable[[RunningJob[Any]], Any]

after = JobType("after")


def nothing() -> None: ...


def prepare_twice(jobs):
    yield prepare(write(jobs, "prepared"), "atomic")
    yield prepare(nothing)


def complete_twice(jobs):
    yield complete(write(jobs, "first"))
    yield complete(write(jobs, "second"))


def prepare_after_complete(jobs):
    yield complete(write(jobs, "completed"))
    yield prepare(nothing)


def prepare_in_an_unknown_mode(jobs):
    yield prepare(write(jobs, "prepared"), "whatever")


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (prepare_twice, "prepare() can be used once, and before complete()"),
        (complete_twice, "complete() can be used once"),
        (prepare_after_complete, "prepare() can be used once, and before complete()"),
        (prepare_in_an_unknown_mode, "prepare(mode='whatever'): 'staged' or 'atomic'."),
    ],
)
def test_phases_in_another_order_fail_the_attempt_and_are_rolled_back(scenario, work, handler, words):
    chains = scenario.enqueue(handler)
    work()
    for chain in chains:
        job = chain.refresh().current_job
        assert (job.status, job.attempt) == ("pending", 1)
        assert job.last_error.startswith(f"PhaseError: {words}")
    assert effects() == []


def complete_in_complete(job: RunningJob[Any]) -> None:
    with job.complete():
        Effect.objects.create(job_id=job.id, label="completed")
        with job.complete():
            pass


def prepare_in_complete(job: RunningJob[Any]) -> None:
    with job.complete():
        Effect.objects.create(job_id=job.id, label="completed")
        with job.prepare():
            pass


def complete_in_an_open_transaction(job: RunningJob[Any]) -> None:
    with transaction.atomic():
        Effect.objects.create(job_id=job.id, label="own")
        with job.complete():
            Effect.objects.create(job_id=job.id, label="completed")


def prepare_in_an_open_transaction(job: RunningJob[Any]) -> None:
    with transaction.atomic():
        Effect.objects.create(job_id=job.id, label="own")
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="prepared")


def on_another_thread(function: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


def complete_on_another_thread(job: RunningJob[Any]) -> None:
    def use() -> None:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="completed")

    on_another_thread(use)


def complete_on_another_thread_than_prepare(job: RunningJob[Any]) -> None:
    with job.prepare(mode="atomic"):
        Effect.objects.create(job_id=job.id, label="prepared")
    with suppress(PhaseError):
        complete_on_another_thread(job)


def prepare_on_another_thread(job: RunningJob[Any]) -> None:
    def use() -> None:
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="prepared")

    with suppress(PhaseError):
        on_another_thread(use)


def continue_twice(job: RunningJob[Any]) -> Any:
    job.continue_with(after, 1)
    return job.continue_with(after, 2)


def continue_without_returning_it(job: RunningJob[Any]) -> None:
    job.continue_with(after, 1)


def continue_in_complete_without_returning_it(job: RunningJob[Any]) -> None:
    with job.complete():
        Effect.objects.create(job_id=job.id, label="completed")
        job.continue_with(after, 1)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (complete_in_complete, "complete() can be used once"),
        (prepare_in_complete, "before complete()"),
        (complete_in_an_open_transaction, "Close your own transaction"),
        (prepare_in_an_open_transaction, "Close your own transaction"),
        (complete_on_another_thread, "a thread other than the handler's"),
        (complete_on_another_thread_than_prepare, "a thread other than the handler's"),
        (prepare_on_another_thread, "a thread other than the handler's"),
        (continue_twice, "continue_with() can be used once"),
        (continue_without_returning_it, "must be returned"),
        (continue_in_complete_without_returning_it, "must be returned"),
    ],
)
def test_misused_phases_fail_the_attempt_and_are_rolled_back(processors, work, handler, words):
    chain = processors.register("misuses")(handler).enqueue()
    work()
    (job,) = chain.refresh().jobs
    assert job.status == "pending"
    assert job.last_error.startswith("PhaseError: ")
    assert words in job.last_error
    assert not Effect.objects.exists()


def test_complete_in_an_open_transaction_fails_the_attempt_even_if_the_error_is_swallowed(processors, work):
    @processors.register("misuses")
    def misuses(job: RunningJob[Any]) -> None:
        with transaction.atomic(), pytest.raises(PhaseError), job.complete():
            Effect.objects.create(job_id=job.id, label="completed")

    chain = misuses.enqueue()
    work()
    assert chain.refresh().status == "pending"
    assert not Effect.objects.exists()


def test_continuation_of_another_job_is_refused(processors, work):
    kept: list[Any] = []

    @processors.register("greedy")
    def greedy(job: RunningJob[Any]) -> Any:
        kept.append(job.continue_with(after, 1))
        return kept[0]

    first = greedy.enqueue()
    second = greedy.enqueue(priority=-1)
    work(slots=1)
    assert [job.type_name for job in first.refresh().jobs] == ["greedy", "after"]
    (job,) = second.refresh().jobs
    assert job.status == "pending"
    assert "the continuation of another job" in job.last_error


def test_job_that_outlives_its_handler_cannot_complete_again(processors, work):
    kept: list[RunningJob[Any]] = []

    @processors.register("kept")
    def keep(job: RunningJob[Any]) -> None:
        if kept:
            until(lambda: Job.objects.get(pk=kept[0].id).status == "completed")
            with pytest.raises(LeaseLost), kept[0].complete():
                Effect.objects.create(job_id=kept[0].id, label="too late")
        kept.append(job)

    keep.enqueue()
    keep.enqueue()
    work(slots=1)
    with pytest.raises(PhaseError), kept[0].complete():
        Effect.objects.create(job_id=kept[0].id, label="too late")
    assert len(kept) == 2
    assert not Effect.objects.exists()


def continue_with_a_type_that_is_not_allowed(job: RunningJob[Any]) -> Any:
    return job.continue_with("other", 1)


def continue_with_an_unknown_type(job: RunningJob[Any]) -> Any:
    return job.continue_with("unknown", 1)


def continue_with_a_set(job: RunningJob[Any]) -> Any:
    return job.continue_with(after, {1, 2})


@pytest.mark.parametrize(
    ("handler", "error", "allowed"),
    [
        (continue_with_a_type_that_is_not_allowed, ContinuationNotAllowed, ["after"]),
        (continue_with_an_unknown_type, JobTypeNotFound, None),
        (continue_with_a_set, InvalidInput, None),
    ],
)
def test_invalid_continuation_raises_an_error_in_the_handler(processors, work, handler, error, allowed):
    raised: list[Exception] = []
    processors.register("other")(lambda job: None)

    @processors.register("asks", continues_with=allowed)
    def asks(job: RunningJob[Any]) -> str:
        try:
            handler(job)
        except error as caught:
            raised.append(caught)
        return "without it"

    chain = asks.enqueue()
    work()
    assert [type(caught) for caught in raised] == [error]
    assert chain.refresh().output == "without it"
    assert Job.objects.count() == 1
