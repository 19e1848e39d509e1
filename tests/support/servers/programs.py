"""A server that tests stop, kill, suspend or start again, with the same port and folder."""

import os
import signal
import subprocess
from contextlib import contextmanager

import pytest

from tests.support.servers import Unavailable, free_port
from tests.support.waiting import until


@contextmanager
def or_skip():
    """Skip the test if a program cannot be had, or fail if ``CI`` is set."""
    try:
        yield
    except Unavailable as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"NOT RUN: {error}")


class ServerProgram:
    def __init__(self, folder, port=0):
        folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self._folder = folder
        self._process = None

    @property
    def output(self):
        return (self._folder / "log").read_text()

    @property
    def is_running(self):
        return self._process is not None and self._process.poll() is None

    def run(self, *command):
        """Start the program, and wait until ``is_ready`` returns a true value."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._is_ready, 30, lambda: self.output)

    def stop(self):
        """Stop the server in the normal way, which clients notice."""
        self._end(signal.SIGTERM)

    def kill(self):
        self._end(signal.SIGKILL)

    def freeze(self):
        """Suspend the server: it accepts connections and does not respond."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def _is_ready(self):
        assert self.is_running, self.output
        return self.is_ready()

    def _end(self, number):
        if self._process:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(30)
