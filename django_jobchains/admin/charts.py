"""Bars over a period, laid out here and drawn by a template.

Only the bars are SVG, stretched to the width there is: the words stand around them, as large on a phone as on a screen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.formats import time_format
from django.utils.translation import gettext, ngettext

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
    return _period(
        "hour",
        gettext("The last hour"),
        minutes,
        lambda total: ngettext(
            "Completed in the last hour: %(total)s job, at most %(most)s in a minute.",
            "Completed in the last hour: %(total)s jobs, at most %(most)s in a minute.",
            total,
        ),
        lambda total: ngettext(
            "Failed in the last hour: %(total)s attempt, at most %(most)s in a minute.",
            "Failed in the last hour: %(total)s attempts, at most %(most)s in a minute.",
            total,
        ),
        gettext("at most %(most)s a minute"),
    )


def last_day(hours: Sequence[Ended]) -> Period:
    return _period(
        "day",
        gettext("The last day"),
        hours,
        lambda total: ngettext(
            "Completed in the last day: %(total)s job, at most %(most)s in an hour.",
            "Completed in the last day: %(total)s jobs, at most %(most)s in an hour.",
            total,
        ),
        lambda total: ngettext(
            "Failed in the last day: %(total)s attempt, at most %(most)s in an hour.",
            "Failed in the last day: %(total)s attempts, at most %(most)s in an hour.",
            total,
        ),
        gettext("at most %(most)s an hour"),
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


#: A sentence for so many.
Sentence = Callable[[int], str]


def _period(
    id: str, title: str, ended: Sequence[Ended], of_completed: Sentence, of_failed: Sentence, most_text: str
) -> Period:
    rows = tuple(_row(one) for one in ended)
    titles = [gettext("%(time)s: %(completed)s completed, %(failed)s failed") % vars(row) for row in rows]
    completed, failed = [one.completed for one in ended], [one.failed for one in ended]
    charts = (
        _chart("completed", gettext("Completed jobs"), of_completed, most_text, completed, titles),
        _chart("failed", gettext("Failed attempts"), of_failed, most_text, failed, titles),
    )
    return Period(id, title, charts, tuple(rows[index].time for index in _tick_indexes(len(rows))), rows)


def _chart(
    kind: str, name: str, sentence: Sentence, most_text: str, counts: Sequence[int], titles: Sequence[str]
) -> Chart:
    total = sum(counts)
    figures = {"total": number(total), "most": number(max(counts, default=0))}
    return Chart(
        kind,
        name,
        sentence(total) % figures,
        figures["total"],
        most_text % figures,
        bars(counts, titles),
        width=PLACE * max(1, len(counts)),
    )


def _row(ended: Ended) -> Row:
    local = timezone.localtime(ended.starts_at)
    return Row(local, time_format(local, "TIME_FORMAT"), number(ended.completed), number(ended.failed))


def _tick_indexes(count: int) -> list[int]:
    return sorted({0, count // 2, count - 1}) if count else []
