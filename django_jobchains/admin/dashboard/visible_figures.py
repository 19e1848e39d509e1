"""The figures of the dashboard if jobs are hidden from the user: a limited number of visible jobs is counted."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from django.db.models import QuerySet

from django_jobchains.admin.lists.changelists import ERROR_LENGTH
from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.db.times import Times, as_compared
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.models.payload_fields import text_start
from django_jobchains.monitoring import FailingType, Overview
from django_jobchains.monitoring.facts import FAILING_SECONDS, build_overview
from django_jobchains.statuses import OPEN, Status
from django_jobchains.store import get_store
from django_jobchains.store.stats import HOUR, HeldGroup, PendingGroup
from django_jobchains.text.errors import first_line

#: The number of visible jobs of each status, and of visible failed attempts, that are counted, newest first.
MAX_COUNTED = 1_000
#: The number of failed attempts among which visible ones are searched, newest first.
MAX_ATTEMPTS_READ = 10_000


@dataclass
class Failures:
    """The visible failed attempts of a type, newest first."""

    attempts: list[FailedAttempt] = field(default_factory=list)

    @property
    def last_job(self) -> Job:
        return self.attempts[0].job

    def facts(self, times: Times) -> FailingType:
        last = self.attempts[0]
        failed = {attempt.job_id: attempt for attempt in reversed(self.attempts) if attempt.job.status == Status.FAILED}
        return FailingType(
            last.job.type_name,
            len(self.attempts),
            sum(attempt.kind == FailedAttempt.Kind.CRASH for attempt in self.attempts),
            len({attempt.job_id for attempt in self.attempts}),
            first_line(last.error_start),  # type: ignore[attr-defined]  # annotated
            times.aware(last.finished_at),
            max(times.seconds_since(last.finished_at), 0.0),
            failed_jobs=len(failed),
            new_failed_jobs=sum(times.seconds_since(attempt.finished_at) < HOUR for attempt in failed.values()),
        )


def visible_failures(visibility: Visibility, using: str) -> dict[str, Failures]:
    """Return the visible failed attempts of the last day by type, most recent failure first."""
    all_ = FailedAttempt.objects.using(using)
    start = as_compared(get_store(using).stats.time_ago(FAILING_SECONDS), using)
    attempts: QuerySet[FailedAttempt] = all_.filter(finished_at__gt=start)
    # No index includes the time. Without a minimum id, the query would read all attempts if few failed recently.
    for oldest in all_.order_by("-pk").values_list("pk", flat=True)[MAX_ATTEMPTS_READ - 1 : MAX_ATTEMPTS_READ]:
        attempts = attempts.filter(pk__gte=oldest)
    attempts = visibility.within(Job, attempts, "job_id").order_by("-pk").select_related("job")
    annotated = attempts.annotate(error_start=text_start("error", ERROR_LENGTH))
    newest = list(annotated.defer("error", "traceback", *(f"job__{name}" for name in LARGE))[:MAX_COUNTED])
    seen = {job.pk for job in visibility.seen([attempt.job for attempt in newest])}
    failures: defaultdict[str, Failures] = defaultdict(Failures)
    for attempt in newest:
        if attempt.job_id in seen and attempt.job.status != Status.CANCELLED:
            failures[attempt.job.type_name].attempts.append(attempt)
    return failures


def failing_types(failures: dict[str, Failures], using: str) -> tuple[FailingType, ...]:
    times = Times(using)
    return tuple(part.facts(times) for part in failures.values())


def visible_overview(visibility: Visibility, failures: dict[str, Failures], using: str) -> Overview:
    """Return an overview that counts only visible jobs.

    It includes all workers and queue states, from which alerts are derived.
    """
    times = Times(using)
    newest = {status: _newest(visibility, status) for status in (*OPEN, Status.FAILED)}
    seen = {status: visibility.seen(jobs) for status, jobs in newest.items()}
    found = build_overview(
        get_store(using),
        pending=_pending(seen.pop(Status.PENDING), times),
        held=_held(seen),
        failing=[part.facts(times) for part in failures.values()],
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
