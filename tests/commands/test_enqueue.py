"""``enqueue`` starts a chain and prints its id."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_jobchains.chains import Chain
from django_jobchains.models import Job
from django_jobchains.processors import JobType

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Refund:
    order_id: int
    reason: str
    days: int = 14


@pytest.fixture(autouse=True)
def _typed(registry):
    registry.declared["shop.refund"] = JobType("shop.refund", input=Refund)


def test_it_prints_the_id_of_the_chain(run):
    done = run("enqueue", "shop.plain")
    chain = Chain.objects.get()
    assert (done.code, done.out, done.notes) == (0, f"{chain.id}\n", "")
    assert (chain.type_name, chain.status, chain.input) == ("shop.plain", "pending", None)


@pytest.mark.django_db(transaction=True)
def test_it_enqueues_in_a_transaction(run, settings):
    settings.JOBCHAINS = {"REQUIRE_TRANSACTION": True}
    done = run("enqueue", "shop.plain")
    assert (done.code, done.out) == (0, f"{Chain.objects.get().id}\n")


def test_as_json(run):
    done = run("enqueue", "shop.charge", "--input", "5", "--format", "json")
    assert done.json == {"chain": str(Chain.objects.get().id), "type": "shop.charge", "deduplicated": False}


def test_the_input_is_validated_and_stored_as_by_the_api(run):
    run("enqueue", "shop.refund", "--input", '{"order_id": 7, "reason": "late"}')
    assert Job.objects.get().input == {"order_id": 7, "reason": "late", "days": 14}


def test_the_input_can_come_from_stdin(run):
    assert run("enqueue", "shop.charge", "--input", "-", stdin="5").code == 0
    assert Job.objects.get().input == 5
    assert run("enqueue", "shop.charge", "--input", "-", stdin="{").code == 2


def test_the_options(run):
    run("enqueue", "shop.plain", "--queue", "slow", "--priority", "-3", "--run-at", "2099-01-02T03:04Z")
    job = Job.objects.get()
    assert (job.queue, job.priority, job.run_at) == ("slow", -3, datetime(2099, 1, 2, 3, 4, tzinfo=UTC))


def test_without_options_those_of_the_type_apply(run):
    run("enqueue", "shop.charge", "--input", "5")
    job = Job.objects.get()
    assert (job.queue, job.priority, job.max_attempts) == ("bank", 5, None)


def test_a_delay(run):
    run("enqueue", "shop.plain", "--delay", "90m")
    job = Job.objects.get()
    assert (job.run_at - job.created_at).total_seconds() == pytest.approx(5_400, abs=5)


def test_a_time_without_an_offset_is_in_the_current_time_zone(run, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    run("enqueue", "shop.plain", "--run-at", "2099-01-02T09:00")
    assert Job.objects.get().run_at == datetime(2099, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_known_key_returns_the_existing_chain(run, form):
    first = run("enqueue", "shop.plain", "--deduplicate", "daily")
    second = run("enqueue", "shop.plain", "--deduplicate", "daily", "--format", form)
    assert Job.objects.count() == 1
    if form == "json":
        assert second.json["deduplicated"] is True
        assert second.json["chain"] == first.out.strip()
    else:
        assert second.out == first.out
        assert second.notes == "A chain with this key already exists. No chain was started.\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["shop.absent"], "No job type 'shop.absent'. Is its app in INSTALLED_APPS"),
        (["shop.receipt"], "'shop.receipt' is declared with entry=False, so it cannot be enqueued."),
        (["shop.refund"], """such as --input '{"order_id": 0, "reason": "", "days": 14}'."""),
        (["shop.refund", "--input", '{"order_id": 1}'], "reason: Field required"),
        (["shop.charge", "--input", '"five"'], "Not a int: Input should be a valid integer"),
        (["shop.charge", "--input", "five"], "'five' is not JSON"),
        (["shop.plain", "--input", "NaN"], "NaN is not JSON"),
        (["shop.plain", "--queue", ""], "is not a name"),
        (["shop.plain", "--priority", "40000"], "is not a priority: write an integer from -32768 to 32767"),
        (["shop.plain", "--priority", "high"], "is not a priority"),
        (["shop.plain", "--delay", "5"], "is not a duration: write for example 90s"),
        (["shop.plain", "--delay", "999999w"], "is not a length of time below a thousand years"),
        (["shop.plain", "--run-at", "tomorrow"], "'tomorrow' is not a time: write for example"),
        (["shop.plain", "--run-at", "2026-02-30T10:00"], "is not a time"),
        (["shop.plain", "--run-at", "9999-12-31T23:59-01:00"], "is before the year 1 or after the year 9999 in UTC"),
        (["shop.plain", "--delay", "5m", "--run-at", "2099-01-01T00:00Z"], "not allowed with argument"),
        (["shop.plain", "--deduplicate", ""], "is not a deduplication key"),
        ([], "the following arguments are required: TYPE"),
    ],
)
def test_an_invalid_argument_is_an_error_and_enqueues_nothing(run, words, error):
    done = run("enqueue", *words)
    assert done.code != 0
    assert error in done.error
    assert not Job.objects.exists()


def test_errors_do_not_contain_values_of_the_input(run):
    done = run("enqueue", "shop.refund", "--input", '{"order_id": "canary-77", "reason": "late"}')
    assert "order_id: Input should be a valid integer" in done.error
    assert "canary-77" not in done.error


@pytest.mark.django_db(transaction=True)
def test_it_runs_in_a_transaction(run, monkeypatch):
    real, seen = JobType.enqueue, []

    def enqueue(job_type: Any, *args: Any, **options: Any) -> Any:
        seen.append(transaction.get_connection().in_atomic_block)
        return real(job_type, *args, **options)

    monkeypatch.setattr(JobType, "enqueue", enqueue)
    assert UUID(run("enqueue", "shop.plain").out.strip())
    assert seen == [True]
    assert not connection.in_atomic_block
