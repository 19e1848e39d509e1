"""A chain with its steps, their failed attempts, and the chains they wait for: so much of it as people can read.

A constant number of statements for each level of blockers, however long the chains and however many the blockers.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import RowNumber

from django_jobchains.models import Chain, FailedAttempt, Job, JobBlocker, JobProgress, LogLine
from django_jobchains.models.jobs import Among

#: Chains of one level, over all jobs that wait.
MOST_ON_A_LEVEL = 200


@dataclass(frozen=True)
class Extent:
    """How much is read. ``steps``: of the chain, half of them its first; ``attempts``, ``lines``: the last of each
    step."""

    steps: int = 20
    blockers: int = 5
    depth: int = 2
    attempts: int = 5
    lines: int = 5

    @property
    def further_steps(self) -> int:
        """Of the chains that are waited for."""
        return min(self.steps, 4)


@dataclass
class Step:
    job: Job
    #: The last of them, the oldest first.
    attempts: list[FailedAttempt] = field(default_factory=list)
    #: The last that were said, by the last attempt that said something; of the chain that is asked for.
    lines: list[LogLine] = field(default_factory=list)
    #: Some of the chains it waits for or did, those first that are open.
    blockers: list["ChainTree"] = field(default_factory=list)
    blocker_count: int = 0
    open_count: int = 0

    @property
    def progress(self) -> JobProgress | None:
        """Of its last attempt; what an earlier one said is over."""
        said: JobProgress | None = getattr(self.job, "progress", None)
        return said if said is not None and said.lease_number == self.job.lease_number else None


@dataclass
class ChainTree:
    chain: Chain
    #: In their order, maybe with gaps.
    steps: list[Step] = field(default_factory=list)
    #: Its steps are shown at another place.
    is_repeated: bool = False

    @property
    def step_count(self) -> int:
        return self.chain.current_job.chain_index + 1


def tree_of(chain_id: UUID, extent: Extent, using: str, job_id: UUID | None = None) -> ChainTree | None:
    """The tree of a chain, with this job among its steps; None when it is gone."""
    chains = Chain.objects.using(using).select_related("current_job")
    level = _trees(_found([chain_id], chains))
    root = level.get(chain_id)
    seen: set[UUID] = set(level)
    for depth in range(extent.depth + 1):
        most = extent.further_steps if depth else extent.steps
        steps = _add_steps(level.values(), most, using, None if depth else job_id)
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
    """Those of the chains that have these ids; found by their last jobs, and so as fast however long they are."""
    last = Job.objects.filter(chain_id=OuterRef("pk")).order_by("-chain_index").values("id")[:1]
    roots = Job.objects.filter(pk__in=chain_ids).annotate(last_id=Subquery(last))
    return chains.filter(Among(F("current_job_id"), Subquery(roots.values("last_id"))))


def _found(chain_ids: Collection[UUID], chains: QuerySet[Chain]) -> dict[UUID, Chain]:
    return {chain.id: chain for chain in (with_ids(chains, chain_ids) if chain_ids else ())}


def _trees(found: Mapping[UUID, Chain]) -> dict[UUID, ChainTree]:
    return {id_: ChainTree(chain) for id_, chain in found.items()}


def _add_steps(trees: Collection[ChainTree], most: int, using: str, job_id: UUID | None) -> dict[UUID, Step]:
    """The first and the last steps of each."""
    wanted = Q(pk=job_id) if job_id else Q()
    by_chain = {tree.chain.id: tree for tree in trees}
    for tree in trees:
        first, last = (most + 1) // 2, tree.step_count - most // 2
        wanted |= Q(chain_id=tree.chain.id) & (Q(chain_index__lt=first) | Q(chain_index__gte=last))
    steps: dict[UUID, Step] = {}
    jobs = Job.objects.using(using).filter(wanted).select_related("progress").order_by("chain_index")
    for job in jobs if by_chain else ():
        steps[job.id] = Step(job)
        by_chain[job.chain_id].steps.append(steps[job.id])
    return steps


def add_attempts(steps: dict[UUID, Step], attempts: QuerySet[FailedAttempt], most: int) -> None:
    """Lease numbers rise with every attempt: so the last are found by an index."""
    last = attempts.filter(job_id__in=steps, lease_number__gt=F("job__lease_number") - most)
    for attempt in last.order_by("job_id", "lease_number") if steps else ():
        steps[attempt.job_id].attempts.append(attempt)


def add_lines(steps: dict[UUID, Step], most: int, using: str) -> None:
    """Of each step where its last line is, and then so many up to that: both by the key, however many there are."""
    last = LogLine.objects.using(using).filter(job_id=OuterRef("pk")).order_by("-lease_number", "-position")
    ends = (
        Job.objects.using(using)
        .filter(pk__in=steps)
        .annotate(
            said_by=Subquery(last.values("lease_number")[:1]), last_position=Subquery(last.values("position")[:1])
        )
    )
    wanted = Q()
    for job_id, said_by, position in ends.values_list("pk", "said_by", "last_position") if most else ():
        if said_by is not None:
            wanted |= Q(job_id=job_id, lease_number=said_by, position__gt=position - most)
    if wanted:
        for line in LogLine.objects.using(using).filter(wanted).order_by("job_id", "position"):
            steps[line.job_id].lines.append(line)


def add_blockers(
    steps: dict[UUID, Step],
    most: int,
    seen: set[UUID],
    links: QuerySet[JobBlocker],
    find: Callable[[Collection[UUID]], Mapping[UUID, Chain]],
) -> dict[UUID, ChainTree]:
    """Add to each step some of its blockers, by ``links`` to chains that ``find`` returns.

    Return the trees of those that are not ``seen``, and so not shown yet.
    """
    numbered = links.annotate(
        number=Window(RowNumber(), partition_by=F("job_id"), order_by=[F("is_open").desc(), F("position").asc()])
    )
    chosen = numbered.filter(job_id__in=steps, number__lte=most).order_by("job_id", "number")[:MOST_ON_A_LEVEL]
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
