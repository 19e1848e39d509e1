"""A job whose input cannot be decoded or validated fails without a retry, and other jobs run."""

from dataclasses import dataclass

import pytest
from django.db import OperationalError, connection

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.payloads import strict_json
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


#: Texts that no job can have as its input, and the reasons.
UNREADABLE = [
    ("1" * 5000, "cannot be decoded"),
    ("[" * 5000 + "]" * 5000, "InvalidInput: "),
    pytest.param(
        '{"order_id": 1',
        "cannot be decoded",
        marks=pytest.mark.skipif("connection.vendor != 'sqlite'", reason="jsonb holds only JSON"),
    ),
]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *UNREADABLE,
        ("null", "Not a Charge"),
        (None, "Not a Charge"),
        ("{}", "order_id"),
        ('{"order_id": "one"}', "unable to parse string as an integer"),
    ],
)
def test_input_that_does_not_fit_the_type_fails_only_its_job(processors, work, text, reason):
    ran = []

    def charge(job: RunningJob[Charge]):
        ran.append(job.input.order_id)

    job_type = processors.register("charge")(charge)
    check_others_run(job_type, [Charge(number) for number in (1, 666, 3)], ran, processors, work, text, reason)


@pytest.mark.parametrize(("text", "reason"), UNREADABLE)
def test_input_that_cannot_be_decoded_fails_only_its_job(processors, work, text, reason):
    """Without a type, only the decoder protects the worker."""
    ran = []
    job_type = processors.register("charge")(lambda job: ran.append(job.input))
    check_others_run(job_type, [1, 666, 3], ran, processors, work, text, reason)


def check_others_run(job_type, inputs, ran, processors, work, text, reason):
    other = processors.register("other")(lambda job: "fine").enqueue()
    _, bad, _ = [job_type.enqueue(given, priority=1) for given in inputs]
    overwrite_input(bad, text)
    work(slots=4)
    assert (sorted(ran), other.refresh().output) == ([1, 3], "fine")
    job = Job.objects.get(pk=bad.id)
    assert (job.status, job.attempt, job.leased_by) == ("failed", 1, None)
    assert job.finished_at is not None
    assert reason in job.last_error
    assert FailedAttempt.objects.get().error == job.last_error


@pytest.fixture
def order(processors):
    """A type with a custom validator, which raises the errors of ``order.errors``, each once."""
    pydantic = pytest.importorskip("pydantic")
    errors = []

    class Order(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def known(cls, number):
            if errors:
                raise errors.pop()
            return number

    def register(**options):
        job_type = processors.register("order", input=Order, backoff=Backoff(0, 1, 0, 0), **options)(lambda job: None)
        return job_type.enqueue(Order(number=1))

    register.errors = errors
    return register


def test_error_of_a_custom_validator_fails_the_job(order, work):
    chain = order()
    order.errors.append(RuntimeError("the numbering service is down"))
    work()
    assert chain.refresh().status == "failed"
    assert "the numbering service is down" in chain.last_error


@pytest.mark.parametrize("error", [MemoryError(), ConnectionError("no route"), OperationalError("the server is gone")])
@pytest.mark.parametrize("batch_limit", [None, 2])
def test_error_that_does_not_concern_the_input_is_retried(order, work, error, batch_limit):
    chain = order(batch_limit=batch_limit)
    order.errors.append(error)
    work()
    job = chain.refresh().current_job
    assert (job.status, job.attempt) == ("completed", 2)
    assert FailedAttempt.objects.get().error.startswith(type(error).__name__)


def test_memory_error_while_json_is_parsed_is_retried(processors, work, monkeypatch):
    read, errors = strict_json._read_json, [MemoryError()]

    def fail_once(text):
        if text == '"large"' and errors:
            raise errors.pop()
        return read(text)

    chain = processors.register("any", backoff=Backoff(0, 1, 0, 0))(lambda job: None).enqueue("large")
    monkeypatch.setattr(strict_json, "_read_json", fail_once)
    work()
    job = chain.refresh().current_job
    assert (job.status, job.attempt) == ("completed", 2)


def test_invalid_input_for_another_job_is_an_ordinary_error(processors, work):
    """The input of the running job is valid, and the next release may fix the handler."""
    other = JobType("other", input=Charge)
    chain = processors.register("sender")(lambda job: other.enqueue("not a charge")).enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.status, job.last_error.startswith("InvalidInput: ")) == ("pending", True)
