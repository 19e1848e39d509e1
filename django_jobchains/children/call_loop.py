"""Runs the calls of a child, one after another: in a child process, or on a thread after a fallback."""

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from django.conf import settings

from django_jobchains.children.child import RunningCall, running_call
from django_jobchains.children.frames import encode_frame
from django_jobchains.children.limits import has_proc, limit_cpu, resident_bytes
from django_jobchains.children.tickets import Request
from django_jobchains.handlers.abort_signal import AbortReason
from django_jobchains.text.errors import describe, traceback_of

if TYPE_CHECKING:
    from django_jobchains.db.connections import ThreadConnections


class CallLoop:
    """Runs the requests of the caller on the thread that calls ``run``.

    ``write``: sends an encoded message back. ``message_limit``: the bytes of one message.
    """

    def __init__(self, write: Callable[[bytes], object], message_limit: int) -> None:
        self._write = write
        self._encode = partial(encode_frame, limit=message_limit)
        self._lock = threading.Lock()
        self._running: RunningCall | None = None
        #: Aborts that arrived before their calls: the id of the call, the reason, and the part of the call.
        self._early: list[tuple[int, AbortReason, str | None]] = []

    def run(self, requests: Iterable[Request]) -> None:
        for request in requests:
            connections = _connections()
            self._write(self._reply(self._begin(request.id), request))
            if connections is not None:
                connections.clean()

    def abort(self, id: int, reason: AbortReason, part: str | None = None) -> None:
        """Abort the signal of a call, or of a part of it. Called on a thread other than the one of ``run``."""
        with self._lock:
            running = self._running
            if running is None or running.id < id:
                self._early.append((id, reason, part))
                return
        if running.id == id:
            running.abort(reason, part)

    def _begin(self, id: int) -> RunningCall:
        call = RunningCall(id, lambda message: self._write(self._encode({"id": id, "message": message})))
        with self._lock:
            self._running = call
            early, self._early = self._early, [abort for abort in self._early if abort[0] > id]
        for aborted, reason, part in early:
            if aborted == id:
                call.abort(reason, part)
        return call

    def _reply(self, call: RunningCall, request: Request) -> bytes:
        """Call the function, and return its result or error as a message. Anything it raises is an ordinary error."""
        token = running_call.set(call)
        try:
            if request.cpu_seconds is not None:
                limit_cpu(request.cpu_seconds)
            result = _function(request.target)(request.payload)
            return self._encode({"id": call.id, "result": result, **_memory()})
        except BaseException as error:
            return encode_frame({"id": call.id, "error": error_fields(error), **_memory()})
        finally:
            running_call.reset(token)
            flush_streams()


#: A lookup imports the module. Failed lookups are not cached.
_function = lru_cache(maxsize=100)(resolve_name)


def _connections() -> "ThreadConnections | None":
    """Return the database connections of this thread. Their module can be imported only after Django's settings."""
    if not settings.configured:
        return None
    from django_jobchains.db.connections import ThreadConnections

    return ThreadConnections()


def close_connections() -> None:
    """Close the database connections of this thread, if it has any."""
    if settings.configured:
        from django_jobchains.db.connections import close_thread_connections

        close_thread_connections()


def error_fields(error: BaseException) -> dict[str, str]:
    """Return the arguments of ``RemoteError``."""
    name = type(error).__qualname__
    message = describe(error).removeprefix(name).removeprefix(": ")
    return {"type_name": name, "message": message, "traceback": traceback_of(error)}


def _memory() -> dict[str, int]:
    return {} if has_proc() else {"rss": resident_bytes()}


def flush_streams() -> None:
    """Write what the function has printed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # The stream may be closed, or the function may have replaced it.
            stream.flush()
