"""Times as the pages show them: how long ago, with the exact time in the current time zone beside it."""

from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.dateformat import format as formatted
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_jobchains.admin.words import ago
from django_jobchains.times import Times


@dataclass(frozen=True)
class Moment:
    """``iso``: for the attribute ``datetime``; ``exact``: in the current time zone; ``ago``: about.

    ``html`` is for sentences, which are translated as a whole.
    """

    iso: str
    exact: str
    ago: str

    @property
    def html(self) -> SafeString:
        return format_html('<time datetime="{}" title="{}">{}</time>', self.iso, self.exact, self.ago)


class Moments(Times):
    def shown(self, moment: datetime | None) -> Moment | None:
        if moment is None:
            return None
        aware = self.aware(moment)
        local = timezone.localtime(aware)
        return Moment(
            aware.astimezone(UTC).isoformat(), formatted(local, "Y-m-d H:i:s T"), ago(self.seconds_since(aware))
        )
