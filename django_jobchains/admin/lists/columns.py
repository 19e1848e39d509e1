"""The columns of the changelists, for the user of a request.

``ListAdmin.mark`` sets ``is_job_hidden`` on the chains and ``is_chain_hidden`` on the jobs of a page.
"""

from typing import ClassVar

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.display import Timestamps, badge
from django_jobchains.admin.visibility import Visibility
from django_jobchains.models import Chain, Job
from django_jobchains.models.jobs import shown_status
from django_jobchains.statuses import OPEN, Status
from django_jobchains.text.humanize import age, number, span

#: The number of characters that are read of an error to show its first line.
ERROR_LENGTH = 500


class Columns:
    """The base class of the columns of both lists."""

    #: The methods that are columns, in their order.
    names: ClassVar[tuple[str, ...]]

    def __init__(self, visibility: Visibility, using: str, site_name: str) -> None:
        self._visibility = visibility
        self._timestamps = Timestamps(using)
        self._site_name = site_name

    def _attempts(self, job: Job) -> str:
        if job.finite_max_attempts is None:
            return number(job.attempt)
        return gettext("%(attempt)s of %(limit)s") % {
            "attempt": number(job.counted_attempts),
            "limit": number(job.finite_max_attempts),
        }


class ChainColumns(Columns):
    """The columns of chains, which include values of the current job."""

    names = ("status", "type_name", "step", "error", "created", "duration", "attempts", "queue", "key")

    @admin.display(description=_("status"))
    def status(self, chain: Chain) -> SafeString:
        status = shown_status(chain.current_job, self._timestamps)
        return badge(status.value, status.label)

    @admin.display(description=_("type"))
    def type_name(self, chain: Chain) -> str:
        return str(chain.type_name)

    @admin.display(description=_("queue"))
    def queue(self, chain: Chain) -> str:
        return "" if _is_job_hidden(chain) else chain.current_job.queue

    @admin.display(description=_("age"), ordering="id")
    def created(self, chain: Chain) -> SafeString | str:
        return self._timestamps.timestamp(chain.created_at, age)

    @admin.display(description=_("duration"))
    def duration(self, chain: Chain) -> str:
        seconds = self._timestamps.between(chain.created_at, chain.finished_at)
        text = span(seconds or 0.0)
        return text if chain.finished_at else gettext("%(time)s so far") % {"time": text}

    @admin.display(description=_("step"))
    def step(self, chain: Chain) -> SafeString | str:
        job = chain.current_job
        step = number(job.chain_index + 1)
        if not job.chain_index or _is_job_hidden(chain):
            return step
        return format_html('{} <span class="jobchains-step-type">{}</span>', step, job.type_name)

    @admin.display(description=_("attempts"))
    def attempts(self, chain: Chain) -> str:
        return "" if _is_job_hidden(chain) else self._attempts(chain.current_job)

    @admin.display(description=_("key"))
    def key(self, chain: Chain) -> str:
        return chain.deduplication_key or ""

    @admin.display(description=_("error"))
    def error(self, chain: Chain) -> SafeString | str:
        """Return the first line of the current job's error."""
        if _is_job_hidden(chain):
            return ""
        return self._visibility.payloads(chain, chain.current_job).error_html(chain.error_start)  # type: ignore[attr-defined]  # annotated


class JobColumns(Columns):
    """The columns of jobs."""

    names = ("status", "type_name", "error", "created", "run_at", "attempts", "step", "chain", "queue", "worker")

    @admin.display(description=_("status"))
    def status(self, job: Job) -> SafeString:
        status = shown_status(job, self._timestamps, is_last=job.is_last)  # type: ignore[attr-defined]  # annotated
        return badge(status.value, status.label)

    @admin.display(description=_("type"))
    def type_name(self, job: Job) -> str:
        return job.type_name

    @admin.display(description=_("chain"))
    def chain(self, job: Job) -> SafeString | str:
        if getattr(job, "is_chain_hidden", False):
            return "–"
        url = reverse("admin:django_jobchains_chain_change", args=(job.chain_id,), current_app=self._site_name)
        return format_html('<a href="{}">{}</a>', url, job.chain_type_name)

    @admin.display(description=_("step"))
    def step(self, job: Job) -> str:
        return number(job.chain_index + 1)

    @admin.display(description=_("queue"))
    def queue(self, job: Job) -> str:
        return job.queue

    @admin.display(description=_("age"), ordering="chain_id")
    def created(self, job: Job) -> SafeString | str:
        return self._timestamps.timestamp(job.created_at, age)

    @admin.display(description=_("run at"))
    def run_at(self, job: Job) -> SafeString | str:
        """Return when a pending job is due, or when the last attempt of another job started."""
        if job.status == Status.PENDING:
            return self._timestamps.timestamp(job.run_at)
        return self._timestamps.timestamp(job.last_attempt_at)

    @admin.display(description=_("attempts"))
    def attempts(self, job: Job) -> str:
        return self._attempts(job)

    @admin.display(description=_("worker"))
    def worker(self, job: Job) -> str:
        return (job.leased_by if job.status in OPEN else job.completed_by) or ""

    @admin.display(description=_("error"))
    def error(self, job: Job) -> SafeString | str:
        return self._visibility.payloads(job).error_html(job.error_start)  # type: ignore[attr-defined]  # annotated


def _is_job_hidden(chain: Chain) -> bool:
    """Return whether the current job of a visible chain is hidden from the user."""
    return getattr(chain, "is_job_hidden", False)
