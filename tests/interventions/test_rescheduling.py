"""``run_now`` and ``reschedule``: pending jobs move to now or to another time, by the clock of the database."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import JobNotRunnable
from django_jobchains.models import Job
from tests.support.chains import STATES, backing_off, pending, scheduled, ship
from tests.support.jobs import claim, database_now, tables

pytestmark = pytest.mark.django_db

FUTURE = datetime(2100, 1, 2, 3, 4, 5, 678901, UTC)
#: States that are not pending, with the remedy in the error message.
NOT_PENDING = {
    "blocked": "it waits for other chains",
    "running": "it is already running",
    "asked_to_stop": "it is already running",
    "completed": "it has already run",
    "failed": "use chains.retry",
    "cancelled": "use chains.retry",
}
waiting = pytest.mark.parametrize("make", [scheduled, backing_off, pending])


def run_at():
    return Job.objects.get().run_at


@waiting
def test_a_job_is_due_now(store, make):
    chain = make(store)
    before = database_now()
    chains.run_now(chain.id)
    assert before <= run_at() <= database_now()
    assert [job.id for job in claim(store)] == [chain.id]


@pytest.mark.parametrize("state", NOT_PENDING)
def test_if_a_job_is_not_pending_none_is_moved_and_the_error_names_a_remedy(store, state):
    chain, other = STATES[state](store), scheduled(store)
    before = tables()
    message = f"Job {chain.id} is {chain.status}, not pending.*{NOT_PENDING[state]}. Nothing was changed."
    for given in ([chain.id, other.id], [other.id, chain.id], chain.id):
        with pytest.raises(JobNotRunnable, match=message) as caught:
            chains.run_now(given)
        assert (caught.value.job_id, caught.value.status) == (chain.id, chain.status)
        assert tables() == before


@waiting
def test_a_job_moves_to_a_date_exact_to_the_microsecond_and_nothing_else_changes(store, make):
    chain = make(store)
    [before] = Job.objects.values()
    chains.reschedule(chain.id, FUTURE.astimezone(timezone(timedelta(hours=-9, minutes=-30))))
    [after] = Job.objects.values()
    assert dict(before.items() ^ after.items()).keys() == {"run_at"}
    assert after["run_at"] == FUTURE
    assert claim(store) == []


@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        ({"delay": 90.0}, 90),
        ({"delay": timedelta(seconds=90)}, 90),
        ({"delay": 0}, 0),
        ({"run_at": datetime(2001, 1, 1, tzinfo=UTC)}, 0),
    ],
)
def test_a_delay_is_counted_from_now_and_a_time_in_the_past_becomes_now(store, when, seconds):
    chain = scheduled(store)
    before = database_now()
    chains.reschedule(chain.id, **when)
    assert before <= run_at() - timedelta(seconds=seconds) <= database_now()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "takes run_at or delay"),
        ({"run_at": FUTURE, "delay": 1}, TypeError, "not both"),
        ({"run_at": FUTURE.date()}, TypeError, "run_at"),
        ({"delay": float("nan")}, ValueError, "not a duration"),
        ({"delay": -60}, ValueError, "pass 0 or more seconds"),
    ],
)
def test_an_invalid_time_is_refused(store, options, error, message):
    chain = pending(store)
    before = tables()
    with pytest.raises(error, match=message):
        chains.reschedule(chain.id, **options)
    assert tables() == before


class TestTheClockOfTheDatabase:
    def test_now_is_later_than_the_start_of_the_transaction(self, store):
        chain = scheduled(store)
        with transaction.atomic():
            begun = database_now()  # begins the transaction
            while (later := database_now()) <= begun:  # SQLite's clock has a resolution of milliseconds
                pass
            chains.run_now(chain.id)
            assert run_at() >= later
            chains.reschedule(chain.id, delay=60)
            assert run_at() >= later + timedelta(seconds=60)
            chains.cancel(chain)
            assert Job.objects.get().finished_at >= later
            chains.retry(chain.id)
            assert run_at() >= later
            assert ship.enqueue().created_at >= later

    def test_the_clock_of_the_host_is_not_used(self, store, monkeypatch):
        monkeypatch.setattr("time.time", lambda: 4_000_000_000.0)
        chain = scheduled(store)
        chains.run_now(chain.id)
        assert run_at() <= database_now()
        chains.reschedule(chain.id, delay=60)
        assert run_at() <= database_now() + timedelta(seconds=60)
