"""``types``: shows the settings of each job type and record worker, and where they come from."""

import math
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from fnmatch import fnmatchcase
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple

from django.core.management.base import CommandError

from django_jobchains.cli.screen import Column, Screen
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.conf import get_settings, is_set
from django_jobchains.declare.job_types import JobType, Processor
from django_jobchains.declare.policies import Backoff, Lease, Retention, resolve, resolve_retention, source, sources
from django_jobchains.declare.registry import Registry, get_registry
from django_jobchains.declare.slices import Processors
from django_jobchains.handlers.running_job import plain_function
from django_jobchains.isolation import Isolation
from django_jobchains.payloads.types import Codec
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.processor import FunctionProcessor
from django_jobchains.statuses import FINAL
from django_jobchains.store import get_store
from django_jobchains.values import ATTEMPTS_LIMIT, did_you_mean

#: The columns of the pairs of a setting's name, and its value and source.
COLUMNS = (
    Column("SETTING", lambda row: row[0].removesuffix("_seconds").removeprefix("is_").replace("_", " ")),
    Column("VALUE", lambda row: _in_words(row[0], row[1]["value"]), min_width=12),
    Column("SOURCE", lambda row: row[1]["source"]),
)


def _value(name: str) -> Callable[[dict[str, Any]], str]:
    """Return what shows a setting of a type. Types without a processor have none."""
    return lambda kind: _in_words(name, kind["settings"][name]["value"]) if name in kind["settings"] else ""


#: The columns of the list of types.
LIST_COLUMNS = (
    Column("TYPE", itemgetter("name"), min_width=12),
    Column("INPUT", lambda kind: kind.get("input", kind.get("model")), min_width=8),
    Column("QUEUE", _value("queue")),
    Column("ATTEMPTS", _value("max_attempts"), is_optional=True),
    Column("HANDLER", lambda kind: kind["handler"] or "none: completed from outside", is_optional=True),
)
#: Fields of a processor that are shown separately, or that are not settings.
_NOT_LISTED = {"job_type", "function", "policies", "retry", "queue", "priority", "on_failure", "limits", "observer"}


class Setting(NamedTuple):
    """A value and its source: the processor, its slice, the settings or the library."""

    value: Any
    source: str


class TypesCommand(Subcommand):
    name = "types"
    help = "lists job types and record workers or, with a name, shows their settings and where these come from"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "pattern", nargs="*", metavar="TYPE", help="show the settings of matching types, such as shop.*"
        )

    def run(self, call: Invocation) -> None:
        registry = get_registry()
        registry.add_tasks(get_store(call.using).task_names.read)
        patterns = call["pattern"] or ["*"]
        names = sorted(name for name in registry.job_types() if _matches(name, patterns))
        records = [record_json(kind) for kind in registry.record_types() if _matches(kind.name, patterns)]
        records.sort(key=lambda kind: kind["name"])
        if call["pattern"] and not names and not records:
            known = [*registry.job_types(), *(kind.name for kind in registry.record_types())]
            nearest = did_you_mean(patterns[0], known)
            raise CommandError(f"No job type matches {' or '.join(patterns)}.{nearest} Run 'types' to list all.")
        found = [_type(registry.job_type(name), registry) for name in names]
        if call.screen.is_json:
            call.screen.json({"types": found, "records": records})
        elif not found and not records:
            call.screen.line("No job types and no record workers. Is their app in INSTALLED_APPS, with a jobs module?")
        elif not call["pattern"]:
            call.screen.table(LIST_COLUMNS, sorted([*found, *records], key=itemgetter("name")))
        else:
            for index, kind in enumerate([*found, *records]):
                call.screen.line() if index else None
                (_show_records if "model" in kind else _show_type)(kind, call.screen)


def type_warnings(patterns: Iterable[str], *databases: str | None) -> Iterator[str]:
    """Yield a warning for each pattern that matches nothing, because it may be misspelled. It can be used anyway."""
    registry = get_registry()
    known = {*registry.job_types(), *(kind.name for kind in registry.record_types())}
    known.update(name for using in databases for name in get_store(using).task_names.read())
    for pattern in dict.fromkeys(patterns):
        if not any(_matches(name, [pattern]) for name in known):
            nearest = did_you_mean(pattern, known)
            yield f"No job type, record worker or enqueued task matches {pattern!r}.{nearest}"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _type(job_type: JobType[Any, Any], registry: Registry) -> dict[str, Any]:
    processor = job_type.processor
    part = next((part for part in registry.slices if job_type.name in part.by_name), None)
    return {
        "name": job_type.name,
        "input": _payload(job_type.input_codec),
        "output": _payload(job_type.output_codec),
        "entry": job_type.entry,
        "continues_with": _sorted(job_type.continues_with),
        "blockers": _blockers(job_type),
        "on_blocker_failure": job_type.on_blocker_failure,
        "handler": _name(processor.function) if processor else None,
        "slice": (part.found_as or processor.function.__module__) if part and processor else None,
        "settings": {name: {"value": _plain(value), "source": source} for name, (value, source) in
                     _settings(processor, part)} if processor and part else {},
    }  # fmt: skip


def _settings(processor: Processor, part: Processors) -> Iterator[tuple[str, Setting]]:
    default_queue = Setting(get_settings().QUEUE, "settings" if is_set("queue") else "library")
    yield "queue", _setting("queue", processor.queue, part) or default_queue
    yield "priority", _setting("priority", processor.priority, part) or Setting(0, "library")
    for field in fields(processor):
        if field.name not in _NOT_LISTED:
            value = getattr(processor, field.name)
            default = "staged" if field.name == "mode" else None if field.default is MISSING else field.default
            source_name = "slice" if field.name == "middleware" else _source(field.name, value, part)
            yield field.name, Setting(value, "library" if value == default else source_name)
    policy = resolve(*processor.policies)
    named = list(zip(("processor", "slice"), processor.policies, strict=True))
    for name, source_name in sources(*named).items():
        yield name, Setting(getattr(policy, name), source_name)
    if processor.job_type.entry:
        yield "retention", Setting(resolve_retention(*processor.policies), source("retention", *named))
    if kinds := processor.retry.fail_on:
        yield "fail_on", Setting([_name(kind) for kind in kinds], _source("fail_on", kinds, part))
    if function := processor.retry.retry_if:
        yield "retry_if", Setting(_name(function), _source("retry_if", function, part))
    if target := processor.on_failure:
        yield "on_failure", Setting(target, _source("on_failure", target, part))
    for name in ("concurrency", "rate", "fair"):
        if limit := _setting(name, getattr(processor.limits, name, None), part):
            yield name, limit


def _setting(name: str, value: Any, part: Processors) -> Setting | None:
    return None if value is None else Setting(value, _source(name, value, part))


def _source(name: str, value: Any, part: Processors) -> str:
    return "slice" if part.defaults.get(name) == value else "processor"


def _plain(value: Any) -> Any:
    if callable(value):
        return _name(value)
    if isinstance(value, Retention):
        return {**asdict(value), **{status: value.seconds(status) for status in sorted(FINAL)}}
    if isinstance(value, Isolation):
        return {"level": value.level, **{name: _plain(option) for name, option in value.options.items()}}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if value == math.inf:  # JSON has no infinity
        return None
    if isinstance(value, tuple):
        return list(map(_name, value))
    return value


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _blockers(job_type: JobType[Any, Any]) -> list[str] | None:
    """Return the types of required blockers in their declared order, and others sorted."""
    slots = job_type.blocker_slots
    return _sorted(job_type.blockers) if slots is None else list(slots)


def _payload(codec: Codec) -> str:
    if codec.annotation is Any:
        return "any JSON"
    return "nothing" if codec.annotation is NoneType else codec.name


def _name(value: Any) -> str:
    """Return the name of a function or class, or of the class of another object."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return named.__qualname__ if named.__module__ == "builtins" else f"{named.__module__}.{named.__qualname__}"


def record_json(kind: RecordType) -> dict[str, Any]:
    """Return a record worker as JSON values. The ``source`` of a setting is where it is set, as for job types."""

    def setting(value: Any, own: Any) -> dict[str, Any]:
        return {"value": value, "source": "settings" if own is None else "processor"}

    def limit(value: float) -> float | None:
        return None if value in (math.inf, ATTEMPTS_LIMIT) else value

    processor = kind.processor
    handler: Any = plain_function(processor.function) if isinstance(processor, FunctionProcessor) else type(processor)
    return {
        "name": kind.name,
        "model": kind.model._meta.label,
        "handler": _name(handler),
        "columns": {column: name for column, name in kind.columns.items() if column != name},
        "settings": {
            "queue": setting(kind.queue, kind.own_queue),
            "slots": setting(kind.slots, kind.slots),
            "max_attempts": setting(limit(kind.max_attempts), kind.own_max_attempts),
            "retry_after_seconds": setting(kind.retry_seconds, kind.retry_seconds),
            "stalled_after_seconds": setting(kind.stalled_seconds, kind.own_stalled_seconds),
            "heartbeat_seconds": setting(kind.heartbeat_seconds, kind.own_heartbeat_seconds),
            "max_resets": setting(kind.max_resets, kind.own_max_resets),
            "max_runtime_seconds": setting(limit(kind.max_runtime_seconds), limit(kind.max_runtime_seconds)),
        },
    }


def _show_records(kind: dict[str, Any], screen: Screen) -> None:
    screen.heading(kind["name"])
    screen.line(f"records of {kind['model']}", begin="  ")
    screen.line(kind["handler"], begin="  ")
    if kind["columns"]:
        named = ", ".join(f"{column}: {name}" for column, name in kind["columns"].items())
        screen.line(f"columns {named}", begin="  ")
    screen.table(COLUMNS, list(kind["settings"].items()), "  ")


def _show_type(kind: dict[str, Any], screen: Screen) -> None:
    screen.heading(kind["name"])
    screen.line(_rules(kind), begin="  ")
    if not kind["handler"]:
        screen.line("No processor: jobs of this type are completed from outside.", begin="  ")
        return
    screen.line(f"{kind['handler']}, in the slice {kind['slice']}", begin="  ")
    screen.table(COLUMNS, list(kind["settings"].items()), "  ")


def _rules(kind: dict[str, Any]) -> str:
    parts = [f"{kind['input']} → {kind['output']}"]
    if not kind["entry"]:
        parts.append("continuations only")
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
        return {"batch_limit": "one job at a time", "retry_after_seconds": "not retried"}.get(name, "no limit")
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if name == "isolation":
        return _isolation(**value)
    if isinstance(value, dict) and value.keys() == {field.name for field in fields(Backoff)}:
        return _backoff(Backoff(**value))
    if isinstance(value, dict) and value.keys() == {field.name for field in fields(Lease)}:
        return f"{value['seconds']:g} s"
    if isinstance(value, dict) and value.keys() == {field.name for field in fields(Retention)}:
        return _retention(Retention(**value))
    if name in ("concurrency", "rate"):
        window = f"per {value['per']:g} s" if name == "rate" else ""
        words = (
            window,
            f"burst {value['burst']}" if value.get("burst", 1) > 1 else "",
            f"of each {value['key']}" if value["key"] else "",
            f"in the group {value['group']}" if value["group"] else "",
        )
        return " ".join([str(value["limit"]), *filter(None, words)])
    return f"{value:g} s" if name.endswith("_seconds") else str(value)


def _isolation(level: str, **options: Any) -> str:
    return f"{level} ({', '.join(f'{name}={value}' for name, value in options.items())})" if options else level


def _retention(retention: Retention) -> str:
    kept = [f"{status} {_kept(retention.seconds(status))}" for status in ("completed", "cancelled", "failed")]
    return ", ".join(kept) + (", longer while a key matches" if retention.keeps_keyed else "")


def _kept(seconds: float | None) -> str:
    return "forever" if seconds is None else f"{seconds / 86_400:g} days" if seconds >= 86_400 else f"{seconds:g} s"


def _backoff(backoff: Backoff) -> str:
    text = f"{backoff.initial_seconds:g} s, × {backoff.multiplier:g} each time, at most {backoff.maximum_seconds:g} s"
    return f"{text}, {backoff.jitter:.0%} of it random" if backoff.jitter else text
