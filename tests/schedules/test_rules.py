"""When schedules tick, around both changes of the clock, in a table that was written by hand."""

import os
import time
from datetime import UTC, datetime, timedelta

import pytest

from django_jobchains.declare.schedules import TickRule

BERLIN, NEW_YORK, LORD_HOWE, KATHMANDU = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"
ANCHOR = datetime(2026, 1, 1, tzinfo=UTC)
EIGHT_TICKS = [f"10-25 0{hour}:{minute:02}" for hour in (0, 1) for minute in (0, 15, 30, 45)]

#: A rule, a moment, and the ticks after it, all in UTC.
#: Berlin 2026: on 29 March at 01:00 UTC the clock goes from 02:00 to 03:00; on 25 October at 01:00 UTC from 03:00 back.
#: New York 2026: on 8 March at 07:00 UTC from 02:00 to 03:00; on 1 November at 06:00 UTC from 02:00 back to 01:00.
#: Lord Howe 2026: on 4 October at 15:30 UTC on the 3rd from 02:00 to 02:30; on 5 April at 15:00 UTC on the 4th from
#: 02:00 back to 01:30.
TABLE = [
    # A fixed time in the gap: once, at the instant of the change.
    ("30 2 * * *", BERLIN, "2026-03-28 12:00", ["03-29 01:00", "03-30 00:30"]),
    ("0,15,30 2 * * *", BERLIN, "2026-03-28 12:00", ["03-29 01:00", "03-30 00:00", "03-30 00:15"]),
    ("30 2 * * *", NEW_YORK, "2026-03-07 12:00", ["03-08 07:00", "03-09 06:30"]),
    ("15 2 * * *", LORD_HOWE, "2026-10-03 00:00", ["10-03 15:30", "10-04 15:15"]),
    # A fixed time at the end of the gap is the same instant: once.
    ("30 2,3 * * *", BERLIN, "2026-03-28 12:00", ["03-29 01:00", "03-29 01:30", "03-30 00:30"]),
    ("0 2,3 * * *", BERLIN, "2026-03-28 12:00", ["03-29 01:00", "03-30 00:00", "03-30 01:00"]),
    # A fixed time outside of the gap.
    ("0 4 * * *", BERLIN, "2026-03-28 12:00", ["03-29 02:00", "03-30 02:00"]),
    # A fixed time in the hour that is repeated: once, at its first occurrence, also if that has passed.
    ("30 2 * * *", BERLIN, "2026-10-24 12:00", ["10-25 00:30", "10-26 01:30"]),
    ("30 2 * * *", BERLIN, "2026-10-25 01:15", ["10-26 01:30"]),
    ("30 1 * * *", NEW_YORK, "2026-10-31 12:00", ["11-01 05:30", "11-02 06:30"]),
    ("30 1 * * *", NEW_YORK, "2026-11-01 06:10", ["11-02 06:30"]),
    ("45 1 * * *", LORD_HOWE, "2026-04-04 00:00", ["04-04 14:45", "04-05 15:15"]),
    ("0 1-5 * * *", BERLIN, "2026-03-28 12:00", ["03-29 00:00", "03-29 01:00", "03-29 02:00", "03-29 03:00"]),
    ("0 1-5 * * *", BERLIN, "2026-10-24 22:30", ["10-24 23:00", "10-25 00:00", "10-25 02:00", "10-25 03:00"]),
    # A rule whose hour is * keeps its interval.
    ("*/30 * * * *", BERLIN, "2026-03-29 00:10", ["03-29 00:30", "03-29 01:00", "03-29 01:30"]),
    ("*/30 * * * *", BERLIN, "2026-10-24 23:40", ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30"]),
    ("0 * * * *", BERLIN, "2026-10-24 23:40", ["10-25 00:00", "10-25 01:00", "10-25 02:00"]),
    ("0 * * * *", NEW_YORK, "2026-11-01 04:30", ["11-01 05:00", "11-01 06:00", "11-01 07:00"]),
    ("*/15 * * * *", LORD_HOWE, "2026-10-03 15:10", ["10-03 15:15", "10-03 15:30", "10-03 15:45"]),
    ("*/20 * * * *", LORD_HOWE, "2026-04-04 14:30", ["04-04 14:40", "04-04 15:10", "04-04 15:30"]),
    # Other times in the gap are left out if the minute or the hour begins with *, and repeated times run twice.
    ("0 */2 * * *", BERLIN, "2026-03-28 22:30", ["03-28 23:00", "03-29 02:00", "03-29 04:00"]),
    ("0 */2 * * *", BERLIN, "2026-10-24 21:30", ["10-24 22:00", "10-25 00:00", "10-25 01:00", "10-25 03:00"]),
    ("*/15 2 * * *", BERLIN, "2026-03-28 12:00", ["03-30 00:00", "03-30 00:15", "03-30 00:30", "03-30 00:45"]),
    ("*/15 2 * * *", BERLIN, "2026-10-24 12:00", [*EIGHT_TICKS, "10-26 01:00"]),
    # A zone without changes, 5:45 ahead of UTC.
    ("30 2 * * *", KATHMANDU, "2026-03-28 12:00", ["03-28 20:45", "03-29 20:45"]),
    ("*/30 * * * *", KATHMANDU, "2026-03-29 00:50", ["03-29 01:15", "03-29 01:45"]),
    ("0 0 * * *", "UTC", "2026-03-28 12:00", ["03-29 00:00", "03-30 00:00"]),
    # Names, the last day and the n-th weekday.
    ("0 9 L * *", BERLIN, "2026-02-15 00:00", ["02-28 08:00", "03-31 07:00"]),
    ("0 9 * * MON#1", BERLIN, "2026-03-15 00:00", ["04-06 07:00", "05-04 07:00"]),
    ("0 9 1 jan *", KATHMANDU, "2026-03-15 00:00", ["2027-01-01 03:15"]),
    # ``every`` is elapsed time after its anchor.
    (3600, BERLIN, "2026-03-29 00:10", ["03-29 01:00", "03-29 02:00"]),
    (5400, NEW_YORK, "2026-11-01 05:10", ["11-01 06:00", "11-01 07:30"]),
    (86400, LORD_HOWE, "2026-04-04 13:00", ["04-05 00:00", "04-06 00:00"]),
    (0.5 + 1, "UTC", "2026-01-01 00:00", ["01-01 00:00:01.5", "01-01 00:00:03"]),
]


def moment(text):
    year = "" if text.startswith("20") else "2026-"
    return datetime.fromisoformat(f"{year}{text.replace('01.5', '01.500')}").replace(tzinfo=UTC)


def rule_of(rule, zone):
    is_cron = isinstance(rule, str)
    return TickRule(rule if is_cron else None, None if is_cron else float(rule), zone, ANCHOR)


@pytest.fixture(params=["UTC", "America/Sao_Paulo"])
def server_zone(request, monkeypatch):
    """The time zone of the operating system, which must not matter."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("rule", "zone", "after", "expected"), TABLE)
def test_ticks(server_zone, rule, zone, after, expected):
    ticks = rule_of(rule, zone).ticks(moment(after))
    assert [next(ticks) for _ in expected] == [moment(text) for text in expected]


@pytest.mark.parametrize(("rule", "zone", "after", "expected"), TABLE)
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_what_is_due_does_not_depend_on_when_it_is_asked(rule, zone, after, expected, limit):
    """For three days after each moment, the due ticks are the last ones of those that follow each other."""
    ticks = rule_of(rule, zone).ticks(moment(after))
    known = [next(ticks) for _ in range(400)]
    first = known[0]
    for now in (
        known[1],
        known[2] + timedelta(seconds=1),
        *(first + timedelta(hours=hours) for hours in (7, 25, 49, 73)),
    ):
        passed = [tick for tick in known if tick <= now]
        if now < known[-1]:
            due, following = rule_of(rule, zone).due(first, now, limit)
            assert due == passed[-limit:]
            assert following == known[len(passed)]


def test_what_is_due_after_years_is_found_in_a_few_steps(monkeypatch):
    """A tick for each minute of ten years would be five million steps."""
    import cronsim

    steps = []
    advance = cronsim.CronSim.__next__
    monkeypatch.setattr(cronsim.CronSim, "__next__", lambda self: steps.append(1) or advance(self))
    first, now = moment("2016-03-01 00:00"), moment("2026-03-01 00:00:30")
    due, following = rule_of("* * * * *", BERLIN).due(first, now, 5)
    assert due == [moment(f"2026-02-28 23:{minute}") for minute in (56, 57, 58, 59)] + [moment("2026-03-01 00:00")]
    assert following == moment("2026-03-01 00:01")
    assert len(steps) < 30
    due, following = rule_of(60, BERLIN).due(first.replace(year=2026, month=1, day=2), now, 2)
    assert (due, following) == ([moment("2026-02-28 23:59"), moment("2026-03-01 00:00")], moment("2026-03-01 00:01"))


def test_ticks_end():
    rule = TickRule(None, 300 * 365 * 86400.0, "UTC", ANCHOR)
    assert len(list(rule.ticks(ANCHOR))) == 26  # until the year 9999
    assert os.environ.get("TZ") != "America/Sao_Paulo"
