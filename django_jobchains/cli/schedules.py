"""``schedules``: lists and shows schedules, pauses and resumes them, and runs one now."""

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from django_jobchains import schedules
from django_jobchains.cli import converters
from django_jobchains.cli.screen import Cell, Column, first_line, shortened
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.exceptions import JobchainsError
from django_jobchains.models import Schedule
from django_jobchains.text.humanize import span
from django_jobchains.text.redaction import redacted_text


class SchedulesCommand(Subcommand):
    name = "schedules"
    help = "lists schedules, shows, pauses and resumes them, runs one now, or shows its next ticks"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "operation",
            nargs="?",
            default="list",
            choices=OPERATIONS,
            metavar="OPERATION",
            help="list (default), show, pause, resume, run-now or next",
        )
        parser.add_argument("names", nargs="*", metavar="SCHEDULE", help="names; one for show, run-now and next")
        parser.add_argument("--count", type=converters.positive, default=5, metavar="N", help="next: ticks to show (5)")

    def run(self, call: Invocation) -> None:
        operation, count = call["operation"], len(call["names"])
        if (operation == "list") != (count == 0) or (operation in ("show", "run-now", "next") and count > 1):
            wanted = {"list": "no name", "pause": "at least one name", "resume": "at least one name"}
            raise CommandError(f"'schedules {operation}' takes {wanted.get(operation, 'one name')}.", returncode=2)
        try:
            OPERATIONS[operation](call, list(dict.fromkeys(call["names"])))
        except (JobchainsError, ValueError) as error:
            raise CommandError(str(error)) from error


def _list(call: Invocation, names: Sequence[str]) -> None:
    found, times = schedules.list(using=call.using), call.screen.times
    columns = (
        Column("SCHEDULE", lambda row: row.name),
        Column("STATE", lambda row: Cell(row.state, _style(row))),
        Column("RULE", _rule, min_width=12),
        Column("TYPE", lambda row: row.type_name, min_width=8, is_optional=True),
        Column("NEXT", lambda row: times.ago(row.due_at), is_number=True, is_optional=True),
        Column("LAST", lambda row: times.ago(row.last_tick_at), is_number=True, is_optional=True),
        Column("LAST ERROR", lambda row: first_line(row.last_error), min_width=10, is_optional=True),
    )
    if call.screen.is_json:
        call.screen.json({"schedules": [_json(row, call) for row in found]})
    elif found:
        call.screen.table(columns, found)
    else:
        call.screen.line("No schedules. Those that the code declares are stored when a worker starts.")


def _show(call: Invocation, names: Sequence[str]) -> None:
    row = schedules.get(names[0], using=call.using)
    ticks = schedules.next_ticks(names[0], using=call.using)
    facts = {**_json(row, call), "input": row.input, "next_ticks": list(map(call.screen.times.iso, ticks))}
    if call.screen.is_json:
        call.screen.json(facts)
        return
    call.screen.sentence(f"{redacted_text(row.name)}: {redacted_text(row.type_name)}", "heading")
    call.screen.line(f"{row.state} · {_rule(row)}", _style(row), begin="  ")
    for name in ("input", *_DETAILS, "next_ticks"):
        # The next ticks include it.
        if facts[name] not in (None, []) and name != "next_tick_at":
            value = ", ".join(tick.isoformat() for tick in ticks) if name == "next_ticks" else facts[name]
            text = str(value) if isinstance(value, str | UUID) else shortened(value)
            call.screen.line(f"{name.replace('_', ' '):<15}{text}", begin="  ")


def _pause(call: Invocation, names: Sequence[str]) -> None:
    schedules.pause(*names, using=call.using)
    _changed(call, names, "paused")


def _resume(call: Invocation, names: Sequence[str]) -> None:
    schedules.resume(*names, using=call.using)
    _changed(call, names, "resumed")


def _run_now(call: Invocation, names: Sequence[str]) -> None:
    chain = schedules.run_now(names[0], using=call.using)
    if call.screen.is_json:
        call.screen.json({"id": chain.id, "type": chain.type_name})
    else:
        call.screen.out.write(str(chain.id))


def _next(call: Invocation, names: Sequence[str]) -> None:
    ticks = schedules.next_ticks(names[0], call["count"], using=call.using)
    if call.screen.is_json:
        call.screen.json({"next_ticks": list(map(call.screen.times.iso, ticks))})
        return
    for tick in ticks:
        call.screen.line(f"{tick.isoformat(sep=' ')}  {call.screen.times.ago(tick)}")


OPERATIONS: dict[str, Callable[[Invocation, Sequence[str]], None]] = {
    "list": _list,
    "show": _show,
    "pause": _pause,
    "resume": _resume,
    "run-now": _run_now,
    "next": _next,
}
#: The facts that ``show`` shows after the rule.
_DETAILS = (
    *("overlap", "on_missed", "max_catch_up", "jitter_seconds", "queue", "priority", "source", "last_tick_at"),
    *("last_chain_id", "last_error", "last_error_at", "paused_at", "next_tick_at"),
)


def _changed(call: Invocation, names: Sequence[str], participle: str) -> None:
    if call.screen.is_json:
        call.screen.json({participle: names})
    else:
        call.screen.line(f"{', '.join(names)} {participle}.", "success")


def _rule(row: Schedule) -> str:
    return f"every {span(row.every_seconds)}" if row.every_seconds is not None else f"{row.cron} {row.timezone}"


def _style(row: Schedule) -> str:
    return {"orphaned": "warning", "failing": "error"}.get(row.state, row.state)


def _json(row: Schedule, call: Invocation) -> dict[str, Any]:
    times = call.screen.times
    shown: dict[str, Any] = {"name": row.name, "type": row.type_name, "state": row.state, "cron": row.cron}
    shown |= {"every_seconds": row.every_seconds, "timezone": row.timezone}
    for name in _DETAILS:
        value = getattr(row, name)
        shown[name] = times.iso(value) if name.endswith("_at") else value
    return shown
