"""The cells of the lists, for the person who asked: what jobs say passes through ``Payloads``.

The rows of a page are marked by ``ListedAdmin.mark``: a chain with ``is_job_hidden``, a job with ``is_chain_hidden``.
"""

from datetime import datetime
from typing import ClassVar
from uuid import UUID

from django.contrib import admin
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.visibility import Visibility
from django_jobchains.admin.words import age, ago, number, span
from django_jobchains.models import Chain, Job
from django_jobchains.shown_statuses import ShownStatus, shown_status
from django_jobchains.statuses import OPEN, Status
from django_jobchains.times import Times

#: Of an error, read to show its first line.
ERROR_LENGTH = 500


class Cells:
    """What both lists show alike."""

    #: The names of the methods that are columns.
    in_order: ClassVar[tuple[str, ...]]

    def __init__(self, visibility: Visibility, using: str, site_name: str) -> None:
        self._visibility = visibility
        self._times = Times(using)
        self._site_name = site_name

    def _badge(self, status: ShownStatus) -> SafeString:
        return format_html(
            '<span class="jobchains-status jobchains-status-{}">{}</span>', status.value, str(status.label)
        )

    def _moment(self, moment: datetime, text: str) -> SafeString:
        aware = self._times.aware(moment)
        local = date_format(localtime(aware) if is_aware(aware) else aware, "DATETIME_FORMAT")
        return format_html('<time datetime="{}" title="{}">{}</time>', aware.isoformat(), local, text)

    def _age(self, moment: datetime) -> SafeString:
        return self._moment(moment, age(self._times.seconds_since(moment)))

    def _attempts(self, job: Job) -> str:
        if job.max_attempts is None:
            return number(job.attempt)
        return gettext("%(attempt)s of %(most)s") % {
            "attempt": number(job.attempt - job.crashes),  # crashes are not counted against the limit
            "most": number(job.max_attempts),
        }

    def _error_line(self, start: str | None, *rows: Chain | Job) -> SafeString | str:
        line = self._visibility.payloads(*rows).error_line(start)
        return format_html('<span class="jobchains-error-line">{}</span>', line) if line else ""

    def _chain_link(self, chain_id: UUID, text: str) -> SafeString:
        url = reverse("admin:django_jobchains_chain_change", args=(chain_id,), current_app=self._site_name)
        return format_html('<a href="{}">{}</a>', url, text)


class ChainCells(Cells):
    """Of a chain with its current job."""

    in_order = ("status", "type_name", "step", "error", "created", "took", "attempts", "queue", "key")

    @admin.display(description=_("status"))
    def status(self, chain: Chain) -> SafeString:
        return self._badge(shown_status(chain.current_job, self._times))

    @admin.display(description=_("type"))
    def type_name(self, chain: Chain) -> str:
        return chain.type_name

    @admin.display(description=_("queue"))
    def queue(self, chain: Chain) -> str:
        return "" if _hides_job(chain) else chain.current_job.queue

    @admin.display(description=_("age"), ordering="id")
    def created(self, chain: Chain) -> SafeString:
        return self._age(chain.created_at)

    @admin.display(description=_("took"))
    def took(self, chain: Chain) -> str:
        seconds = self._times.between(chain.created_at, chain.finished_at)
        text = span(seconds or 0.0)
        return text if chain.finished_at else gettext("%(time)s so far") % {"time": text}

    @admin.display(description=_("step"))
    def step(self, chain: Chain) -> SafeString | str:
        job = chain.current_job
        place = number(job.chain_index + 1)
        if not job.chain_index or _hides_job(chain):
            return place
        return format_html('{} <span class="jobchains-step-type">{}</span>', place, job.type_name)

    @admin.display(description=_("attempts"))
    def attempts(self, chain: Chain) -> str:
        return "" if _hides_job(chain) else self._attempts(chain.current_job)

    @admin.display(description=_("key"))
    def key(self, chain: Chain) -> str:
        return chain.deduplication_key or ""

    @admin.display(description=_("error"))
    def error(self, chain: Chain) -> SafeString | str:
        """Of its current job."""
        if _hides_job(chain):
            return ""
        return self._error_line(chain.error_start, chain, chain.current_job)  # type: ignore[attr-defined]  # annotated


class JobCells(Cells):
    in_order = ("status", "type_name", "error", "created", "run_at", "attempts", "step", "chain", "queue", "worker")

    @admin.display(description=_("status"))
    def status(self, job: Job) -> SafeString:
        return self._badge(shown_status(job, self._times, is_last=job.is_last))  # type: ignore[attr-defined]  # annotated

    @admin.display(description=_("type"))
    def type_name(self, job: Job) -> str:
        return job.type_name

    @admin.display(description=_("chain"))
    def chain(self, job: Job) -> SafeString | str:
        if getattr(job, "is_chain_hidden", False):
            return "–"
        return self._chain_link(job.chain_id, job.chain_type_name)

    @admin.display(description=_("step"))
    def step(self, job: Job) -> str:
        return number(job.chain_index + 1)

    @admin.display(description=_("queue"))
    def queue(self, job: Job) -> str:
        return job.queue

    @admin.display(description=_("age"), ordering="chain_id")
    def created(self, job: Job) -> SafeString:
        return self._age(job.created_at)

    @admin.display(description=_("run at"))
    def run_at(self, job: Job) -> SafeString | str:
        """When it may run, of one that waits to; of one that ran, when it last began to."""
        if job.status == Status.PENDING:
            return self._moment(job.run_at, ago(self._times.seconds_since(job.run_at)))
        if job.last_attempt_at is None:
            return ""
        return self._moment(job.last_attempt_at, ago(self._times.seconds_since(job.last_attempt_at)))

    @admin.display(description=_("attempts"))
    def attempts(self, job: Job) -> str:
        return self._attempts(job)

    @admin.display(description=_("worker"))
    def worker(self, job: Job) -> str:
        return (job.leased_by if job.status in OPEN else job.completed_by) or ""

    @admin.display(description=_("error"))
    def error(self, job: Job) -> SafeString | str:
        return self._error_line(job.error_start, job)  # type: ignore[attr-defined]  # annotated


def _hides_job(chain: Chain) -> bool:
    """Whether the user may not see the job that a visible chain is at."""
    return getattr(chain, "is_job_hidden", False)
