"""Filters for the shop's templates."""

from datetime import datetime

from django import template
from django.utils import timezone

register = template.Library()


@register.filter
def last_line(text: str | None) -> str:
    """Return the last line that is not blank; for a traceback, this is the error."""
    lines = (text or "").strip().splitlines()
    return lines[-1].strip() if lines else ""


@register.filter
def clock(moment: datetime | None) -> str:
    """Return the time of day with milliseconds, which the ``date`` filter does not support."""
    return timezone.localtime(moment).isoformat(timespec="milliseconds")[11:23] if moment else ""
