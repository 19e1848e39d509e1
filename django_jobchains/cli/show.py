"""``show``: shows a chain as a tree."""

from argparse import ArgumentParser
from logging import ERROR
from typing import Any

from django.core.management.base import CommandError

from django_jobchains.chains import Job
from django_jobchains.chains.tree import ChainTree, Extent, Step, tree_of
from django_jobchains.cli import converters
from django_jobchains.cli.list import chain_json, job_json
from django_jobchains.cli.screen import ElapsedTimes, counted, first_line, shortened
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.context import trace_id_in, trace_url_of
from django_jobchains.models import FailedAttempt, LogLine
from django_jobchains.models.jobs import shown_status
from django_jobchains.text.humanize import span

#: How many jobs that wait for the chain are shown.
MAX_DEPENDENTS = 5
#: A terminal of this width shows the ids and inputs of later steps.
WIDE_TERMINAL = 110
#: The limit for values that are shown whole.
NO_LIMIT = 1_000_000_000
#: How many of the last lines of a crashed child process are shown.
MAX_STDERR_LINES = 3


class ShowCommand(Subcommand):
    name = "show"
    help = "shows a chain: its steps, their failed attempts, and the chains they wait for"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("id", type=converters.id_of, metavar="ID", help="of the chain or one of its jobs")
        parser.add_argument(
            "--steps", type=converters.positive, default=20, metavar="N", help="first and last steps (20)"
        )
        parser.add_argument("--blockers", type=converters.non_negative, default=5, metavar="N", help="per step (5)")
        parser.add_argument("--depth", type=converters.non_negative, default=2, metavar="N", help="of blockers (2)")
        parser.add_argument("--attempts", type=converters.positive, default=5, metavar="N", help="per step (5)")
        parser.add_argument("--lines", type=converters.non_negative, default=5, metavar="N", help="of each log (5)")
        parser.add_argument("--verbose", action="store_true", help="with tracebacks and complete values")

    def run(self, call: Invocation) -> None:
        job = Job.objects.using(call.using).filter(pk=call["id"]).values_list("chain_id", "chain_index").first()
        extent = Extent(
            min(call["steps"], 1_000),
            min(call["blockers"], 1_000),
            min(call["depth"], 10),
            min(call["attempts"], 100),
            min(call["lines"], 1_000),
        )
        tree = tree_of(job[0], extent, call.using, call["id"]) if job else None
        if tree is None:
            raise CommandError(f"No chain or job {call['id']}: it was never committed, or it was deleted.")
        waiting = list(
            Job.objects.using(call.using).blocked_by(tree.chain.id).defer("input", "output")[: MAX_DEPENDENTS + 1]
        )
        if call.screen.is_json:
            needed_by = [job.id for job in waiting[:MAX_DEPENDENTS]]
            call.screen.json({**_Json(call.screen.times).chain(tree), "needed_by": needed_by})
        else:
            _Text(call).show(tree, waiting)


class _Text:
    """The tree as indented lines."""

    def __init__(self, call: Invocation) -> None:
        self._screen = call.screen
        self._times = call.screen.times
        self._asked = call["id"]
        self._is_whole = call["verbose"] or call["verbosity"] > 1

    def show(self, tree: ChainTree, waiting: list[Job]) -> None:
        chain, times = tree.chain, self._times
        status = shown_status(chain.current_job, times)
        self._screen.heading(f"{chain.type_name} {chain.id}")
        self._screen.line(" · ".join(self._facts(tree, status)), status, begin="  ")
        self._value("input", chain.input)
        if chain.status == "completed":
            self._value("output", chain.stored_output)
        if chain.deduplication_key:
            self._screen.line(f"key     {chain.deduplication_key}", begin="  ")
        if trace_id := trace_id_in(self._requested(tree).context):
            self._screen.line(f"trace   {trace_url_of(trace_id) or trace_id}", begin="  ")
        for job in waiting[:MAX_DEPENDENTS]:
            self._screen.line(f"needed by {job.type_name} {job.id}, {shown_status(job, times)}", begin="  ")
        if len(waiting) > MAX_DEPENDENTS:
            self._screen.line("needed by more", begin="  ")
        self._screen.line()
        self._steps(tree, "")

    def _requested(self, tree: ChainTree) -> Job:
        """Return the job that was asked for, or the chain's first one."""
        return next((step.job for step in tree.steps if step.job.id == self._asked), tree.steps[0].job)

    def _facts(self, tree: ChainTree, status: str) -> list[str]:
        chain, times = tree.chain, self._times
        facts = [status, f"created {times.shown(chain.created_at)} ({times.ago(chain.created_at)})"]
        if chain.finished_at:
            facts.append(f"took {span(times.between(chain.created_at, chain.finished_at) or 0)}")
        return [*facts, counted(tree.step_count, "step")]

    def _value(self, name: str, value: Any) -> None:
        if self._is_whole:
            self._screen.lines(f"{name:<8}{shortened(value, NO_LIMIT)}", "  ")
        else:
            self._screen.line(f"{name:<8}{shortened(value)}", begin="  ")

    def _steps(self, tree: ChainTree, indent: str) -> None:
        expected = 0
        for step in tree.steps:
            self._gap(step.job.chain_index - expected, indent)
            expected = step.job.chain_index + 1
            self._step(step, tree, indent)
        self._gap(tree.step_count - expected, indent)

    def _gap(self, omitted: int, indent: str) -> None:
        if omitted > 0:
            self._screen.line(f"… {counted(omitted, 'step')} not shown (--steps)", begin=indent)

    def _step(self, step: Step, tree: ChainTree, indent: str) -> None:
        job = step.job
        status = shown_status(job, self._times, is_last=job.chain_index == tree.step_count - 1)
        begin = f"{indent}{job.chain_index + 1} {job.type_name} "
        mark = " ← requested" if job.id == self._asked != tree.chain.id else ""
        text = " · ".join([status, *self._when(step)]) + mark
        self._screen.line(text, status, begin=begin)
        inner = indent + "    "
        if job.chain_index and not indent and self._is_whole:
            self._screen.lines(f"{job.id} {shortened(job.input, NO_LIMIT)}", inner)
        elif job.chain_index and not indent and (self._screen.width or WIDE_TERMINAL) >= WIDE_TERMINAL:
            self._screen.line(f"{job.id} {shortened(job.input)}", begin=inner)
        self._attempts(step, inner)
        self._progress(step, inner)
        self._lines(step, inner)
        self._blockers(step, inner)

    def _when(self, step: Step) -> list[str]:
        job, times, facts = step.job, self._times, []
        if job.status == "running":
            facts.append(f"for {span(times.between(job.last_attempt_at, None) or 0)} by {job.leased_by}")
        elif job.finished_at:
            facts.append(times.shown(job.finished_at))
            if step.duration_seconds is not None:
                facts.append(f"ran {span(step.duration_seconds)}")
        elif job.status == "pending":
            facts.append(f"due {times.ago(job.run_at)}")
        if job.may_expire:
            facts.append(f"expires {times.ago(job.expires_at)}")
        if job.attempt > 1:
            facts.append(counted(job.attempt, "attempt"))
        if job.crashes:
            facts.append(counted(job.crashes, "crash"))
        return facts

    def _attempts(self, step: Step, indent: str) -> None:
        earlier = step.attempts[0].attempt - 1 if step.attempts else 0
        if earlier > 0:
            self._screen.line(f"… {counted(earlier, 'earlier attempt')}", begin=indent)
        for attempt in step.attempts:
            self._attempt(attempt, indent)
        if step.job.last_error and not step.attempts:
            self._screen.line(first_line(step.job.last_error), "error", begin=indent)

    def _attempt(self, attempt: FailedAttempt, indent: str) -> None:
        took = "" if attempt.duration_seconds is None else f"{span(attempt.duration_seconds)} · "
        kind = "" if attempt.kind == "error" else f"{attempt.kind} · "
        begin = f"{indent}✗ {attempt.attempt} · {self._times.shown(attempt.finished_at)} · {took}{kind}"
        self._screen.line(first_line(attempt.error), "error", begin=begin)
        if self._is_whole and attempt.traceback:
            self._screen.lines(attempt.traceback, indent + "  ")
        elif attempt.kind == "crash":
            for line in attempt.traceback.splitlines()[-MAX_STDERR_LINES:]:
                self._screen.line(line, begin=f"{indent}  ")

    def _progress(self, step: Step, indent: str) -> None:
        if progress := step.progress:
            self._screen.line(f"{progress} ({self._times.ago(progress.logged_at)})", begin=f"{indent}progress ")

    def _lines(self, step: Step, indent: str) -> None:
        if step.lines and (before := step.lines[0].position):
            self._screen.line(f"… {counted(before, 'earlier log line')} (--lines)", begin=indent)
        expected = step.lines[0].position if step.lines else 0
        for line in step.lines:
            if line.position > expected:
                self._screen.line(f"… {counted(line.position - expected, 'line')} omitted", begin=indent)
            expected = line.position + 1
            self._log_line(line, indent)

    def _log_line(self, line: LogLine, indent: str) -> None:
        style = "error" if line.level >= ERROR else ""
        begin = f"{indent}{self._times.shown(line.logged_at)} {_level(line)} · "
        fields = "" if line.fields is None else f" {shortened(line.fields, NO_LIMIT if self._is_whole else 100)}"
        if self._is_whole:
            self._screen.lines(f"{begin}{line.text}{fields}")
        else:
            self._screen.line(f"{first_line(line.text)}{fields}", style, begin=begin)

    def _blockers(self, step: Step, indent: str) -> None:
        if not step.blocker_count:
            return
        waits = f"waits for {step.open_count:,} of" if step.job.status == "blocked" else "waited for"
        self._screen.line(f"{waits} {counted(step.blocker_count, 'chain')}:", begin=indent)
        for tree in step.blockers:
            self._blocker(tree, indent + "  ")
        if (omitted := step.blocker_count - len(step.blockers)) > 0:
            self._screen.line(f"… {counted(omitted, 'chain')} not shown (--blockers, --depth)", begin=f"{indent}  ")

    def _blocker(self, tree: ChainTree, indent: str) -> None:
        chain = tree.chain
        status = shown_status(chain.current_job, self._times)
        self._screen.out.write(f"{indent}{chain.id}")
        repeated = ", shown elsewhere" if tree.is_repeated else ""
        took = self._times.between(chain.created_at, chain.finished_at)
        facts = [status, f"{span(took or 0)}{'' if chain.finished_at else ' so far'}{repeated}"]
        inner = indent + "  "
        if tree.step_count > 1 or tree.is_repeated:
            self._screen.line(" · ".join(facts), status, begin=f"{inner}{chain.type_name} ")
        if not tree.is_repeated:
            self._steps(tree, inner)


class _Json:
    def __init__(self, times: ElapsedTimes) -> None:
        self._times = times

    def chain(self, tree: ChainTree) -> dict[str, Any]:
        return {
            **chain_json(tree.chain, self._times),
            "input": tree.chain.input,
            "output": tree.chain.stored_output,
            "step_count": tree.step_count,
            "steps": [self._step(step) for step in tree.steps],
        }

    def _step(self, step: Step) -> dict[str, Any]:
        job, progress = step.job, step.progress
        return {
            **job_json(job, self._times),
            "input": job.input,
            "output": job.output,
            "duration_seconds": step.duration_seconds,
            "max_attempts": job.finite_max_attempts,
            "completed_by": job.completed_by,
            "trace_id": trace_id_in(job.context) or None,
            "failed_attempts": [self._attempt(attempt) for attempt in step.attempts],
            "progress": progress
            and {
                "fraction": progress.fraction,
                "text": progress.text,
                "logged_at": self._times.iso(progress.logged_at),
            },
            "log_lines": [self._line(line) for line in step.lines],
            "blocker_count": step.blocker_count,
            "open_blocker_count": step.open_count,
            "blockers": [self.chain(tree) for tree in step.blockers],
        }

    def _attempt(self, attempt: FailedAttempt) -> dict[str, Any]:
        return {
            "attempt": attempt.attempt,
            "kind": attempt.kind,
            "error": attempt.error,
            "traceback": attempt.traceback,
            "worker": attempt.worker,
            "started_at": self._times.iso(attempt.started_at),
            "finished_at": self._times.iso(attempt.finished_at),
            "duration_seconds": attempt.duration_seconds,
        }

    def _line(self, line: LogLine) -> dict[str, Any]:
        return {
            "attempt": line.attempt,
            "position": line.position,
            "logged_at": self._times.iso(line.logged_at),
            "level": _level(line),
            "text": line.text,
            "fields": line.fields,
        }


def _level(line: LogLine) -> str:
    return LogLine.Level(line.level).name.lower()
