"""The record workers in ``types``: the model, the handler and the settings of each."""

import math
from typing import Any

from django_jobchains.cli.screen import Screen
from django_jobchains.cli.tables import Cell, Column
from django_jobchains.handlers.functions import plain_function
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.processor import FunctionProcessor
from django_jobchains.values import ATTEMPTS_LIMIT

COLUMNS = (Column("SETTING"), Column("VALUE", min_width=12), Column("SOURCE"))


def record_json(kind: RecordType) -> dict[str, Any]:
    """Return a record worker as JSON values. The ``source`` of a setting is where it is set, as for job types."""
    return {
        "name": kind.name,
        "model": kind.model._meta.label,
        "handler": _handler(kind),
        "columns": {column: name for column, name in kind.columns.items() if column != name},
        "settings": {
            "queue": _setting(kind.queue, kind.own_queue),
            "slots": _setting(kind.slots, kind.slots),
            "max_attempts": _setting(_limit(kind.max_attempts), kind.own_max_attempts),
            "retry_after_seconds": _setting(kind.retry_seconds, kind.retry_seconds),
            "stalled_after_seconds": _setting(kind.stalled_seconds, kind.own_stalled_seconds),
            "heartbeat_seconds": _setting(kind.heartbeat_seconds, kind.own_heartbeat_seconds),
            "max_resets": _setting(kind.max_resets, kind.own_max_resets),
            "max_runtime_seconds": _setting(_limit(kind.max_runtime_seconds), _limit(kind.max_runtime_seconds)),
        },
    }


def _handler(kind: RecordType) -> str:
    processor = kind.processor
    found: Any = plain_function(processor.function) if isinstance(processor, FunctionProcessor) else type(processor)
    return f"{found.__module__}.{found.__qualname__}"


def _setting(value: Any, own: Any) -> dict[str, Any]:
    return {"value": value, "source": "settings" if own is None else "processor"}


def _limit(value: float) -> float | None:
    return None if value in (math.inf, ATTEMPTS_LIMIT) else value


def show_record_type(kind: dict[str, Any], screen: Screen) -> None:
    screen.heading(kind["name"])
    screen.line(f"records of {kind['model']}", begin="  ")
    screen.line(kind["handler"], begin="  ")
    if kind["columns"]:
        named = ", ".join(f"{column}: {name}" for column, name in kind["columns"].items())
        screen.line(f"columns {named}", begin="  ")
    rows: list[list[Cell | str]] = [
        [name.removesuffix("_seconds").replace("_", " "), _in_words(name, setting["value"]), setting["source"]]
        for name, setting in kind["settings"].items()
    ]
    screen.table(COLUMNS, rows, "  ")


def _in_words(name: str, value: Any) -> str:
    if value is None:
        return "not retried" if name == "retry_after_seconds" else "no limit"
    return f"{value:g} s" if name.endswith("_seconds") else str(value)
