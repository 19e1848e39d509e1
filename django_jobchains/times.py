"""Times as a database gives them, and how long they are ago."""

from datetime import UTC, datetime, tzinfo

from django.db import connections
from django.utils import timezone


class Times:
    """Times of one database, looked at from one moment; without ``USE_TZ`` they come from it naive."""

    def __init__(self, using: str) -> None:
        is_sqlite = connections[using].vendor == "sqlite"
        self._zone: tzinfo = UTC if is_sqlite else timezone.get_default_timezone()
        self._now = datetime.now(UTC)

    def aware(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=self._zone) if timezone.is_naive(moment) else moment

    def seconds_since(self, moment: datetime) -> float:
        return (self._now - self.aware(moment)).total_seconds()

    def between(self, begin: datetime | None, end: datetime | None) -> float | None:
        """Seconds; up to now when there is no end."""
        if begin is None:
            return None
        return ((self.aware(end) if end else self._now) - self.aware(begin)).total_seconds()
