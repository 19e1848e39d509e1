"""How long a worker may sleep before the next of its jobs is due."""

from datetime import timedelta

import pytest

from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.store.jobs import MAIL, SHIP, alter, claim, create, database_now, new_job

pytestmark = pytest.mark.django_db

SLACK_SECONDS = 1
#: What SQLite's julian days are off by, and more.
ROUNDING_SECONDS = 0.001


def next_due(store: Store, *types: str, queues: list[str] | None = None) -> float | None:
    return store.next_due(dict.fromkeys(types or [SHIP], 60), queues)


def test_without_jobs_nothing_is_due_ever(store: Store) -> None:
    assert next_due(store) is None


def test_a_due_job_is_due_in_0_seconds_or_less(store: Store) -> None:
    create(store)
    assert -SLACK_SECONDS < next_due(store) <= ROUNDING_SECONDS


def test_a_job_that_is_overdue_tells_for_how_long(store: Store) -> None:
    create(store)
    Job.objects.update(run_at=database_now() - timedelta(seconds=100))
    assert -100 - SLACK_SECONDS < next_due(store) <= -100 + ROUNDING_SECONDS


@pytest.mark.parametrize("seconds", [0.75, 60, 86_400, 100 * 365 * 86_400])
def test_a_future_job_tells_its_seconds(store: Store, seconds: float) -> None:
    create(store, delay_seconds=seconds)
    assert seconds - SLACK_SECONDS < next_due(store) <= seconds + ROUNDING_SECONDS


def test_the_soonest_counts_over_types_queues_and_priorities(store: Store) -> None:
    for number, type_name in enumerate((MAIL, SHIP, MAIL, SHIP)):
        create(store, 2, type_name, queue=f"queue{number}", priority=number * 10, delay_seconds=1_000 - 100 * number)
    assert 699 < next_due(store, SHIP, MAIL) <= 700 + ROUNDING_SECONDS
    create(store, 1, MAIL, queue="a", priority=-5, delay_seconds=50)
    assert 49 < next_due(store, SHIP, MAIL) <= 50 + ROUNDING_SECONDS


def test_the_soonest_of_a_type_counts(store: Store) -> None:
    store.create([new_job(delay_seconds=seconds) for seconds in (500, 30, 200)])
    assert 29 < next_due(store) <= 30 + ROUNDING_SECONDS


def test_a_due_job_counts_beside_a_future_one_of_higher_priority(store: Store) -> None:
    create(store, 20, priority=9, delay_seconds=3_600)
    create(store, 1, priority=0)
    assert next_due(store) <= ROUNDING_SECONDS


def test_other_types_do_not_count(store: Store) -> None:
    create(store, 1, MAIL)
    assert next_due(store, SHIP) is None
    create(store, 1, SHIP, delay_seconds=60)
    assert next_due(store, SHIP) > 59


def test_no_types_are_never_due(store: Store) -> None:
    create(store)
    assert store.next_due({}) is None


def test_other_queues_do_not_count(store: Store) -> None:
    create(store, queue="slow")
    create(store, queue="mail", delay_seconds=60)
    assert next_due(store, queues=["mail", "unused"]) > 59
    assert next_due(store, queues=["unused"]) is None
    assert next_due(store, queues=[]) is None
    assert next_due(store, queues=None) <= ROUNDING_SECONDS


@pytest.mark.parametrize("status", ["blocked", "running", "completed", "failed", "cancelled"])
def test_only_pending_jobs_count(store: Store, status: str) -> None:
    create(store)
    alter(claim(store), status=status)
    assert next_due(store) is None


def test_what_next_due_calls_due_a_claim_takes_and_nothing_else(store: Store) -> None:
    create(store, 3)
    create(store, 3, delay_seconds=60)
    while next_due(store) <= ROUNDING_SECONDS:
        assert len(claim(store, 1)) == 1
    assert claim(store) == []


def test_it_is_the_time_now_not_the_transactions_start(store: Store) -> None:
    create(store, delay_seconds=5)
    first = next_due(store)
    until = database_now() + timedelta(milliseconds=60)
    while database_now() < until:
        pass
    assert first - next_due(store) >= 0.05
