"""A job whose input cannot be decoded or validated fails without a retry, and other jobs run."""

import json
from dataclasses import dataclass

import pytest
from django.db import OperationalError, connection

from django_jobchains.exceptions import InvalidInput
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, JobType, RunningJob
from tests.support.attempts import committed

pytestmark = committed


@dataclass(frozen=True)
class Charge:
    order_id: int


def overwrite_input(chain, text):
    """Store a text that ``enqueue`` would refuse, as an older release or SQL may have done."""
    value = "%s::jsonb" if connection.vendor == "postgresql" else "%s"
    key = chain.id if connection.vendor == "postgresql" else chain.id.hex
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = ON")
        cursor.execute(f"UPDATE django_jobchains_job SET input = {value} WHERE id = %s", [text, key])
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = OFF")


def assert_fails_and_others_run(processors, work, text, reason):
    ran = []

    @processors.register("charge")
    def charge(job: RunningJob[Charge]):
        ran.append(job.input.order_id)

    @processors.register("other")
    def other(job):
        ran.append(job.input)

    charge.enqueue(Charge(1), priority=2)
    bad = charge.enqueue(Charge(666), priority=1)
    charge.enqueue(Charge(2))
    other.enqueue(3)
    overwrite_input(bad, text)
    work(slots=4)
    assert sorted(ran) == [1, 2, 3]
    job = Job.objects.defer("input").get(pk=bad.id)
    assert (job.status, job.attempt, job.leased_by) == ("failed", 1, None)
    assert job.finished_at is not None
    assert reason in (job.last_error or "")
    assert FailedAttempt.objects.get().error == job.last_error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("null", "Not a Charge"),
        ("{}", "order_id"),
        ('{"order_id": "one"}', "unable to parse string as an integer"),
    ],
)
def test_input_of_the_wrong_type_fails_the_job(processors, work, text, reason):
    assert_fails_and_others_run(processors, work, text, reason)


def test_number_that_python_cannot_parse_fails_the_job(processors, work):
    assert_fails_and_others_run(processors, work, "1" * 5000, "cannot be decoded")


@pytest.mark.parametrize("depth", [900, 5000])
def test_deeply_nested_input_fails_the_job(processors, work, depth):
    assert_fails_and_others_run(processors, work, "[" * depth + "]" * depth, "InvalidInput: ")


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="jsonb holds only JSON")
def test_input_that_is_not_json_fails_the_job(processors, work):
    assert_fails_and_others_run(processors, work, '{"order_id": 1', "cannot be decoded")


def test_deeply_nested_input_of_an_untyped_handler_fails_the_job(processors, work):
    """Only the decoder protects the worker here, because there is no type to validate."""
    ran = []

    @processors.register("any")
    def any_(job):
        ran.append(job.input)

    bad, good = any_.enqueue(1, priority=1), any_.enqueue(2)
    overwrite_input(bad, "[" * 5000 + "]" * 5000)
    work()
    assert ran == [2]
    assert Job.objects.defer("input").get(pk=bad.id).status == "failed"
    assert good.refresh().status == "completed"


def test_error_of_a_custom_validator_fails_the_job(processors, work):
    pydantic = pytest.importorskip("pydantic")
    is_strict = False

    class Order(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def known(cls, number):
            if is_strict:
                raise RuntimeError("the numbering service is down")
            return number

    @processors.register("order", input=Order)
    def order(job): ...

    chain = order.enqueue(Order(number=1))
    is_strict = True
    work()
    job = chain.refresh().current_job
    assert job.status == "failed"
    assert "the numbering service is down" in (job.last_error or "")


@pytest.mark.parametrize("error", [MemoryError(), ConnectionError("no route"), OperationalError("the server is gone")])
@pytest.mark.parametrize("batch_limit", [None, 2])
def test_error_that_does_not_concern_the_input_is_retried(processors, work, error, batch_limit):
    pydantic = pytest.importorskip("pydantic")
    errors = [error]

    class Order(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def known(cls, number):
            if is_failing and errors:
                raise errors.pop()
            return number

    @processors.register("order", input=Order, batch_limit=batch_limit, backoff=Backoff(0, 1, 0, 0))
    def order(job): ...

    is_failing = False
    chain = order.enqueue(Order(number=1))
    is_failing = True
    work()
    job = chain.refresh().current_job
    assert (job.status, job.attempt) == ("completed", 2)
    assert FailedAttempt.objects.get().error.startswith(type(error).__name__)


def test_memory_error_while_json_is_parsed_is_retried(processors, work, monkeypatch):
    loads, errors = json.loads, [MemoryError()]

    def fail_once(text, **options):
        if text == '"large"' and errors:
            raise errors.pop()
        return loads(text, **options)

    @processors.register("any", backoff=Backoff(0, 1, 0, 0))
    def any_(job): ...

    chain = any_.enqueue("large")
    monkeypatch.setattr("django_jobchains.payloads.strict_json.json.loads", fail_once)
    work()
    job = chain.refresh().current_job
    assert (job.status, job.attempt) == ("completed", 2)


def test_invalid_input_for_another_job_is_an_ordinary_error(processors, work):
    """The input of the running job is valid, and the next release may fix the handler."""
    other = JobType("other", input=Charge)

    @processors.register("sender")
    def sender(job):
        other.enqueue("not a charge")

    chain = sender.enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.last_error or "").startswith(f"{InvalidInput.__name__}: ")
    assert job.status == "pending"
