"""The actions on chains and jobs: their permissions, texts and calls of ``django_jobchains.chains``.

The action that completes jobs, and its forms, are in ``completion``.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django.contrib.admin.models import DELETION
from django.db.models import F, Subquery
from django.http import HttpRequest
from django.utils.text import format_lazy
from django.utils.timezone import localtime
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_jobchains import chains
from django_jobchains.admin.actions.action import NOT_THERE, Action, Refused
from django_jobchains.admin.actions.forms import DeleteForm, RescheduleForm
from django_jobchains.chains import Chain, Job
from django_jobchains.conf import current_database
from django_jobchains.db.keyset import InArray
from django_jobchains.db.times import Times
from django_jobchains.exceptions import (
    ChainNotFound,
    ChainReferenced,
    JobAlreadyCompleted,
    JobchainsError,
    JobNotCompletable,
    JobNotFound,
    JobNotRunnable,
    JobTypeMismatch,
)
from django_jobchains.models import JobBlocker
from django_jobchains.models.jobs import ShownStatus, shown_status
from django_jobchains.statuses import OPEN, Status
from django_jobchains.store import get_store
from django_jobchains.text.humanize import some_of

_STATUS_REASONS = {
    Status.BLOCKED: _("waits for other chains"),
    Status.PENDING: _("pending"),
    Status.RUNNING: _("running"),
    Status.COMPLETED: _("already completed"),
    Status.FAILED: _("failed"),
    Status.CANCELLED: _("cancelled"),
}
HAS_CONTINUED = _("the chain has continued with another job")


@dataclass(frozen=True)
class JobTarget:
    """A selected chain or job, and the job that the action applies to: for a chain, its current job."""

    row: Chain | Job
    job: Job
    #: The user sees the row, but not everything that the action changes: the chain of a job, or a job of a chain.
    is_partly_hidden: bool = False

    @property
    def pk(self) -> UUID:
        return self.row.pk

    @property
    def chain_id(self) -> UUID:
        return self.job.chain_id


#: Raise ``Refused`` if a chain has continued with a job that this user may not perform the action on.
Check = Callable[[Sequence[JobTarget]], None]


class JobAction(Action):
    """An action that users perform on chains or jobs."""

    #: The permission of this app that users need, such as ``retry_job``.
    permission: ClassVar[str]
    #: Whether ``perform`` is called for each target separately, so that one refusal does not affect the others.
    is_one_by_one: ClassVar[bool] = False
    #: Whether it changes every job of a chain, not only the current one.
    changes_all_jobs: ClassVar[bool] = False

    def refusal(self, job: Job) -> Any:
        """Return why the action cannot be performed on this job; empty if it can."""
        return "" if job.status in self.statuses else _STATUS_REASONS[Status(job.status)]

    def refusal_of(self, request: HttpRequest, target: JobTarget) -> Any:
        return self.refusal(target.job)

    def perform(self, targets: Sequence[JobTarget], form: Any, check: Check) -> Collection[UUID]:
        """Change all targets that still allow it, in the caller's transaction; return the ids of their rows.

        An action on a chain, rather than on the selected job, calls ``check`` while it holds the chain's lock. Raises
        ``JobchainsError`` and ``Refused``; the caller then rolls back its transaction.
        """
        raise NotImplementedError


class RetryAction(JobAction):
    name = "retry"
    label = _("Retry")
    permission = "retry_job"
    statuses = (Status.FAILED, Status.CANCELLED)
    help_text = _("Makes failed and cancelled jobs due now, with at least one more attempt.")
    success_text = ngettext_lazy("%(count)s job retried.", "%(count)s jobs retried.", "number")
    log_text = _("Retried.")

    def perform(self, targets: Sequence[JobTarget], form: Any, check: Check) -> Collection[UUID]:
        retried = chains.retry([target.job for target in targets])
        if retried - {target.job.id for target in targets}:
            raise Refused(HAS_CONTINUED)
        return {target.pk for target in targets if target.job.id in retried}


class CancelAction(JobAction):
    name = "cancel"
    #: "Cancel" alone could be taken for leaving the page.
    label = _("Cancel chain")
    permission = "cancel_job"
    statuses = OPEN
    help_text = _(
        "A job that has not started is cancelled immediately. A running job is asked to stop, and is cancelled when "
        "its handler has stopped. The chain does not continue."
    )
    success_text = ngettext_lazy(
        "%(count)s chain cancelled or stopping.", "%(count)s chains cancelled or stopping.", "number"
    )
    log_text = _("Cancelled, or asked to stop.")
    is_dangerous = True

    def refusal(self, job: Job) -> Any:
        if job.status == Status.RUNNING and job.cancel_requested_at:
            return _("already asked to stop")
        return super().refusal(job)

    def perform(self, targets: Sequence[JobTarget], form: Any, check: Check) -> Collection[UUID]:
        cancelled = chains.cancel([target.chain_id for target in targets])
        check(targets)  # only now, because locking the chains first could wait for a handler
        return {target.pk for target in targets if target.chain_id in cancelled}


class RunNowAction(JobAction):
    name = "run_now"
    label = _("Run now")
    permission = "run_job"
    statuses = (Status.PENDING,)
    help_text = _(
        "Makes jobs due now that are scheduled or waiting for their next attempt. If one of them cannot be changed, "
        "none is."
    )
    success_text = ngettext_lazy("%(count)s job is due now.", "%(count)s jobs are due now.", "number")
    log_text = _("Made due now.")

    def is_offered(self, target: JobTarget) -> bool:
        return shown_status(target.job, Times(current_database())) == ShownStatus.SCHEDULED

    def perform(self, targets: Sequence[JobTarget], form: Any, check: Check) -> Collection[UUID]:
        chains.run_now([target.job for target in targets])
        _refuse_continued(targets)
        return {target.pk for target in targets}


class RescheduleAction(JobAction):
    name = "reschedule"
    label = _("Reschedule")
    permission = "run_job"
    statuses = (Status.PENDING,)
    help_text = _("Moves pending jobs to another time. If one of them cannot be changed, none is.")
    success_text = ngettext_lazy("%(count)s job rescheduled.", "%(count)s jobs rescheduled.", "number")
    form = RescheduleForm

    def perform(self, targets: Sequence[JobTarget], form: Any, check: Check) -> Collection[UUID]:
        chains.reschedule([target.job for target in targets], **form.when())
        _refuse_continued(targets)
        return {target.pk for target in targets}

    def log_message(self, form: Any) -> Any:
        when = form.when()
        if "run_at" in when:
            return format_lazy(_("Rescheduled to {time}."), time=localtime(when["run_at"]).isoformat())
        minutes = int(when["delay"].total_seconds() // 60)
        return format_lazy(_("Rescheduled by {minutes} min."), minutes=minutes)


def _refuse_continued(targets: Sequence[JobTarget]) -> None:
    """Refuse if a chain has continued since its job was shown: the job's id may stand for its chain."""
    jobs = Job.objects.using(current_database()).filter(pk__in=[target.job.id for target in targets])
    if jobs.with_status(Status.COMPLETED).exists():
        raise Refused(HAS_CONTINUED)


def reason_of(error: JobchainsError) -> str:
    """Return a translated reason for the errors that users can cause."""
    if isinstance(error, JobNotRunnable | JobNotCompletable):
        return str(_STATUS_REASONS.get(Status(error.status), error.status))
    if isinstance(error, JobAlreadyCompleted):
        return str(_STATUS_REASONS[Status.COMPLETED])
    if isinstance(error, ChainNotFound | JobNotFound):
        return str(NOT_THERE)
    if isinstance(error, JobTypeMismatch):
        return str(HAS_CONTINUED)
    if isinstance(error, ChainReferenced):
        # Without the waiting jobs, which may belong to chains that are hidden from this user.
        needed = list(dict.fromkeys(chain_id for chain_id, _job_id in error.references))
        text = gettext("uncompleted jobs of other chains need %(chains)s, delete those other chains too")
        return text % {"chains": some_of(needed)}
    return str(error)


MAX_CHAINS = 1_000
MAX_LEVELS = 50
MAX_JOBS = 10_000
MAX_WAITING_JOBS = 5


class DeleteAction(JobAction):
    name = "delete"
    label = _("Delete")
    permission = "delete_chain"
    statuses = tuple(Status)
    help_text = _(
        "Deletes the chains with all their jobs, attempts and logs. If one of the chains cannot be deleted, none is. "
        "This cannot be undone."
    )
    success_text = ngettext_lazy("%(count)s chain deleted.", "%(count)s chains deleted.", "number")
    log_text = _("Deleted.")
    form = DeleteForm
    template = "delete"
    is_dangerous = True
    flag = DELETION
    changes_all_jobs = True

    def preview(self, model_admin: Any, request: HttpRequest, targets: Sequence[JobTarget]) -> dict[str, Any]:
        using, selected = current_database(), [target.chain_id for target in targets]
        cascade = with_blockers(selected, using)
        find = partial(model_admin.possible_targets, request, action=self)
        is_allowed = not cascade.is_whole or len(find(cascade.chain_ids)) == len(cascade.chain_ids)
        waiting = waiting_jobs(selected, using)
        seen = {target.chain_id for target in find({job.chain_id for job in waiting})} if waiting else set()
        return {
            "jobs": count_jobs(selected, using),
            "more_chains": len(cascade.chain_ids) - len(selected),
            "jobs_of_all": count_jobs(cascade.chain_ids, using) if cascade.is_whole and is_allowed else None,
            "is_whole": cascade.is_whole,
            "is_cascade_allowed": is_allowed,
            "needed_by": [job for job in waiting if job.chain_id in seen],
            "is_needed_by_others": any(job.chain_id not in seen for job in waiting),
        }

    def expand(
        self, model_admin: Any, request: HttpRequest, targets: Sequence[JobTarget], form: Any
    ) -> Sequence[JobTarget]:
        """Add the chains that the targets waited for, unless the user may not delete all of them."""
        if not form.cleaned_data["cascade"]:
            return targets
        cascade = with_blockers([target.chain_id for target in targets], current_database())
        if not cascade.is_whole:
            raise Refused(_("the chains waited for too many other chains, use manage.py jobchains delete --cascade"))
        found: Sequence[JobTarget] = model_admin.possible_targets(request, cascade.chain_ids, self)
        if len(found) < len(cascade.chain_ids):
            raise Refused(_("the chains waited for chains that you may not delete"))
        return found

    def perform(self, targets: Sequence[JobTarget], form: Any, check: Check) -> Collection[UUID]:
        chain_ids = [target.chain_id for target in targets]
        get_store().last_jobs.lock(chain_ids)
        check(targets)
        return chains.delete(chain_ids)


@dataclass(frozen=True)
class Cascade:
    """The chains that a deletion includes. If not ``is_whole``, there are more than were read."""

    chain_ids: Collection[UUID]
    is_whole: bool


@dataclass(frozen=True)
class JobCount:
    number: int
    #: Whether there are more jobs than were counted.
    is_capped: bool


def with_blockers(chain_ids: Collection[UUID], using: str) -> Cascade:
    """Return these chains, the blockers of their jobs, and so on, with one statement for each level."""
    found = dict.fromkeys(chain_ids)
    level: Collection[UUID] = chain_ids
    for _level in range(MAX_LEVELS):
        level = [id_ for id_ in _blockers(level, using) if id_ not in found]
        found.update(dict.fromkeys(level))
        if not level or len(found) > MAX_CHAINS:
            break
    return Cascade(list(found), not level)


def _blockers(chain_ids: Collection[UUID], using: str) -> Collection[UUID]:
    jobs = Job.objects.filter(chain_id__in=chain_ids).values("pk")
    links = JobBlocker.objects.using(using).filter(InArray(F("job_id"), Subquery(jobs)))
    return links.order_by().values_list("blocker_id", flat=True).distinct()[: MAX_CHAINS + 1]


def count_jobs(chain_ids: Collection[UUID], using: str) -> JobCount:
    count = Job.objects.using(using).filter(chain_id__in=chain_ids)[: MAX_JOBS + 1].count()
    return JobCount(min(count, MAX_JOBS), count > MAX_JOBS)


def waiting_jobs(chain_ids: Collection[UUID], using: str) -> list[Job]:
    """Return a few uncompleted jobs of other chains that wait for these and prevent their deletion."""
    links = JobBlocker.objects.using(using).filter(blocker_id__in=chain_ids)
    links = links.exclude(job__chain_id__in=chain_ids).exclude(job__status=Status.COMPLETED)
    links = links.select_related("job").only("job__id", "job__chain_id", "job__type_name")
    return [link.job for link in links.order_by("blocker_id", "job_id")[:MAX_WAITING_JOBS]]
