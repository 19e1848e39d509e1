"""A record as the admin shows it: its state, its timings, its failure and its execution logs."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext

from django_jobchains.admin.payload_display import Payloads
from django_jobchains.admin.records.actions import state_label, state_style
from django_jobchains.admin.timestamps import Timestamps
from django_jobchains.payload_codecs import Unreadable
from django_jobchains.records.declarations import RecordType
from django_jobchains.text.humanize import number, span

#: The number of entries of the execution logs that are shown, the last ones.
MAX_ENTRIES = 200
#: The states that change without user action.
OPEN = ("queued", "processing", "errored")


def record_view(kind: RecordType, record: Any, payloads: Payloads, times: Timestamps) -> dict[str, Any]:
    """Return the context of the section about a record."""
    state, cancel = kind.value(record, "state"), kind.value(record, "cancel")
    started, finished = kind.value(record, "started_at"), kind.value(record, "finished_at")
    failures, resets = kind.value(record, "num_failures") or 0, kind.value(record, "num_resets") or 0
    took = times.between(started, finished) if finished or state == "processing" else None
    logs, message = _entries(kind.value(record, "execution_logs")), kind.value(record, "failure_message")
    return {
        "state": state_label(state),
        "style": state_style(state),
        "is_open": state in OPEN,
        "is_stopping": state == "processing" and bool(cancel),
        "queued": times.optional(kind.value(record, "queued_at")),
        "process_after": times.optional(kind.value(record, "process_after")) if state == "queued" else None,
        "started": times.optional(started),
        "took": "" if took is None else span(took),
        "finished": times.optional(finished),
        "heartbeat": times.optional(kind.value(record, "last_heartbeat_at")) if state == "processing" else None,
        "worker": kind.value(record, "worker_hostname") or "",
        "attempts": number(attempts_of(kind, record)),
        "failures": number(failures),
        "resets": number(resets),
        "failure": payloads.text(message),
        "failure_type": payloads.error_line(message),
        "logs": tuple(_views(logs, payloads, times)) if payloads.is_allowed else (),
        "omitted_logs": number(len(logs) - MAX_ENTRIES) if len(logs) > MAX_ENTRIES else "",
        "is_logs_hidden": bool(logs) and not payloads.is_allowed,
    }


def attempts_of(kind: RecordType, record: Any) -> int:
    """Return the number of started attempts: failed ones, reset ones, and one that runs or has completed."""
    ended = (kind.value(record, "num_failures") or 0) + (kind.value(record, "num_resets") or 0)
    return int(ended) + (kind.value(record, "state") in ("processing", "completed"))


def _entries(value: Any) -> list[dict[str, Any]]:
    """Return the entries that are valid: programs may have written anything to the column."""
    if isinstance(value, Unreadable):
        return [{"out": str(value)}]
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _views(logs: list[dict[str, Any]], payloads: Payloads, times: Timestamps) -> Iterator[dict[str, Any]]:
    first = max(0, len(logs) - MAX_ENTRIES)
    for index, entry in enumerate(logs[first:], start=first):
        # Without an exit code and a duration, the command still runs.
        duration, exit_code = entry.get("duration_ms"), entry.get("exit_code")
        is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
        yield {
            "key": f"log-{index}",
            "name": payloads.line(str(entry.get("key") or gettext("entry"))),
            "command": payloads.text(_command(entry.get("command"))),
            "out": payloads.text(str(entry.get("out") or "")),
            "exit_code": "" if exit_code is None else payloads.line(str(exit_code)),
            "is_failed": exit_code not in (None, 0),
            "took": span(duration / 1000) if is_number else "",  # type: ignore[operator]
            "started": times.optional(_time(entry.get("start_time"))),
        }


def _command(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _time(value: Any) -> datetime | None:
    try:
        return parse_datetime(value) if isinstance(value, str) else None
    except ValueError:
        return None
