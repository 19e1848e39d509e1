"""A handler may swallow the error of a phase; the attempt does not: it is rolled back, never committed half."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connection, transaction

from django_jobchains.models import Chain
from django_jobchains.processors import Processors, RunningJob
from tests.attempts.work import Work, committed
from tests.shop.models import Effect

pytestmark = committed


def assert_rescheduled_without_effects(chain: Chain, error: str) -> None:
    (job,) = chain.refresh().jobs
    assert (job.status, job.attempt, job.output) == ("pending", 1, None)
    assert error in (job.last_error or "")
    assert [failed.error for failed in job.failed_attempts.all()] == [job.last_error]
    assert not Effect.objects.exists()


def violate_a_constraint() -> None:
    """Django remembers this one: the ORM's own block has no savepoint."""
    with pytest.raises(IntegrityError):
        Effect.objects.create(job_id=None, label="of no job")


def divide_by_zero() -> None:
    """Django does not see this one: only PostgreSQL knows that the transaction is lost."""
    with pytest.raises(DataError), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


poisons = pytest.mark.parametrize(
    "poison", [violate_a_constraint, pytest.param(divide_by_zero, marks=pytest.mark.postgresql)]
)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_swallowed_error_of_complete_is_not_committed(
    processors: Processors, work: Work, error: type[BaseException]
) -> None:
    @processors.register("swallows")
    def swallows(job: RunningJob[Any]) -> str:
        try:
            with job.complete():
                Effect.objects.create(job_id=job.id, label="half")
                raise error("inside")
        except error:
            pass
        return "as if nothing had happened"

    chain = swallows.enqueue()
    work()
    assert_rescheduled_without_effects(chain, f"{error.__name__}: inside")


def test_writes_after_a_swallowed_error_of_complete_are_outside_of_it(processors: Processors, work: Work) -> None:
    open_: list[bool] = []

    @processors.register("swallows")
    def swallows(job: RunningJob[Any]) -> None:
        try:
            with job.complete():
                raise ValueError("inside")
        except ValueError:
            open_.append(connection.in_atomic_block)

    chain = swallows.enqueue()
    work()
    assert open_ == [False]
    assert_rescheduled_without_effects(chain, "ValueError: inside")


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_a_swallowed_error_of_prepare_is_not_committed(processors: Processors, work: Work, mode: Any) -> None:
    @processors.register("swallows")
    def swallows(job: RunningJob[Any]) -> str:
        try:
            with job.prepare(mode=mode):
                Effect.objects.create(job_id=job.id, label="half")
                raise ValueError("inside")
        except ValueError:
            pass
        return "as if nothing had happened"

    chain = swallows.enqueue()
    work()
    assert_rescheduled_without_effects(chain, "ValueError: inside")


def test_completing_after_a_swallowed_error_of_prepare_is_not_committed(processors: Processors, work: Work) -> None:
    @processors.register("swallows")
    def swallows(job: RunningJob[Any]) -> str:
        try:
            with job.prepare():
                raise ValueError("inside")
        except ValueError:
            pass
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
        return "as if nothing had happened"

    chain = swallows.enqueue()
    work()
    assert_rescheduled_without_effects(chain, "ValueError: inside")


@poisons
@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_a_transaction_poisoned_in_complete_is_rolled_back(
    processors: Processors, work: Work, mode: Any, poison: Callable[[], None]
) -> None:
    @processors.register("poisoned", mode=mode)
    def poisoned(job: RunningJob[Any]) -> str:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            poison()
        return "as if nothing had happened"

    chain = poisoned.enqueue()
    work()
    assert_rescheduled_without_effects(chain, "transaction")


@poisons
def test_a_transaction_poisoned_in_prepare_is_no_prepared_job(
    processors: Processors, work: Work, poison: Callable[[], None]
) -> None:
    """The block's end cannot commit: going on would run the handler without the writes it relies on."""
    went_on: list[bool] = []

    @processors.register("poisoned")
    def poisoned(job: RunningJob[Any]) -> None:
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="half")
            poison()
        went_on.append(True)

    chain = poisoned.enqueue()
    work()
    assert_rescheduled_without_effects(chain, "")
    assert went_on == []


def test_a_broken_block_inside_complete_rolls_it_all_back(processors: Processors, work: Work) -> None:
    """As Django has it: an error leaves a block without a savepoint, so the outer one must not commit."""

    @processors.register("poisons")
    def poisons(job: RunningJob[Any]) -> str:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            try:
                with transaction.atomic(savepoint=False):
                    raise ValueError("inside")
            except ValueError:
                pass
        return "as if nothing had happened"

    chain = poisons.enqueue()
    work()
    assert_rescheduled_without_effects(chain, "the transaction is lost")


def test_an_error_caught_around_a_savepoint_does_no_harm(processors: Processors, work: Work) -> None:
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


def test_set_rollback_in_complete_completes_nothing(processors: Processors, work: Work) -> None:
    @processors.register("undecided")
    def undecided(job: RunningJob[Any]) -> str:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            transaction.set_rollback(True)
        return "done"

    chain = undecided.enqueue()
    work()
    assert_rescheduled_without_effects(chain, "the transaction is lost")


def test_a_connection_closed_in_complete_completes_nothing(processors: Processors, work: Work) -> None:
    @processors.register("closes")
    def closes(job: RunningJob[Any]) -> str:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            connection.close()
        return "done"

    chain = closes.enqueue()
    work()
    assert_rescheduled_without_effects(chain, "")
