"""``limits``: shows the limits that hold for all workers together, overrides them, and resets them."""

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import asdict

from django.core.management.base import CommandError

from django_jobchains import limits
from django_jobchains.cli import converters
from django_jobchains.cli.screen import Cell, Column
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.exceptions import JobchainsError
from django_jobchains.limits import KeyFacts, LimitFacts
from django_jobchains.monitoring.limits import COUNT_TO
from django_jobchains.text.humanize import number, span
from django_jobchains.text.redaction import redacted_text


class LimitsCommand(Subcommand):
    name = "limits"
    help = "shows the limits that hold for all workers together, overrides one, or resets it"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "operation",
            nargs="?",
            default="list",
            choices=OPERATIONS,
            metavar="OPERATION",
            help="list (default), set or reset",
        )
        parser.add_argument("limit", nargs="?", metavar="NAME", help="of a type, a group or records that have a limit")
        parser.add_argument("--queue", type=converters.queue, metavar="QUEUE", help="set and reset: a queue instead")
        parser.add_argument("--concurrency", type=int, metavar="N", help="set: how many may run at once; 0 starts none")
        parser.add_argument("--rate", type=int, metavar="N", help="set: how many may start in the declared time")

    def run(self, call: Invocation) -> None:
        operation = call["operation"]
        given = [option for option in ("limit", "queue", "concurrency", "rate") if call[option] is not None]
        if (operation == "list" and given) or (operation == "reset" and {*given} & {"concurrency", "rate"}):
            wanted = "nothing else" if operation == "list" else "NAME or --queue, and nothing else"
            raise CommandError(f"'limits {operation}' takes {wanted}.", returncode=2)
        if operation != "list" and (call["limit"] is None) == (call["queue"] is None):
            raise CommandError(f"'limits {operation}' takes NAME or --queue.", returncode=2)
        if operation == "set" and not {*given} & {"concurrency", "rate"}:
            raise CommandError("'limits set' takes --concurrency or --rate.", returncode=2)
        if {"queue", "rate"} <= {*given}:
            raise CommandError("A queue has no rate. Pass --concurrency instead of --rate.", returncode=2)
        try:
            OPERATIONS[operation](call)
        except (JobchainsError, ValueError) as error:
            raise CommandError(str(error)) from error


def _list(call: Invocation) -> None:
    found = limits.list(using=call.using)
    columns = (
        Column("LIMIT", lambda row: row.name, min_width=12),
        Column("KIND", lambda row: row.kind),
        Column("RUNNING", lambda row: number(row.running), is_number=True),
        Column("AT ONCE", _concurrency),
        Column("RATE", _rate),
        Column("WAITING", lambda row: number(row.waiting, is_lower_bound=row.waiting >= COUNT_TO), is_number=True),
        Column("DECLARED", _declared, is_optional=True),
        Column("BUSIEST KEYS", _keys, min_width=10, is_optional=True),
    )
    if call.screen.is_json:
        call.screen.json({"limits": [{**asdict(row), "is_declared": row.is_declared} for row in found]})
    elif found:
        call.screen.table(columns, found)
    else:
        call.screen.line("No limits: no type declares one, and no queue has one.")


def _set(call: Invocation) -> None:
    numbers = {"concurrency": call["concurrency"], "rate": call["rate"]}
    limits.set(call["limit"], queue=call["queue"], using=call.using, **numbers)
    _changed(call, {name: value for name, value in numbers.items() if value is not None})


def _reset(call: Invocation) -> None:
    limits.reset(call["limit"], queue=call["queue"], using=call.using)
    _changed(call, {})


OPERATIONS: dict[str, Callable[[Invocation], None]] = {"list": _list, "set": _set, "reset": _reset}


def _changed(call: Invocation, numbers: dict[str, int]) -> None:
    target = {"queue": call["queue"]} if call["queue"] is not None else {"limit": call["limit"]}
    if call.screen.is_json:
        call.screen.json({**target, **(numbers or {"reset": True})})
        return
    shown = ", ".join(f"{name} {value}" for name, value in numbers.items()) or "reset"
    [(kind, name)] = target.items()
    prefix = "queue " if kind == "queue" else ""
    call.screen.sentence(f"{prefix}{redacted_text(name)}: {shown}.", "success")


def _concurrency(row: LimitFacts) -> Cell:
    each = " per key" if row.has_keys and row.concurrency is not None else ""
    shown = "" if row.concurrency is None else f"{number(row.concurrency)}{each}"
    return Cell(shown, "warning" if row.concurrency == 0 else "")


def _rate(row: LimitFacts) -> Cell:
    shown = "" if row.rate is None else f"{number(row.rate)} in {row.rate_seconds:g} s"
    return Cell(shown, "warning" if row.rate == 0 else "")


def _declared(row: LimitFacts) -> Cell:
    """Return what the code declares, if it is overridden."""
    if not row.is_declared:
        return Cell("by no code", "warning")
    pairs = ((row.declared_concurrency, row.concurrency, "at once"), (row.declared_rate, row.rate, "rate"))
    return Cell(", ".join(f"{declared} {what}" for declared, now, what in pairs if declared not in (None, now)))


def _keys(row: LimitFacts) -> str:
    return ", ".join(f"{each.key} ({each.running}{_wait(each)})" for each in row.keys)


def _wait(key: KeyFacts) -> str:
    return "" if key.next_start_seconds is None else f", next in {span(key.next_start_seconds)}"
