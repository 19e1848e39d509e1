"""What the pages of a chain and of a job read: by index, and of everything so much as a page holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Case, Model, Q, QuerySet, TextField, When
from django.db.models.functions import Cast, Left, Length

from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.conf import get_settings
from django_jobchains.models import Chain, FailedAttempt, Job, JobBlocker, JobProgress, LogLine
from django_jobchains.trees import ChainTree, Step, add_attempts, add_blockers, count_blockers

#: Steps of a chain: its first and last, half of each; and of a page further in.
STEPS = 20
STEPS_ON_PAGE = 30
#: Of each step, on the page of its chain,
BLOCKERS_OF_STEP = 5
ATTEMPTS_OF_STEP = 3
#: of the current one,
LINES_OF_STEP = 20
#: of the chain,
DEPENDENTS = 20
#: of which so many are read where ``has_view_permission`` hides some,
MAX_DEPENDENTS_READ = 500
#: and how often it is asked what the blockers themselves wait for.
DEPTH = 3
#: On the page of a job.
ATTEMPTS = 10
LINES = 100
BLOCKERS = 50
#: Characters of a value or traceback: longer ones of a chain are shown on the pages of its jobs,
MOST_OF_STEP = 10_000
#: where that is all a job may have.
MOST_OF_JOB = 2 * 1024 * 1024
#: Characters of an error, of which the first line is shown: its traceback ends with all of it.
MOST_OF_ERROR = 2_000


@dataclass(frozen=True)
class Part:
    """Rows on a page; where the page before or after it begins, when there is one."""

    rows: Sequence[Any]
    next: Any = None


def texts(queryset: QuerySet[Any], most: int, *names: str) -> QuerySet[Any]:
    """Reads ``name_text`` for each, None when it is longer than ``most`` characters, and its ``name_size``."""
    for name in names:
        text = Cast(name, TextField())
        queryset = queryset.annotate(**{f"{name}_size": Length(text)})
        queryset = queryset.annotate(**{f"{name}_text": Case(When(**{f"{name}_size__lte": most}, then=text))})
    return queryset.defer(*names)


def with_texts(queryset: QuerySet[Job], most: int) -> QuerySet[Job]:
    queryset = queryset.annotate(error_text=Left("last_error", MOST_OF_ERROR)).defer("last_error")
    return texts(queryset, most, "input", "output", "context")


def attempts(most: int) -> QuerySet[FailedAttempt]:
    all_ = FailedAttempt.objects.using(get_settings().DATABASE)
    return texts(all_.annotate(error_text=Left("error", MOST_OF_ERROR)).defer("error"), most, "traceback")


def steps(chain: Chain, places: Iterable[range], visibility: Visibility) -> dict[UUID, Step]:
    """Return the visible steps at these places, with the last failed attempts and some blockers of each."""
    wanted = Q()
    for part in places:
        wanted |= Q(chain_index__gte=part.start, chain_index__lt=part.stop)
    found = with_texts(visibility.rows(Job), MOST_OF_STEP).filter(wanted, chain_id=chain.id).order_by("chain_index")
    steps = {job.id: Step(job) for job in visibility.seen(found)}
    add_attempts(steps, attempts(MOST_OF_STEP), ATTEMPTS_OF_STEP)
    count_blockers(steps, get_settings().DATABASE)
    _add_levels(steps, {chain.id}, visibility)
    return steps


def _add_levels(steps: dict[UUID, Step], seen: set[UUID], visibility: Visibility) -> None:
    """Add what the steps wait for, and what the current jobs of those chains wait for in turn."""

    def add(steps: dict[UUID, Step]) -> dict[UUID, ChainTree]:
        links = visibility.within(Chain, JobBlocker.objects.using(get_settings().DATABASE), "blocker_id")
        return add_blockers(steps, BLOCKERS_OF_STEP, seen, links, visibility.chains)

    level = add(steps)
    for _ in range(DEPTH - 1):
        waiting = {tree.chain.current_job_id: tree for tree in level.values() if tree.chain.status == "blocked"}
        current = {job_id: Step(tree.chain.current_job) for job_id, tree in waiting.items()}
        for job_id, step in current.items():
            waiting[job_id].steps.append(step)
        level = add(current)


def progress(job_ids: Iterable[UUID]) -> dict[UUID, JobProgress]:
    return JobProgress.objects.using(get_settings().DATABASE).in_bulk(list(job_ids))


def last_lines(job_id: UUID, most: int, before: tuple[int, int] | None = None) -> Part:
    """The last lines that a job's attempts logged, the oldest first; ``next``: before which there are more."""
    lines = LogLine.objects.using(get_settings().DATABASE).filter(job_id=job_id)
    if before:
        lease_number, position = before
        lines = lines.filter(lease_number__lte=lease_number).filter(
            Q(lease_number__lt=lease_number) | Q(position__lt=position)
        )
    rows = list(lines.order_by("-lease_number", "-position")[: most + 1])
    shown = rows[:most]
    return Part(shown[::-1], (shown[-1].lease_number, shown[-1].position) if len(rows) > most else None)


def last_attempts(job_id: UUID, before: int | None = None) -> Part:
    """The last failed attempts, the newest first; ``next``: the lease number before which there are more."""
    found = attempts(MOST_OF_JOB).filter(job_id=job_id).order_by("-lease_number")
    return _part(found.filter(lease_number__lt=before) if before else found, ATTEMPTS, "lease_number")


def blockers(job_id: UUID, after: int | None, visibility: Visibility) -> Part:
    """Return visible chains that a job waits for or did, in their order; ``next``: the last position on the page."""
    links: QuerySet[JobBlocker] = (
        JobBlocker.objects.using(get_settings().DATABASE).filter(job_id=job_id).order_by("position")
    )
    links = visibility.within(Chain, links, "blocker_id")
    part = _part(links if after is None else links.filter(position__gt=after), BLOCKERS, "position")
    found = visibility.chains(link.blocker_id for link in part.rows)
    return Part([ChainTree(found[link.blocker_id]) for link in part.rows if link.blocker_id in found], part.next)


@dataclass(frozen=True)
class Dependent:
    """A job that waits for a chain, or did, and the visible chain it belongs to."""

    job: Job
    chain: Chain
    is_job_hidden: bool


def dependents(chain_id: UUID, after: UUID | None, visibility: Visibility) -> Part:
    """Return visible dependents in the order of their jobs' ids; ``next``: the last visible one of these ids."""
    links: QuerySet[JobBlocker] = (
        JobBlocker.objects.using(get_settings().DATABASE).filter(blocker_id=chain_id).order_by("job_id")
    )
    links = visibility.within(Chain, links, "job__chain_id")
    links = links.select_related("job").defer(*(f"job__{name}" for name in (*LARGE, "context")))
    most = MAX_DEPENDENTS_READ if visibility.checks_each_row(Chain) else DEPENDENTS
    part = _part(links.filter(job_id__gt=after) if after else links, most, "job_id")
    found = visibility.chains(link.job.chain_id for link in part.rows)
    shown = [link for link in part.rows if link.job.chain_id in found]
    hidden = visibility.hidden_jobs([link.job_id for link in shown[:DEPENDENTS]])
    rows = [Dependent(link.job, found[link.job.chain_id], link.job_id in hidden) for link in shown[:DEPENDENTS]]
    last_visible = next((row.job.id for row in reversed(rows) if not row.is_job_hidden), None)
    return Part(rows, last_visible if part.next or len(shown) > DEPENDENTS else None)


def _part(queryset: QuerySet[Any], most: int, key: str) -> Part:
    rows: list[Model] = list(queryset[: most + 1])
    return Part(rows[:most], getattr(rows[most - 1], key) if len(rows) > most else None)
