"""The line from a worker to its supervisor: both ends break when a process dies, however it dies.

The worker sends its health and its wish to be replaced, as lines of JSON. The supervisor sends one word a line: the
worker may retire, or is not to wait for running handlers. A signal could not carry the second: the worker may receive
any number of them for one stop.
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

if TYPE_CHECKING:
    from django_jobchains.worker.worker import Worker

logger = getLogger("django_jobchains")

#: Tells a process that it has a supervisor: the descriptor of the line and the worker's number.
VARIABLE = "JOBCHAINS_SUPERVISED"
RETIRE = b"retire\n"
HURRY = b"hurry\n"
REPORT_SECONDS = 1.0
#: What a worker may take to end beyond its shutdown timeout.
LAST_SECONDS = 3.0


class Tether:
    """The worker's end. When the supervisor is gone the worker stops, as by SIGTERM; if it cannot, the process ends."""

    def __init__(self, line: socket.socket, number: int) -> None:
        self.number = number
        self._line = line
        self._line.setblocking(False)
        self._unsent = b""
        self._report_at = 0.0

    @classmethod
    def from_environment(cls) -> "Tether | None":
        """None without a supervisor. The variable is taken out, so that no process started from here believes it."""
        if not (value := os.environ.pop(VARIABLE, "")):
            return None
        descriptor, number = map(int, value.split(":"))
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor), int(number))

    def hold(self, worker: "Worker", wish: Callable[[], str]) -> None:
        """From now on the supervisor hears of the worker. ``wish``: why it should be replaced, "" if it should not."""
        self._worker = worker
        self._wish = wish
        worker.stop_request.has_supervisor = True
        self._thread = OwnedThread("tether", self._step, worker=worker.id, give_up=worker.request_stop)
        self._thread.start()

    def _step(self) -> None:
        self._report()
        wait = max(self._report_at - time.monotonic(), 0)
        if select.select([self._line], [], [], wait)[0]:
            self._hear()

    def _hear(self) -> None:
        try:
            heard = self._line.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self._orphaned()
        if RETIRE in heard:
            self._worker.retire()
        if HURRY in heard:
            self._worker.stop_request.make_urgent()

    def _report(self) -> None:
        """A supervisor that stands still does not read: it gets the rest of a line later, and no new one before."""
        if time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + REPORT_SECONDS
        if not self._unsent:
            worker = self._worker
            report = {"health": worker.health().as_json(), "has_begun": worker.has_begun, "wish": self._wish()}
            self._unsent = json.dumps(report).encode() + b"\n"
        with suppress(OSError):  # what is wrong is seen by who reads
            self._unsent = self._unsent[self._line.send(self._unsent) :]

    def _orphaned(self) -> None:
        logger.warning("The supervisor is gone: the worker stops.")
        self._worker.request_stop()
        time.sleep(self._worker.shutdown_seconds + LAST_SECONDS)
        os._exit(1)  # whatever holds the process, nobody else would end it
