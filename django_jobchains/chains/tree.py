"""A chain with its steps, their failed attempts, and the chains they wait for, limited to a readable size.

Each level of blockers takes a constant number of statements, whatever the number of steps and blockers.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import RowNumber

from django_jobchains.db.keyset import InArray
from django_jobchains.models import Chain, FailedAttempt, Job, JobBlocker, JobProgress, LogLine
from django_jobchains.statuses import Status

#: The limit of chains on one level, for all waiting jobs together.
MAX_PER_LEVEL = 200


@dataclass(frozen=True)
class Extent:
    """How much is read. ``steps``: half of them the first, half the last. ``attempts``, ``lines``: the last ones."""

    steps: int = 20
    blockers: int = 5
    depth: int = 2
    attempts: int = 5
    lines: int = 5

    @property
    def further_steps(self) -> int:
        """The limit of steps for the chains that are waited for."""
        return min(self.steps, 4)


@dataclass
class Step:
    job: Job
    #: The last failed attempts, the oldest first.
    attempts: list[FailedAttempt] = field(default_factory=list)
    #: The last lines of the last attempt that has any. Only for the root of the tree.
    lines: list[LogLine] = field(default_factory=list)
    #: Some of the chains it waits for or waited for, the open ones first.
    blockers: list["ChainTree"] = field(default_factory=list)
    blocker_count: int = 0
    open_count: int = 0

    @property
    def duration_seconds(self) -> float | None:
        """The time from the claim of the last attempt until its outcome was stored, by the database's clock.

        None while it runs, if it neither failed nor ended the job, and if it is unknown when it ended.
        """
        job = self.job
        if job.status == Status.COMPLETED:
            return job.completed_in_seconds
        if failed := next((each for each in self.attempts if each.lease_number == job.lease_number), None):
            return failed.duration_seconds
        # A job that was cancelled while it waited ended when that was requested.
        is_known = job.status == Status.CANCELLED and job.finished_at != job.cancel_requested_at
        if not (is_known and job.last_attempt_at and job.finished_at):
            return None
        return (job.finished_at - job.last_attempt_at).total_seconds()

    @property
    def progress(self) -> JobProgress | None:
        """The progress of the current attempt, but not of an earlier one."""
        progress = self.job.progress
        return progress if progress and progress.lease_number == self.job.lease_number else None


@dataclass
class ChainTree:
    chain: Chain
    #: In their order, possibly with a gap.
    steps: list[Step] = field(default_factory=list)
    #: Whether its steps are shown elsewhere in the tree.
    is_repeated: bool = False

    @property
    def step_count(self) -> int:
        last_index: int = self.chain.current_job.chain_index
        return last_index + 1


def tree_of(chain_id: UUID, extent: Extent, using: str, job_id: UUID | None = None) -> ChainTree | None:
    """Return the tree of a chain, with this job among its steps, or None if the chain is deleted."""
    chains = Chain.objects.using(using).select_related("current_job")
    level = _trees(_found([chain_id], chains))
    root = level.get(chain_id)
    seen: set[UUID] = set(level)
    for depth in range(extent.depth + 1):
        limit = extent.further_steps if depth else extent.steps
        steps = _add_steps(level.values(), limit, using, None if depth else job_id)
        if not steps:
            break
        add_attempts(steps, FailedAttempt.objects.using(using), extent.attempts)
        count_blockers(steps, using)
        if not depth:
            add_lines(steps, extent.lines, using)
        if depth < extent.depth:
            links = JobBlocker.objects.using(using)
            level = add_blockers(steps, extent.blockers, seen, links, partial(_found, chains=chains))
    return root


def with_ids(chains: QuerySet[Chain], chain_ids: Collection[UUID]) -> QuerySet[Chain]:
    """Filter chains by their ids. They are found by their last jobs, so long chains are not slower."""
    last = Job.objects.filter(chain_id=OuterRef("pk")).order_by("-chain_index").values("id")[:1]
    roots = Job.objects.filter(pk__in=chain_ids).annotate(last_id=Subquery(last))
    return chains.filter(InArray(F("current_job_id"), Subquery(roots.values("last_id"))))


def _found(chain_ids: Collection[UUID], chains: QuerySet[Chain]) -> dict[UUID, Chain]:
    return {chain.id: chain for chain in (with_ids(chains, chain_ids) if chain_ids else ())}


def _trees(found: Mapping[UUID, Chain]) -> dict[UUID, ChainTree]:
    return {id_: ChainTree(chain) for id_, chain in found.items()}


def _add_steps(trees: Collection[ChainTree], limit: int, using: str, job_id: UUID | None) -> dict[UUID, Step]:
    """Read the first and the last steps of each chain."""
    wanted = Q(pk=job_id) if job_id else Q()
    by_chain = {tree.chain.id: tree for tree in trees}
    for tree in trees:
        first, last = (limit + 1) // 2, tree.step_count - limit // 2
        wanted |= Q(chain_id=tree.chain.id) & (Q(chain_index__lt=first) | Q(chain_index__gte=last))
    steps: dict[UUID, Step] = {}
    jobs = Job.objects.using(using).filter(wanted).select_related("reported_progress").order_by("chain_index")
    for job in jobs if by_chain else ():
        steps[job.id] = Step(job)
        by_chain[job.chain_id].steps.append(steps[job.id])
    return steps


def add_attempts(steps: dict[UUID, Step], attempts: QuerySet[FailedAttempt], limit: int) -> None:
    """Read the last failed attempts. Lease numbers increase with every attempt, so an index finds them."""
    last = attempts.filter(job_id__in=steps, lease_number__gt=F("job__lease_number") - limit)
    for attempt in last.order_by("job_id", "lease_number") if steps else ():
        steps[attempt.job_id].attempts.append(attempt)


def add_lines(steps: dict[UUID, Step], limit: int, using: str) -> None:
    """Read the last lines of each step: first the position of its last line, then the lines up to it, both by key."""
    last = LogLine.objects.using(using).filter(job_id=OuterRef("pk")).order_by("-lease_number", "-position")
    ends = (
        Job.objects.using(using)
        .filter(pk__in=steps)
        .annotate(
            last_lease_number=Subquery(last.values("lease_number")[:1]),
            last_position=Subquery(last.values("position")[:1]),
        )
    )
    wanted = Q()
    for job_id, lease_number, position in ends.values_list("pk", "last_lease_number", "last_position") if limit else ():
        if lease_number is not None:
            wanted |= Q(job_id=job_id, lease_number=lease_number, position__gt=position - limit)
    if wanted:
        for line in LogLine.objects.using(using).filter(wanted).order_by("job_id", "position"):
            steps[line.job_id].lines.append(line)


def add_blockers(
    steps: dict[UUID, Step],
    limit: int,
    seen: set[UUID],
    links: QuerySet[JobBlocker],
    find: Callable[[Collection[UUID]], Mapping[UUID, Chain]],
) -> dict[UUID, ChainTree]:
    """Add to each step some of its blockers, using ``links`` and the chains that ``find`` returns.

    Return the trees that are not in ``seen``, because these are not shown yet.
    """
    numbered = links.annotate(
        number=Window(RowNumber(), partition_by=F("job_id"), order_by=[F("is_open").desc(), F("position").asc()])
    )
    chosen = numbered.filter(job_id__in=steps, number__lte=limit).order_by("job_id", "number")[:MAX_PER_LEVEL]
    wanted = [(link.job_id, link.blocker_id) for link in chosen] if steps else []
    trees = _trees(find({blocker_id for _, blocker_id in wanted}))
    added: dict[UUID, ChainTree] = {}
    for job_id, blocker_id in wanted:
        if tree := trees.get(blocker_id):
            if blocker_id in seen:
                tree = ChainTree(tree.chain, is_repeated=True)
            else:
                added[blocker_id] = tree
            seen.add(blocker_id)
            steps[job_id].blockers.append(tree)
    return added


def count_blockers(steps: dict[UUID, Step], using: str) -> None:
    links = JobBlocker.objects.using(using).filter(job_id__in=steps).values("job_id")
    counts = links.annotate(every=Count("position"), still_open=Count("position", filter=Q(is_open=True)))
    for job_id, every, still_open in counts.values_list("job_id", "every", "still_open") if steps else ():
        steps[job_id].blocker_count, steps[job_id].open_count = every, still_open
