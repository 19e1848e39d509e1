"""Sends errors of jobs and records to Sentry, and check-ins of schedules.

Needs sentry-sdk, which you configure with ``sentry_sdk.init``.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import lru_cache
from typing import Any

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.scope import Scope, use_isolation_scope
from sentry_sdk.types import Event as SentryEvent
from sentry_sdk.types import Hint

from django_jobchains.declare.registry import get_registry
from django_jobchains.declare.schedules import checked_schedule
from django_jobchains.handlers.batch import Batch
from django_jobchains.handlers.running_job import RunningJob
from django_jobchains.middleware import Middleware
from django_jobchains.pools import RemoteError
from django_jobchains.records import RecordRun
from django_jobchains.telemetry import Event, add_sink
from django_jobchains.telemetry.events import AttemptEnded, AttemptStarted, ChainEnded
from django_jobchains.text.errors import redacted_error
from django_jobchains.text.redaction import redacted_text

__all__ = ("SentryMiddleware",)

#: The limit of attempts whose scopes are kept until their outcomes are written. Errors of other attempts lack the tags
#: that their handlers have set. In a child process no scope is needed again.
MAX_SCOPES = 1_000
#: Sentry cuts longer slugs.
SLUG_LENGTH = 50
#: The units of Sentry's intervals, in seconds.
_UNITS = {"day": 86_400, "hour": 3_600, "minute": 60}

#: A type, the id of one of its jobs or records, and the number of the attempt.
_Key = tuple[str, str, int]


class SentryMiddleware(Middleware):
    """Gives each attempt its own isolation scope, and sends the error of a job or record that ends as failed, once.

    The transaction has the name of the type. The tags are ``job.type``, ``job.queue`` and ``job.attempt``, and the
    context ``job`` has the ids. The error of the previous attempt at a job is a breadcrumb. ``capture_retries``:
    whether to send also the errors of attempts that are retried and of errored records, as warnings. Reschedules,
    cancellations and aborted attempts are not sent. Errors are redacted.

    Errors are sent by the worker process, without the tags and breadcrumbs of a handler in a child process.

    ``monitor_schedules``: whether the chains of a schedule check in to the cron monitor with the schedule's name, which
    Sentry creates.
    """

    def __init__(self, *, capture_retries: bool = False, monitor_schedules: bool = False) -> None:
        self.capture_retries = capture_retries
        _install()
        if monitor_schedules:
            add_sink(_check_in, AttemptStarted, ChainEnded)

    @contextmanager
    def around_handler(self, job: RunningJob[Any]) -> Iterator[None]:
        parts: list[Any] = list(job) if isinstance(job, Batch) else [job]
        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(job.type_name, source="task")
            scope.set_tag("job.type", job.type_name)
            for part in parts:
                ids = {} if isinstance(part, RecordRun) else {"chain_id": str(part.chain_id)}
                own = scope if part is job else scope.fork()
                _describe(own, job.type_name, part.queue, part.attempt, {"id": str(part.id), **ids})
                if last_error := getattr(part, "last_error", None):  # Records have none.
                    own.add_breadcrumb(category="job", level="warning", message=redacted_text(last_error))
                key = job.type_name, str(part.id), part.attempt
                _scopes[key] = own, self.capture_retries
            while len(_scopes) > MAX_SCOPES:
                _scopes.popitem(last=False)
            yield


def _describe(scope: Scope, type_name: str, queue: str, attempt: int, ids: dict[str, str]) -> None:
    """Add what is known about an attempt to a scope."""
    scope.set_transaction_name(type_name, source="task")
    scope.set_tag("job.type", type_name)
    scope.set_tag("job.queue", queue)
    scope.set_tag("job.attempt", attempt)
    scope.set_context("job", ids)


#: The scopes of attempts whose outcomes are not known yet, and whether retries are sent.
_scopes: "OrderedDict[_Key, tuple[Scope, bool]]" = OrderedDict()


def _install() -> None:
    """Add the sink, and drop the events of Sentry's logging integration for the same errors."""
    add_sink(_on_event)
    scope = sentry_sdk.get_global_scope()
    if _without_logged_failures not in scope._event_processors:
        scope.add_event_processor(_without_logged_failures)


def _without_logged_failures(event: SentryEvent, hint: Hint) -> SentryEvent | None:
    is_ours = event.get("logger") == "django_jobchains"
    name = (event.get("extra") or {}).get("event")
    return None if is_ours and name == AttemptEnded.__name__ else event


def _on_event(event: Event) -> None:
    """Send the error of an attempt when its outcome is written, with the scope of the handler."""
    if not isinstance(event, AttemptEnded):
        return
    ids = {"id": str(event.job_id), **({"chain_id": str(event.chain_id)} if event.chain_id else {})}
    scope, capture_retries = _scopes.pop((event.type_name, ids["id"], event.attempt), (None, False))
    if event.exception is None:
        return
    if scope is None:  # the handler ran in a child process, or was not called
        scope = sentry_sdk.get_isolation_scope().fork()
        _describe(scope, event.type_name, event.queue, event.attempt, ids)
    # In a separate context, because Sentry skips an error that the log has just reported.
    Context().run(_send, event, event.exception, scope, capture_retries=capture_retries)


def _send(event: AttemptEnded, error: BaseException, scope: Scope, *, capture_retries: bool) -> None:
    with use_isolation_scope(scope):
        if event.ending == "failed":
            sentry_sdk.capture_exception(_shown(error))
        elif event.ending in ("retried", "errored") and capture_retries:
            sentry_sdk.capture_exception(_shown(error), level="warning")


def _shown(error: BaseException) -> BaseException:
    """Return the redacted error. An error from a child process gets its original type, by which Sentry groups."""
    if not isinstance(error, RemoteError):
        return redacted_error(error)
    kind: type[Exception] = type(error.type_name, (Exception,), {"__module__": ""})
    shown = kind(redacted_text(error.message))
    shown.add_note(redacted_text(error.traceback))
    return shown


def _check_in(event: Event) -> None:
    """Report the state of a chain to the monitor of its schedule. Any process can continue a check-in by its id."""
    if not isinstance(event, AttemptStarted | ChainEnded) or event.schedule_name is None or event.chain_id is None:
        return
    if isinstance(event, ChainEnded):
        status = "ok" if event.status == "completed" else "error"
    elif event.attempt == 1 and event.job_id == event.chain_id:
        status = "in_progress"
    else:
        return
    slug = re.sub(r"[^a-z0-9_-]+", "-", event.schedule_name.lower())[:SLUG_LENGTH].strip("-")
    if slug:
        capture_checkin(slug, event.chain_id.hex, status, monitor_config=_monitor_config(event.schedule_name))


@lru_cache(maxsize=1_000)
def _monitor_config(schedule_name: str) -> Any:
    """Return what Sentry creates or updates the monitor with.

    None for a schedule that is not declared in code, and for an interval that Sentry cannot express.
    """
    registry = get_registry()
    declared = (each for part in registry.slices for each in part.schedules if each.name == schedule_name)
    for each in declared:
        row = checked_schedule(each.name, each.job_type, each.options, registry.job_type)
        if row["cron"]:
            return {"schedule": {"type": "crontab", "value": row["cron"]}, "timezone": row["timezone"]}
        for unit, seconds in _UNITS.items():
            if row["every_seconds"] % seconds == 0:
                value = int(row["every_seconds"] // seconds)
                return {"schedule": {"type": "interval", "value": value, "unit": unit}}
    return None
