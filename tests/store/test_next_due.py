"""``next_due`` returns the seconds until the next job of the given types and queues is due."""

from datetime import timedelta

import pytest

from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.support.jobs import MAIL, SHIP, alter, claim, create, database_now, new_job

pytestmark = pytest.mark.django_db

SLACK_SECONDS = 20
#: More than the rounding error of SQLite's julian days.
ROUNDING_SECONDS = 0.001


def next_due(store: Store, *types: str, queues: list[str] | None = None) -> float | None:
    return store.jobs.next_due(dict.fromkeys(types or [SHIP], 60), queues)


def test_overdue_job_has_a_negative_time(store: Store) -> None:
    create(store)
    Job.objects.update(run_at=database_now() - timedelta(seconds=100))
    assert -100 - SLACK_SECONDS < next_due(store) <= -100 + ROUNDING_SECONDS


@pytest.mark.parametrize("seconds", [0.75, 60, 86_400, 100 * 365 * 86_400])
def test_scheduled_job_has_a_positive_time(store: Store, seconds: float) -> None:
    create(store, delay_seconds=seconds)
    assert seconds - SLACK_SECONDS < next_due(store) <= seconds + ROUNDING_SECONDS


def test_earliest_job_of_all_types_queues_and_priorities_counts(store: Store) -> None:
    for number, type_name in enumerate((MAIL, SHIP, MAIL, SHIP)):
        create(store, 2, type_name, queue=f"queue{number}", priority=number * 10, delay_seconds=1_000 - 100 * number)
    assert 700 - SLACK_SECONDS < next_due(store, SHIP, MAIL) <= 700 + ROUNDING_SECONDS
    create(store, 1, MAIL, queue="a", priority=-5, delay_seconds=50)
    assert 50 - SLACK_SECONDS < next_due(store, SHIP, MAIL) <= 50 + ROUNDING_SECONDS


def test_earliest_job_of_a_type_counts(store: Store) -> None:
    store.jobs.create([new_job(delay_seconds=seconds) for seconds in (500, 30, 200)])
    assert 30 - SLACK_SECONDS < next_due(store) <= 30 + ROUNDING_SECONDS


def test_due_job_counts_even_if_a_future_job_has_a_higher_priority(store: Store) -> None:
    create(store, 20, priority=9, delay_seconds=3_600)
    create(store, 1, priority=0)
    assert next_due(store) <= ROUNDING_SECONDS


@pytest.mark.parametrize("status", ["blocked", "running", "completed", "failed", "cancelled"])
def test_only_pending_jobs_count(store: Store, status: str) -> None:
    create(store)
    alter(claim(store), status=status)
    assert next_due(store) is None


def test_claim_takes_a_job_if_and_only_if_one_is_due(store: Store) -> None:
    create(store, 3)
    create(store, 3, delay_seconds=60)
    while next_due(store) <= ROUNDING_SECONDS:
        assert len(claim(store, 1)) == 1
    assert claim(store) == []


def test_next_due_uses_the_current_time_instead_of_the_start_of_the_transaction(store: Store) -> None:
    create(store, delay_seconds=5)
    first = next_due(store)
    until = database_now() + timedelta(milliseconds=60)
    while database_now() < until:
        pass
    assert first - next_due(store) >= 0.05
