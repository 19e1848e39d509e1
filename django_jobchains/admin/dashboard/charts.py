"""The layout of the bar charts, which a template draws.

Only the bars are SVG, which is stretched to the available width. Texts are outside, so that they keep their size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.formats import date_format, time_format
from django.utils.translation import gettext, ngettext

from django_jobchains.monitoring import AttemptTotals
from django_jobchains.monitoring.throughput import WEEK_HOURS, sum_totals
from django_jobchains.store.stats import SHOWN_HOURS
from django_jobchains.text.humanize import number

#: The width of the slot of a bar, in units of the SVG.
SLOT_WIDTH = 10
BAR_WIDTH = 8
#: The height of the highest bar.
HEIGHT = 100
#: The height of the lowest bar, so that small numbers remain visible.
MIN_HEIGHT = 3
#: How many hours a bar of a week has.
HOURS_PER_BAR = 6
#: How many times or dates are written below the bars.
TICKS = {"hour": 5, "day": 5, "week": 4}

#: The ranges of time of the pages, with the number of hours that are read for each.
RANGES = {"hour": SHOWN_HOURS, "day": SHOWN_HOURS, "week": WEEK_HOURS}


@dataclass(frozen=True)
class Bar:
    """A bar, whose title is shown for its whole slot, so that low bars are as easy to point at as high ones."""

    title: str
    slot_x: int
    x: int
    y: int
    height: int


@dataclass(frozen=True)
class Chart:
    """One row of bars. ``kind`` is part of a CSS class, and ``sentence`` describes the chart for screen readers.

    ``scale``: the numbers at the top, in the middle and at the bottom. The middle is "" if it is not a whole number.
    """

    kind: str
    name: str
    sentence: str
    total: str
    peak: str
    scale: tuple[str, str, str]
    bars: tuple[Bar, ...]
    width: int
    height: int = HEIGHT
    bar_width: int = BAR_WIDTH
    slot_width: int = SLOT_WIDTH


@dataclass(frozen=True)
class ChartRow:
    starts_at: datetime
    time: str
    completed: str
    failed: str
    jobs_failed: str


@dataclass(frozen=True)
class Period:
    """Completed jobs and failed attempts of a period, with separate scales because failures are few."""

    id: str
    title: str
    charts: tuple[Chart, Chart]
    #: The times below some of the bars, the first and the last among them.
    ticks: tuple[str, ...]
    rows: tuple[ChartRow, ...]


def period_of(id: str, minutes: Sequence[AttemptTotals], hours: Sequence[AttemptTotals]) -> Period:
    """Return the charts of a range of time: of these minutes for an hour, otherwise of these hours."""
    if id == "hour":
        title, peak = gettext("Last hour"), gettext("peak: %(peak)s per minute")
        return _period(id, title, peak, [(ended, _clock_time(ended)) for ended in minutes])
    if id == "day":
        title, peak = gettext("Last 24 hours"), gettext("peak: %(peak)s per hour")
        return _period(id, title, peak, [(ended, _clock_time(ended)) for ended in hours])
    title, peak = gettext("Last 7 days"), gettext("peak: %(peak)s in 6 hours")
    starts = range(0, len(hours), HOURS_PER_BAR)
    several = [sum_totals(hours[start : start + HOURS_PER_BAR]) for start in starts]
    return _period(id, title, peak, [(ended, f"{_day(ended)}, {_clock_time(ended)}") for ended in several])


def bars(counts: Sequence[int], titles: Sequence[str]) -> tuple[Bar, ...]:
    """Scale the bars so that the highest has the full height."""
    peak = max(counts, default=0)
    heights = [max(MIN_HEIGHT, round(count * HEIGHT / peak)) if count else 0 for count in counts]
    margin = (SLOT_WIDTH - BAR_WIDTH) // 2
    return tuple(
        Bar(title, slot_x=index * SLOT_WIDTH, x=index * SLOT_WIDTH + margin, y=HEIGHT - height, height=height)
        for index, (height, title) in enumerate(zip(heights, titles, strict=True))
    )


def _clock_time(ended: AttemptTotals) -> str:
    return time_format(timezone.localtime(ended.starts_at), "TIME_FORMAT")


def _day(ended: AttemptTotals) -> str:
    return date_format(timezone.localtime(ended.starts_at), "MONTH_DAY_FORMAT")


def _period(id: str, title: str, peak_text: str, ended: Sequence[tuple[AttemptTotals, str]]) -> Period:
    """``ended``: the totals of each bar, and its time as a text."""
    rows = tuple(_row(totals, time) for totals, time in ended)
    titles = [
        gettext("%(time)s: %(completed)s completed; failed attempts: %(failed)s, failed jobs: %(jobs_failed)s")
        % vars(row)
        for row in rows
    ]
    completed, failed = [totals.completed for totals, _ in ended], [totals.failed for totals, _ in ended]
    of_completed = ngettext("%(total)s completed job", "%(total)s completed jobs", sum(completed))
    of_failed = ngettext("%(total)s failed attempt", "%(total)s failed attempts", sum(failed))
    charts = (
        _chart("completed", gettext("Completed jobs"), title, of_completed, peak_text, completed, titles),
        _chart("failed", gettext("Failed attempts"), title, of_failed, peak_text, failed, titles),
    )
    last = len(rows) - 1
    ticks = sorted({round(last * place / (TICKS[id] - 1)) for place in range(TICKS[id])}) if rows else []
    times = [_day(totals) if id == "week" else time for totals, time in ended]
    return Period(id, title, charts, tuple(times[index] for index in ticks), rows)


def _chart(
    kind: str, name: str, title: str, total_text: str, peak_text: str, counts: Sequence[int], titles: Sequence[str]
) -> Chart:
    total, peak = sum(counts), max(counts, default=0)
    peak_shown = peak_text % {"peak": number(peak)}
    return Chart(
        kind,
        name,
        f"{title}: {total_text % {'total': number(total)}}, {peak_shown}.",
        number(total),
        peak_shown,
        (number(peak), number(peak // 2) if peak and not peak % 2 else "", "0") if peak else ("", "", "0"),
        bars(counts, titles),
        width=SLOT_WIDTH * max(1, len(counts)),
    )


def _row(ended: AttemptTotals, time: str) -> ChartRow:
    counts = (number(ended.completed), number(ended.failed), number(ended.jobs_failed))
    return ChartRow(timezone.localtime(ended.starts_at), time, *counts)
