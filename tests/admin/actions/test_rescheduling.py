"""Rescheduling to a time in the user's time zone, or by a delay in minutes."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from django_jobchains.chains import Chain
from tests.admin.actions.browsing import act, text_of, url
from tests.support.chains import everything, scheduled


@pytest.fixture
def chain(store):
    return scheduled(store).refresh()


def run_at(chain: Chain) -> datetime:
    return chain.refresh().current_job.run_at


@override_settings(TIME_ZONE="America/New_York")
def test_times_are_in_the_time_zone_of_the_page(superuser, chain):
    assert "In the time zone America/New_York" in text_of(superuser.get(url("reschedule", chain)))
    act(superuser, "reschedule", chain, run_at="2099-07-01T12:30", delay_minutes="")
    assert run_at(chain) == datetime(2099, 7, 1, 16, 30, tzinfo=UTC)


def test_a_delay_starts_now(superuser, chain):
    act(superuser, "reschedule", chain, delay_minutes="600")
    assert abs(run_at(chain) - timezone.now() - timedelta(hours=10)) < timedelta(minutes=1)


@pytest.mark.parametrize("answer", [{"run_at": "1999-01-01T00:00", "delay_minutes": ""}, {"delay_minutes": "0"}])
def test_a_time_in_the_past_becomes_now(superuser, chain, answer):
    act(superuser, "reschedule", chain, **answer)
    assert abs(run_at(chain) - timezone.now()) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "answer",
    [
        {"delay_minutes": ""},
        {"run_at": "2099-01-01T00:00", "delay_minutes": "5"},
        {"run_at": "tomorrow", "delay_minutes": ""},
        {"run_at": "9999-12-31T23:59", "delay_minutes": ""},
        {"delay_minutes": "-5"},
        {"delay_minutes": "9" * 20},
        {"delay_minutes": "-" + "9" * 20},
        {"delay_minutes": "1.5"},
    ],
)
@override_settings(TIME_ZONE="America/New_York")
def test_an_invalid_time_shows_an_error_and_changes_nothing(superuser, chain, answer):
    before = everything()
    reply = act(superuser, "reschedule", chain, **answer)
    assert reply.status_code == 200
    assert reply.context["form"].errors
    assert everything() == before


@override_settings(TIME_ZONE="Asia/Tokyo")
def test_a_time_that_utc_cannot_represent_is_rejected(superuser, chain):
    reply = act(superuser, "reschedule", chain, run_at="0001-01-01T00:00", delay_minutes="")
    assert reply.status_code == 200
    assert reply.context["form"].errors["run_at"]
