"""The options of ``enqueue``: run_at, delay, priority, queue, max_attempts, id, blockers and using."""

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
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

anything = JobType("anything")

LATEST = datetime(9999, 12, 31, 23, 59)  # noqa: DTZ001
EAST, WEST = timezone(timedelta(hours=1)), timezone(timedelta(hours=-1))


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
    ("delay", "seconds"), [(30, 30), (0.25, 0.25), (timedelta(days=3650), 315_360_000), (0, 0), ("1h30m", 5400)]
)
def test_delay_is_a_duration(delay, seconds):
    job = anything.enqueue(delay=delay).current_job
    assert abs((job.run_at - job.created_at).total_seconds() - seconds) < 0.002


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)},
        {"priority": -32_768},
        {"priority": 32_767},
        {"queue": "ü" * 100},
        {"queue": "a queue with spaces"},
    ],
    ids=str,
)
def test_option_is_stored_exactly(options):
    [(name, value)] = options.items()
    assert getattr(anything.enqueue(**options).current_job, name) == value


@pytest.mark.parametrize("run_at", [LATEST.replace(tzinfo=WEST), datetime(1, 1, 1, tzinfo=EAST)])
def test_a_time_that_does_not_exist_in_utc_is_refused(run_at):
    """PostgreSQL would store it, and then the table could not be read."""
    chain = anything.enqueue(delay=600)
    calls = [
        lambda: anything.enqueue(run_at=run_at),
        lambda: anything.item(run_at=run_at),
        lambda: chains.reschedule(chain, run_at),
        lambda: Job.objects.created_between(None, run_at),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"before the year 1 or after the year 9999 in UTC"):
            call()
    assert Job.objects.get().run_at < LATEST.replace(tzinfo=UTC)


#: Falsy values are errors too: a generated id would be unknown to the caller, and without its blockers a job would
#: start too early.
WRONG = [
    ({"run_at": datetime(2091, 1, 1)}, "has no time zone"),  # noqa: DTZ001
    ({"run_at": datetime(2091, 1, 1, tzinfo=UTC), "delay": 5}, "run_at= or delay=, not both"),
    ({"run_at": timedelta(minutes=5)}, r"not timedelta\. Use delay= for a duration"),
    ({"run_at": "2091-01-01"}, "run_at"),
    ({"delay": "5"}, "^delay=.* is not .*, a timedelta, or a text such as '5m'"),
    *(({"delay": negative}, r"^delay=.* is not .*pass 0 or more seconds") for negative in (-1, timedelta(-1))),
    ({"delay": timedelta.max}, "^delay=.* is longer than a thousand years"),  # Python has no year 10000.
    ({"priority": 40_000}, "^priority=.* is not "),
    ({"queue": ""}, "^queue=.* is not "),
    ({"max_attempts": 0}, "^max_attempts=.* is not "),
    ({"max_attempts": 2**31}, "^max_attempts=.* is not "),
    *(({"id": wrong}, r"^id.* a uuid\.UUID or its string") for wrong in (UUID(int=7).hex, "", 0, [])),
    *(
        ({"blockers": wrong}, r"^blockers.* a uuid\.UUID, its string, a Chain or a Job")
        for wrong in (0, "", False, 7, "x", [None])
    ),
    ({"dely": 5}, r"(item|enqueue)\(\) does not take the argument dely\. Did you mean 'delay'"),
]


@pytest.mark.parametrize(
    ("options", "words"), WRONG, ids=lambda value: f"{value:.40}" if isinstance(value, str) else ""
)
def test_an_invalid_option_is_an_error_before_anything_is_written(options, words):
    """The database would refuse the row, which breaks the caller's transaction."""
    for call in (anything.enqueue, anything.item, partial(chains.enqueue, anything)):
        with pytest.raises((TypeError, ValueError), match=words), transaction.atomic():
            call(**options)
    assert not Job.objects.exists()


@pytest.mark.parametrize("job_type", [5, None, {"a": 1}, print], ids=repr)
def test_job_type_must_be_a_job_type_or_a_name(job_type):
    with pytest.raises(TypeError, match="A job type is given as a JobType or by its name"):
        chains.enqueue(job_type)


@pytest.mark.parametrize("nothing", [None, (), [], set()], ids=repr)
def test_without_blockers_a_job_is_due(nothing):
    assert anything.enqueue(blockers=nothing).status == "pending"


def test_given_ids_are_used_and_others_are_ordered_in_time():
    given = [uuid4(), uuid4()]
    chain = anything.enqueue(id=given[0])
    assert chain.id == chain.current_job.id == given[0]
    assert [chain.id for chain in chains.enqueue_many([anything.item(id=given[1])])] == given[1:]
    ids = [anything.enqueue().id for _ in range(20)]
    assert ids == sorted(ids)
    assert {id_.version for id_ in ids} == {7}


def test_existing_id_raises_an_error_and_the_callers_transaction_continues():
    id_ = UUID(int=7)
    with transaction.atomic():
        anything.enqueue("mine", id=id_)
        with pytest.raises(DuplicateJobId, match=str(id_)) as caught:
            anything.enqueue("yours", id=id_)
        anything.enqueue("after")
    assert caught.value.ids == (id_,)
    assert sorted(job.input for job in Job.objects.all()) == ["after", "mine"]


def test_item_can_be_enqueued_once():
    item = anything.item(1)
    chains.enqueue_many([item])
    for items in ([item], [anything.item(2)] * 3):
        with pytest.raises(DuplicateJobId, match=r"an item of enqueue_many\(\) only once"), transaction.atomic():
            chains.enqueue_many(items)


#: The calls that take ``using``. None of them may fall back to the default database.
CALLS = {
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
    ("name", "wrong"),
    [*((name, wrong) for name in CALLS for wrong in ("", "nowhere")), ("enqueue", 0), ("enqueue", ["default"])],
)
def test_error_for_an_unknown_database_lists_the_known_ones(name, wrong):
    words = rf"^using={re.escape(repr(wrong))} is not an alias in DATABASES\. Known: default"
    with pytest.raises(ImproperlyConfigured, match=words):
        CALLS[name](wrong)


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
