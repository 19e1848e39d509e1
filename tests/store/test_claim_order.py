"""The order in which due jobs are claimed."""

from datetime import timedelta
from uuid import UUID

import pytest

from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.support.jobs import MAIL, SHIP, claim, create, database_now, new_job

pytestmark = pytest.mark.django_db


def due_since(store: Store, seconds: float, type_name: str = SHIP, **changes: object) -> UUID:
    """Create a job that has been due for the given seconds."""
    [job_id] = create(store, 1, type_name, **changes)
    Job.objects.filter(pk=job_id).update(run_at=database_now() - timedelta(seconds=seconds))
    return job_id


def claimed_one_by_one(store: Store) -> list[UUID]:
    ids = []
    while jobs := claim(store, 1):
        ids.append(jobs[0].id)
    return ids


def test_limited_claim_takes_the_first_jobs_of_a_type(store: Store) -> None:
    ids = create(store, 30)
    assert [job.id for job in claim(store, 10)] == ids[:10]
    assert [job.id for job in claim(store, 20)] == ids[10:]


def test_claimed_jobs_are_ordered_by_priority_and_due_date(store: Store) -> None:
    late = due_since(store, 5, MAIL)
    early = due_since(store, 50, SHIP)
    urgent = due_since(store, 1, MAIL, priority=9)
    assert [job.id for job in claim(store)] == [urgent, early, late]


def test_job_that_has_been_due_longest_goes_first_across_types(store: Store) -> None:
    ids = [due_since(store, 100 - number, (SHIP, MAIL)[number % 2]) for number in range(10)]
    assert claimed_one_by_one(store) == ids


def test_job_that_has_been_due_longest_goes_first_across_queues(store: Store) -> None:
    ids = [due_since(store, 100 - number, queue=("a", "b", "c")[number % 3]) for number in range(9)]
    assert claimed_one_by_one(store) == ids


@pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned"])
@pytest.mark.parametrize("limit", [1, 10])
def test_of_jobs_due_at_the_same_time_the_lowest_id_goes_first_across_types_and_queues(
    store: Store, limit: int, turned: bool
) -> None:
    """Jobs of one batch are due at the same time, and their ids have the order in which they were enqueued."""
    groups = [(type_name, queue) for type_name in (SHIP, MAIL) for queue in ("z", "a", "m")]
    jobs = [new_job(type_name, queue=queue) for type_name, queue in (groups[::-1] if turned else groups)]
    store.jobs.create(jobs)
    assert Job.objects.values("run_at").distinct().count() == 1
    ids = []
    while claimed := claim(store, limit):
        ids += [job.id for job in claimed]
    assert ids == [job.id for job in jobs]


@pytest.mark.parametrize("types", [(SHIP, MAIL), (MAIL, SHIP)])
def test_small_claim_takes_the_lowest_id_of_two_groups_due_at_the_same_time(
    store: Store, types: tuple[str, str]
) -> None:
    """The id decides between groups, and not only between the jobs of one claim."""
    first, second = (new_job(type_name) for type_name in types)
    later = [new_job(types[0]) for _ in range(3)]
    store.jobs.create([first, second, *later])
    assert [job.id for job in claim(store, 1)] == [first.id]
    assert [job.id for job in claim(store, 1)] == [second.id]
    assert [job.id for job in claim(store, 9)] == [job.id for job in later]


def test_many_jobs_of_one_type_do_not_delay_an_older_job_of_another(store: Store) -> None:
    waiting = due_since(store, 10, MAIL)
    create(store, 200, "shop.a_type")
    assert claim(store, 1, types=["shop.a_type", MAIL])[0].id == waiting


@pytest.mark.parametrize("limit", [1, 10])
def test_scheduled_jobs_with_a_high_priority_do_not_hide_due_ones(store: Store, limit: int) -> None:
    [due] = create(store)
    create(store, 50, priority=100, delay_seconds=86_400)
    create(store, 50, MAIL, priority=100, delay_seconds=86_400)
    create(store, 50, delay_seconds=86_400)
    assert [job.id for job in claim(store, limit)] == [due]


def test_retried_job_follows_those_due_before_it(store: Store) -> None:
    first, second = due_since(store, 20), due_since(store, 10)
    [job] = claim(store, 1)
    Job.objects.filter(pk=job.id).update(status="pending", run_at=database_now())
    assert claimed_one_by_one(store) == [second, first]
