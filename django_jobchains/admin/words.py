"""Times and numbers as people read them, in their language."""

from itertools import pairwise

from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """How long something took: ``850 ms``, ``4.2 s``, ``3 min 5 s``, ``2 d 4 h``."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return gettext("%s ms") % number_format(round(seconds * 1000))
    if seconds < 9.95:
        return _unit(number_format(seconds, 1), "s")
    whole = round(seconds)
    for (size, unit), (smaller, smaller_unit) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // smaller
            return _unit(str(whole // size), unit) + (f" {_unit(str(rest), smaller_unit)}" if rest else "")
    return _unit(str(whole), "s")


def age(seconds: float) -> str:
    """About how long: ``5 s``, ``3 min``, ``90 min``, ``2 h``, ``4 d``."""
    for least, size, unit in ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (60, 60, "min")):
        if seconds >= least:
            return _unit(number_format(int(seconds // size), use_l10n=True, force_grouping=True), unit)
    return _unit(str(int(max(0.0, seconds))), "s")


def ago(seconds: float) -> str:
    """``3 min ago``; of a time to come ``in 3 min``."""
    return gettext("in %s") % age(-seconds) if seconds < -1 else gettext("%s ago") % age(seconds)


def number(count: int) -> str:
    """With separators between the thousands."""
    return str(number_format(count, use_l10n=True, force_grouping=True))


def steps(count: int) -> str:
    return ngettext("%s step", "%s steps", count) % number(count)


def _unit(amount: str, unit: str) -> str:
    texts = {"d": gettext("%s d"), "h": gettext("%s h"), "min": gettext("%s min"), "s": gettext("%s s")}
    return texts[unit] % amount
