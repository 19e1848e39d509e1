"""A child process, from the side of the process that calls functions in it."""

import json
import os
import select
import signal
import socket
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import connections

from django_jobchains.handlers.abort_signal import AbortReason
from django_jobchains.isolation import Isolation, Level
from django_jobchains.pools.frames import CHUNK_BYTES, FrameBuffer, Message, SendBuffer, encode_frame
from django_jobchains.pools.limits import has_proc, resident_bytes
from django_jobchains.pools.pool_errors import WorkerCrashed, WorkerStartFailed, exit_text
from django_jobchains.pools.preload import discard_preload, get_preload, prove
from django_jobchains.pools.tickets import TicketPipe
from django_jobchains.pools.worker_process import ChildOptions

#: How long a child may take to be ready, including its set-up. After that, it counts as unable to start.
MAX_START_SECONDS = 60.0
#: How long the preload process may take to report the end of a child that has closed its socket, before it is killed.
MAX_REPORT_SECONDS = 1.0


class PreloadLost(WorkerStartFailed):
    """The preload process died before the child was ready. Another one may work."""


class ChildProcess:
    """A child of the preload process. A socket carries calls; pipes carry tickets, aborts, and the report of its end.

    The thread that uses a worker calls ``send`` and ``receive``. The other methods may be called from any thread.
    Raises ``WorkerStartFailed`` if no child can be started. It is usable after ``wait_until_ready``.
    ``imports``: modules that its calls need.
    """

    def __init__(self, isolation: Isolation, imports: Sequence[str] = ()) -> None:
        self.level: Level = isolation.level
        self.pid = 0
        self._isolation = isolation
        self._reported_rss = 0
        self._inbox: deque[Message] = deque()
        self._frames = FrameBuffer()
        self._crash: WorkerCrashed | None = None
        #: Whether the preload process has died before it could report how the child ended.
        self._is_orphaned = False
        #: The descriptors of this process.
        self._own = ExitStack()
        # If nobody releases the child, it notices that its pipe is closed, and ends.
        self._close = weakref.finalize(self, self._own.close)
        self._report = -1
        try:
            self._start(imports)
        except BaseException:
            self.close()
            raise
        self._send_buffer = SendBuffer(self._socket.send)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._report, select.POLLIN)
        self._polls_out = False

    def _start(self, imports: Sequence[str]) -> None:
        """Let the preload process start the child, with its ends of the socket and the pipes."""
        level = self._isolation.level
        try:
            with ExitStack() as inherited:
                descriptors = self._open(inherited)
                self._preload = get_preload()
                self._number = self._preload.spawn(dict(_options(self._isolation, imports)), descriptors)
        except ConnectionError as error:
            discard_preload(self._preload)
            raise PreloadLost(level, "the preload process has died") from error
        except OSError as error:
            raise WorkerStartFailed(level, f"{type(error).__name__}: {error}") from error

    def _open(self, inherited: ExitStack) -> list[int]:
        """Open the socket and the pipes. Return the child's ends, which ``inherited`` closes in this process."""
        self._socket, connection = socket.socketpair()
        self._own.enter_context(self._socket)
        inherited.enter_context(connection)
        self._socket.setblocking(False)
        watch, writer = os.pipe()
        inherited.callback(os.close, watch)
        self._watch = self._own.enter_context(os.fdopen(writer, "wb", buffering=0))
        os.set_blocking(writer, False)
        self._report, report = os.pipe()
        self._own.callback(os.close, self._report)
        inherited.callback(os.close, report)
        self._tickets = TicketPipe(*os.pipe())
        self._own.callback(self._tickets.close)
        return [connection.fileno(), watch, self._tickets.reader, report]

    def wait_until_ready(self, seconds: float) -> bool:
        """Wait until it has run its set-up. Return False after ``seconds``. Raises ``WorkerStartFailed``."""
        try:
            message = self.receive(min(seconds, MAX_START_SECONDS))
        except WorkerCrashed as error:
            if self._is_orphaned:
                raise self._preload_problem() from error
            reason = f"it {exit_text(error.exitcode)} before it was ready. {error.stderr[-1000:]}".strip()
            raise WorkerStartFailed(self.level, reason) from error
        if message is None:
            if seconds < MAX_START_SECONDS:
                return False
            raise WorkerStartFailed(self.level, f"it was not ready within {MAX_START_SECONDS:g} seconds")
        if "failed" in message:
            raise WorkerStartFailed(self.level, f"its set-up {self._isolation.setup!r} raised {message['failed']}")
        self.pid = message["ready"]
        prove(self._isolation)
        return True

    def _preload_problem(self) -> WorkerStartFailed:
        """Return why the preload process has neither started the child nor reported a failure."""
        if not self._preload.has_ended():
            return WorkerStartFailed(self.level, "Too many open files in the preload process")
        discard_preload(self._preload)
        reason = f"the preload process, which imports the project, {exit_text(self._preload.code or 0)}"
        return PreloadLost(self.level, f"{reason}: see its output on stderr")

    @property
    def is_alive(self) -> bool:
        if self._crash is not None or self._report < 0:
            return False
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        return not poll.poll(0)

    @property
    def rss(self) -> int:
        if not self.is_alive:
            return 0
        return resident_bytes(self.pid) if has_proc() else self._reported_rss

    def send(self, message: Message) -> None:
        data = encode_frame(message)
        with suppress(OSError):  # It has ended, which receive() reports.
            self._tickets.add([number for number, _ in message["calls"]])
            self._send_buffer.add(data)

    def withdraw(self) -> set[int]:
        return self._tickets.withdraw()

    def abort(self, id: int, reason: AbortReason, part: str | None) -> None:
        self._notify({"id": id, "abort": reason, "part": part})

    def _notify(self, message: Message) -> None:
        # It has ended, was released, or has so many unread aborts that another one makes no difference.
        with suppress(OSError, ValueError):
            self._watch.write(encode_frame(message))

    def receive(self, timeout: float | None) -> Message | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._inbox:
            if self._crash is not None:
                raise self._crash
            remaining = None if deadline is None else deadline - time.monotonic()
            # A child that sends byte by byte does not extend the time.
            if not self._wait(remaining) or (remaining is not None and remaining < 0 and not self._inbox):
                return None
        message = self._inbox.popleft()
        self._reported_rss = message.get("rss", self._reported_rss)
        return message

    def _wait(self, seconds: float | None) -> bool:
        """Wait for something to happen, and read it. Return False after the timeout."""
        if self._polls_out != bool(self._send_buffer):
            self._polls_out = not self._polls_out
            self._poll.modify(self._socket, select.POLLIN | select.POLLOUT if self._polls_out else select.POLLIN)
        # Rounded up, because a poll that returns too early is repeated.
        happened = dict(self._poll.poll(None if seconds is None else max(seconds, 0) * 1000 + 0.5))
        events = happened.get(self._socket.fileno(), 0)
        if events & select.POLLOUT:
            with suppress(OSError):
                self._send_buffer.flush()
        if events & ~select.POLLOUT and not self._read():
            self._read_report(MAX_REPORT_SECONDS)
        elif not self._inbox and self._report in happened:
            self._read_report(0)
        return bool(happened)

    def _read(self) -> bool:
        """Read what it has sent. Return False if it has closed its socket."""
        try:
            received = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            received = b""
        self._inbox.extend(self._frames.add(received))
        return bool(received)

    def _read_report(self, seconds: float) -> None:
        """Read how the child ended. Kill it if it has closed its socket but has not ended."""
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        if not poll.poll(seconds * 1000):
            self.kill()
            poll.poll(MAX_REPORT_SECONDS * 1000)
        os.set_blocking(self._report, False)
        try:
            report = os.read(self._report, 65536)
        except BlockingIOError:
            report = b""
        self._crash = self._crash_of(json.loads(report)) if report else self._orphaned()

    def _crash_of(self, report: dict[str, Any]) -> WorkerCrashed:
        if "failed" in report:
            return WorkerCrashed(1, report["failed"])
        return WorkerCrashed(report["exitcode"], report["stderr"])

    def _orphaned(self) -> WorkerCrashed:
        """Handle the death of the preload process. The kernel has killed the child; this ends its own children."""
        self._is_orphaned = True
        if self.pid:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        return WorkerCrashed(-signal.SIGKILL, "The preload process, its parent, has died.")

    def terminate(self) -> None:
        self._preload.signal(self._number, signal.SIGTERM)

    def kill(self) -> None:
        self._preload.signal(self._number, signal.SIGKILL)

    def end(self) -> None:
        if self._report >= 0:
            self._notify({"exit": True})
            self._preload.kill_after(self._number, self._isolation.grace_seconds)
            self.close()

    def close(self) -> None:
        """Release the descriptors of this process."""
        self._report = -1
        self._close()


def _options(isolation: Isolation, imports: Sequence[str]) -> ChildOptions:
    return {
        "imports": list(imports),
        "setup": isolation.setup,
        "memory_limit": isolation.memory_limit_bytes,
        "minimal_env": isolation.minimal_env,
        "databases": _database_names(),
    }


def _database_names() -> dict[str, Any]:
    if not (settings.configured and apps.ready):
        return {}
    names = {alias: connections.settings[alias]["NAME"] for alias in connections}
    return {alias: name if name is None else str(name) for alias, name in names.items()}
