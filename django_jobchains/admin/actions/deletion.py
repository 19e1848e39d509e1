"""The action that deletes chains, and a bounded preview of what it deletes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib.admin.models import DELETION
from django.db.models import F, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_jobchains import chains
from django_jobchains.admin.actions.action import Refused
from django_jobchains.admin.actions.forms import DeleteForm
from django_jobchains.admin.actions.job_action import Check, JobAction, JobTarget
from django_jobchains.conf import get_settings
from django_jobchains.db.keyset import InArray
from django_jobchains.models import Job, JobBlocker
from django_jobchains.statuses import Status
from django_jobchains.store import get_store

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
        using, selected = get_settings().DATABASE, [target.chain_id for target in targets]
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
        cascade = with_blockers([target.chain_id for target in targets], get_settings().DATABASE)
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
