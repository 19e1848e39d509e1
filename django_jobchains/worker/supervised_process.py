"""A worker process and its supervisor, and when to restart one that has ended.

A socket connects them, and each end notices when the other process dies. The worker sends its health, its metrics, and
why it should be replaced, as lines of JSON. The supervisor sends commands, one per line: to retire, or to stop without
waiting for running handlers. The latter cannot be a signal, because the worker may receive any number of them for one
stop.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING

from django_jobchains.worker.health import Health
from django_jobchains.worker.threads import OwnedThread

if TYPE_CHECKING:
    from django_jobchains.worker.worker import Worker

logger = getLogger("django_jobchains")

#: The environment variable that a supervisor sets: the descriptor of the socket, and the worker's number.
VARIABLE = "JOBCHAINS_SUPERVISED"
RETIRE = b"retire\n"
STOP_NOW = b"stop-now\n"
REPORT_SECONDS = 1.0
#: How often the report includes the metrics.
METRICS_SECONDS = 5.0
#: How much longer than its shutdown timeout a worker may take to end: about three seconds if its database does not
#: respond, and up to three more for its last report and spans.
EXIT_GRACE_SECONDS = 6.0


class ParentLink:
    """The worker's end. If the supervisor dies, the worker stops as after SIGTERM, or else its process exits."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.number = number
        self._socket = sock
        self._socket.setblocking(False)
        self._unsent = b""
        self._report_at = self._metrics_at = 0.0

    @classmethod
    def from_environment(cls) -> "ParentLink | None":
        """Return None without a supervisor. Removes the variable, so that processes started from here do not see it."""
        if not (value := os.environ.pop(VARIABLE, "")):
            return None
        descriptor, number = map(int, value.split(":"))
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor), int(number))

    def start(
        self, worker: "Worker", replace_reason: Callable[[], str], metrics: Callable[[], str] | None = None
    ) -> None:
        """Start to report the worker's health. ``replace_reason``: returns why it should be replaced, or "".

        ``metrics``: returns the metrics in Prometheus's text format.
        """
        self._worker = worker
        self._replace_reason = replace_reason
        self._metrics = metrics
        worker.stop_request.has_supervisor = True
        self._thread = OwnedThread("supervisor-link", self._step, worker=worker.id, give_up=worker.request_stop)
        self._thread.start()

    def _step(self) -> None:
        self._report()
        wait = max(self._report_at - time.monotonic(), 0)
        readable, writable, _ = select.select([self._socket], [self._socket] if self._unsent else [], [], wait)
        if writable:
            self._send()
        if readable:
            self._receive()

    def finish(self) -> None:
        """Send the last counts of a worker that has ended."""
        self._thread.stop()
        if self._thread.join(time.monotonic() + 2 * REPORT_SECONDS) and self._metrics is not None:
            self._report_at = self._metrics_at = 0.0
            self._socket.settimeout(REPORT_SECONDS)
            self._report()

    def _receive(self) -> None:
        try:
            received = self._socket.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._stop_orphan()
        if RETIRE in received:
            self._worker.retire()
        if STOP_NOW in received:
            self._worker.stop_request.make_urgent()

    def _report(self) -> None:
        """Send a report. If the supervisor does not read, the rest is sent later, before the next report."""
        if time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + REPORT_SECONDS
        if not self._unsent:
            worker = self._worker
            report = {
                "health": worker.health().as_json(),
                "has_begun": worker.has_begun,
                "replace_reason": self._replace_reason(),
            }
            if self._metrics is not None and time.monotonic() >= self._metrics_at:
                self._metrics_at = time.monotonic() + METRICS_SECONDS
                report["metrics"] = self._metrics()
            self._unsent = json.dumps(report).encode() + b"\n"
        self._send()

    def _send(self) -> None:
        with suppress(OSError):  # _receive notices a broken socket
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def _stop_orphan(self) -> None:
        logger.warning("The supervisor has ended, so the worker stops.")
        self._worker.request_stop()
        time.sleep(self._worker.shutdown_seconds + EXIT_GRACE_SECONDS)
        os._exit(1)  # There is no supervisor that would kill the process.


#: The limit of one report. No report is expected to reach it; longer ones are dropped.
MAX_REPORT_BYTES = 16 * 1024 * 1024


class Child:
    """A process with the command line of this one, in a fresh interpreter, because a fork copies threads and locks.

    It has its own session, so that only the supervisor receives Ctrl-C in a terminal, and its own process group, so
    that ``kill_overdue`` also kills processes that its handlers started. Raises ``OSError`` if it cannot be started.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.started_at = self.reported_at = time.monotonic()
        self.health: Health | None = None
        #: Its metrics in Prometheus's text format, or "".
        self.metrics = ""
        #: Why the process asks to be replaced, or "".
        self.replace_reason = ""
        #: Whether the process has reached its database.
        self.has_begun = False
        #: Whether its end of the socket is open.
        self.is_connected = True
        self._kill_at: float | None = None
        self._unread = bytearray()
        self.socket, child_socket = socket.socketpair()
        try:
            with child_socket:
                self._process = self._start(child_socket.fileno())
        except BaseException:
            self.socket.close()
            raise
        self.socket.setblocking(False)

    def _start(self, descriptor: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, VARIABLE: f"{descriptor}:{self.number}"},
            pass_fds=[descriptor],
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code: None while it runs, negative for the signal that killed it."""
        return self._process.poll()

    @property
    def has_ended_well(self) -> bool:
        """Whether it ended with 0, or was killed by SIGTERM before or after its worker handled signals."""
        return self.code == 0 or (self._kill_at is not None and self.code == -signal.SIGTERM)

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def silent_seconds(self) -> float:
        """The time since its last report."""
        return time.monotonic() - self.reported_at

    def receive(self) -> None:
        """Read its reports."""
        try:
            while len(self._unread) < MAX_REPORT_BYTES:
                if not (part := self.socket.recv(65536)):
                    self.is_connected = False
                    break
                self._unread += part
        except BlockingIOError:  # There is nothing more to read.
            pass
        except OSError:
            self.is_connected = False
        *lines, self._unread = self._unread.split(b"\n")
        if len(self._unread) >= MAX_REPORT_BYTES:
            self._unread.clear()
        for line in lines:
            self._read(line)

    def _read(self, line: bytearray) -> None:
        try:
            report = json.loads(line)
            health, reason = Health.from_json(report["health"]), str(report["replace_reason"])
            has_begun, metrics = bool(report["has_begun"]), str(report.get("metrics") or self.metrics)
        except Exception:  # User code in the child wrote to the descriptor.
            return
        self.health, self.replace_reason, self.metrics = health, reason, metrics
        self.has_begun |= has_begun
        self.reported_at = time.monotonic()

    def retire(self) -> None:
        """Let the process end after all its running attempts, however long they take."""
        self._send(RETIRE)

    def terminate(self, seconds: float) -> None:
        """Send SIGTERM, after which it waits for its handlers. After ``seconds``, ``kill_overdue`` kills it."""
        self._kill_after(seconds)
        self._process.terminate()

    def stop_now(self, seconds: float) -> None:
        """After ``terminate``: stop without waiting for handlers. After ``seconds``, ``kill_overdue`` kills it."""
        self._kill_after(seconds)
        self._send(STOP_NOW)

    def _send(self, command: bytes) -> None:
        with suppress(OSError):  # It has ended.
            self.socket.send(command)

    def _kill_after(self, seconds: float) -> None:
        kill_at = time.monotonic() + seconds
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)

    def kill_overdue(self) -> None:
        if self.code is None and self._kill_at is not None and time.monotonic() >= self._kill_at:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # This includes processes that its handlers started.

    def close(self) -> None:
        """Close the socket after its end."""
        self.socket.close()


#: A process that ends within this time has ended early.
MIN_LIFETIME_SECONDS = 10.0
#: The first and the longest wait before a process that ended early is restarted. The wait doubles each time.
FIRST_WAIT_SECONDS = 0.5
MAX_WAIT_SECONDS = 5.0
#: The supervisor gives up when every process has failed to start this many times in a row.
MAX_FAILED_STARTS = 5


class Restarts:
    """Counts, per process number, how often in a row the process ended early, and how often it failed to start."""

    def __init__(self) -> None:
        self._early: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()

    def ended(self, number: int, *, lived_seconds: float, failed_to_start: bool) -> float:
        """Count the end of a process, and return the seconds until it is restarted."""
        self._failed[number] = self._failed[number] + 1 if failed_to_start else 0
        self._early[number] = self._early[number] + 1 if lived_seconds < MIN_LIFETIME_SECONDS else 0
        if not self._early[number]:
            return 0
        return float(min(FIRST_WAIT_SECONDS * 2 ** min(self._early[number] - 1, 10), MAX_WAIT_SECONDS))

    def has_none_that_starts(self, numbers: Collection[int]) -> bool:
        return bool(numbers) and all(self._failed[number] >= MAX_FAILED_STARTS for number in numbers)

    def forget(self) -> None:
        self._early.clear()
        self._failed.clear()


def failed_to_start(code: int, *, has_begun: bool) -> bool:
    """Return whether a process ended by itself before it had begun to work, without being killed."""
    return not has_begun and code not in (0, -signal.SIGKILL, -signal.SIGTERM)
