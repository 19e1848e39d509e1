"""How bars are laid out, and what is said of them."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client, override_settings
from django.utils import timezone, translation

from django_jobchains.admin.charts import HEIGHT, LEAST, bars, last_day, last_hour
from django_jobchains.models import AttemptCount
from django_jobchains.throughput import Ended, throughput
from tests.admin.dashboard.looking import look

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ended(*counts: tuple[int, int]) -> list[Ended]:
    return [Ended(NOON + timedelta(minutes=index), *count) for index, count in enumerate(counts)]


def test_the_highest_bar_has_the_full_height_and_the_others_their_share() -> None:
    drawn = bars([50, 100, 25], ["a", "b", "c"])
    assert [bar.height for bar in drawn] == [50, HEIGHT, 25]
    assert [bar.y for bar in drawn] == [50, 0, 75]
    assert [bar.x for bar in drawn] == [1, 11, 21]


def test_each_bar_stands_in_its_own_place_within_the_drawing() -> None:
    [period] = [last_hour(ended(*[(5, 1)] * 60))]
    for chart in period.charts:
        places = [bar.place for bar in chart.bars]
        assert places == sorted(set(places))
        for bar in chart.bars:
            assert bar.place <= bar.x
            assert bar.x + chart.bar_width <= bar.place + chart.place_width
        assert chart.width == places[-1] + chart.place_width


def test_a_few_are_seen_beside_very_many_and_none_are_not() -> None:
    assert [bar.height for bar in bars([1, 1_000_000, 0], ["", "", ""])] == [LEAST, HEIGHT, 0]


def test_nothing_at_all_has_no_bars() -> None:
    assert [bar.height for bar in bars([0, 0], ["", ""])] == [0, 0]
    assert bars([], []) == ()


def test_failures_have_a_scale_of_their_own() -> None:
    completed, failed = last_hour(ended((10_000, 1), (5_000, 2))).charts
    assert [bar.height for bar in completed.bars] == [100, 50]
    assert [bar.height for bar in failed.bars] == [50, 100]


def test_it_is_said_in_a_sentence_in_numbers_and_of_each_bar() -> None:
    period = last_hour(ended((1200, 1), (300, 0)))
    completed, failed = period.charts
    assert completed.sentence == "Completed in the last hour: 1,500 jobs, at most 1,200 in a minute."
    assert failed.sentence == "Failed in the last hour: 1 attempt, at most 1 in a minute."
    assert (completed.total, completed.most) == ("1,500", "at most 1,200 a minute")
    assert [(row.time, row.completed, row.failed) for row in period.rows] == [
        ("noon", "1,200", "1"),
        ("12:01 p.m.", "300", "0"),
    ]
    assert [bar.title for bar in completed.bars] == [
        "noon: 1,200 completed, 1 failed",
        "12:01 p.m.: 300 completed, 0 failed",
    ]


def test_a_day_is_told_by_hours() -> None:
    completed, failed = last_day(ended((7, 2), (3, 1))).charts
    assert completed.sentence == "Completed in the last day: 10 jobs, at most 7 in an hour."
    assert failed.sentence == "Failed in the last day: 3 attempts, at most 2 in an hour."
    assert failed.most == "at most 2 an hour"


@pytest.mark.parametrize(("count", "indexes"), [(0, []), (1, [0]), (2, [0, 1]), (60, [0, 30, 59])])
def test_the_first_the_middle_and_the_last_have_a_time_below(count: int, indexes: list[int]) -> None:
    period = last_hour(ended(*[(1, 0)] * count))
    assert list(period.ticks) == [period.rows[index].time for index in indexes]


def test_times_are_those_of_who_looks() -> None:
    with timezone.override("Asia/Kolkata"), translation.override("de"):
        [row] = last_hour(ended((1, 0))).rows
    assert (row.time, row.starts_at.isoformat()) == ("17:30", "2026-03-01T17:30:00+05:30")


@pytest.fixture
def counted(db: None) -> None:
    """12,345 completed and 3 failed this minute; and 1,000 an hour ago."""
    now = throughput()
    for span, starts_at, completed, failed in (
        (60, now.minutes[-1].starts_at, 12_345, 3),
        (3600, now.hours[-1].starts_at, 12_345, 3),
        (3600, now.hours[-2].starts_at, 1_000, 0),
    ):
        AttemptCount.objects.create(
            span=span,
            starts_at=starts_at,
            type_name="shop.ship",
            completed=completed,
            failed=failed,
            seconds=1.0,
            longest_seconds=1.0,
        )


@pytest.mark.usefixtures("counted")
def test_the_page_draws_the_last_hour_and_day(viewer: Client) -> None:
    page = look(viewer)
    for period, size, sentence in (
        ("hour", 60, "Completed in the last hour: 12,345 jobs, at most 12,345 in a minute."),
        ("day", 24, "Completed in the last day: 13,345 jobs, at most 12,345 in an hour."),
    ):
        section = page.section(f"last-{period}")
        completed, _failed = section.all("svg")
        assert completed.attributes["role"] == "img"
        assert completed.attributes["aria-label"] == completed.all("title")[0].text == sentence
        assert len(completed.all("rect", class_="jobchains-place")) == size
        assert len(section.all("tbody")[0].all("tr")) == size
    assert len(page.section("last-hour").all("svg")[0].all("rect", class_="jobchains-bar")) == 1
    assert len(page.section("last-day").all("svg")[0].all("rect", class_="jobchains-bar")) == 2
    assert page.figures()["completed in the last hour"] == "12,345"
    assert page.figures()["failed in the last hour"] == "3"
    assert page.section("last-day").all("tbody")[0].all("tr")[-2].text.endswith("1,000 0")
    assert "as the workers told" in page.section("throughput").text


@pytest.mark.usefixtures("counted")
@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_a_drawing_has_the_numbers_of_svg_in_every_language(viewer: Client) -> None:
    viewer.cookies["django_language"] = "de"
    for rect in look(viewer).root.all("rect"):
        assert all(value.isdecimal() for name, value in rect.attributes.items() if name != "class"), rect
