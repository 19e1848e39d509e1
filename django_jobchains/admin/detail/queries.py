"""The queries of the pages of a chain and of a job, which use indexes and limits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Case, Model, Q, QuerySet, When
from django.db.models.functions import Cast, Length

from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.chains.tree import ChainTree, Step, add_attempts, add_blockers, count_blockers
from django_jobchains.conf import current_database
from django_jobchains.models import Chain, FailedAttempt, Job, JobBlocker, JobProgress, LogLine
from django_jobchains.models.payload_fields import PayloadTextField, text_start

#: The steps on the page of a chain: one half are the first ones, the other half the last ones.
MAX_STEPS = 20
#: The steps on a page that starts at a later step.
STEPS_PER_PAGE = 30
#: The blockers of each step on the page of its chain.
BLOCKERS_PER_STEP = 5
#: The failed attempts of each step on the page of its chain.
ATTEMPTS_PER_STEP = 3
#: The log lines of the current step on the page of its chain.
LINES_OF_CURRENT_STEP = 20
#: The waiting chains on the page of a chain.
MAX_DEPENDENTS = 20
#: The waiting chains that are read where ``has_view_permission`` hides some of them.
MAX_DEPENDENTS_READ = 500
#: The chains that ``on_failure`` started, on the page of what failed.
MAX_FAILURE_CHAINS = 5
#: The levels of blockers in the graph of a chain.
MAX_LEVELS = 3
#: The failed attempts on the page of a job.
ATTEMPTS_PER_PAGE = 10
#: The log lines on the page of a job.
LINES_PER_PAGE = 100
#: The blockers on the page of a job.
BLOCKERS_PER_PAGE = 50
#: The characters of a value or traceback that the page of a chain shows.
MAX_STEP_PAYLOAD = 10_000
#: The characters of a value or traceback that the page of a job shows: the largest that can be stored.
MAX_JOB_PAYLOAD = 2 * 1024 * 1024
#: The characters that are read of an error to show its first line.
MAX_ERROR_LENGTH = 2_000


@dataclass(frozen=True)
class Slice:
    """Rows of a page, and the position of the next page in ``next``, if there is one."""

    rows: Sequence[Any]
    next: Any = None


def texts(queryset: QuerySet[Any], limit: int, *names: str) -> QuerySet[Any]:
    """Read each column as ``<name>_text``, None if longer than ``limit`` characters, and as ``<name>_size``.

    Sizes refer to the stored texts. JSON values that a codec has encoded are not decoded.
    """
    for name in names:
        text = Cast(name, PayloadTextField())
        queryset = queryset.annotate(**{f"{name}_size": Length(text)})
        queryset = queryset.annotate(**{f"{name}_text": Case(When(**{f"{name}_size__lte": limit}, then=text))})
    return queryset.defer(*names)


def with_texts(queryset: QuerySet[Job], limit: int) -> QuerySet[Job]:
    queryset = queryset.annotate(error_text=text_start("last_error", MAX_ERROR_LENGTH)).defer("last_error")
    return texts(queryset, limit, "input", "output", "context")


def whole_jobs(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return jobs with the largest values that can be stored, for the page of one of them."""
    return with_texts(rows, MAX_JOB_PAYLOAD)


def visible_job(job_id: UUID, visibility: Visibility) -> Job | None:
    return next(iter(visibility.seen(whole_jobs(visibility.rows(Job)).filter(pk=job_id))), None)


def failure_chains(job_ids: Iterable[UUID]) -> list[UUID]:
    """Return the ids of the last chains that ``on_failure`` started for these jobs, the newest first."""
    jobs = Job.objects.using(current_database()).filter(failed_job_id__in=list(job_ids)).order_by("-id")
    return list(jobs.values_list("chain_id", flat=True)[:MAX_FAILURE_CHAINS])


def attempts(limit: int) -> QuerySet[FailedAttempt]:
    all_ = FailedAttempt.objects.using(current_database())
    return texts(all_.annotate(error_text=text_start("error", MAX_ERROR_LENGTH)).defer("error"), limit, "traceback")


def steps(chain: Chain, ranges: Iterable[range], visibility: Visibility) -> dict[UUID, Step]:
    """Return the visible steps with these indexes, each with its last failed attempts and some blockers."""
    wanted = Q()
    for indexes in ranges:
        wanted |= Q(chain_index__gte=indexes.start, chain_index__lt=indexes.stop)
    found = with_texts(visibility.rows(Job), MAX_STEP_PAYLOAD).filter(wanted, chain_id=chain.id).order_by("chain_index")
    steps = {job.id: Step(job) for job in visibility.seen(found)}
    add_attempts(steps, attempts(MAX_STEP_PAYLOAD), ATTEMPTS_PER_STEP)
    count_blockers(steps, current_database())
    _add_levels(steps, {chain.id}, visibility)
    return steps


def _add_levels(steps: dict[UUID, Step], seen: set[UUID], visibility: Visibility) -> None:
    """Add the blockers of the steps, and the blockers of the visible current jobs of those chains."""

    def add(steps: dict[UUID, Step]) -> dict[UUID, ChainTree]:
        links = visibility.within(Chain, JobBlocker.objects.using(current_database()), "blocker_id")
        return add_blockers(steps, BLOCKERS_PER_STEP, seen, links, visibility.chains)

    level = add(steps)
    for _ in range(MAX_LEVELS - 1):
        waiting = {tree.chain.current_job_id: tree for tree in level.values() if tree.chain.status == "blocked"}
        hidden = visibility.hidden_jobs(waiting.keys())
        current = {id_: Step(tree.chain.current_job) for id_, tree in waiting.items() if id_ not in hidden}
        for job_id, step in current.items():
            waiting[job_id].steps.append(step)
        level = add(current)


def progress(job_ids: Iterable[UUID]) -> dict[UUID, JobProgress]:
    return JobProgress.objects.using(current_database()).in_bulk(list(job_ids))


def last_lines(job_id: UUID, limit: int, before: tuple[int, int] | None = None) -> Slice:
    """Return the last log lines of a job, oldest first. ``next`` is the position of the first line."""
    lines = LogLine.objects.using(current_database()).filter(job_id=job_id)
    if before:
        lease_number, position = before
        lines = lines.filter(lease_number__lte=lease_number).filter(
            Q(lease_number__lt=lease_number) | Q(position__lt=position)
        )
    rows = list(lines.order_by("-lease_number", "-position")[: limit + 1])
    shown = rows[:limit]
    return Slice(shown[::-1], (shown[-1].lease_number, shown[-1].position) if len(rows) > limit else None)


def last_attempts(job_id: UUID, before: int | None = None) -> Slice:
    """Return the last failed attempts, newest first. ``next`` is the lease number of the last one."""
    found = attempts(MAX_JOB_PAYLOAD).filter(job_id=job_id).order_by("-lease_number")
    return _slice(found.filter(lease_number__lt=before) if before else found, ATTEMPTS_PER_PAGE, "lease_number")


def blockers(job_id: UUID, after: int | None, visibility: Visibility) -> Slice:
    """Return the visible blockers of a job in order. ``next`` is the position of the last one."""
    links: QuerySet[JobBlocker] = (
        JobBlocker.objects.using(current_database()).filter(job_id=job_id).order_by("position")
    )
    links = visibility.within(Chain, links, "blocker_id")
    page = _slice(links if after is None else links.filter(position__gt=after), BLOCKERS_PER_PAGE, "position")
    found = visibility.chains(link.blocker_id for link in page.rows)
    return Slice([ChainTree(found[link.blocker_id]) for link in page.rows if link.blocker_id in found], page.next)


@dataclass(frozen=True)
class Dependent:
    """A job that waits or waited for a chain, and the visible chain that it belongs to."""

    job: Job
    chain: Chain
    is_job_hidden: bool


def dependents(chain_id: UUID, after: UUID | None, visibility: Visibility) -> Slice:
    """Return the visible dependents of a chain by job id. ``next`` is the last visible job id."""
    links: QuerySet[JobBlocker] = (
        JobBlocker.objects.using(current_database()).filter(blocker_id=chain_id).order_by("job_id")
    )
    links = visibility.within(Chain, links, "job__chain_id")
    links = links.select_related("job").defer(*(f"job__{name}" for name in (*LARGE, "context")))
    limit = MAX_DEPENDENTS_READ if visibility.checks_each_row(Chain) else MAX_DEPENDENTS
    page = _slice(links.filter(job_id__gt=after) if after else links, limit, "job_id")
    found = visibility.chains(link.job.chain_id for link in page.rows)
    shown = [link for link in page.rows if link.job.chain_id in found]
    hidden = visibility.hidden_jobs([link.job_id for link in shown[:MAX_DEPENDENTS]])
    rows = [Dependent(link.job, found[link.job.chain_id], link.job_id in hidden) for link in shown[:MAX_DEPENDENTS]]
    last_visible = next((row.job.id for row in reversed(rows) if not row.is_job_hidden), None)
    return Slice(rows, last_visible if page.next or len(shown) > MAX_DEPENDENTS else None)


def _slice(queryset: QuerySet[Any], limit: int, key: str) -> Slice:
    rows: list[Model] = list(queryset[: limit + 1])
    return Slice(rows[:limit], getattr(rows[limit - 1], key) if len(rows) > limit else None)
