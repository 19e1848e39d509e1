"""Handles records in a child process. The worker sends heartbeats, calls the hooks and writes most ends."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django_jobchains.attempts.record_attempt import EndedRecord, RecordAttempt, RecordEnvironment, not_loaded
from django_jobchains.children.call_loop import running_call
from django_jobchains.db.connections import ThreadConnections, repair_connections
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.errors import RecordHidden
from django_jobchains.registry.registry import get_registry
from django_jobchains.store import RecordKey, Store, get_store
from django_jobchains.store.errors import is_database_away
from django_jobchains.telemetry.child_processes import ChildTelemetry
from django_jobchains.worker.isolated.child_loop import this_loop
from django_jobchains.worker.isolated.record_messages import ended_message, key_of_request
from django_jobchains.worker.threads import LOCK_SECONDS

#: The name of the function that a worker calls in its child processes.
TARGET = f"{__name__}:run_record"
#: Sent before an attempt commits its end. From then on, the worker does not abort it because of what the row contains.
ENDING = {"ending": True}


def run_record(request: Mapping[str, Any]) -> Any:
    """Handle a record that the worker has dequeued, and return how the attempt ended."""
    kind, store = get_registry().record_type(request["type_name"]), get_store(request["using"])
    call = running_call.get()
    telemetry = ChildTelemetry(request["telemetry"], call.send)
    # The worker passes on how the attempt ended, not this process.
    environment = RecordEnvironment(kind, store, lambda ended: None, "", telemetry, partial(call.send, ENDING))
    ended = _handle(key_of_request(request, kind), environment, call.signal)
    telemetry.flush()
    return ended_message(ended)


def _handle(key: RecordKey, environment: RecordEnvironment, signal: AbortSignal) -> EndedRecord:
    kind = environment.kind
    loop = this_loop("child") if kind.is_async else None
    try:
        record = _load(kind, key, environment.store)
        attempt = RecordAttempt(record, key, environment, signal, loop.transactions if loop else None)
    except Exception as error:  # Reading a deferred field may fail, too.
        repair_connections()
        return not_loaded(kind, key, error)
    return attempt.handle() if loop is None else loop.run(attempt.ahandle)


def _load(kind: RecordType, key: RecordKey, store: Store) -> Any:
    """Return the record. This tries twice, because a connection may have been lost while the child was idle."""
    connections = ThreadConnections()
    try:
        return _read(kind, key, store)
    except Exception as error:
        if not is_database_away(error):
            raise
        repair_connections()
        return _read(kind, key, store)
    finally:
        connections.clean()


def _read(kind: RecordType, key: RecordKey, store: Store) -> Any:
    with store.db.waits_at_most(LOCK_SECONDS), store.db.limited():
        record = kind.queryset.using(store.using).filter(pk=key[0]).first()
    if record is None:
        raise RecordHidden(kind.name)
    return record
