"""What a page shows of one step: its facts, its attempts and log lines, its payloads."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext, ngettext

from django_jobchains.admin.bars import Segment, Spread
from django_jobchains.admin.moments import Moment, Moments
from django_jobchains.admin.payloads import Payloads, PayloadView
from django_jobchains.admin.words import number, span
from django_jobchains.models import Chain, FailedAttempt, Job, JobProgress, LogLine
from django_jobchains.shown_statuses import ShownStatus, shown_status
from django_jobchains.statuses import FINAL, Status
from django_jobchains.trees import Step


@dataclass(frozen=True)
class AttemptView:
    #: Names it on its page, so that it stays open when the page is refreshed.
    key: str
    attempt: int
    kind: str
    is_crash: bool
    error: str
    traceback: PayloadView
    worker: str
    finished: Moment | None
    took: str


@dataclass(frozen=True)
class LineView:
    key: str
    #: How many lines before it were left out.
    left_out: str
    said: Moment | None
    level: str
    level_name: str
    attempt: int
    text: PayloadView
    fields: PayloadView


@dataclass(frozen=True)
class ProgressView:
    percent: int
    text: str
    said: Moment | None


@dataclass(frozen=True)
class ChainLink:
    """A chain that is waited for, or waits."""

    id: str
    url: str
    type_name: str
    status: ShownStatus
    is_repeated: bool = False


@dataclass(frozen=True)
class StepView:
    job: Job
    number: str
    url: str
    status: ShownStatus
    is_current: bool
    facts: Sequence[str]
    created: Moment | None
    due: Moment | None
    started: Moment | None
    finished: Moment | None
    error: str
    attempts: Sequence[AttemptView]
    earlier_attempts: str
    input: PayloadView
    output: PayloadView
    progress: ProgressView | None
    bar: Sequence[Segment]
    blockers: Sequence[ChainLink]
    blocker_summary: str
    more_blockers: str


class Showing:
    """For one request: the user's rights, time zone and language, and one moment taken for now.

    ``payloads_of`` returns what shows the payloads of a job to this user.
    """

    def __init__(self, payloads_of: Callable[[Job], Payloads], moments: Moments, admin_name: str) -> None:
        self.payloads_of = payloads_of
        self.moments = moments
        self._admin_name = admin_name

    def step(self, step: Step, count: int, progress: JobProgress | None, spread: Spread | None = None) -> StepView:
        job, payloads = step.job, self.payloads_of(step.job)
        status = shown_status(job, self.moments, is_last=job.chain_index == count - 1)
        left_out = step.blocker_count - len(step.blockers)
        return StepView(
            job=job,
            number=number(job.chain_index + 1),
            url=self.url("job", job.id),
            status=status,
            is_current=job.chain_index == count - 1,
            facts=self.facts(job),
            created=self.moments.shown(job.created_at),
            due=self.moments.shown(job.run_at) if job.status == Status.PENDING else None,
            started=self.moments.shown(job.last_attempt_at),
            finished=self.moments.shown(job.finished_at),
            error=payloads.error_line(_said(job, "error")) if not step.attempts else "",
            attempts=self.attempts(step.attempts, payloads),
            earlier_attempts=_earlier(job, step.attempts),
            input=self.stored(job, "input"),
            output=self.stored(job, "output"),
            progress=self.progress(progress, job),
            bar=spread.bar(step) if spread else (),
            blockers=[self.link(tree.chain, is_repeated=tree.is_repeated) for tree in step.blockers],
            blocker_summary=_blocker_summary(step),
            more_blockers=gettext("and %(count)s more") % {"count": number(left_out)} if left_out > 0 else "",
        )

    def url(self, model: str, id: Any) -> str:
        return reverse(f"admin:django_jobchains_{model}_change", args=[id], current_app=self._admin_name)

    def link(self, chain: Chain, *, is_repeated: bool = False) -> ChainLink:
        status = shown_status(chain.current_job, self.moments)
        return ChainLink(str(chain.id), self.url("chain", chain.id), chain.type_name, status, is_repeated)

    def stored(self, job: Job, name: str) -> PayloadView:
        return self.payloads_of(job).stored(_said(job, name), getattr(job, f"{name}_size"))

    def facts(self, job: Job) -> list[str]:
        """How long it took, and who ran it."""
        facts = list(self._durations(job))
        if job.status == Status.RUNNING:
            facts.append(gettext("on worker %(worker)s") % {"worker": job.leased_by})
        elif job.status == Status.COMPLETED:
            facts.append(_completed_by(job))
        if job.max_attempts:
            facts.append(
                gettext("attempt %(attempt)s of %(most)s")
                % {"attempt": number(job.attempt - job.crashes), "most": number(job.max_attempts)}
            )
        elif job.attempt > 1:
            facts.append(_counted(ngettext("%(count)s attempt", "%(count)s attempts", job.attempt), job.attempt))
        if job.crashes:
            facts.append(_counted(ngettext("%(count)s crash", "%(count)s crashes", job.crashes), job.crashes))
        return facts

    def _durations(self, job: Job) -> Iterable[str]:
        between = self.moments.between
        if job.status == Status.RUNNING:
            yield _timed(gettext("running for %(time)s"), between(job.last_attempt_at, None) or 0)
        elif job.status in FINAL:
            if job.last_attempt_at and job.finished_at and job.attempt:
                yield _timed(gettext("ran %(time)s"), between(job.last_attempt_at, job.finished_at) or 0)
            if job.finished_at:
                yield _timed(gettext("took %(time)s in all"), between(job.created_at, job.finished_at) or 0)
        elif job.status == Status.BLOCKED:
            yield _timed(gettext("blocked for %(time)s"), between(job.created_at, None) or 0)
        elif (waited := self.moments.seconds_since(job.run_at)) > 0:
            yield _timed(gettext("due for %(time)s"), waited)
        else:
            yield _timed(gettext("due in %(time)s"), -waited)

    def attempts(self, attempts: Iterable[FailedAttempt], payloads: Payloads) -> list[AttemptView]:
        return [
            AttemptView(
                key=f"attempt-{attempt.job_id}-{attempt.lease_number}",
                attempt=attempt.attempt,
                kind=attempt.get_kind_display(),
                is_crash=attempt.kind == FailedAttempt.Kind.CRASH,
                error=payloads.error_line(_said(attempt, "error")),
                traceback=_traceback(attempt, payloads),
                worker=attempt.worker,
                finished=self.moments.shown(attempt.finished_at),
                took=span(self.moments.between(attempt.started_at, attempt.finished_at) or 0),
            )
            for attempt in attempts
        ]

    def lines(self, job: Job, lines: Iterable[LogLine]) -> list[LineView]:
        payloads = self.payloads_of(job)
        views: list[LineView] = []
        before: LogLine | None = None
        for line in lines:
            views.append(self._line(line, _left_out_between(before, line), payloads))
            before = line
        return views

    def _line(self, line: LogLine, left_out: int, payloads: Payloads) -> LineView:
        return LineView(
            key=f"line-{line.job_id}-{line.lease_number}-{line.position}",
            left_out=_left_out(left_out),
            said=self.moments.shown(line.said_at),
            level=LogLine.Level(line.level).name.lower() if line.level in LogLine.Level.values else "info",
            level_name=str(line.get_level_display()),
            attempt=line.attempt,
            text=payloads.text(line.text, 10_000),
            fields=PayloadView() if line.fields is None else payloads.json(line.fields, 10_000),
        )

    def progress(self, progress: JobProgress | None, job: Job) -> ProgressView | None:
        """Of its last attempt; what an earlier one said is over."""
        if progress is None or progress.lease_number != job.lease_number:
            return None
        percent = round(100 * min(1.0, max(0.0, progress.fraction)))
        text = self.payloads_of(job).line(progress.text)
        return ProgressView(percent, text, self.moments.shown(progress.said_at))


def _traceback(attempt: FailedAttempt, payloads: Payloads) -> PayloadView:
    text, size = _said(attempt, "traceback"), getattr(attempt, "traceback_size", 0)
    if text is None and size and payloads.is_allowed:
        note = gettext("%(count)s characters: they are shown on the page of the job.")
        return PayloadView(note=_counted(note, size))
    return payloads.text(text)


def _left_out(count: int) -> str:
    text = ngettext("%(count)s line left out", "%(count)s lines left out", count)
    return _counted(text, count) if count else ""


def _left_out_between(before: LogLine | None, line: LogLine) -> int:
    """Within an attempt positions follow one another, but where lines were left out."""
    if before is None or before.lease_number != line.lease_number:
        return 0
    return line.position - before.position - 1


def _said(row: Job | FailedAttempt, name: str) -> str | None:
    text: str | None = getattr(row, f"{name}_text")
    return text


def _completed_by(job: Job) -> str:
    if not job.completed_by:
        return gettext("completed without a worker")
    return gettext("by worker %(worker)s") % {"worker": job.completed_by}


def _counted(text: str, count: int) -> str:
    return text % {"count": number(count)}


def _timed(text: str, seconds: float) -> str:
    return text % {"time": span(seconds)}


def _earlier(job: Job, attempts: Sequence[FailedAttempt]) -> str:
    """Those of which nothing is shown here."""
    count = attempts[0].attempt - 1 if attempts else 0
    text = ngettext("%(count)s earlier attempt", "%(count)s earlier attempts", count)
    return _counted(text, count) if count > 0 else ""


def _blocker_summary(step: Step) -> str:
    if not step.blocker_count:
        return ""
    if step.job.status == Status.BLOCKED:
        values = {"open": number(step.open_count), "every": number(step.blocker_count)}
        return gettext("Waits for %(open)s of its %(every)s blockers") % values
    text = ngettext("Waited for %(count)s blocker", "Waited for %(count)s blockers", step.blocker_count)
    return _counted(text, step.blocker_count)
