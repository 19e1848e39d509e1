"""The socket between a worker and its supervisor. Each end notices when the other process dies.

The worker sends its health, its metrics, and why it should be replaced, as lines of JSON. The supervisor sends
commands, one per line: to retire, or to stop without waiting for running handlers. The latter cannot be a signal,
because the worker may receive any number of them for one stop.
"""

import json
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING

from django_jobchains.worker.threads import OwnedThread

logger = getLogger("django_jobchains")


if TYPE_CHECKING:
    from django_jobchains.worker.worker import Worker


#: The environment variable that a supervisor sets: the descriptor of the socket, and the worker's number.
VARIABLE = "JOBCHAINS_SUPERVISED"
RETIRE = b"retire\n"
STOP_NOW = b"stop-now\n"
REPORT_SECONDS = 1.0
#: How often the report includes the metrics.
METRICS_SECONDS = 5.0
#: How much longer than its shutdown timeout a worker may take to end.
EXIT_GRACE_SECONDS = 3.0


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
