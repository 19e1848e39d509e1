"""What the dashboard counts where jobs are hidden from the user: a bounded number of the visible ones."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from django.db.models import QuerySet
from django.db.models.functions import Left

from django_jobchains.admin.columns import ERROR_LENGTH
from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.overview import LATELY_SECONDS, FailingType, Overview, failing_type, overview_of
from django_jobchains.statuses import OPEN, Status
from django_jobchains.store import FailingGroup, HeldGroup, PendingGroup, get_store
from django_jobchains.times import Times

#: Visible jobs of each status, and visible failed attempts, that are counted: the newest.
MAX_COUNTED = 1_000
#: Failed attempts of all jobs among which the visible ones are looked for: the newest.
MAX_ATTEMPTS_READ = 10_000


@dataclass
class Failures:
    """The failed attempts of a type that the user sees, the newest first."""

    attempts: list[FailedAttempt] = field(default_factory=list)

    @property
    def last_job(self) -> Job:
        return self.attempts[0].job

    def group(self, times: Times) -> FailingGroup:
        last = self.attempts[0]
        return FailingGroup(
            last.job.type_name,
            len(self.attempts),
            sum(attempt.kind == FailedAttempt.Kind.CRASH for attempt in self.attempts),
            len({attempt.job_id for attempt in self.attempts}),
            last.error_start,  # type: ignore[attr-defined]  # annotated
            times.aware(last.finished_at),
            times.seconds_since(last.finished_at),
        )


def visible_failures(visibility: Visibility, using: str) -> dict[str, Failures]:
    """Return failed attempts of the last day whose jobs the user sees, by type, the last to fail first."""
    all_ = FailedAttempt.objects.using(using)
    attempts: QuerySet[FailedAttempt] = all_.filter(finished_at__gt=get_store(using).time_ago(LATELY_SECONDS))
    # No index has the time: a walk back along the ids alone would go through all of them where few failed lately.
    for oldest in all_.order_by("-pk").values_list("pk", flat=True)[MAX_ATTEMPTS_READ - 1 : MAX_ATTEMPTS_READ]:
        attempts = attempts.filter(pk__gte=oldest)
    attempts = visibility.within(Job, attempts, "job_id").order_by("-pk").select_related("job")
    annotated = attempts.annotate(error_start=Left("error", ERROR_LENGTH))
    newest = list(annotated.defer("error", "traceback", *(f"job__{name}" for name in LARGE))[:MAX_COUNTED])
    seen = {job.pk for job in visibility.seen([attempt.job for attempt in newest])}
    found: defaultdict[str, Failures] = defaultdict(Failures)
    for attempt in newest:
        if attempt.job_id in seen:
            found[attempt.job.type_name].attempts.append(attempt)
    return found


def failing_types(failures: dict[str, Failures], using: str) -> tuple[FailingType, ...]:
    times = Times(using)
    return tuple(failing_type(part.group(times)) for part in failures.values())


def visible_overview(visibility: Visibility, failures: dict[str, Failures], using: str) -> Overview:
    """Return an overview that counts the jobs which the user sees.

    Workers and the states of queues belong to nobody's rows: they are part of it, for what is derived from them.
    """
    times = Times(using)
    newest = {status: _newest(visibility, status) for status in (*OPEN, Status.FAILED)}
    seen = {status: visibility.seen(jobs) for status, jobs in newest.items()}
    found = overview_of(
        get_store(using),
        pending=_pending(seen.pop(Status.PENDING), times),
        held=_held(seen),
        failing=[part.group(times) for part in failures.values()],
        count_to=MAX_COUNTED,
    )
    return replace(found, is_complete=all(len(newest[status]) < MAX_COUNTED for status in OPEN))


def _newest(visibility: Visibility, status: str) -> list[Job]:
    rows = visibility.rows(Job).filter(status=status).order_by("-chain_id", "-chain_index")
    return list(rows.defer(*LARGE)[:MAX_COUNTED])


def _pending(jobs: Sequence[Job], times: Times) -> list[PendingGroup]:
    groups: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for job in jobs:
        groups[job.queue, job.type_name].append(times.seconds_since(job.run_at))
    return [
        PendingGroup(queue, type_name, sum(due >= 0 for due in waits), sum(due < 0 for due in waits), max(waits))
        for (queue, type_name), waits in sorted(groups.items())
    ]


def _held(jobs: Mapping[Status, list[Job]]) -> list[HeldGroup]:
    counts = Counter((str(job.status), job.queue, job.type_name) for rows in jobs.values() for job in rows)
    return [HeldGroup(*key, count) for key, count in counts.items()]
