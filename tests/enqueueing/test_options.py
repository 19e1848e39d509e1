"""The options of ``enqueue``: run_at, delay, priority, queue, max_attempts, id, blockers and using."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

from django_jobchains import chains, queues
from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import Job
from django_jobchains.monitoring import overview, throughput
from django_jobchains.processors import JobType
from django_jobchains.testing import run_due_jobs
from tests.support.attempts import committed

pytestmark = pytest.mark.django_db

anything: JobType[Any, Any] = JobType("anything")

LATEST = datetime(9999, 12, 31, 23, 59)  # noqa: DTZ001
EAST, WEST = timezone(timedelta(hours=1)), timezone(timedelta(hours=-1))

#: One entry for each call: the database alias, and the subjects of the hints that were sent together.
Sent = list[tuple[str, set[str]]]


def delay_of(**options: Any) -> timedelta:
    job = anything.enqueue(**options).current_job
    return job.run_at - job.created_at


def test_without_options_a_job_is_due_now_in_the_default_queue():
    job = anything.enqueue().current_job
    assert (job.run_at, job.queue, job.priority, job.max_attempts) == (job.created_at, "default", 0, None)
    assert (job.status, job.attempt, job.lease_number, job.crashes) == ("pending", 0, 0, 0)
    assert (job.chain_id, job.chain_index, job.chain_type_name) == (job.id, 0, "anything")
    assert job.input is None


def test_default_queue_is_a_setting(settings):
    settings.JOBCHAINS = {"QUEUE": "slow"}
    assert anything.enqueue().current_job.queue == "slow"


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(30, 30), (0.25, 0.25), (timedelta(hours=1), 3600), (timedelta(days=3650), 315_360_000), (0, 0), (-5, 0)],
)
def test_delay_is_a_timedelta_or_seconds(delay, seconds):
    assert abs(delay_of(delay=delay).total_seconds() - seconds) < 0.002


def test_run_at_is_kept_to_the_microsecond():
    run_at = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
    assert anything.enqueue(run_at=run_at).current_job.run_at == run_at


def test_run_at_must_have_a_time_zone():
    with pytest.raises(ValueError, match="has no time zone"):
        anything.enqueue(run_at=datetime(2091, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("run_at", [LATEST.replace(tzinfo=WEST), datetime(1, 1, 1, tzinfo=EAST)])
def test_a_time_that_does_not_exist_in_utc_is_refused(run_at):
    """PostgreSQL would store it, and then the table could not be read."""
    chain = anything.enqueue(delay=600)
    calls: list[Callable[[], Any]] = [
        lambda: anything.enqueue(run_at=run_at),
        lambda: anything.item(run_at=run_at),
        lambda: chains.reschedule(chain, run_at),
        lambda: Job.objects.created_between(None, run_at),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"before the year 1 or after the year 9999 in UTC"):
            call()
    assert Job.objects.get().run_at < LATEST.replace(tzinfo=UTC)


def test_run_at_and_delay_exclude_each_other():
    with pytest.raises(TypeError, match="run_at= or delay=, not both"):
        anything.enqueue(run_at=datetime(2091, 1, 1, tzinfo=UTC), delay=5)


@pytest.mark.parametrize("run_at", ["2091-01-01", 5])
def test_run_at_must_be_a_datetime(run_at):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        anything.enqueue(run_at=run_at)


@pytest.mark.parametrize("priority", [-32_768, -1, 0, 32_767])
def test_priority_is_a_16_bit_integer(priority):
    assert anything.enqueue(priority=priority).current_job.priority == priority


@pytest.mark.parametrize("queue", ["mail", "ü" * 100, "a queue with spaces"])
def test_queue_is_1_to_100_printable_characters(queue):
    assert anything.enqueue(queue=queue).current_job.queue == queue


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": "5m"},
        {"delay": timedelta.max},
        {"priority": 40_000},
        {"queue": ""},
        {"max_attempts": 0},
        {"max_attempts": 2**31},
    ],
    ids=str,
)
def test_an_invalid_option_is_an_error_before_anything_is_written(wrong):
    """The database would refuse the row, which breaks the caller's transaction. Python has no year 10000."""
    [name] = wrong
    for call in (anything.enqueue, anything.item):
        with pytest.raises((TypeError, ValueError), match=rf"^{name}=.* is not "), transaction.atomic():
            call(**wrong)
    assert not Job.objects.exists()


def test_error_for_a_timedelta_as_run_at_suggests_delay():
    with pytest.raises(TypeError, match=r"not timedelta\. Use delay= for a length of time"):
        anything.enqueue(run_at=timedelta(minutes=5))


@pytest.mark.parametrize("job_type", [5, None, {"a": 1}, print], ids=repr)
def test_job_type_must_be_a_job_type_or_a_name(job_type):
    with pytest.raises(TypeError, match="A job type is given as a JobType or by its name"):
        chains.enqueue(job_type)


@pytest.mark.parametrize("call", [anything.enqueue, anything.item, partial(chains.enqueue, anything)])
def test_error_for_an_unknown_option_names_it(call):
    with pytest.raises(TypeError, match=r"item\(\) got an unexpected keyword argument 'dely'"):
        call(1, dely=5)


def test_given_id_is_used():
    id_ = uuid4()
    chain = anything.enqueue(id=id_)
    assert chain.id == chain.current_job.id == id_


def test_generated_ids_are_ordered_in_time():
    ids = [anything.enqueue().id for _ in range(20)]
    assert ids == sorted(ids)
    assert {id_.version for id_ in ids} == {7}


@pytest.mark.parametrize("wrong", [str(UUID(int=7)), "", 0, False, []], ids=repr)
def test_id_must_be_a_uuid(wrong):
    """Falsy values are errors too: the caller would not know an id that is generated instead."""
    with pytest.raises(TypeError, match=r"id must be a uuid\.UUID, not (str|int|bool|list)"):
        anything.enqueue(id=wrong)
    assert not Job.objects.exists()


@pytest.mark.parametrize("wrong", [0, "", False, b"", 7, "x", [None]], ids=repr)
def test_blockers_must_be_chains(wrong):
    """Falsy values are errors too: without its blockers, the job would start too early."""
    with pytest.raises(TypeError, match=r"blockers expects a uuid\.UUID, a Chain or a Job"):
        anything.enqueue(blockers=wrong)
    assert not Job.objects.exists()


@pytest.mark.parametrize("nothing", [None, (), [], set()], ids=repr)
def test_without_blockers_a_job_is_due(nothing):
    assert anything.enqueue(blockers=nothing).status == "pending"


def test_existing_id_raises_an_error():
    id_ = uuid4()
    anything.enqueue("mine", id=id_)
    with pytest.raises(DuplicateJobId, match=str(id_)) as caught:
        anything.enqueue("yours", id=id_)
    assert caught.value.ids == (id_,)
    assert Job.objects.get().input == "mine"


def test_callers_transaction_continues_after_a_duplicate_id():
    id_ = UUID(int=7)
    with transaction.atomic():
        anything.enqueue("mine", id=id_)
        with pytest.raises(DuplicateJobId):
            anything.enqueue("yours", id=id_)
        anything.enqueue("after")
    assert sorted(job.input for job in Job.objects.all()) == ["after", "mine"]


def test_one_duplicate_id_of_many_creates_nothing():
    id_ = uuid4()
    anything.enqueue("mine", id=id_)
    with pytest.raises(DuplicateJobId):
        chains.enqueue_many([anything.item(1), anything.item(2, id=id_), anything.item(3)])
    assert Job.objects.get().input == "mine"


def test_same_id_twice_in_one_call_creates_nothing():
    id_ = uuid4()
    with pytest.raises(DuplicateJobId):
        chains.enqueue_many([anything.item(1, id=id_), anything.item(2, id=id_)])
    assert not Job.objects.exists()


def test_enqueue_many_keeps_given_ids():
    ids = [uuid4(), uuid4()]
    assert [chain.id for chain in chains.enqueue_many([anything.item(id=id_) for id_ in ids])] == ids


def test_item_can_be_enqueued_once():
    item = anything.item(1)
    chains.enqueue_many([item])
    with pytest.raises(DuplicateJobId), transaction.atomic():
        chains.enqueue_many([item])


#: The calls that take ``using``. None of them may fall back to the default database.
CALLS: dict[str, Callable[[Any], Any]] = {
    "enqueue": lambda using: anything.enqueue(using=using),
    "enqueue_many": lambda using: chains.enqueue_many([anything.item()], using=using),
    "enqueue_many, of none": lambda using: chains.enqueue_many([], using=using),
    "get": lambda using: chains.get(uuid4(), using=using),
    "wait": lambda using: chains.wait(uuid4(), 0, using=using),
    "await_chain": lambda using: async_to_sync(chains.await_chain)(uuid4(), 0, using=using),
    "complete": lambda using: chains.complete(uuid4(), using=using),
    "current_job": lambda using: chains.current_job(uuid4(), using=using).__enter__(),
    "acurrent_job": lambda using: async_to_sync(chains.acurrent_job(uuid4(), using=using).__aenter__)(),
    "cancel": lambda using: chains.cancel([], using=using),
    "retry": lambda using: chains.retry([], using=using),
    "run_now": lambda using: chains.run_now([], using=using),
    "reschedule": lambda using: chains.reschedule([], delay=5, using=using),
    "delete": lambda using: chains.delete([], using=using),
    "prune": lambda using: chains.prune(timedelta(days=1), using=using),
    "queues.pause": lambda using: queues.pause("mail", using=using),
    "queues.states": lambda using: queues.states(using=using),
    "overview": lambda using: overview(using),
    "throughput": lambda using: throughput(using),
    "testing.run_due_jobs": lambda using: run_due_jobs(using=using),
}


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        *((call, wrong) for call in CALLS.values() for wrong in ("", "nowhere")),
        *((CALLS["enqueue"], wrong) for wrong in (5, 0, ["default"])),
    ],
)
def test_error_for_an_unknown_database_lists_the_known_ones(call, wrong):
    words = rf"^using={re.escape(repr(wrong))} is not an alias in DATABASES\. Known: default"
    with pytest.raises(ImproperlyConfigured, match=words):
        call(wrong)


class TestAnotherDatabase:
    pytestmark = committed

    @pytest.fixture
    def sent_there(self, second_alias, sent, settings):
        """The wake-ups of the test, including those through the other database."""
        settings.JOBCHAINS = {**settings.JOBCHAINS, "DATABASES": {second_alias: settings.JOBCHAINS}}
        return sent

    def test_using_chooses_the_database(self, second_alias, sent_there):
        chain = anything.enqueue(1, using=second_alias)
        chains.enqueue_many([anything.item(2)], using=second_alias)
        chains.enqueue(anything, 3, using=second_alias)
        assert not Job.objects.exists()
        assert sorted(job.input for job in Job.objects.using(second_alias)) == [1, 2, 3]
        assert (chain.using, chain.status, chain.current_job.input) == (second_alias, "pending", 1)
        assert chains.get(chain.id, using=second_alias).input == 1
        with pytest.raises(chains.ChainNotFound):
            chains.get(chain.id)
        assert {alias for alias, _ in sent_there} == {second_alias}

    @pytest.mark.filterwarnings("ignore:A chain is enqueued on database 'second'")
    def test_chain_is_part_of_the_transaction_of_its_database(self, second_alias, sent_there):
        with transaction.atomic():
            anything.enqueue(1, using=second_alias)
            assert len(sent_there) == 1, "The wake-up waits for the wrong transaction."
            transaction.set_rollback(True)
        with transaction.atomic(using=second_alias):
            anything.enqueue(2, using=second_alias)
            transaction.set_rollback(True, using=second_alias)
        assert [job.input for job in Job.objects.using(second_alias)] == [1]
        assert len(sent_there) == 1

    def test_setting_chooses_the_default_database(self, second_alias, settings):
        settings.JOBCHAINS = {"DATABASE": second_alias, "NOTIFIER": settings.JOBCHAINS["NOTIFIER"]}
        chain = anything.enqueue(1)
        assert not Job.objects.using("default").exists()
        assert Job.objects.using(second_alias).get().id == chain.id
        assert chains.get(chain.id).input == 1
