"""The class that handles the records of a model, and what its handler receives: the attempt, its logs, its signal."""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from inspect import signature
from typing import Any, Generic, Protocol, TypeVar

from asgiref.sync import iscoroutinefunction
from django.db.models import Model, Q

from django_jobchains.exceptions import RegistryError
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.running_job import ContextT_contra, HasContext, is_async_function, plain_function
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
    """An attempt at a record: the second argument of its handler, and the argument of middleware.

    ``RecordRun[Tenant]`` declares the context that the handler needs from middleware. ``record`` is the record, and
    ``id`` is its primary key. ``attempt`` is 1 in the first attempt, and increases with each failure or reset.
    ``type_name`` is the name of the registration. ``context`` is a dict that is empty at first. Middleware may add
    values for the handler.
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
        """Add an entry to the record's execution logs, and store it immediately.

        ``command`` is a string or a list of strings. Raises ``RecordLost`` if the attempt no longer holds the record.
        Inside a transaction of the handler, the entry is stored when it commits, and calls in other threads wait for
        it.
        """
        return self._logs.add(key, command, out, exit_code)

    async def aadd_log(self, key: str, command: Any, out: str = "", exit_code: int | None = None) -> "ExecutionLog":
        """``add_log`` for async handlers."""
        return await self._attempt.acall(partial(self.add_log, key, command, out, exit_code))

    def requeue(self, *, after: datetime | None = None) -> None:
        """Queue the record again when the handler returns, to be processed now or after an aware time.

        This does not count as a failure. If the handler raises an error afterwards, the attempt still ends with that
        error.
        """
        self._attempt.requeued = (True, checked_after(after))

    def complete(self) -> AbstractContextManager[None]:
        """Open a transaction that commits the handler's writes together with the record's new state.

        The record's row is locked. The transaction is committed when the handler has returned. Raises ``RecordLost`` if
        the attempt no longer holds the record. If an error is raised inside the block, the attempt fails with it, even
        if the handler catches the error.
        """
        return self._attempt.complete()

    def acomplete(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]:
        """``complete`` for async handlers: call a sync function without arguments inside the transaction, in a thread.

        ``await run.acomplete(function)`` returns the result of the function. Return from the handler soon: until then,
        the record's row is locked and a thread is occupied.
        """
        return self._attempt.acomplete(function)


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
            changed["exit_code"] = _exit_code(exit_code)
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
            "command": _command(command),
            "start_time": datetime.now(UTC).isoformat(),
            "exit_code": _exit_code(exit_code),
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


def _exit_code(given: object) -> int | None:
    if given is not None and not isinstance(given, int):
        raise TypeError(f"exit_code={given!r:.50} is neither an int nor None.")
    return given


def _command(command: object) -> str | list[str]:
    if isinstance(command, str):
        return _text("command", command)
    if not isinstance(command, list | tuple):
        raise TypeError(f"command={command!r:.50} is neither a string nor a list of strings.")
    return [_text("command", word) for word in json.loads(json.dumps(command, default=str))]


RecordT = TypeVar("RecordT", bound=Model)

HOOKS = ("pre_dequeue", "pre_handle", "post_handle")


class RecordProcessor(ABC, Generic[RecordT]):
    """The base class of classes that handle records of a model. Only ``handle`` is required.

    A worker process creates one object, unless an instance is registered. Several threads call its methods. No
    transaction is open when they are called. ``handle`` may be an ``async def`` method; the hooks are plain methods,
    which never run on the event loop. With isolation in child processes, ``handle`` runs in a child, which has its own
    object, and the hooks in the worker.
    """

    def pre_dequeue(self) -> Q | bool:
        """Return whether to dequeue a record now, or a condition that the record must meet."""
        return True

    def pre_handle(self, record: RecordT) -> None:
        """Called with each dequeued record, before the next ``pre_dequeue``. An error fails the attempt."""

    @abstractmethod
    def handle(self, record: RecordT, run: RecordRun[Any]) -> Awaitable[None] | None:
        """Do the work. The record is completed when this returns None. Any other result is an error."""

    def post_handle(self, record: RecordT) -> None:
        """Called after the new state of the record was written, whatever the result is. Errors are only logged."""


class FunctionProcessor(RecordProcessor[Any]):
    """The processor of a plain function ``handle(record, run)``."""

    def __init__(self, function: Callable[[Any, RecordRun[Any]], object]) -> None:
        self.function = function

    def handle(self, record: Any, run: RecordRun[Any]) -> Any:
        return self.function(record, run)


def handler_of(processor: RecordProcessor[Any]) -> Callable[..., Any]:
    return processor.function if isinstance(processor, FunctionProcessor) else processor.handle


def is_async(processor: RecordProcessor[Any]) -> bool:
    """Return whether the handler is an ``async def`` function."""
    return is_async_function(handler_of(processor))


def hooks_of(processor: RecordProcessor[Any]) -> frozenset[str]:
    """Return the names of the hooks that a processor defines itself."""
    kind, own = type(processor), vars(processor)
    return frozenset(name for name in HOOKS if name in own or getattr(kind, name) is not getattr(RecordProcessor, name))


def make_processor(given: Any) -> RecordProcessor[Any]:
    """Return the processor for a class, an instance or a function; raise ``RegistryError`` for anything else."""
    processor = _make_object(given) if isinstance(given, type) else given
    if isinstance(processor, RecordProcessor):
        _check_handler(processor.handle)
        _check_hook(processor.pre_dequeue)
        _check_hook(processor.pre_handle, "record")
        _check_hook(processor.post_handle, "record")
        return processor
    if not callable(given):
        raise RegistryError(f"{given!r} is neither a RecordProcessor nor a function handle(record, run).")
    _check_handler(given)
    return FunctionProcessor(given)


def _make_object(kind: type) -> RecordProcessor[Any]:
    if not issubclass(kind, RecordProcessor):
        raise RegistryError(f"{kind.__qualname__} is not a subclass of RecordProcessor.")
    if missing := getattr(kind, "__abstractmethods__", None):
        raise RegistryError(f"{kind.__qualname__} does not define {', '.join(sorted(missing))}(self, record, run).")
    try:
        return kind()
    except TypeError as error:
        raise RegistryError(f"{kind.__qualname__} must be callable without arguments: {error}.") from error


def _check_handler(function: Callable[..., Any]) -> None:
    is_async_function(function)  # may raise
    _check_arguments(function, "record", "run")


def _check_hook(method: Callable[..., Any], *arguments: str) -> None:
    if iscoroutinefunction(method):
        raise RegistryError(f"{method.__qualname__} is an 'async def' function: hooks are plain functions.")
    _check_arguments(method, *arguments)


def _check_arguments(method: Callable[..., Any], *arguments: str) -> None:
    try:
        signature(method).bind(*arguments)
    except TypeError:
        expected = ", ".join(arguments) or "no arguments"
        raise RegistryError(f"{plain_function(method).__qualname__} must take ({expected}).") from None
