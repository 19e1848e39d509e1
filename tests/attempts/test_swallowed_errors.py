"""An attempt is rolled back after an error in a phase, even if its handler swallows the error."""

from contextlib import suppress
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connection, transaction

from django_jobchains.models import Chain
from django_jobchains.processors import RunningJob
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.scenario import complete, outside, prepare, write

pytestmark = committed


def assert_rescheduled_without_effects(chain: Chain, error: str) -> None:
    (job,) = chain.refresh().jobs
    assert (job.status, job.attempt, job.output) == ("pending", 1, None)
    assert error in (job.last_error or "")
    assert [failed.error for failed in job.failed_attempts.all()] == [job.last_error]
    assert not Effect.objects.exists()


def violate_a_constraint() -> None:
    """Cause an error after which Django refuses to commit, because it happens in a block without a savepoint."""
    with pytest.raises(IntegrityError):
        Effect.objects.create(job_id=None, label="of no job")


def divide_by_zero() -> None:
    """Cause an error that Django does not see. Only PostgreSQL knows that the transaction has failed."""
    with pytest.raises(DataError), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


failing_statements = pytest.mark.parametrize(
    "fail", [violate_a_constraint, pytest.param(divide_by_zero, marks=pytest.mark.postgresql)]
)


def raise_in_complete(jobs):
    with suppress(ValueError):
        yield complete(write(jobs, "half", ValueError("inside")))


def exit_in_complete(jobs):
    with suppress(SystemExit):
        yield complete(write(jobs, "half", SystemExit("inside")))


def raise_in_staged_prepare(jobs):
    with suppress(ValueError):
        yield prepare(write(jobs, "half", ValueError("inside")))


def raise_in_atomic_prepare(jobs):
    with suppress(ValueError):
        yield prepare(write(jobs, "half", ValueError("inside")), "atomic")


def complete_after_an_error_in_prepare(jobs):
    yield from raise_in_staged_prepare(jobs)
    yield complete(write(jobs, "half"))


def raise_in_a_block_without_savepoint(jobs):
    """After an error in such a block, Django does not let the outer block commit."""

    def fail():
        write(jobs, "half")()
        with suppress(ValueError), transaction.atomic(savepoint=False):
            raise ValueError("inside")

    yield complete(fail)


def set_rollback(jobs):
    yield complete(lambda: (write(jobs, "half")(), transaction.set_rollback(True)))


def close_the_connection(jobs):
    yield complete(lambda: (write(jobs, "half")(), connection.close()))


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (raise_in_complete, "ValueError: inside"),
        (exit_in_complete, "SystemExit: inside"),
        (raise_in_staged_prepare, "ValueError: inside"),
        (raise_in_atomic_prepare, "ValueError: inside"),
        (complete_after_an_error_in_prepare, "ValueError: inside"),
        (raise_in_a_block_without_savepoint, "the transaction is lost"),
        (set_rollback, "the transaction is lost"),
        (close_the_connection, ""),
    ],
)
def test_attempt_is_rolled_back_although_its_handler_returns(scenario, work, handler, error):
    chains = scenario.enqueue(handler)
    work()
    for chain in chains:
        assert_rescheduled_without_effects(chain, error)


def test_no_transaction_is_open_after_a_swallowed_error_of_complete(scenario, work):
    open_: list[bool] = []

    def swallows(jobs):
        yield from raise_in_complete(jobs)
        open_.append((yield outside(lambda: connection.in_atomic_block)))

    scenario.enqueue(swallows)
    work()
    assert open_ == [False]


@failing_statements
@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_transaction_that_failed_in_complete_is_rolled_back(processors, work, mode, fail):
    @processors.register("fails", mode=mode)
    def fails(job: RunningJob[Any]) -> str:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            fail()
        return "done"

    chain = fails.enqueue()
    work()
    assert_rescheduled_without_effects(chain, "transaction")


@failing_statements
def test_transaction_that_failed_in_prepare_ends_the_attempt(processors, work, fail):
    """The end of the block cannot commit, so the handler would continue without the writes that it relies on."""
    continued: list[bool] = []

    @processors.register("fails")
    def fails(job: RunningJob[Any]) -> None:
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="half")
            fail()
        continued.append(True)

    chain = fails.enqueue()
    work()
    assert_rescheduled_without_effects(chain, "")
    assert continued == []


def test_error_caught_around_a_savepoint_is_allowed(processors, work):
    @processors.register("careful")
    def careful(job: RunningJob[Any]) -> str:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="whole")
            try:
                with transaction.atomic():
                    Effect.objects.create(job_id=job.id, label="half")
                    raise ValueError("inside")
            except ValueError:
                pass
        return "done"

    chain = careful.enqueue()
    work()
    assert chain.refresh().output == "done"
    assert [effect.label for effect in Effect.objects.all()] == ["whole"]
