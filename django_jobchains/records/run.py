"""What the handler of a record receives: the attempt, its abort signal, its logs and its transaction."""

import json
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.running_job import ContextT_contra, HasContext
from django_jobchains.records.errors import checked_after
from django_jobchains.text.errors import clean

#: The limit of texts in execution logs, in bytes. Longer ones are cut in the middle.
MAX_LOG_BYTES = 64 * 1024

ResultT = TypeVar("ResultT")


class RecordMethods(Protocol):
    """The part of an attempt that a run uses."""

    number: int
    signal: AbortSignal
    requeued: tuple[bool, datetime | None]

    def complete(self) -> AbstractContextManager[None]: ...
    def write_logs(self, logs: Callable[[], list[dict[str, Any]]]) -> None: ...
    def acomplete(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]: ...
    def acall(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]: ...


class RecordRun(HasContext[ContextT_contra]):
    """The attempt at a record: the second argument of its handler, and the argument of middleware.

    ``RecordRun[Tenant]`` needs a context that middleware provides.
    ``attempt`` counts failures and resets, from 1. ``record`` is the record, ``id`` its primary key. ``type_name`` is
    the name of the registration. ``context`` is empty at first: middleware may add values for the handler.
    """

    #: The stored context of jobs. Records have none.
    stored_context: None = None

    def __init__(self, record: Any, attempt: RecordMethods, *, type_name: str, queue: str) -> None:
        self.record = record
        self.id = record.pk
        self.type_name = type_name
        self.queue = queue
        self.attempt = attempt.number
        self.context: dict[str, Any] = {}
        self.signal = attempt.signal
        self._attempt = attempt
        self._logs = _Logs(attempt)

    def add_log(self, key: str, command: Any, out: str = "", exit_code: int | None = None) -> "ExecutionLog":
        """Add an entry to the record's execution logs, and store it at once.

        ``command``: a string or a list of strings. Raises ``RecordLost`` if the attempt no longer holds the record.
        Inside the handler's own transaction, the entry is stored when that commits. Calls on other threads wait for
        that transaction.
        """
        return self._logs.add(key, command, out, exit_code)

    async def aadd_log(self, key: str, command: Any, out: str = "", exit_code: int | None = None) -> "ExecutionLog":
        """``add_log`` for async handlers."""
        return await self._attempt.acall(partial(self.add_log, key, command, out, exit_code))

    def requeue(self, *, after: datetime | None = None) -> None:
        """Queue the record again when the handler returns, to be processed after an aware time, or at once.

        This does not count as a failure. If the handler raises an error afterwards, the attempt still ends with that
        error.
        """
        self._attempt.requeued = (True, checked_after(after))

    def complete(self) -> AbstractContextManager[None]:
        """Open a transaction that commits the handler's writes together with the record's new state.

        The record's row is locked. The commit follows when the handler has returned. Raises ``RecordLost`` if the
        attempt no longer holds the record. An error inside ends the attempt, even if the handler swallows it.
        """
        return self._attempt.complete()

    async def acomplete(self, function: Callable[[], ResultT]) -> ResultT:
        """``complete`` for async handlers: call a sync function without arguments inside the transaction, on a thread.

        Returns the result of the function. Return from the handler soon: until then, the record's row is locked and a
        thread is occupied.
        """
        return await self._attempt.acomplete(function)


class ExecutionLog:
    """An entry of a record's execution logs, see ``RecordRun.add_log``."""

    def __init__(self, logs: "_Logs", entry: dict[str, Any]) -> None:
        self._logs = logs
        self._entry = entry
        self._began_at = time.monotonic()

    def update(self, *, out: str | None = None, exit_code: int | None = None) -> None:
        """Replace the output, the exit code, or both, and store the entry with the duration so far."""
        changed: dict[str, Any] = {"duration_ms": round((time.monotonic() - self._began_at) * 1000)}
        if out is not None:
            changed["out"] = _text("out", out)
        if exit_code is not None:
            changed["exit_code"] = exit_code
        self._logs.change(self._entry, changed)

    async def aupdate(self, *, out: str | None = None, exit_code: int | None = None) -> None:
        """``update`` for async handlers."""
        await self._logs.attempt.acall(partial(self.update, out=out, exit_code=exit_code))


class _Logs:
    """The entries of an attempt. They are stored together, so that each write is complete by itself."""

    def __init__(self, attempt: RecordMethods) -> None:
        self.attempt = attempt
        #: Not held during a write, which may wait for the transaction of a thread that needs this lock.
        self._lock = threading.Lock()
        self._entries: list[dict[str, Any]] = []

    def add(self, key: str, command: Any, out: str, exit_code: int | None) -> ExecutionLog:
        entry = {
            "key": _text("key", key),
            "command": _text("command", command) if isinstance(command, str) else _words(command),
            "start_time": datetime.now(UTC).isoformat(),
            "exit_code": exit_code,
            "out": _text("out", out),
            "duration_ms": None if exit_code is None else 0,
        }
        with self._lock:
            self._entries.append(entry)
        self.attempt.write_logs(self._copies)
        return ExecutionLog(self, entry)

    def change(self, entry: dict[str, Any], changed: dict[str, Any]) -> None:
        with self._lock:
            entry.update(changed)
        self.attempt.write_logs(self._copies)

    def _copies(self) -> list[dict[str, Any]]:
        """Return the entries as they are now. Other threads may change them."""
        with self._lock:
            return [dict(entry) for entry in self._entries]


def _text(name: str, given: object) -> str:
    """Return a text that can be stored. Raises an error for a wrong type, never for the content."""
    if not isinstance(given, str):
        raise TypeError(f"{name}={given!r:.50} is not a string.")
    return clean(given, MAX_LOG_BYTES)


def _words(command: object) -> list[str]:
    if not isinstance(command, list | tuple):
        raise TypeError(f"command={command!r:.50} is neither a string nor a list of strings.")
    return [_text("command", word) for word in json.loads(json.dumps(command, default=str))]
