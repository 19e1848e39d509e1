"""A job's status as people are told it: with what its row says besides."""

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _

from django_jobchains.models import Job
from django_jobchains.statuses import Status
from django_jobchains.times import Times


class ShownStatus(TextChoices):
    BLOCKED = "blocked", _("blocked")
    #: Pending, due later.
    SCHEDULED = "scheduled", _("scheduled")
    PENDING = "pending", _("pending")
    RUNNING = "running", _("running")
    #: Running, and asked to stop.
    STOPPING = "stopping", _("stopping")
    #: Completed, with another step after it.
    CONTINUED = "continued", _("continued")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


def shown_status(job: Job, times: Times, *, is_last: bool = True) -> ShownStatus:
    if job.status == Status.PENDING and times.seconds_since(job.run_at) < 0:
        return ShownStatus.SCHEDULED
    if job.status == Status.COMPLETED and not is_last:
        return ShownStatus.CONTINUED
    if job.status == Status.RUNNING and job.cancel_requested_at:
        return ShownStatus.STOPPING
    return ShownStatus(job.status)
