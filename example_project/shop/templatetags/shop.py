"""Filters that the shop's templates use."""

from datetime import datetime

from django import template
from django.utils import timezone

register = template.Library()


@register.filter
def last_line(text: str | None) -> str:
    """The last line that says something: of a traceback, the error itself."""
    lines = (text or "").strip().splitlines()
    return lines[-1].strip() if lines else ""


@register.filter
def clock(moment: datetime | None) -> str:
    """The time of day to a thousandth of a second, which the date filter can't cut to."""
    return timezone.localtime(moment).isoformat(timespec="milliseconds")[11:23] if moment else ""
