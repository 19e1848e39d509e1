"""Times and numbers as people read them, in their language."""

from collections.abc import Sequence
from itertools import pairwise

from django.utils.formats import number_format
from django.utils.translation import gettext

#: Names in a sentence.
MOST_NAMED = 5
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """How long something took: ``850 ms``, ``4.2 s``, ``3 min 5 s``, ``2 d 4 h``."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return gettext("%(count)s ms") % {"count": number_format(round(seconds * 1000))}
    if seconds < 9.95:
        return _unit(number_format(seconds, 1), "s")
    whole = round(seconds)
    for (size, unit), (smaller, smaller_unit) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // smaller
            return _together(_unit(str(whole // size), unit), _unit(str(rest), smaller_unit) if rest else "")
    return _unit(str(whole), "s")


def age(seconds: float) -> str:
    """About how long: ``5 s``, ``3 min``, ``90 min``, ``2 h``, ``4 d``."""
    for least, size, unit in ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (60, 60, "min")):
        if seconds >= least:
            return _unit(number_format(int(seconds // size), use_l10n=True, force_grouping=True), unit)
    return _unit(str(int(max(0.0, seconds))), "s")


def ago(seconds: float) -> str:
    """``3 min ago``; of a time to come ``in 3 min``."""
    if seconds < -1:
        return gettext("in %(time)s") % {"time": age(-seconds)}
    return gettext("%(time)s ago") % {"time": age(seconds)}


def number(count: int) -> str:
    """With separators between the thousands."""
    return str(number_format(count, use_l10n=True, force_grouping=True))


def some_of(names: Sequence[object]) -> str:
    """The first few."""
    return ", ".join(map(str, names[:MOST_NAMED])) + (", …" if len(names) > MOST_NAMED else "")


def _unit(amount: str, unit: str) -> str:
    texts = {
        "d": gettext("%(count)s d"),
        "h": gettext("%(count)s h"),
        "min": gettext("%(count)s min"),
        "s": gettext("%(count)s s"),
    }
    return texts[unit] % {"count": amount}


def _together(larger: str, smaller: str) -> str:
    if not smaller:
        return larger
    # Translators: days and hours, hours and minutes, or minutes and seconds: "3 min 5 s".
    return gettext("%(larger)s %(smaller)s") % {"larger": larger, "smaller": smaller}
