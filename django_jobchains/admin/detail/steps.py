"""Steps, attempts and log lines as the templates of both pages show them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.urls import reverse
from django.utils.translation import gettext, ngettext

from django_jobchains.admin.display import Payloads, PayloadView, Timestamps
from django_jobchains.admin.visibility import Visibility
from django_jobchains.chains.tree import Step
from django_jobchains.conf import current_database
from django_jobchains.models import Chain, FailedAttempt, Job, JobProgress, LogLine
from django_jobchains.models.jobs import ShownStatus, shown_status
from django_jobchains.statuses import FINAL, Status
from django_jobchains.text.humanize import number, span


@dataclass(frozen=True)
class ChainLink:
    id: str
    url: str
    type_name: str
    status: ShownStatus
    label: str = ""


class Presenter:
    """Creates views for one request: with the user's permissions, time zone and language, and one current time.

    It shows the payloads of a job only if the user may see them for the job and for ``rows``.
    """

    def __init__(self, visibility: Visibility, *rows: Model) -> None:
        self._visibility = visibility
        self.payloads_of: Callable[[Job], Payloads] = partial(visibility.payloads, *rows)
        self.timestamps = Timestamps(current_database())

    def step(
        self, step: Step, count: int, progress: JobProgress | None, scale: "TimeScale | None" = None
    ) -> dict[str, Any]:
        """Return the context of a step: its place in the chain, its times, payloads, failed attempts and blockers."""
        job, payloads = step.job, self.payloads_of(step.job)
        status = shown_status(job, self.timestamps, is_last=job.chain_index == count - 1)
        omitted = step.blocker_count - len(step.blockers)
        earlier = step.attempts[0].attempt - 1 if step.attempts else 0
        earlier_text = ngettext("%(count)s earlier attempt", "%(count)s earlier attempts", earlier)
        return {
            "job": job,
            "number": number(job.chain_index + 1),
            "url": self.url("job", job.id),
            "status": status,
            "is_current": job.chain_index == count - 1,
            "summary": self.summary(step),
            "created": self.timestamps.timestamp(job.created_at),
            "due": self.timestamps.timestamp(job.run_at) if job.status == Status.PENDING else None,
            "expires": self.timestamps.timestamp(job.expires_at) if job.may_expire else None,
            "started": self.timestamps.timestamp(job.last_attempt_at),
            "finished": self.timestamps.timestamp(job.finished_at),
            "error": payloads.error_line(_text(job, "error")) if not step.attempts else "",
            "attempts": self.attempts(step.attempts, payloads),
            "earlier_attempts": _counted(earlier_text, earlier) if earlier > 0 else "",
            "input": self.stored(job, "input"),
            "output": self.stored(job, "output"),
            "progress": self.progress(progress, job),
            "bar": scale.bar(step) if scale else (),
            "blockers": [self.link(tree.chain) for tree in step.blockers],
            "blocker_summary": _blocker_summary(step),
            "waits_for": step.blocker_count if job.status == Status.BLOCKED else 0,
            "ended_blockers": step.blocker_count - step.open_count,
            "more_blockers": gettext("and %(count)s more") % {"count": number(omitted)} if omitted > 0 else "",
        }

    def url(self, model: str, id: Any) -> str:
        name, site = f"admin:django_jobchains_{model}_change", self._visibility.site_name
        return reverse(name, args=[quote(id)], current_app=site)

    def link(self, chain: Chain) -> ChainLink:
        status = shown_status(chain.current_job, self.timestamps)
        label = self._visibility.chain_label(chain)
        return ChainLink(str(chain.id), self.url("chain", chain.id), chain.type_name, status, label)

    def stored(self, job: Job, name: str) -> PayloadView:
        return self.payloads_of(job).stored(_text(job, name), getattr(job, f"{name}_size"))

    def label(self, job: Job) -> str:
        """Return the label of a job's type for its input, as in the lists."""
        return self.payloads_of(job).label(job.type_name, _text(job, "input"))

    def summary(self, step: Step) -> list[str]:
        """Return texts about the duration, worker and attempts of a job."""
        job = step.job
        texts = list(self._durations(step))
        if job.status == Status.RUNNING:
            texts.append(gettext("on worker %(worker)s") % {"worker": job.leased_by})
        elif job.status == Status.COMPLETED:
            by_worker = gettext("by worker %(worker)s") % {"worker": job.completed_by}
            texts.append(by_worker if job.completed_by else gettext("completed without a worker"))
        if job.finite_max_attempts:
            texts.append(
                gettext("attempt %(attempt)s of %(limit)s")
                % {"attempt": number(job.counted_attempts), "limit": number(job.finite_max_attempts)}
            )
        elif job.attempt > 1:
            texts.append(_counted(ngettext("%(count)s attempt", "%(count)s attempts", job.attempt), job.attempt))
        if job.crashes:
            texts.append(_counted(ngettext("%(count)s crash", "%(count)s crashes", job.crashes), job.crashes))
        return texts

    def _durations(self, step: Step) -> Iterable[str]:
        job, between = step.job, self.timestamps.between
        if job.status == Status.RUNNING:
            yield _timed(gettext("running for %(time)s"), between(job.last_attempt_at, None) or 0)
        elif job.status in FINAL:
            if step.duration_seconds is not None:
                yield _timed(gettext("ran for %(time)s"), step.duration_seconds)
            if job.finished_at:
                yield _timed(gettext("%(time)s in total"), between(job.created_at, job.finished_at) or 0)
        elif job.status == Status.BLOCKED:
            yield _timed(gettext("blocked for %(time)s"), between(job.created_at, None) or 0)

    def attempts(self, attempts: Iterable[FailedAttempt], payloads: Payloads) -> list[dict[str, Any]]:
        return [
            {
                # Identifies the element on its page, so that it stays open when the page is refreshed.
                "key": f"attempt-{attempt.job_id}-{attempt.lease_number}",
                "attempt": attempt.attempt,
                "kind": attempt.get_kind_display(),
                "error": payloads.error_line(_text(attempt, "error")),
                "traceback": _traceback(attempt, payloads),
                # Whether a process died. If so, the traceback is what a child process wrote to its standard error.
                "is_crash": attempt.kind == FailedAttempt.Kind.CRASH,
                "worker": attempt.worker,
                "finished": self.timestamps.timestamp(attempt.finished_at),
                "took": "" if attempt.duration_seconds is None else span(attempt.duration_seconds),
            }
            for attempt in attempts
        ]

    def lines(self, job: Job, lines: Sequence[LogLine]) -> list[dict[str, Any]]:
        payloads = self.payloads_of(job)
        return [self._line(line, before, payloads) for before, line in zip([None, *lines], lines, strict=False)]

    def _line(self, line: LogLine, before: LogLine | None, payloads: Payloads) -> dict[str, Any]:
        # The lines of one attempt have consecutive positions.
        is_same_attempt = before is not None and before.lease_number == line.lease_number
        omitted = line.position - before.position - 1 if before and is_same_attempt else 0
        text = ngettext("%(count)s line omitted", "%(count)s lines omitted", omitted)
        return {
            "key": f"line-{line.job_id}-{line.lease_number}-{line.position}",
            "omitted": _counted(text, omitted) if omitted else "",
            "time": self.timestamps.timestamp(line.logged_at),
            "level": LogLine.Level(line.level).name.lower() if line.level in LogLine.Level.values else "info",
            "level_name": str(line.get_level_display()),
            "attempt": line.attempt,
            "text": payloads.text(line.text, 10_000),
            "fields": PayloadView() if line.fields is None else payloads.json(line.fields, 10_000),
        }

    def progress(self, progress: JobProgress | None, job: Job) -> dict[str, Any] | None:
        """Return the progress that the last attempt reported."""
        if progress is None or progress.lease_number != job.lease_number:
            return None
        percent = round(100 * min(1.0, max(0.0, progress.fraction)))
        text = self.payloads_of(job).line(progress.text)
        return {"percent": percent, "text": text, "time": self.timestamps.timestamp(progress.logged_at)}


def _traceback(attempt: FailedAttempt, payloads: Payloads) -> PayloadView:
    text, size = _text(attempt, "traceback"), getattr(attempt, "traceback_size", 0)
    if text is None and size and payloads.is_allowed:
        note = gettext("%(count)s characters, shown on the page of the job.")
        return PayloadView(note=_counted(note, size))
    return payloads.text(text)


def _text(row: Job | FailedAttempt, name: str) -> str | None:
    text: str | None = getattr(row, f"{name}_text")
    return text


def _counted(text: str, count: int) -> str:
    return text % {"count": number(count)}


def _timed(text: str, seconds: float) -> str:
    return text % {"time": span(seconds)}


def _blocker_summary(step: Step) -> str:
    if not step.blocker_count:
        return ""
    if step.job.status == Status.BLOCKED:
        values = {"ended": number(step.blocker_count - step.open_count), "total": number(step.blocker_count)}
        return gettext("Waiting for blockers: %(ended)s of %(total)s have ended") % values
    text = ngettext("Waited for %(count)s blocker", "Waited for %(count)s blockers", step.blocker_count)
    return _counted(text, step.blocker_count)


class TimeScale:
    """The scale of the bars that show when steps waited, failed and ran.

    It begins when the first shown step was created, and ends when the last one ended.
    """

    def __init__(self, steps: Iterable[Step], timestamps: Timestamps) -> None:
        self._timestamps = timestamps
        jobs = [step.job for step in steps]
        self._begin: datetime | None = min((job.created_at for job in jobs), default=None)
        ends = [_end(job) if job.status in FINAL else None for job in jobs]
        self._seconds = max((timestamps.between(self._begin, end) or 0 for end in ends), default=0)

    def bar(self, step: Step) -> list[dict[str, Any]]:
        """Return segments for the time since the creation, for failed attempts, and for the last attempt."""
        job = step.job
        is_final = job.status in FINAL
        end = _end(job) if is_final else None
        segments = [self._segment("waited", job.created_at, end)]
        segments += [self._segment("failed", attempt.started_at, attempt.finished_at) for attempt in step.attempts]
        is_worked_on = (
            job.status == Status.RUNNING
            or (job.status == Status.COMPLETED and job.completed_by is not None)
            or (job.status == Status.CANCELLED and step.duration_seconds is not None)
        )
        is_failed = any(attempt.lease_number == job.lease_number for attempt in step.attempts)
        if job.last_attempt_at and is_worked_on and not is_failed:
            segments.append(self._segment(job.status, job.last_attempt_at, end))
        return segments

    def _segment(self, kind: str, begin: datetime, end: datetime | None) -> dict[str, Any]:
        """Return a segment of a bar, in thousandths of its length."""
        start = self._position(self._timestamps.between(self._begin, begin) or 0)
        stop = self._position(self._timestamps.between(self._begin, end) or 0)
        return {"kind": kind, "start": min(start, 994), "length": max(6, stop - start)}

    def _position(self, seconds: float) -> int:
        return round(1000 * min(1.0, max(0.0, seconds / self._seconds))) if self._seconds > 0 else 0


def _end(job: Job) -> datetime:
    return job.finished_at or job.last_attempt_at or job.created_at
