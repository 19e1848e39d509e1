"""The layout of the bar charts, which a template draws.

Only the bars are SVG, which is stretched to the available width. Texts are outside, so that they keep their size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.formats import time_format
from django.utils.translation import gettext, ngettext

from django_jobchains.monitoring import AttemptTotals
from django_jobchains.text.humanize import number

#: The width of the slot of a bar, in units of the SVG.
SLOT_WIDTH = 10
BAR_WIDTH = 8
#: The height of the highest bar.
HEIGHT = 100
#: The height of the lowest bar, so that small numbers remain visible.
MIN_HEIGHT = 3


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
    """One row of bars. ``kind`` is part of a CSS class, and ``sentence`` describes the chart for screen readers."""

    kind: str
    name: str
    sentence: str
    total: str
    peak: str
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


@dataclass(frozen=True)
class Period:
    """Completed jobs and failed attempts of a period, with separate scales because failures are few."""

    id: str
    title: str
    charts: tuple[Chart, Chart]
    #: The times below the first, the middle and the last bar.
    ticks: tuple[str, ...]
    rows: tuple[ChartRow, ...]


def last_hour(minutes: Sequence[AttemptTotals]) -> Period:
    return _period(
        "hour",
        gettext("Last hour"),
        minutes,
        lambda total: ngettext(
            "Last hour: %(total)s completed job, peak %(peak)s per minute.",
            "Last hour: %(total)s completed jobs, peak %(peak)s per minute.",
            total,
        ),
        lambda total: ngettext(
            "Last hour: %(total)s failed attempt, peak %(peak)s per minute.",
            "Last hour: %(total)s failed attempts, peak %(peak)s per minute.",
            total,
        ),
        gettext("peak: %(peak)s per minute"),
    )


def last_day(hours: Sequence[AttemptTotals]) -> Period:
    return _period(
        "day",
        gettext("Last 24 hours"),
        hours,
        lambda total: ngettext(
            "Last 24 hours: %(total)s completed job, peak %(peak)s per hour.",
            "Last 24 hours: %(total)s completed jobs, peak %(peak)s per hour.",
            total,
        ),
        lambda total: ngettext(
            "Last 24 hours: %(total)s failed attempt, peak %(peak)s per hour.",
            "Last 24 hours: %(total)s failed attempts, peak %(peak)s per hour.",
            total,
        ),
        gettext("peak: %(peak)s per hour"),
    )


def bars(counts: Sequence[int], titles: Sequence[str]) -> tuple[Bar, ...]:
    """Scale the bars so that the highest has the full height."""
    peak = max(counts, default=0)
    heights = [max(MIN_HEIGHT, round(count * HEIGHT / peak)) if count else 0 for count in counts]
    margin = (SLOT_WIDTH - BAR_WIDTH) // 2
    return tuple(
        Bar(title, slot_x=index * SLOT_WIDTH, x=index * SLOT_WIDTH + margin, y=HEIGHT - height, height=height)
        for index, (height, title) in enumerate(zip(heights, titles, strict=True))
    )


#: Returns the sentence in the plural form for a number.
Sentence = Callable[[int], str]


def _period(
    id: str, title: str, ended: Sequence[AttemptTotals], of_completed: Sentence, of_failed: Sentence, peak_text: str
) -> Period:
    rows = tuple(_row(one) for one in ended)
    titles = [gettext("%(time)s: %(completed)s completed, %(failed)s failed") % vars(row) for row in rows]
    completed, failed = [one.completed for one in ended], [one.failed for one in ended]
    charts = (
        _chart("completed", gettext("Completed jobs"), of_completed, peak_text, completed, titles),
        _chart("failed", gettext("Failed attempts"), of_failed, peak_text, failed, titles),
    )
    ticks = sorted({0, len(rows) // 2, len(rows) - 1}) if rows else []
    return Period(id, title, charts, tuple(rows[index].time for index in ticks), rows)


def _chart(
    kind: str, name: str, sentence: Sentence, peak_text: str, counts: Sequence[int], titles: Sequence[str]
) -> Chart:
    total = sum(counts)
    figures = {"total": number(total), "peak": number(max(counts, default=0))}
    return Chart(
        kind,
        name,
        sentence(total) % figures,
        figures["total"],
        peak_text % figures,
        bars(counts, titles),
        width=SLOT_WIDTH * max(1, len(counts)),
    )


def _row(ended: AttemptTotals) -> ChartRow:
    local = timezone.localtime(ended.starts_at)
    return ChartRow(local, time_format(local, "TIME_FORMAT"), number(ended.completed), number(ended.failed))
