"""Runs the calls of a child, one after another, and provides what the functions use: a signal, and messages back.

It runs in a child process, or on a thread after a fallback.
"""

import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from django.conf import settings

from django_jobchains.children.frames import FrameBuffer, Message, encode_frame
from django_jobchains.children.limits import has_proc, limit_cpu, resident_bytes
from django_jobchains.exceptions import ChildCrashed
from django_jobchains.handlers.abort_signal import AbortReason, AbortSignal
from django_jobchains.isolation import Level
from django_jobchains.text.errors import describe, traceback_of

if TYPE_CHECKING:
    from django_jobchains.db.connections import ThreadConnections


def current_signal() -> AbortSignal:
    """Return the signal of the running call, which ``Call.abort`` aborts. Raises ``RuntimeError`` outside of a call."""
    return _current_call().signal


def send(message: Any) -> None:
    """Send a JSON value to the ``on_message`` callback of the caller, such as the progress of the call."""
    _current_call().send(message)


@dataclass(eq=False)
class RunningCall:
    """The call that a child runs. ``send``: passes a JSON value to the caller's ``on_message``."""

    id: int
    send: Callable[[Any], object]
    signal: AbortSignal = field(default_factory=AbortSignal)
    _parts: dict[str, AbortSignal] = field(default_factory=dict)

    def part(self, name: str) -> AbortSignal:
        """Return the signal of a part of the call, such as one item of many."""
        return self._parts.setdefault(name, AbortSignal())

    def abort(self, reason: AbortReason, part: str | None = None) -> None:
        """Abort the signal of the call, or of the part with this name."""
        signal = self.signal if part is None else self.part(part)
        signal.abort(reason)


#: Set around each call. Threads that the function starts do not have it: pass the signal to them.
running_call: ContextVar[RunningCall] = ContextVar("running_call")


def _current_call() -> RunningCall:
    try:
        return running_call.get()
    except LookupError:
        raise RuntimeError(
            "This code does not run in a call of a pool's child, or it runs on a thread other than the function's: "
            "get the signal in the function, and pass it to the thread."
        ) from None


class CallLoop:
    """Runs the calls of the caller on the thread that calls ``run``.

    ``write``: sends an encoded message back. ``message_limit``: the bytes of one message.
    """

    def __init__(self, write: Callable[[bytes], object], message_limit: int) -> None:
        self._write = write
        self._encode = partial(encode_frame, limit=message_limit)
        self._lock = threading.Lock()
        self._running: RunningCall | None = None
        #: Aborts that arrived before their calls: the id of the call, the reason, and the part of the call.
        self._early: list[tuple[int, AbortReason, str | None]] = []

    def run(self, messages: Iterable[Message], take_ticket: Callable[[], int | None]) -> None:
        """Run the calls in the messages of the caller, without those that were withdrawn, which have no tickets."""
        ticket: int | None = None
        for message in messages:
            for number, payload in message["calls"]:
                # The ticket may belong to a later call, if earlier calls were withdrawn.
                ticket = take_ticket() if ticket is None else ticket
                if ticket == number:
                    ticket = None
                    connections = _connections()
                    self._write(self._reply(self._begin(number), message["target"], payload, message["cpu_seconds"]))
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

    def _reply(self, call: RunningCall, target: str, payload: Any, cpu_seconds: float | None) -> bytes:
        """Call the function, and return its result or error as a message. Anything it raises is an ordinary error."""
        token = running_call.set(call)
        try:
            if cpu_seconds is not None:
                limit_cpu(cpu_seconds)
            result = _function(target)(payload)
            return self._encode({"id": call.id, "result": result, **_memory()})
        except BaseException as error:
            name = type(error).__qualname__
            message = describe(error).removeprefix(name).removeprefix(": ")
            fields = {"type_name": name, "message": message, "traceback": traceback_of(error)}
            return encode_frame({"id": call.id, "error": fields, **_memory()})
        finally:
            running_call.reset(token)
            flush_streams()


#: A lookup imports the module. Failed lookups are not cached.
_function = lru_cache(maxsize=100)(resolve_name)


def _memory() -> dict[str, int]:
    return {} if has_proc() else {"rss": resident_bytes()}


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


def flush_streams() -> None:
    """Write what the function has printed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # The stream may be closed, or the function may have replaced it.
            stream.flush()


class ChildThread:
    """Runs functions on a daemon thread, with the methods of ``ChildProcess``.

    A thread cannot be killed: ``kill`` only stops waiting for it.
    """

    level: Level = "thread"

    def __init__(self, message_limit: int) -> None:
        self.pid = os.getpid()
        self._frames = FrameBuffer()
        self._received: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._loop = CallLoop(self._write, message_limit)
        self._is_killed = False
        self._tickets: deque[int] = deque()
        self._thread = threading.Thread(target=self._run, name="jobchains-pool-thread", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_killed

    @property
    def rss(self) -> int:
        return resident_bytes()

    def send(self, message: Message) -> None:
        # Encoded and decoded, so that the function gets a copy, as it would in another process.
        request = {**message, "cpu_seconds": None}
        for copy in FrameBuffer().add(encode_frame(request)):
            self._tickets.extend(number for number, _ in copy["calls"])
            self._requests.put(copy)

    def withdraw(self) -> set[int]:
        return set(iter(self._take_ticket, None))

    def _take_ticket(self) -> int | None:
        with suppress(IndexError):
            return self._tickets.popleft()
        return None

    def abort(self, id: int, reason: AbortReason, part: str | None) -> None:
        self._loop.abort(id, reason, part)

    def receive(self, timeout: float | None) -> Message | None:
        try:
            message = self._received.get(timeout=timeout)
        except queue.Empty:
            return None
        if message is None:
            self._received.put(None)  # for a later wait
            # The number of SIGKILL, which is not in ``signal`` on Windows.
            raise ChildCrashed(-9, "The thread that replaced a child process was abandoned.")
        return message

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        self._is_killed = True
        self._requests.put(None)
        self._received.put(None)

    def end(self) -> None:
        self._requests.put(None)

    def _write(self, data: bytes) -> None:
        for message in self._frames.add(data):
            self._received.put(message)

    def _run(self) -> None:
        try:
            self._loop.run(iter(self._requests.get, None), self._take_ticket)
        finally:
            close_connections()
