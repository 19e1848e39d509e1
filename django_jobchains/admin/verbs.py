"""What may be done about chains and jobs: to which of them, with which permission, and what is said about it.

Each verb calls ``django_jobchains.chains``; ``acting`` has the pages. Here are those that ask for little more than a
confirmation; see also ``completion`` and ``deletion``.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from django.contrib.admin.models import CHANGE
from django.http import HttpRequest
from django.utils.formats import localize
from django.utils.text import format_lazy
from django.utils.timezone import localtime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_jobchains import chains
from django_jobchains.admin.forms import ActionForm, RescheduleForm
from django_jobchains.admin.words import some_of
from django_jobchains.chains import Chain, Job
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
from django_jobchains.shown_statuses import ShownStatus, shown_status
from django_jobchains.statuses import OPEN, Status
from django_jobchains.times import Times

if TYPE_CHECKING:
    from django_jobchains.admin.acting import Acting

_BECAUSE = {
    Status.BLOCKED: _("waits for other chains"),
    Status.PENDING: _("pending"),
    Status.RUNNING: _("running"),
    Status.COMPLETED: _("completed already"),
    Status.FAILED: _("failed"),
    Status.CANCELLED: _("cancelled"),
}
#: For a row that this user may not do it to.
NOT_ALLOWED = _("not allowed")
NOT_THERE = _("not there any more")
CHANGED_MEANWHILE = _("changed meanwhile")


HAS_GONE_ON = _("the chain has gone on to another job")


class Refused(Exception):
    """Nothing was done, and the text says why."""


@dataclass(frozen=True)
class Target:
    """A chain or job that was chosen, and the job it stands for: of a chain the current one."""

    row: Chain | Job
    job: Job
    #: The user sees the row, but not all that the verb acts on: the chain of a job, or a job of a chain.
    is_partly_hidden: bool = False

    @property
    def chain_id(self) -> UUID:
        return self.job.chain_id


#: The targets with these ids that it can be done to, by this user.
Find = Callable[[Collection[UUID]], Sequence[Target]]


class Verb:
    #: In URLs, and what the action of the list is called.
    name: ClassVar[str]
    label: ClassVar[Any]
    permission: ClassVar[str]
    statuses: ClassVar[Collection[str]]
    #: What it means, above the button that does it.
    meaning: ClassVar[Any] = ""
    form: ClassVar[type[ActionForm]] = ActionForm
    template: ClassVar[str] = "confirm"
    #: Rows of one call.
    most_at_once: ClassVar[int] = 500
    #: ``do`` is called for each target by itself, and a refusal is of that one only.
    is_one_by_one: ClassVar[bool] = False
    is_dangerous: ClassVar[bool] = False
    #: It acts on every job of a chain, not only on the job that the chain is at.
    takes_all_jobs: ClassVar[bool] = False
    #: Of the entry in the admin's log.
    flag: ClassVar[int] = CHANGE

    def refusal(self, job: Job) -> Any:
        """Why it cannot be done to this job; "" when it can."""
        return "" if job.status in self.statuses else _BECAUSE[Status(job.status)]

    def refusal_of(self, request: HttpRequest, target: Target) -> Any:
        """The same, also with regard to what the answer says of it."""
        return self.refusal(target.job)

    def refusal_together(self, targets: Sequence[Target]) -> Any:
        """Why it cannot be done to all of these in one call; "" when it can."""
        return ""

    def is_offered(self, job: Job, times: Times) -> bool:
        """Whether there is a button for it."""
        return not self.refusal(job)

    def make_form(self, acting: "Acting", request: HttpRequest, targets: Sequence[Target], data: Any) -> ActionForm:
        """Return what is asked for beside the confirmation; ``data`` is None before it was answered."""
        return self.form(data)

    def preview(self, acting: "Acting", request: HttpRequest, targets: Sequence[Target], find: Find) -> dict[str, Any]:
        """Return what its page shows beside the targets, for the template."""
        return {}

    def gather(self, targets: Sequence[Target], form: Any, find: Find) -> Sequence[Target]:
        """All it is to be done to. Raises ``Refused``."""
        return targets

    def do(self, targets: Sequence[Target], form: Any) -> Collection[UUID]:
        """Does it to all that still can; the ids of the rows it was done to. Raises ``JobchainsError`` and ``Refused``,
        and has done nothing then."""
        raise NotImplementedError

    def done(self, count: int) -> str:
        raise NotImplementedError

    def entry(self, form: Any) -> Any:
        """What the admin's log says."""
        raise NotImplementedError


class Retry(Verb):
    name = "retry"
    label = _("Retry")
    permission = "retry_job"
    statuses = (Status.FAILED, Status.CANCELLED)
    meaning = _("Jobs that failed or were cancelled become due now, for one more attempt at least.")

    def do(self, targets: Sequence[Target], form: Any) -> Collection[UUID]:
        retried = chains.retry([target.job for target in targets])
        return {target.row.pk for target in targets if target.job.id in retried}

    def done(self, count: int) -> str:
        return ngettext("%(count)s job retried.", "%(count)s jobs retried.", count) % {"count": localize(count)}

    def entry(self, form: Any) -> Any:
        return _("Retried.")


class Cancel(Verb):
    name = "cancel"
    #: "Cancel" alone would be taken for the way out of the page.
    label = _("Cancel chain")
    permission = "cancel_job"
    statuses = OPEN
    meaning = _(
        "A job that has not started is cancelled at once. A running one is asked to stop, and is cancelled when its "
        "handler has stopped. The chain does not go on."
    )
    is_dangerous = True

    def refusal(self, job: Job) -> Any:
        if job.status == Status.RUNNING and job.cancel_requested_at:
            return _("asked to stop already")
        return super().refusal(job)

    def do(self, targets: Sequence[Target], form: Any) -> Collection[UUID]:
        cancelled = chains.cancel([target.chain_id for target in targets])
        return {target.row.pk for target in targets if target.chain_id in cancelled}

    def done(self, count: int) -> str:
        text = ngettext("%(count)s chain cancelled or stopping.", "%(count)s chains cancelled or stopping.", count)
        return text % {"count": localize(count)}

    def entry(self, form: Any) -> Any:
        return _("Cancelled, or asked to stop.")


class RunNow(Verb):
    name = "run_now"
    label = _("Run now")
    permission = "run_job"
    statuses = (Status.PENDING,)
    meaning = _("Jobs that are scheduled or wait for their next attempt become due now. All of them, or none.")

    def is_offered(self, job: Job, times: Times) -> bool:
        return shown_status(job, times) == ShownStatus.SCHEDULED

    def do(self, targets: Sequence[Target], form: Any) -> Collection[UUID]:
        chains.run_now([target.job for target in targets])
        return {target.row.pk for target in targets}

    def done(self, count: int) -> str:
        return ngettext("%(count)s job is due now.", "%(count)s jobs are due now.", count) % {"count": localize(count)}

    def entry(self, form: Any) -> Any:
        return _("Made due now.")


class Reschedule(Verb):
    name = "reschedule"
    label = _("Reschedule")
    permission = "run_job"
    statuses = (Status.PENDING,)
    meaning = _("Pending jobs move to another time. All of them, or none.")
    form = RescheduleForm

    def do(self, targets: Sequence[Target], form: Any) -> Collection[UUID]:
        chains.reschedule([target.job for target in targets], **form.when())
        return {target.row.pk for target in targets}

    def done(self, count: int) -> str:
        return ngettext("%(count)s job rescheduled.", "%(count)s jobs rescheduled.", count) % {"count": localize(count)}

    def entry(self, form: Any) -> Any:
        when = form.when()
        if "run_at" in when:
            return format_lazy(_("Rescheduled to {time}."), time=localtime(when["run_at"]).isoformat())
        minutes = int(when["delay"].total_seconds() // 60)
        return format_lazy(_("Rescheduled by {minutes} min."), minutes=minutes)


def reason_of(error: JobchainsError) -> str:
    """In the reader's words, as far as it is known what a person can meet."""
    if isinstance(error, JobNotRunnable | JobNotCompletable):
        return str(_BECAUSE.get(Status(error.status), error.status))
    if isinstance(error, JobAlreadyCompleted):
        return str(_BECAUSE[Status.COMPLETED])
    if isinstance(error, ChainNotFound | JobNotFound):
        return str(NOT_THERE)
    if isinstance(error, JobTypeMismatch):
        return str(HAS_GONE_ON)
    if isinstance(error, ChainReferenced):
        # Not by which: they may be of chains that this user does not see.
        needed = list(dict.fromkeys(chain_id for chain_id, _job_id in error.references))
        return gettext("jobs of other chains wait for %(chains)s") % {"chains": some_of(needed)}
    return str(error)
