"""Calls the hooks of records, without an open transaction."""

import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from django_jobchains.context import clear_context
from django_jobchains.db.connections import ThreadConnections, close_thread_connections
from django_jobchains.records.declarations import RecordType
from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import RecordHookEnded
from django_jobchains.text.errors import type_name


def call_with_record(kind: RecordType, hook: str, record: Any, worker: str) -> BaseException | None:
    """Call a hook that takes a record, and report how long it took. Return its error."""
    started = time.perf_counter()
    error = call_hook(lambda: getattr(kind.processor, hook)(record))
    if observes(RecordHookEnded):
        seconds = time.perf_counter() - started
        report(RecordHookEnded(worker, kind.name, hook, seconds, "" if error is None else type_name(error)))
    return error


def call_hook(hook: Callable[[], object]) -> BaseException | None:
    """Call a hook on connections without open transactions, and return its error. The context is a copy."""
    return copy_context().run(_call_hook, hook)


def _call_hook(hook: Callable[[], object]) -> BaseException | None:
    clear_context()
    try:
        connections = ThreadConnections()
    except Exception:
        close_thread_connections()
        connections = ThreadConnections()
    error: BaseException | None = None
    try:
        hook()
        connections.check()
    except BaseException as raised:
        error = raised
    try:
        connections.clean(suspicious=error is not None)
    except BaseException:
        close_thread_connections()
    return error
