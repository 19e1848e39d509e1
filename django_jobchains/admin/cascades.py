"""What goes when chains are deleted, looked at before it is done; all of it bounded."""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from django.db.models import F, Subquery

from django_jobchains.models import Job, JobBlocker
from django_jobchains.models.jobs import Among
from django_jobchains.statuses import Status

MOST_CHAINS = 1_000
MOST_LEVELS = 50
MOST_JOBS = 10_000
MOST_NAMED = 5


@dataclass(frozen=True)
class Cascade:
    """``is_whole`` False: there are more than is looked at."""

    chain_ids: Collection[UUID]
    is_whole: bool


@dataclass(frozen=True)
class JobCount:
    number: int
    #: There are more than were counted.
    is_least: bool


def with_blockers(chain_ids: Collection[UUID], using: str) -> Cascade:
    """These chains, those their jobs had as blockers, and the blockers of those; a statement for each level."""
    found = dict.fromkeys(chain_ids)
    level: Collection[UUID] = chain_ids
    for _ in range(MOST_LEVELS):
        level = [id_ for id_ in _blockers(level, using) if id_ not in found]
        found.update(dict.fromkeys(level))
        if not level or len(found) > MOST_CHAINS:
            break
    return Cascade(list(found), not level)


def _blockers(chain_ids: Collection[UUID], using: str) -> Collection[UUID]:
    jobs = Job.objects.filter(chain_id__in=chain_ids).values("pk")
    links = JobBlocker.objects.using(using).filter(Among(F("job_id"), Subquery(jobs)))
    return links.order_by().values_list("blocker_id", flat=True).distinct()[: MOST_CHAINS + 1]


def jobs_of(chain_ids: Collection[UUID], using: str) -> JobCount:
    count = Job.objects.using(using).filter(chain_id__in=chain_ids)[: MOST_JOBS + 1].count()
    return JobCount(min(count, MOST_JOBS), count > MOST_JOBS)


def needed_by(chain_ids: Collection[UUID], using: str) -> list[Job]:
    """Some jobs of other chains that keep these from being deleted: not completed, so that they need the output."""
    links = JobBlocker.objects.using(using).filter(blocker_id__in=chain_ids)
    links = links.exclude(job__chain_id__in=chain_ids).exclude(job__status=Status.COMPLETED)
    links = links.select_related("job").only("job__id", "job__chain_id", "job__type_name")
    return [link.job for link in links.order_by("blocker_id", "job_id")[:MOST_NAMED]]
