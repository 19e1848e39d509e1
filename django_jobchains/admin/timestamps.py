"""Times as the pages show them: relative to now, with the exact time as a tooltip."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.dateformat import format as format_date
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_jobchains.db.times import Times
from django_jobchains.text.humanize import ago


@dataclass(frozen=True)
class Timestamp:
    """A time as ISO 8601, in the current time zone, and relative to now."""

    iso: str
    exact: str
    relative: str

    @property
    def html(self) -> SafeString:
        """Return a ``time`` element, also for use in translated sentences."""
        return format_html('<time datetime="{}" title="{}">{}</time>', self.iso, self.exact, self.relative)


class Timestamps(Times):
    """Makes timestamps relative to the time when it was created."""

    def timestamp(self, time: datetime, describe: Callable[[float], str] = ago) -> Timestamp:
        """Return a timestamp whose relative time is described by a function of the seconds since then."""
        aware = self.aware(time)
        exact = format_date(timezone.localtime(aware), "Y-m-d H:i:s T")
        return Timestamp(aware.astimezone(UTC).isoformat(), exact, describe(self.seconds_since(aware)))

    def optional(self, time: datetime | None) -> Timestamp | None:
        return None if time is None else self.timestamp(time)
