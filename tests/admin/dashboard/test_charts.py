"""The layout of the bar charts, and their texts."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings
from django.utils import timezone, translation

from django_jobchains.admin.dashboard.charts import HEIGHT, MIN_HEIGHT, bars, period_of
from django_jobchains.models import AttemptCount
from django_jobchains.monitoring import AttemptTotals, throughput
from tests.admin.browsing import index, open_dashboard

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ended(*counts):
    return [AttemptTotals(NOON + timedelta(minutes=index), *count, 0) for index, count in enumerate(counts)]


def of_hour(*counts):
    return period_of("hour", ended(*counts), ())


@pytest.mark.parametrize(
    ("counts", "heights"),
    [
        ([50, 100, 25], [50, HEIGHT, 25]),
        ([1, 1_000_000, 0], [MIN_HEIGHT, HEIGHT, 0]),  # small numbers are visible
        ([0, 0], [0, 0]),
        ([], []),
    ],
)
def test_the_highest_bar_has_the_full_height_and_the_others_their_share(counts, heights):
    drawn = bars(counts, [""] * len(counts))
    assert [bar.height for bar in drawn] == heights
    assert [bar.y for bar in drawn] == [HEIGHT - height for height in heights]


def test_each_bar_is_inside_its_own_slot_and_failures_have_a_separate_scale():
    completed, failed = of_hour((10_000, 1), (5_000, 2)).charts
    assert [bar.height for bar in completed.bars] == [100, 50]
    assert [bar.height for bar in failed.bars] == [50, 100]
    assert (completed.scale, failed.scale) == (("10,000", "5,000", "0"), ("2", "1", "0"))
    for chart in (completed, failed):
        assert [bar.slot_x for bar in chart.bars] == [0, chart.slot_width]
        assert all(bar.slot_x <= bar.x <= bar.slot_x + chart.slot_width - chart.bar_width for bar in chart.bars)
        assert chart.width == 2 * chart.slot_width


def test_a_chart_has_a_sentence_a_table_and_titles_of_bars():
    period = of_hour((1200, 1), (300, 0))
    completed, failed = period.charts
    assert completed.sentence == "Last hour: 1,500 completed jobs, peak: 1,200 per minute."
    assert failed.sentence == "Last hour: 1 failed attempt, peak: 1 per minute."
    assert failed.scale == ("1", "", "0"), "half a job is no label"
    assert (completed.total, completed.peak) == ("1,500", "peak: 1,200 per minute")
    rows = [(row.time, row.completed, row.failed, row.jobs_failed) for row in period.rows]
    assert rows == [("noon", "1,200", "1", "0"), ("12:01 p.m.", "300", "0", "0")]
    assert [bar.title for bar in completed.bars] == [
        "noon: 1,200 completed; failed attempts: 1, failed jobs: 0",
        "12:01 p.m.: 300 completed; failed attempts: 0, failed jobs: 0",
    ]
    completed, failed = period_of("day", (), ended((7, 2), (3, 1))).charts
    assert completed.sentence == "Last 24 hours: 10 completed jobs, peak: 7 per hour."
    assert failed.sentence == "Last 24 hours: 3 failed attempts, peak: 2 per hour."


def test_a_bar_of_a_week_has_six_hours():
    hours = [AttemptTotals(NOON + timedelta(hours=index), 1, 0, 0) for index in range(168)]
    period = period_of("week", (), hours)
    assert [row.completed for row in period.rows] == ["6"] * 28
    assert period.charts[0].sentence == "Last 7 days: 168 completed jobs, peak: 6 in 6 hours."
    assert [row.time for row in period.rows[:2]] == ["March 1, noon", "March 1, 6 p.m."]
    assert period.ticks == ("March 1", "March 3", "March 6", "March 8")


@pytest.mark.parametrize(("count", "indexes"), [(0, []), (1, [0]), (2, [0, 1]), (60, [0, 15, 30, 44, 59])])
def test_the_first_and_last_bars_and_some_others_have_a_time(count, indexes):
    period = of_hour(*[(1, 0)] * count)
    assert list(period.ticks) == [period.rows[index].time for index in indexes]


def test_times_are_in_the_time_zone_of_the_user():
    with timezone.override("Asia/Kolkata"), translation.override("de"):
        [row] = of_hour((1, 0)).rows
    assert (row.time, row.starts_at.isoformat()) == ("17:30", "2026-03-01T17:30:00+05:30")


@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_the_page_draws_the_chosen_range(viewer):
    now, counts = throughput(), {"type_name": "shop.ship", "seconds": 1.0, "longest_seconds": 1.0}
    minute = {"span": 60, "starts_at": now.minutes[-1].starts_at, "jobs_failed": 2}
    AttemptCount.objects.create(**minute, completed=12_345, failed=3, **counts)
    AttemptCount.objects.create(span=3600, starts_at=now.hours[-1].starts_at, completed=12_345, failed=3, **counts)
    AttemptCount.objects.create(span=3600, starts_at=now.hours[-2].starts_at, completed=1_000, failed=0, **counts)
    for query, size, drawn, sentence in (
        ("", 60, 1, "Last hour: 12,345 completed jobs, peak: 12,345 per minute."),
        ("?range=unknown", 60, 1, "Last hour: 12,345 completed jobs, peak: 12,345 per minute."),
        ("?range=day", 24, 2, "Last 24 hours: 13,345 completed jobs, peak: 12,345 per hour."),
        ("?range=week", 28, 1, "Last 7 days: 13,345 completed jobs, peak: 13,345 in 6 hours."),
    ):
        page = open_dashboard(viewer, f"{index()}{query}")
        section = page.section("throughput")
        [chosen] = [link.attributes["href"] for link in section.all("a") if "aria-current" in link.attributes]
        assert chosen == f"{index()}{query.replace('unknown', 'hour') or '?range=hour'}"
        [refreshed] = page.root.all(id="jobchains-dashboard")
        assert query.removeprefix("?") in refreshed.attributes["data-jobchains-refresh"]
        completed, _failed = section.all("svg")
        assert completed.attributes["role"] == "img"
        assert completed.attributes["aria-label"] == completed.all("title")[0].text == sentence
        assert len(completed.all("rect", "jobchains-slot")) == len(section.all("tbody")[0].all("tr")) == size
        assert len(completed.all("rect", "jobchains-bar")) == drawn
        assert page.figures()["jobs completed in the last hour"] == "12,345"
        assert page.figures()["jobs failed in the last hour"] == "2"
    page = open_dashboard(viewer, f"{index()}?range=day")
    assert page.section("throughput").all("tbody")[0].all("tr")[-2].text.endswith("1,000 0 0")
    for rect in page.root.all("rect"):
        assert all(value.isdecimal() for name, value in rect.attributes.items() if name != "class"), "not localized"
