"""``types``: what every job type does, and who said so."""

from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields, is_dataclass
from fnmatch import fnmatchcase
from types import NoneType
from typing import Any, NamedTuple

from django.core.management.base import CommandError

from django_jobchains.conf import get_settings, is_set
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.console.tables import Cell, Column
from django_jobchains.job_types import JobType
from django_jobchains.policies import Backoff, Lease, Retention, resolve, retention_of, source, sources
from django_jobchains.processors import Processor, Processors, Registry, get_registry
from django_jobchains.statuses import FINAL

COLUMNS = (Column("WHAT"), Column("VALUE", least=12), Column("SAID BY"))
#: Of a processor, and shown in another way.
_SHOWN = {"job_type", "function", "policies", "retry", "queue", "priority"}


class Setting(NamedTuple):
    """A value, and who said so."""

    value: Any
    source: str


class Types(Subcommand):
    name = "types"
    help = "shows each job type with its policy, and where that comes from"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("pattern", nargs="*", metavar="PATTERN", help="only these: shop.* (all)")

    def run(self, call: Call) -> None:
        registry = get_registry()
        patterns = call["pattern"] or ["*"]
        names = sorted(name for name in registry.job_types() if any(fnmatchcase(name, pattern) for pattern in patterns))
        if not names:
            raise CommandError(f"No job type is called {' or '.join(patterns)}. Try 'types' alone.")
        found = [_type(registry.job_type(name), registry) for name in names]
        if call.screen.is_json:
            call.screen.json({"types": found})
        else:
            for place, kind in enumerate(found):
                call.screen.line() if place else None
                _show(kind, call)


def _type(job_type: JobType[Any, Any], registry: Registry) -> dict[str, Any]:
    processor = job_type.processor
    part = next((part for part in registry.slices if job_type.name in part.by_name), None)
    return {
        "name": job_type.name,
        "input": _name(job_type.input_codec.annotation),
        "output": _name(job_type.output_codec.annotation),
        "entry": job_type.entry,
        "continues_with": _sorted(job_type.continues_with),
        "blockers": _sorted(job_type.blockers),
        "on_blocker_failure": job_type.on_blocker_failure,
        "handler": _name(processor.function) if processor else None,
        "slice": (part.found_as or processor.function.__module__) if part and processor else None,
        "settings": {name: {"value": _plain(value), "source": source} for name, (value, source) in
                     _settings(processor, part)} if processor and part else {},
    }  # fmt: skip


def _settings(processor: Processor, part: Processors) -> Iterator[tuple[str, Setting]]:
    yield "queue", _queue(processor, part)
    yield "priority", Setting(processor.priority or 0, "library" if processor.priority is None else "processor")
    for field in fields(processor):
        if field.name not in _SHOWN:
            value = getattr(processor, field.name)
            said_by = "slice" if field.name == "middleware" else "processor"
            yield field.name, Setting(value, "library" if value == _default(field) else said_by)
    policy = resolve(*processor.policies)
    named = list(zip(("processor", "slice"), processor.policies, strict=True))
    for name, said_by in sources(*named).items():
        yield name, Setting(getattr(policy, name), said_by)
    if processor.job_type.entry:
        yield "retention", Setting(retention_of(*processor.policies), source("retention", *named))
    if processor.retry.fail_on:
        yield "fail_on", Setting([_name(kind) for kind in processor.retry.fail_on], "processor")
    if processor.retry.retry_if:
        yield "retry_if", Setting(_name(processor.retry.retry_if), "processor")


def _queue(processor: Processor, part: Processors) -> Setting:
    if processor.queue is None:
        return Setting(get_settings().QUEUE, "settings" if is_set("queue") else "library")
    return Setting(processor.queue, "slice" if processor.queue == part.queue else "processor")


def _default(field: Any) -> Any:
    """What a field is when nobody says anything."""
    if field.name == "mode":
        return "staged"
    return None if field.default is MISSING else field.default


def _plain(value: Any) -> Any:
    if isinstance(value, Retention):
        return {**asdict(value), **{status: value.seconds(status) for status in sorted(FINAL)}}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, tuple):
        return [_name(part if hasattr(part, "__qualname__") else type(part)) for part in value]
    return value


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _name(value: Any) -> str:
    if value is Any:
        return "any JSON"
    if value is NoneType:
        return "nothing"
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name and value.__module__ != "builtins" else name or repr(value)


def _show(kind: dict[str, Any], call: Call) -> None:
    screen = call.screen
    screen.heading(kind["name"])
    screen.line(_rules(kind), begin="  ")
    if not kind["handler"]:
        screen.line("No processor: its jobs are completed from outside.", begin="  ")
        return
    screen.line(f"{kind['handler']}, of the slice {kind['slice']}", begin="  ")
    rows: list[list[Cell | str]] = [
        [
            name.removesuffix("_seconds").removeprefix("is_").replace("_", " "),
            _in_words(name, setting["value"]),
            setting["source"],
        ]
        for name, setting in kind["settings"].items()
    ]
    screen.table(COLUMNS, rows, "  ")


def _rules(kind: dict[str, Any]) -> str:
    parts = [f"{kind['input']} → {kind['output']}"]
    if not kind["entry"]:
        parts.append("only continued to")
    if kind["continues_with"] is not None:
        parts.append(f"continues with {', '.join(kind['continues_with']) or 'nothing'}")
    if kind["blockers"] is not None:
        parts.append(f"waits for {', '.join(kind['blockers']) or 'nothing'}")
    if kind["on_blocker_failure"] != "wait":
        parts.append(f"when a blocker fails: {kind['on_blocker_failure']}s")
    return " · ".join(parts)


def _in_words(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == float("inf"):
        return {"batch_limit": "one job at a time"}.get(name, "no limit")
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict) and value.keys() == {field.name for field in fields(Backoff)}:
        return _backoff(Backoff(**value))
    if isinstance(value, dict) and value.keys() == {field.name for field in fields(Lease)}:
        return f"{value['seconds']:g} s"
    if isinstance(value, dict) and value.keys() == {field.name for field in fields(Retention)}:
        return _retention(Retention(**value))
    return f"{value:g} s" if name.endswith("_seconds") else str(value)


def _retention(retention: Retention) -> str:
    kept = [f"{status} {_kept(retention.seconds(status))}" for status in ("completed", "cancelled", "failed")]
    return ", ".join(kept) + (", with a key for ever" if retention.keeps_keyed else "")


def _kept(seconds: float | None) -> str:
    return "for ever" if seconds is None else f"{seconds / 86_400:g} days" if seconds >= 86_400 else f"{seconds:g} s"


def _backoff(backoff: Backoff) -> str:
    text = f"{backoff.initial_seconds:g} s, × {backoff.multiplier:g} each time, at most {backoff.maximum_seconds:g} s"
    return f"{text}, {backoff.jitter:.0%} of it random" if backoff.jitter else text
