"""``upgrade_input`` upgrades a stored input that no longer fits its type."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_jobchains import chains
from django_jobchains.exceptions import InvalidDeclaration
from django_jobchains.models import Job
from django_jobchains.processors import Backoff, Batch, JobType, Processors, Registry, RunningJob
from django_jobchains.worker import Worker
from tests.support.attempts import committed

pytestmark = committed

Work = Callable[[], None]


@dataclass(frozen=True)
class Charge:
    order_id: int
    currency: str


@pytest.fixture
def processors():
    return Processors(backoff=Backoff(initial_seconds=100))


@pytest.fixture
def work(processors):
    def run() -> None:
        registry = Registry()
        registry.add(processors)
        Worker(slots=1, registry=registry).run_until_idle()

    return run


def stored(value: Any) -> Job:
    """Return a job as an earlier version of the code has enqueued it."""
    return JobType[Any, Any]("shop.charge").enqueue(value).current_job


def upgrade(value: Any) -> Any:
    assert not connection.in_atomic_block
    return {**value, "currency": "EUR"}


def test_only_an_input_that_does_not_fit_is_upgraded(processors, work):
    seen: list[Charge] = []

    @processors.register("shop.charge", upgrade_input=upgrade)
    def charge(job: RunningJob[Charge]) -> None:
        seen.append(job.input)

    old = stored({"order_id": 7})
    stored({"order_id": 8, "currency": "CHF"})
    work()
    assert seen == [Charge(7, "EUR"), Charge(8, "CHF")]
    assert Job.objects.get(pk=old.pk).input == {"order_id": 7}, "the stored input changed"


def test_a_declared_type_upgrades_inputs_for_its_processor(processors, work):
    seen: list[Charge] = []
    charge = JobType("shop.charge", input=Charge, upgrade_input=upgrade)

    @processors.register(charge)
    def handle(job: RunningJob[Charge]) -> None:
        seen.append(job.input)

    stored({"order_id": 7})
    work()
    assert seen == [Charge(7, "EUR")]


def test_the_inputs_of_a_batch_are_upgraded(processors, work):
    seen: list[Charge] = []

    @processors.register("shop.charge", upgrade_input=upgrade, batch_limit=5)
    def charge(jobs: Batch[Charge]) -> None:
        seen.extend(job.input for job in jobs)

    stored({"order_id": 7})
    stored({"order_id": 8, "currency": "CHF"})
    work()
    assert sorted(seen, key=lambda each: each.order_id) == [Charge(7, "EUR"), Charge(8, "CHF")]


def returns_an_invalid_input(value: Any) -> Any:
    return {"order_id": "seven"}


def raises(value: Any) -> Any:
    return value["order"]["id"]


@pytest.mark.parametrize("function", [None, returns_an_invalid_input, raises])
def test_an_input_that_still_does_not_fit_fails_at_once_and_can_be_retried_with_new_code(processors, work, function):
    seen: list[Charge] = []

    @processors.register("shop.charge", upgrade_input=function)
    def charge(job: RunningJob[Charge]) -> None:
        seen.append(job.input)

    job = stored({"order_id": 7})
    work()
    job.refresh_from_db()
    assert (job.status, job.attempt) == ("failed", 1)
    assert (job.last_error or "").startswith("InvalidInput: ")
    charge.upgrade_input = upgrade  # the next deploy
    chains.retry(job)
    work()
    job.refresh_from_db()
    assert (job.status, seen) == ("completed", [Charge(7, "EUR")])


def test_an_upgrade_without_a_database_connection_is_retried(processors, work):
    def query(value: Any) -> Any:
        raise OperationalError("the server closed the connection")

    processors.register("shop.charge", input=Charge, upgrade_input=query)(lambda job: None)
    job = stored({"order_id": 7})
    work()
    job.refresh_from_db()
    assert (job.status, job.last_error) == ("pending", "OperationalError: the server closed the connection")


async def later(value: Any) -> Any: ...


@pytest.mark.parametrize("wrong", ["upgrade", Charge, later, lambda: None])
def test_an_upgrade_must_be_a_plain_function_with_one_argument(wrong):
    with pytest.raises(InvalidDeclaration, match=r"upgrade_input=.* one argument, the stored input"):
        JobType("shop.charge", input=Charge, upgrade_input=wrong)
