"""``reschedule``: pending jobs move to another time, all of them or none, by the clock of the database."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.models import Job
from tests.support.chains import backing_off, everything, pending, scheduled, ship
from tests.support.jobs import claim, database_now

pytestmark = pytest.mark.django_db

FUTURE = datetime(2100, 1, 2, 3, 4, 5, 678901, UTC)


def run_at() -> datetime:
    return Job.objects.get().run_at


@pytest.mark.parametrize("make", [pending, scheduled, backing_off])
def test_a_job_moves_to_a_date_exact_to_the_microsecond(store, make):
    chain = make(store)
    chains.reschedule(chain.id, FUTURE)
    assert run_at() == FUTURE
    assert claim(store) == []


def test_a_date_in_another_time_zone_is_the_same_moment(store):
    chain = pending(store)
    chains.reschedule(chain.id, FUTURE.astimezone(timezone(timedelta(hours=-9, minutes=-30))))
    assert run_at() == FUTURE


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_is_counted_from_now(store, delay):
    chain = scheduled(store)
    before = database_now()
    chains.reschedule(chain.id, delay=delay)
    assert before <= run_at() - timedelta(seconds=90) <= database_now()


@pytest.mark.parametrize("when", [{"run_at": datetime(2001, 1, 1, tzinfo=UTC)}, {"delay": -60}, {"delay": 0}])
def test_a_time_in_the_past_becomes_now(store, when):
    chain = scheduled(store)
    before = database_now()
    chains.reschedule(chain.id, **when)
    assert before <= run_at() <= database_now()


def test_only_run_at_changes(store):
    chain = backing_off(store)
    [before] = Job.objects.values()
    chains.reschedule(chain.id, FUTURE)
    [after] = Job.objects.values()
    assert dict(before.items() ^ after.items()).keys() == {"run_at"}


def test_the_job_is_claimed_at_the_new_time(store, monkeypatch):
    chain = pending(store)
    chains.reschedule(chain.id, delay=3_600)
    monkeypatch.setattr(store.db, "ahead_seconds", 3_590)
    assert claim(store) == []
    monkeypatch.setattr(store.db, "ahead_seconds", 3_610)
    assert [job.id for job in claim(store)] == [chain.id]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "takes run_at or delay"),
        ({"run_at": FUTURE, "delay": 1}, TypeError, "not both"),
        ({"run_at": FUTURE.replace(tzinfo=None)}, ValueError, "no time zone"),
        ({"run_at": "2100-01-01"}, TypeError, "run_at"),
        ({"run_at": FUTURE.date()}, TypeError, "run_at"),
        ({"delay": float("nan")}, ValueError, "not a length of time"),
        ({"delay": float("inf")}, ValueError, "not a length of time"),
        ({"delay": timedelta.max}, ValueError, "not a length of time"),
    ],
)
def test_an_invalid_time_is_refused(store, options, error, message):
    chain = pending(store)
    before = everything()
    with pytest.raises(error, match=message):
        chains.reschedule(chain.id, **options)
    assert everything() == before


class TestTheClockOfTheDatabase:
    def test_now_is_later_than_the_start_of_the_transaction(self, store):
        chain = scheduled(store)
        with transaction.atomic():
            database_now()  # begins the transaction
            later = until_the_clock_moved(database_now())
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


def until_the_clock_moved(since: datetime) -> datetime:
    """Return a later time of the database. The clock of SQLite has a resolution of milliseconds."""
    while (now := database_now()) <= since:
        pass
    return now
