"""Durations, ages and numbers for people, in the formats of the active language.

Units are international symbols, which are not translated.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from django.utils.formats import date_format, get_format, number_format
from django.utils.translation import gettext

MAX_NAMES = 5
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def number(value: float, *, is_lower_bound: bool = False) -> str:
    """Format a number with separators between thousands, with a plus sign if there may be more."""
    return str(number_format(value, use_l10n=True, force_grouping=True)) + ("+" if is_lower_bound else "")


def span(seconds: float) -> str:
    """Format a duration: ``850 ms``, ``4.2 s``, ``3 min 5 s``, ``2 d 4 h``."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{number(round(seconds, 1))} s"
    whole = round(seconds)
    for (size, unit), (smaller_size, smaller_unit) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{whole} s"


def age(seconds: float) -> str:
    """Format an approximate duration: ``5 s``, ``3 min``, ``90 min``, ``2 h``, ``4 d``."""
    for minimum, size, unit in ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (60, 60, "min")):
        if seconds >= minimum:
            return f"{number(int(seconds // size))} {unit}"
    return f"{int(max(0.0, seconds))} s"


def ago(seconds: float) -> str:
    """Format the time since a moment: ``3 min ago`` or, for a moment in the future, ``in 3 min``."""
    if seconds < -1:
        return gettext("in %(time)s") % {"time": age(-seconds)}
    return gettext("%(time)s ago") % {"time": age(seconds)}


def clock_time(time: datetime) -> str:
    """Format a time in its own zone with seconds, on a clock of 12 or 24 hours as in the project's format of times."""
    has_halves = set(get_format("TIME_FORMAT")) & set("aAfghP")
    return date_format(time, "g:i:s a" if has_halves else "H:i:s")


def exact_time(time: datetime) -> str:
    """Format a time in its own zone, with the date, seconds and the name of the zone."""
    return f"{date_format(time, 'DATE_FORMAT')}, {clock_time(time)} {date_format(time, 'T')}"


def memory(size: int) -> str:
    """Format a number of bytes: ``85 MB``, ``1.2 GB``."""
    megabytes = round(size / 1024**2)
    return f"{number(megabytes)} MB" if megabytes < 1024 else f"{number(round(megabytes / 1024, 1))} GB"


def some_of(names: Sequence[object]) -> str:
    """Join the first few names, with an ellipsis for the others."""
    return ", ".join(map(str, names[:MAX_NAMES])) + (", …" if len(names) > MAX_NAMES else "")


def sentence(text: str) -> str:
    """Add a full stop, unless the text ends with one."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
