"""``upgrade_input`` upgrades a stored input that no longer fits its type."""

from dataclasses import dataclass

import pytest
from django.db import OperationalError, connection

from django_jobchains import chains
from django_jobchains.exceptions import InvalidDeclaration
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from tests.support.attempts import committed

pytestmark = committed


@dataclass(frozen=True)
class Charge:
    order_id: int
    currency: str


def stored(**value):
    """Return a job as an earlier version of the code has enqueued it."""
    return JobType("shop.charge").enqueue(value).current_job


def upgrade(value):
    assert not connection.in_atomic_block
    return {**value, "currency": "EUR"}


DECLARATIONS = {
    "processor": lambda processors: processors.register("shop.charge", input=Charge, upgrade_input=upgrade),
    "job type": lambda processors: processors.register(JobType("shop.charge", input=Charge, upgrade_input=upgrade)),
    "batch": lambda processors: processors.register("shop.charge", input=Charge, upgrade_input=upgrade, batch_limit=5),
}


@pytest.mark.parametrize("declared", DECLARATIONS)
def test_only_an_input_that_does_not_fit_is_upgraded(processors, work, declared):
    seen = set()
    DECLARATIONS[declared](processors)(
        lambda given: seen.update(job.input for job in (given if declared == "batch" else [given]))
    )
    old = stored(order_id=7)
    stored(order_id=8, currency="CHF")
    work()
    assert seen == {Charge(7, "EUR"), Charge(8, "CHF")}
    assert Job.objects.get(pk=old.pk).input == {"order_id": 7}, "the stored input changed"


def returns_an_invalid_input(value):
    return {"order_id": "seven"}


def raises(value):
    return value["order"]["id"]


@pytest.mark.parametrize("function", [None, returns_an_invalid_input, raises])
def test_an_input_that_still_does_not_fit_fails_at_once_and_can_be_retried_with_new_code(processors, work, function):
    seen = []
    charge = processors.register("shop.charge", input=Charge, upgrade_input=function)(
        lambda job: seen.append(job.input)
    )
    job = stored(order_id=7)
    work()
    job.refresh_from_db()
    assert (job.status, job.attempt) == ("failed", 1)
    assert job.last_error.startswith("InvalidInput: ")
    charge.upgrade_input = upgrade  # the next deploy
    chains.retry(job)
    work()
    job.refresh_from_db()
    assert (job.status, seen) == ("completed", [Charge(7, "EUR")])


def test_an_upgrade_without_a_database_connection_is_retried(processors, work):
    def query(value):
        raise OperationalError("the server closed the connection")

    processors.register("shop.charge", input=Charge, upgrade_input=query)(lambda job: None)
    job = stored(order_id=7)
    work()
    job.refresh_from_db()
    assert (job.status, job.last_error) == ("pending", "OperationalError: the server closed the connection")


async def later(value): ...


@pytest.mark.parametrize("wrong", ["upgrade", Charge, later, lambda: None])
def test_an_upgrade_must_be_a_plain_function_with_one_argument(wrong):
    with pytest.raises(InvalidDeclaration, match=r"upgrade_input=.* one argument, the stored input"):
        JobType("shop.charge", input=Charge, upgrade_input=wrong)
