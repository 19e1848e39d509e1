"""Creating jobs: all of them or none, in order, due when asked for."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import transaction

from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.ids import new_id
from django_jobchains.job_types import JobType
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.store.connections import committing
from tests.store.jobs import MAIL, SHIP, claim, create, database_now, new_job, row, stored, tables

pytestmark = pytest.mark.django_db


def test_a_created_job_is_stored_as_it_was_described(store: Store) -> None:
    job = new_job(
        chain_id=new_id(), chain_index=3, chain_type_name="shop.root", queue="mail", priority=-7, max_attempts=4
    )
    job.input, job.context = '{"order": 1}', '{"tenant": 7}'
    job.lease_number, job.deduplication_key = 5, "order-1"
    start = database_now()
    [(job_id, created_at, is_deduplicated)] = store.create([job])
    assert not is_deduplicated
    assert start <= created_at <= database_now()
    assert row(job_id) == {
        "id": job.id,
        "chain_id": job.chain_id,
        "chain_index": 3,
        "chain_type_name": "shop.root",
        "type_name": SHIP,
        "queue": "mail",
        "priority": -7,
        "status": "pending",
        "run_at": created_at,
        "attempt": 0,
        "lease_number": 5,
        "leased_by": None,
        "leased_until": None,
        "crashes": 0,
        "max_attempts": 4,
        "input": {"order": 1},
        "output": None,
        "last_error": None,
        "created_at": created_at,
        "last_attempt_at": None,
        "finished_at": None,
        "completed_by": None,
        "deduplication_key": "order-1",
        "context": {"tenant": 7},
        "cancel_requested_at": None,
        "on_blocker_failure": None,
    }


def test_a_job_with_nothing_but_a_type_is_stored_as_the_first_of_its_chain(store: Store) -> None:
    [created] = store.create([job := new_job()])
    stored_row = row(created.id)
    assert (stored_row["chain_id"], stored_row["chain_index"], stored_row["chain_type_name"]) == (job.id, 0, SHIP)
    assert (stored_row["priority"], stored_row["max_attempts"], stored_row["run_at"]) == (0, None, created.created_at)


def test_nothing_is_created_from_nothing(store: Store) -> None:
    assert store.create([]) == []
    assert Job.objects.count() == 0


def test_created_jobs_come_back_in_the_order_given(store: Store) -> None:
    jobs = [new_job((SHIP, MAIL)[number % 2], priority=number % 5) for number in range(100)]
    jobs.sort(key=lambda job: job.id.int % 7)
    assert [row.id for row in store.create(jobs)] == [job.id for job in jobs]


def test_jobs_of_one_call_have_one_time(store: Store) -> None:
    assert len({row.created_at for row in store.create([new_job() for _ in range(100)])}) == 1


@pytest.mark.parametrize(
    "run_at", [datetime(2020, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), datetime(987, 6, 5, tzinfo=UTC)]
)
def test_a_date_in_the_past_becomes_now(store: Store, run_at: datetime) -> None:
    [job_id] = create(store, run_at=run_at)
    job = stored(job_id)
    assert job.run_at == job.created_at
    assert [job.id for job in claim(store)] == [job_id]


@pytest.mark.parametrize("days", [1, 365 * 100])
@pytest.mark.parametrize("offset", [-11, 0, 14])
def test_a_future_date_is_kept_to_the_microsecond(store: Store, days: int, offset: int) -> None:
    wanted = (database_now() + timedelta(days=days)).replace(microsecond=123_456)
    [job_id] = create(store, run_at=wanted.astimezone(timezone(timedelta(hours=offset))))
    assert stored(job_id).run_at == wanted


def test_a_date_within_this_millisecond_is_not_before_now(store: Store) -> None:
    for _ in range(50):
        [job_id] = create(store, run_at=database_now() + timedelta(microseconds=500))
        assert stored(job_id).run_at >= stored(job_id).created_at


@pytest.mark.parametrize("seconds", [0.5, 30, 86_400.25, 3e9])
def test_a_delay_counts_from_now_by_the_databases_clock(store: Store, seconds: float) -> None:
    [job_id] = create(store, delay_seconds=seconds)
    job = stored(job_id)
    assert abs(job.run_at - job.created_at - timedelta(seconds=seconds)) <= timedelta(milliseconds=1)


@pytest.mark.parametrize("seconds", [0, 0.0, 0.000_05, 1e-7, 5e-324, -0.0])
def test_a_delay_of_almost_nothing_is_due_at_once(store: Store, seconds: float) -> None:
    [job_id] = create(store, delay_seconds=seconds)
    job = stored(job_id)
    assert timedelta(0) <= job.run_at - job.created_at <= timedelta(milliseconds=1)


def test_a_date_and_another_jobs_delay_do_not_mix(store: Store) -> None:
    wanted = database_now() + timedelta(days=1)
    jobs = [new_job(run_at=wanted), new_job(delay_seconds=30), new_job()]
    dated, delayed, due = (stored(row.id) for row in store.create(jobs))
    assert dated.run_at == wanted
    assert abs(delayed.run_at - delayed.created_at - timedelta(seconds=30)) <= timedelta(milliseconds=1)
    assert due.run_at == due.created_at


def test_an_id_that_exists_creates_nothing_and_is_named(store: Store) -> None:
    [job_id] = create(store)
    before = tables()
    with pytest.raises(DuplicateJobId) as caught, transaction.atomic():
        store.create([new_job(MAIL, id=job_id)])
    assert caught.value.ids == (job_id,)
    assert str(job_id) in str(caught.value)
    assert tables() == before


def test_an_id_that_exists_creates_none_of_its_batch(store: Store) -> None:
    [job_id] = create(store)
    before = tables()
    with pytest.raises(DuplicateJobId), transaction.atomic():
        store.create([new_job(), new_job(id=job_id), new_job()])
    assert tables() == before


def test_an_id_twice_in_one_batch_creates_nothing(store: Store) -> None:
    job = new_job()
    with pytest.raises(DuplicateJobId), transaction.atomic():
        store.create([job, new_job(), job])
    assert Job.objects.count() == 0


def test_a_step_that_exists_is_not_created_again(store: Store) -> None:
    [chain_id] = create(store)
    with pytest.raises(DuplicateJobId), transaction.atomic():
        store.create([new_job(chain_id=chain_id, chain_index=0)])
    assert Job.objects.count() == 1


def test_enqueueing_an_id_that_exists_leaves_the_transaction_usable(store: Store) -> None:
    job_type = JobType[None, None]("shop.given_id")
    with transaction.atomic():
        chain = job_type.enqueue(id=new_id())
        with pytest.raises(DuplicateJobId):
            job_type.enqueue(id=chain.id)
        other = job_type.enqueue(id=new_id())
    assert set(Job.objects.values_list("pk", flat=True)) == {chain.id, other.id}


def test_an_id_of_somebody_elses_chain_is_never_returned(store: Store) -> None:
    [job_id] = create(store, 1, MAIL)
    with pytest.raises(DuplicateJobId):
        JobType[None, None]("shop.given_id").enqueue(id=job_id)
    assert stored(job_id).type_name == MAIL


@pytest.mark.parametrize("seconds", [1e12, 1e300])
def test_a_delay_beyond_the_calendar_is_an_error_of_its_own(store: Store, seconds: float) -> None:
    with pytest.raises(ValueError, match="not a length of time"):
        JobType[None, None]("shop.later").enqueue(delay=seconds)
    assert Job.objects.count() == 0


def test_25_000_jobs_are_created_in_order(store: Store) -> None:
    jobs = [new_job(input=str(number)) for number in range(25_000)]
    assert [row.id for row in store.create(jobs)] == [job.id for job in jobs]
    assert Job.objects.count() == 25_000
    assert [job.input for job in claim(store, 3)] == ["0", "1", "2"]
    assert stored(jobs[-1].id).input == 24_999


@committing
def test_of_more_jobs_than_fit_into_one_statement_none_is_left_after_an_error(store: Store) -> None:
    jobs = [new_job() for _ in range(10_001)]
    with pytest.raises(DuplicateJobId):
        store.create([*jobs, jobs[0]])
    assert Job.objects.count() == 0
