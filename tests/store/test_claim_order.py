"""Which of the due jobs a claim takes first."""

from datetime import timedelta
from uuid import UUID

import pytest

from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.store.jobs import MAIL, SHIP, claim, create, database_now, new_job

pytestmark = pytest.mark.django_db


def due_since(store: Store, seconds: float, type_name: str = SHIP, **changes: object) -> UUID:
    """A job that has been due for so long."""
    [job_id] = create(store, 1, type_name, **changes)
    Job.objects.filter(pk=job_id).update(run_at=database_now() - timedelta(seconds=seconds))
    return job_id


def claimed_one_by_one(store: Store) -> list[UUID]:
    ids = []
    while jobs := claim(store, 1):
        ids.append(jobs[0].id)
    return ids


def test_a_higher_priority_goes_first_however_long_others_are_due(store: Store) -> None:
    low = due_since(store, 3_600, priority=-1)
    normal = due_since(store, 60)
    high = due_since(store, 1, priority=1)
    assert claimed_one_by_one(store) == [high, normal, low]


def test_a_higher_priority_goes_first_in_one_claim_of_some(store: Store) -> None:
    for priority in (0, 5, -5):
        create(store, 3, priority=priority)
    assert [job.priority for job in claim(store, 5)] == [5, 5, 5, 0, 0]


def test_priorities_order_jobs_over_types_and_queues(store: Store) -> None:
    low = due_since(store, 60, MAIL, queue="a", priority=1)
    high = due_since(store, 1, SHIP, queue="z", priority=2)
    lowest = due_since(store, 99, "shop.aaa", queue="a")
    assert [job.id for job in claim(store, 2, types=[SHIP, MAIL, "shop.aaa"])] == [high, low]
    assert [job.id for job in claim(store, 2, types=[SHIP, MAIL, "shop.aaa"])] == [lowest]


def test_within_a_type_and_priority_who_is_due_for_longer_goes_first(store: Store) -> None:
    second, third, first = (due_since(store, seconds) for seconds in (20, 10, 30))
    assert claimed_one_by_one(store) == [first, second, third]


def test_jobs_created_together_are_claimed_in_their_order(store: Store) -> None:
    ids = create(store, 30)
    assert claimed_one_by_one(store) == ids


def test_a_claim_of_some_takes_the_first_of_a_type(store: Store) -> None:
    ids = create(store, 30)
    assert [job.id for job in claim(store, 10)] == ids[:10]
    assert [job.id for job in claim(store, 20)] == ids[10:]


def test_jobs_created_one_by_one_are_claimed_in_their_order(store: Store) -> None:
    ids = [create(store)[0] for _ in range(20)]
    assert [job.id for job in claim(store)] == ids


def test_claimed_jobs_come_in_the_order_of_their_urgency(store: Store) -> None:
    late = due_since(store, 5, MAIL)
    early = due_since(store, 50, SHIP)
    urgent = due_since(store, 1, MAIL, priority=9)
    assert [job.id for job in claim(store)] == [urgent, early, late]


def test_between_types_of_one_priority_the_oldest_head_goes_first(store: Store) -> None:
    ids = [due_since(store, 100 - number, (SHIP, MAIL)[number % 2]) for number in range(10)]
    assert claimed_one_by_one(store) == ids


def test_between_queues_the_oldest_head_goes_first(store: Store) -> None:
    ids = [due_since(store, 100 - number, queue=("a", "b", "c")[number % 3]) for number in range(9)]
    assert claimed_one_by_one(store) == ids


@pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned"])
@pytest.mark.parametrize("limit", [1, 10])
def test_between_types_and_queues_due_at_the_same_instant_the_lowest_id_goes_first(
    store: Store, limit: int, turned: bool
) -> None:
    """As jobs of one batch are: the ids say in which order they were enqueued."""
    groups = [(type_name, queue) for type_name in (SHIP, MAIL) for queue in ("z", "a", "m")]
    jobs = [new_job(type_name, queue=queue) for type_name, queue in (groups[::-1] if turned else groups)]
    store.create(jobs)
    assert Job.objects.values("run_at").distinct().count() == 1
    ids = []
    while claimed := claim(store, limit):
        ids += [job.id for job in claimed]
    assert ids == [job.id for job in jobs]


@pytest.mark.parametrize("types", [(SHIP, MAIL), (MAIL, SHIP)])
def test_of_two_groups_due_at_the_same_instant_a_small_claim_takes_the_one_with_the_lowest_id(
    store: Store, types: tuple[str, str]
) -> None:
    """The tie is broken where groups are chosen, not only among the jobs that were taken."""
    first, second = (new_job(type_name) for type_name in types)
    later = [new_job(types[0]) for _ in range(3)]
    store.create([first, second, *later])
    assert [job.id for job in claim(store, 1)] == [first.id]
    assert [job.id for job in claim(store, 1)] == [second.id]
    assert [job.id for job in claim(store, 9)] == [job.id for job in later]


def test_a_flood_of_one_type_does_not_hold_up_the_older_job_of_another(store: Store) -> None:
    waiting = due_since(store, 10, MAIL)
    create(store, 200, "shop.a_flood")
    assert claim(store, 1, types=["shop.a_flood", MAIL])[0].id == waiting


@pytest.mark.parametrize("limit", [1, 10])
def test_jobs_of_tomorrow_with_a_high_priority_do_not_hide_those_due_now(store: Store, limit: int) -> None:
    [due] = create(store)
    create(store, 50, priority=100, delay_seconds=86_400)
    create(store, 50, MAIL, priority=100, delay_seconds=86_400)
    create(store, 50, delay_seconds=86_400)
    assert [job.id for job in claim(store, limit)] == [due]


def test_unserved_types_and_queues_do_not_hide_others(store: Store) -> None:
    create(store, 50, "shop.aaa", priority=100)
    create(store, 50, "shop.zzz", priority=100)
    create(store, 50, SHIP, queue="aaa", priority=100)
    [served] = create(store, 1, SHIP)
    assert [job.id for job in store.claim("worker-1", 10, {SHIP: 60}, ["default"])] == [served]


def test_a_job_tried_again_stands_behind_those_due_before_it(store: Store) -> None:
    first, second = due_since(store, 20), due_since(store, 10)
    [job] = claim(store, 1)
    Job.objects.filter(pk=job.id).update(status="pending", run_at=database_now())
    assert claimed_one_by_one(store) == [second, first]
