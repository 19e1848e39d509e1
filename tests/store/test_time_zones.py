"""Time zones of settings and databases do not change what is due, and returned times are in UTC."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection

from django_jobchains.processors import JobType
from tests.support.connections import committing
from tests.support.jobs import (
    AT_ONCE,
    MAIL,
    claim,
    create,
    database_now,
    expire,
    failed_try,
    lease,
    lost,
    new_job,
    running,
    stored,
)

pytestmark = pytest.mark.django_db

SAO_PAULO, KIRITIMATI, PAGO_PAGO = "America/Sao_Paulo", "Pacific/Kiritimati", "Pacific/Pago_Pago"


@pytest.fixture(params=[SAO_PAULO, KIRITIMATI])
def zone(request):
    return request.param


@pytest.fixture(params=["settings", "without_use_tz", "database"])
def _in_zone(request, settings, zone):
    """The zone as TIME_ZONE, with and without USE_TZ, or as the time zone of the database."""
    if request.param == "database":
        connection.settings_dict["TIME_ZONE"] = zone
        reset_time_zone()
        yield
        connection.settings_dict["TIME_ZONE"] = None
        reset_time_zone()
        return
    settings.TIME_ZONE = zone
    settings.USE_TZ = request.param == "settings"
    yield


def reset_time_zone():
    """Reset the time zone of the connection, as Django does when a test changes the settings."""
    for name in ("timezone", "timezone_name"):
        vars(connection).pop(name, None)
    connection.ensure_timezone()


in_every_zone = pytest.mark.usefixtures("_in_zone")


@in_every_zone
def test_what_is_due_does_not_depend_on_the_zone_and_returned_times_are_in_utc(store):
    start = database_now()
    in_nepal = start.astimezone(ZoneInfo("Asia/Kathmandu"))
    [(first, created_at, *_)] = store.jobs.create([new_job(run_at=in_nepal - timedelta(seconds=5))])
    create(store, run_at=in_nepal + timedelta(seconds=60))
    create(store, delay_seconds=60)
    [job] = claim(store)
    assert job.id == first
    for time in (created_at, job.created_at, job.run_at):
        assert time.tzinfo is UTC
        assert start <= time <= database_now()
    assert 40 < store.jobs.next_due({"shop.ship": 60}) <= 60.001


@committing
def test_the_time_of_a_new_chain_is_the_one_that_is_read_later(settings, zone):
    settings.TIME_ZONE, settings.USE_TZ = zone, False
    connection.close()
    chain = JobType("shop.ship").enqueue()
    created_at = chain.created_at
    assert chain.refresh().created_at == created_at
    connection.close()


@committing
def test_connection_opened_in_another_zone_returns_aware_times_in_utc(store, settings, zone):
    settings.TIME_ZONE, settings.USE_TZ = zone, False
    connection.close()
    start = database_now()
    create(store)
    [job] = claim(store)
    connection.close()
    assert job.created_at.tzinfo is job.run_at.tzinfo is UTC
    assert start <= job.created_at == job.run_at <= database_now()


@in_every_zone
def test_leases_and_retries_are_the_same_in_every_zone(store):
    kept, expired, past, future = running(store, 4)
    now = database_now().astimezone(ZoneInfo(KIRITIMATI))
    assert store.leases.reap(10, AT_ONCE, 10) == []
    assert store.leases.renew([lease(kept, 30), lease(expired, -1)]) == lost({})
    assert [job.id for job in store.leases.reap(10, AT_ONCE, 1)] == [expired.id]
    dates = {past: now - timedelta(seconds=5), future: now + timedelta(seconds=60)}
    store.attempts.reschedule([failed_try(job, run_at=date) for job, date in dates.items()])
    assert [job.id for job in claim(store)] == [past.id]
    assert 40 < store.jobs.next_due({"shop.ship": 60}) <= 60.001


@pytest.mark.parametrize(
    "wanted",
    [
        datetime(2030, 3, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),  # does not exist
        datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=0),  # exists twice
        datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime(2030, 11, 5, 0, 30, tzinfo=ZoneInfo(SAO_PAULO)),
    ],
)
@in_every_zone
def test_dates_around_a_clock_change_are_exact(store, settings, wanted):
    [job_id] = create(store, 1, MAIL, run_at=wanted)
    connection.settings_dict["TIME_ZONE"] = None
    settings.USE_TZ, settings.TIME_ZONE = True, "UTC"
    reset_time_zone()
    assert stored(job_id).run_at == wanted.astimezone(UTC)


def test_one_zone_reads_what_another_zone_wrote(store, settings):
    settings.TIME_ZONE = KIRITIMATI
    [job] = running(store)
    expire(job, ago=-60)
    settings.TIME_ZONE = PAGO_PAGO
    assert store.leases.reap(10, AT_ONCE, 10) == []
    assert stored(job).leased_until - database_now() > timedelta(seconds=40)
