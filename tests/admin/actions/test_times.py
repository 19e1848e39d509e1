"""The time or delay in minutes to which jobs and records are rescheduled."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from tests.admin.browsing import act, text_of, url
from tests.admin.records.site import put, state_of
from tests.support.chains import everything, scheduled


@pytest.fixture
def chain(store):
    return scheduled(store).refresh()


def run_at(chain):
    return chain.refresh().current_job.run_at


@override_settings(TIME_ZONE="America/New_York")
def test_times_are_in_the_time_zone_of_the_page(superuser, chain):
    assert "In the time zone America/New_York" in text_of(superuser.get(url("reschedule", chain)))
    act(superuser, "reschedule", chain, run_at="2099-07-01T12:30", delay_minutes="")
    assert run_at(chain) == datetime(2099, 7, 1, 16, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("answer", "hours"),
    [
        ({"delay_minutes": "600"}, 10),
        ({"run_at": "1999-01-01T00:00", "delay_minutes": ""}, 0),
        ({"delay_minutes": "0"}, 0),
    ],
)
def test_a_delay_starts_now_and_a_time_in_the_past_becomes_now(superuser, chain, answer, hours):
    act(superuser, "reschedule", chain, **answer)
    assert abs(run_at(chain) - timezone.now() - timedelta(hours=hours)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("zone", "answer"),
    [
        ("America/New_York", {"delay_minutes": ""}),
        ("America/New_York", {"run_at": "2099-01-01T00:00", "delay_minutes": "5"}),
        ("America/New_York", {"run_at": "tomorrow", "delay_minutes": ""}),
        ("America/New_York", {"run_at": "9999-12-31T23:59", "delay_minutes": ""}),  # later than UTC can represent
        ("Asia/Tokyo", {"run_at": "0001-01-01T00:00", "delay_minutes": ""}),
        ("UTC", {"delay_minutes": "-5"}),
        ("UTC", {"delay_minutes": "9" * 20}),
        ("UTC", {"delay_minutes": "1.5"}),
    ],
)
def test_an_invalid_time_shows_an_error_and_changes_nothing(superuser, chain, zone, answer):
    before = everything()
    with override_settings(TIME_ZONE=zone):
        reply = act(superuser, "reschedule", chain, **answer)
    assert reply.status_code == 200
    assert reply.context["form"].errors
    assert everything() == before


@pytest.mark.usefixtures("record_site")
def test_the_delay_of_a_requeue_counts_from_the_time_of_the_database(superuser, store):
    record = put(num_failures=2)
    assert "errorlist" in text_of(act(superuser, "requeue", record, delay_minutes="-1"))
    assert state_of(record) == "failed"
    before = store.stats.time_ago(0)
    act(superuser, "requeue", record, delay_minutes="90")
    record.refresh_from_db()
    assert before <= record.process_after - timedelta(minutes=90) <= store.stats.time_ago(0)
    assert record.num_failures == 2
