"""A child process, from the side of the process that calls functions in it, and the preload process that starts it."""

import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import connections

from django_jobchains.children.frames import CHUNK_BYTES, ERROR_BYTES, FrameBuffer, Message, TicketPipe, encode_frame
from django_jobchains.children.limits import has_proc, resident_bytes
from django_jobchains.children.preload_process import LENGTH, ChildOptions
from django_jobchains.db import call_in_forks
from django_jobchains.exceptions import ChildCrashed, ChildStartFailed, exit_text
from django_jobchains.handlers.abort_signal import AbortReason
from django_jobchains.isolation import Isolation, Level

#: How long a child may take to be ready, including its set-up. After that, it counts as unable to start.
MAX_START_SECONDS = 60.0
#: How long the preload process may take to report the end of a child that has closed its socket, before it is killed.
MAX_REPORT_SECONDS = 1.0
#: The longest time between polls. A poll takes at most 24 days.
MAX_POLL_SECONDS = 86_400.0


class PreloadLost(ChildStartFailed):
    """The preload process died before the child was ready. Another one may work."""


class ChildProcess:
    """A child of the preload process. Sockets carry calls, and the report of its end; pipes carry tickets and aborts.

    The thread that uses a child calls ``send`` and ``receive``. The other methods may be called from any thread. After
    ``end``, the last thread that still uses the descriptors closes them.
    Raises ``ChildStartFailed`` if no child can be started. It is usable after ``wait_until_ready``.
    ``imports``: modules that its calls need.
    """

    def __init__(self, isolation: Isolation, imports: Sequence[str] = ()) -> None:
        self.level: Level = isolation.level
        self.pid = 0
        self._isolation = isolation
        self._reported_rss = 0
        self._inbox: deque[Message] = deque()
        self._frames = FrameBuffer(isolation.message_limit_bytes + ERROR_BYTES)
        self._crash: ChildCrashed | None = None
        #: Whether the preload process has died before it could report how the child ended.
        self._is_orphaned = False
        self._is_given_up = False
        #: How many threads wait for something to happen.
        self._users = 0
        #: Held to close the descriptors, and to use them without being one of the users.
        self._lock = threading.Lock()
        #: The descriptors of this process.
        self._own = ExitStack()
        # If the child is never released, it notices that its pipe is closed, and ends.
        self._close = weakref.finalize(self, self._own.close)
        try:
            self._start(imports)
        except BaseException:
            self._close()
            raise
        #: Bytes that the socket has not taken yet.
        self._unsent = bytearray()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._report, select.POLLIN)
        self._polls_out = False

    def _start(self, imports: Sequence[str]) -> None:
        """Let the preload process start the child, with its ends of the socket and the pipes."""
        try:
            with ExitStack() as inherited:
                self._socket, connection = socket.socketpair()
                self._own.enter_context(self._socket)
                inherited.enter_context(connection)
                self._socket.setblocking(False)
                watch, writer = os.pipe()
                inherited.callback(os.close, watch)
                self._watch = self._own.enter_context(os.fdopen(writer, "wb", buffering=0))
                os.set_blocking(writer, False)
                self._report, report = socket.socketpair()
                self._own.enter_context(self._report)
                inherited.enter_context(report)
                self._tickets = TicketPipe()
                self._own.callback(self._tickets.close)
                self._preload = get_preload()
                self._number = self._preload.spawn(
                    _options(self._isolation, imports),
                    [connection.fileno(), watch, self._tickets.reader, report.fileno()],
                )
        except ConnectionError as error:
            discard_preload(self._preload)
            raise PreloadLost(self.level, "the preload process has died") from error
        except OSError as error:
            raise ChildStartFailed(self.level, f"{type(error).__name__}: {error}") from error

    def wait_until_ready(self, seconds: float) -> bool:
        """Wait until it has run its set-up. Return False after ``seconds``. Raises ``ChildStartFailed``."""
        try:
            message = self.receive(min(seconds, MAX_START_SECONDS))
        except ChildCrashed as error:
            if self._is_orphaned:
                raise self._preload_problem() from error
            reason = f"it {exit_text(error.exitcode)} before it was ready. {error.stderr[-1000:]}".strip()
            raise ChildStartFailed(self.level, reason) from error
        if message is None:
            if seconds < MAX_START_SECONDS:
                return False
            raise ChildStartFailed(self.level, f"it was not ready within {MAX_START_SECONDS:g} seconds.")
        if "failed" in message:
            raise ChildStartFailed(self.level, f"its set-up {self._isolation.setup!r} raised {message['failed']}")
        self.pid = message["ready"]
        if self._isolation.setup is not None:
            prove(self._isolation.setup)
        return True

    def _preload_problem(self) -> ChildStartFailed:
        """Return why the preload process has neither started the child nor reported a failure."""
        if not self._preload.has_ended():
            return ChildStartFailed(self.level, "Too many open files in the preload process")
        discard_preload(self._preload)
        reason = f"the preload process, which imports the project, {exit_text(self._preload.code or 0)}"
        return PreloadLost(self.level, f"{reason}: see its output on stderr")

    @property
    def is_alive(self) -> bool:
        with self._lock:
            return self._crash is None and self._close.alive and not self._has_ended(0)

    def _has_ended(self, seconds: float) -> bool:
        """Wait until it has ended, or has closed its socket. Return False after the timeout."""
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        poll.register(self._socket, 0)  # only for the end of the connection
        return bool(poll.poll(seconds * 1000))

    @property
    def rss(self) -> int:
        if not self.is_alive:
            return 0
        return resident_bytes(self.pid) if has_proc() else self._reported_rss

    def send(self, message: Message) -> None:
        """Send calls, without waiting for the receiver."""
        data = encode_frame(message)
        with suppress(OSError):  # It has ended, which receive() reports.
            self._tickets.add([number for number, _ in message["calls"]])
            self._unsent += data
            self._flush()

    def _flush(self) -> None:
        """Send as much as possible without blocking."""
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]

    def withdraw(self) -> set[int]:
        """Return the ids of the calls that were sent and will never begin."""
        return self._tickets.withdraw()

    def abort(self, id: int, reason: AbortReason, part: str | None) -> None:
        """Abort the signal of a call, or of a part of it, without waiting."""
        self._notify({"id": id, "abort": reason, "part": part})

    def _notify(self, message: Message) -> None:
        # It has ended, was released, or has unread aborts, to which another one adds nothing.
        with self._lock, suppress(OSError, ValueError):
            self._watch.write(encode_frame(message))

    def receive(self, timeout: float | None) -> Message | None:
        """Return the next message, or None if there is none within the timeout. Raises ``ChildCrashed``."""
        with self._lock:
            if not self._close.alive:
                raise self._crash or ChildCrashed(-signal.SIGKILL, "The child was released.")
            self._users += 1
        try:
            return self._receive(timeout)
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._is_given_up and not self._users:
                self._close()

    def _receive(self, timeout: float | None) -> Message | None:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._inbox:
            if self._crash is not None:
                raise self._crash
            remaining = deadline - time.monotonic()
            has_news = self._wait(min(remaining, MAX_POLL_SECONDS))
            # A child that sends byte by byte does not extend the time.
            if remaining <= MAX_POLL_SECONDS and (not has_news or (remaining < 0 and not self._inbox)):
                return None
        message = self._inbox.popleft()
        self._reported_rss = message.get("rss", self._reported_rss)
        return message

    def _wait(self, seconds: float) -> bool:
        """Wait for something to happen, and read it. Return False after the timeout."""
        if self._polls_out != bool(self._unsent):
            self._polls_out = not self._polls_out
            self._poll.modify(self._socket, select.POLLIN | select.POLLOUT if self._polls_out else select.POLLIN)
        # Rounded up, because a poll that returns too early is repeated.
        happened = dict(self._poll.poll(max(seconds, 0) * 1000 + 0.5))
        events = happened.get(self._socket.fileno(), 0)
        if events & select.POLLOUT:
            with suppress(OSError):
                self._flush()
        if events & ~select.POLLOUT and not self._read():
            self._read_report(MAX_REPORT_SECONDS)
        elif not self._inbox and self._report.fileno() in happened:
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
        try:
            self._inbox.extend(self._frames.add(received))
        except ValueError as error:
            self.kill()
            self._crash = ChildCrashed(-signal.SIGKILL, f"Its message cannot be read: {error}")
            return True
        return bool(received)

    def _read_report(self, seconds: float) -> None:
        """Read how the child ended. Kill it if it has closed its socket but has not ended."""
        if not self._is_reported(seconds):
            self.kill()
            if not self._is_reported(MAX_REPORT_SECONDS):
                reason = "The preload process, which would report its end, is busy: it may import a set-up module."
                self._crash = ChildCrashed(-signal.SIGKILL, reason)
                return
        try:
            received = self._report.recv(65536)
        except OSError:
            received = b""
        report = json.loads(received) if received else {}
        if not report:
            self._crash = self._orphaned()
        elif "failed" in report:
            self._crash = ChildCrashed(1, report["failed"])
        else:
            self._crash = ChildCrashed(report["exitcode"], report["stderr"])

    def _is_reported(self, seconds: float) -> bool:
        """Wait until the preload process has reported the end of the child, or has died."""
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _orphaned(self) -> ChildCrashed:
        """Handle the death of the preload process. The kernel has killed the child; this ends its own children."""
        self._is_orphaned = True
        if self.pid:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        return ChildCrashed(-signal.SIGKILL, "The preload process, its parent, has died.")

    def terminate(self) -> None:
        self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        self._signal(os.killpg, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], object], number: int) -> None:
        """Send a signal. The preload process, which may be busy, takes no part in it once the pid is known.

        The pid is the child's own while the report is open, because the preload process reaps the child after that. If
        the preload process has died, the report has ended.
        """
        with self._lock, suppress(OSError):
            if not self._close.alive:
                return
            if not self.pid:
                self._preload.kill(self._number)
            elif not self._is_reported(0):
                send(self.pid, number)

    def end(self) -> None:
        """Let it end, and wait for that. Release what this process holds for it, unless another thread waits for it."""
        with self._lock:
            if self._is_given_up:
                return
            self._is_given_up = True
            self._users += 1
        try:
            self._notify({"exit": True})
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self._has_ended(self._isolation.grace_seconds if self.pid else 0)
            self.kill()  # It may have closed its socket only.
            self._has_ended(MAX_REPORT_SECONDS)
        finally:
            self._leave()


def _options(isolation: Isolation, imports: Sequence[str]) -> ChildOptions:
    names = {}
    if settings.configured and apps.ready:
        names = {alias: connections.settings[alias]["NAME"] for alias in connections}
    return {
        "imports": list(imports),
        "setup": isolation.setup,
        "memory_limit": isolation.memory_limit_bytes,
        "message_limit": isolation.message_limit_bytes,
        "minimal_env": isolation.minimal_env,
        "databases": {alias: name if name is None else str(name) for alias, name in names.items()},
    }


#: How long the preload process may take to read a command. If it takes longer, it is replaced.
MAX_COMMAND_SECONDS = 10.0
#: How long the preload process may take to end, and to kill its children when this process exits.
MAX_EXIT_SECONDS = 2.0

CODE = """\
import json, os, sys
path, python_path, *arguments = json.loads(sys.argv[1])
sys.path[:] = path
if python_path is not None:
    os.environ["PYTHONPATH"] = python_path
from django_jobchains.children.preload_process import main
main(*arguments)
"""


class Preload:
    """Starts the preload process, and sends commands to it. Raises ``OSError`` if it cannot be started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = 0
        self._control, control = socket.socketpair()
        self._control.settimeout(MAX_COMMAND_SECONDS)
        try:
            with control:
                self._process = self._start(control.fileno())
        except BaseException:
            self._control.close()
            raise

    def _start(self, control: int) -> "subprocess.Popen[bytes]":
        flags = [f"-W{option}" for option in sys.warnoptions]
        # A sitecustomize module on PYTHONPATH, such as OpenTelemetry's, may start threads, which prevent forks.
        environment = dict(os.environ)
        python_path = environment.pop("PYTHONPATH", None)
        arguments = json.dumps([sys.path, python_path, control, apps.ready])
        return subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, "-P", *flags, "-c", CODE, arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[control],
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code of the preload process, or None while it runs."""
        return self._process.poll()

    def has_ended(self) -> bool:
        """Return whether the preload process has ended, or ends now."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(MAX_EXIT_SECONDS)
        return self.code is not None

    def spawn(self, options: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Start a child, and return its number. ``descriptors``: its socket, its pipes, and the pipe for its report."""
        with self._lock:
            self._numbers += 1
            number = self._numbers
        command = {"verb": "spawn", "number": number, "options": options, "imports": list(proven_modules)}
        self._send(command, descriptors)
        return number

    def kill(self, number: int) -> None:
        """Kill a child that is not ready, whose pid only the preload process knows."""
        with suppress(OSError):  # When it ends, its children end too.
            self._send({"verb": "kill", "number": number})

    def _send(self, command: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        body = json.dumps(command).encode()
        with self._lock:
            try:
                # The descriptors come with the first bytes.
                header = LENGTH.pack(len(body))
                sent = socket.send_fds(self._control, [header + body], descriptors)
                self._control.sendall((header + body)[sent:])
            except TimeoutError:
                self._process.kill()
                raise

    def close(self) -> None:
        """End it, and with it all children."""
        self._control.close()
        try:
            self._process.wait(MAX_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(MAX_EXIT_SECONDS)

    def forget(self) -> None:
        """Forget it. This process is a fork, so it belongs to the process that started it."""
        self._control.close()
        self._process.returncode = 0  # It is not a child of this process, which therefore cannot wait for it.


_lock = threading.Lock()
_current: Preload | None = None


def get_preload() -> Preload:
    """Return the running preload process, or start one."""
    global _current
    with _lock:
        if _current is None or _current.code is not None:
            if _current is not None:
                _current.close()
            _current = Preload()
        return _current


def discard_preload(preload: Preload) -> None:
    """End a preload process that does not work, so that the next use of a pool starts another one."""
    global _current
    with _lock:
        if _current is preload:
            _current = None
            preload.close()


def close_preload() -> None:
    """End the preload process and all children. The next use of a pool starts another one."""
    if (preload := _current) is not None:
        discard_preload(preload)


def _forget_in_fork() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _current.forget()
        _current = None


#: Modules of set-up functions that children have called: importing them is harmless.
proven_modules: dict[str, None] = {}


def prove(setup: str) -> None:
    """Record that a child is ready, so that the preload process may import the module of its set-up."""
    proven_modules[setup.partition(":")[0]] = None


call_in_forks(_forget_in_fork)
