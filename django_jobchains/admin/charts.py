"""Bars over a period, laid out here and drawn by a template.

Only the bars are SVG, stretched to the width there is: the words stand around them, as large on a phone as on a screen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.formats import time_format
from django.utils.translation import gettext

from django_jobchains.admin.words import number
from django_jobchains.throughput import Ended

#: Units of the drawing: of the place of a bar, of the bar in it, and of the highest bar.
PLACE = 10
WIDTH = 8
HEIGHT = 100
#: What is not 0 is seen, however small it is beside the rest.
LEAST = 3


@dataclass(frozen=True)
class Bar:
    """``title`` is said of its whole place, so that a low bar is as easy to point at as a high one."""

    title: str
    place: int
    x: int
    y: int
    height: int


@dataclass(frozen=True)
class Chart:
    """One row of bars. ``kind`` is the CSS class's end; ``sentence`` says what there is to see."""

    kind: str
    name: str
    sentence: str
    total: str
    most: str
    bars: tuple[Bar, ...]
    width: int
    height: int = HEIGHT
    bar_width: int = WIDTH
    place_width: int = PLACE


@dataclass(frozen=True)
class Row:
    """The same in numbers."""

    starts_at: datetime
    time: str
    completed: str
    failed: str


@dataclass(frozen=True)
class Period:
    """What ended in it: completed jobs and failed attempts, each on a scale of its own, for few failures count."""

    id: str
    title: str
    charts: tuple[Chart, Chart]
    #: Times below the bars: of the first, one in the middle and the last.
    ticks: tuple[str, ...]
    rows: tuple[Row, ...]


def last_hour(minutes: Sequence[Ended]) -> Period:
    counts = ([one.completed for one in minutes], [one.failed for one in minutes])
    completed, failed = (_figures(count) for count in counts)
    return _period(
        "hour",
        gettext("The last hour"),
        minutes,
        gettext("Completed in the last hour: %(total)s jobs, at most %(most)s in a minute.") % completed,
        gettext("Failed in the last hour: %(total)s attempts, at most %(most)s in a minute.") % failed,
        gettext("at most %s a minute"),
    )


def last_day(hours: Sequence[Ended]) -> Period:
    counts = ([one.completed for one in hours], [one.failed for one in hours])
    completed, failed = (_figures(count) for count in counts)
    return _period(
        "day",
        gettext("The last day"),
        hours,
        gettext("Completed in the last day: %(total)s jobs, at most %(most)s in an hour.") % completed,
        gettext("Failed in the last day: %(total)s attempts, at most %(most)s in an hour.") % failed,
        gettext("at most %s an hour"),
    )


def bars(counts: Sequence[int], titles: Sequence[str]) -> tuple[Bar, ...]:
    """The highest has the full height."""
    most = max(counts, default=0)
    heights = [max(LEAST, round(count * HEIGHT / most)) if count else 0 for count in counts]
    margin = (PLACE - WIDTH) // 2
    return tuple(
        Bar(title, place=index * PLACE, x=index * PLACE + margin, y=HEIGHT - height, height=height)
        for index, (height, title) in enumerate(zip(heights, titles, strict=True))
    )


def _period(id: str, title: str, ended: Sequence[Ended], of_completed: str, of_failed: str, most_text: str) -> Period:
    rows = tuple(_row(one) for one in ended)
    titles = [gettext("%(time)s: %(completed)s completed, %(failed)s failed") % vars(row) for row in rows]
    completed, failed = [one.completed for one in ended], [one.failed for one in ended]
    charts = (
        _chart("completed", gettext("Completed jobs"), of_completed, most_text, completed, titles),
        _chart("failed", gettext("Failed attempts"), of_failed, most_text, failed, titles),
    )
    return Period(id, title, charts, tuple(rows[index].time for index in _tick_indexes(len(rows))), rows)


def _chart(kind: str, name: str, sentence: str, most_text: str, counts: Sequence[int], titles: Sequence[str]) -> Chart:
    figures = _figures(counts)
    return Chart(
        kind,
        name,
        sentence,
        figures["total"],
        most_text % figures["most"],
        bars(counts, titles),
        width=PLACE * max(1, len(counts)),
    )


def _figures(counts: Sequence[int]) -> dict[str, str]:
    return {"total": number(sum(counts)), "most": number(max(counts, default=0))}


def _row(ended: Ended) -> Row:
    local = timezone.localtime(ended.starts_at)
    return Row(local, time_format(local, "TIME_FORMAT"), number(ended.completed), number(ended.failed))


def _tick_indexes(count: int) -> list[int]:
    return sorted({0, count // 2, count - 1}) if count else []
