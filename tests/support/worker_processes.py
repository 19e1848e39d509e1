"""Run ``run_jobworker`` in separate processes, on the test's database."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """A process that runs ``run_jobworker``, and writes its output to one file.

    ``jobchains``: its ``settings.JOBCHAINS``; ``within``: a command that starts it; ``start``: what Python runs.
    """

    def __init__(
        self,
        written,
        *arguments,
        jobchains=None,
        within=(),
        start=("-m", "django"),
        cwd=ROOT,
        **environment,
    ):
        options = {"REAP_SECONDS": 0.5, "POLL_SECONDS": 1, "BACKOFF_INITIAL_SECONDS": 0.1, **(jobchains or {})}
        self._written = written
        with written.open("wb") as file:
            self.process = subprocess.Popen(
                [*within, sys.executable, *start, "run_jobworker", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONUNBUFFERED": "1",
                    "DJANGO_SETTINGS_MODULE": "tests.support.worker_settings",
                    "JOBCHAINS_TEST_OPTIONS": json.dumps(options),
                    **environment,
                },
            )

    @property
    def pid(self):
        return self.process.pid

    @property
    def is_alive(self):
        return self.process.poll() is None

    @property
    def output(self):
        return self._written.read_text()

    def until_ready(self):
        """Wait until the worker has reported that it runs."""
        until(lambda: "Worker " in self.output or not self.is_alive, 90, lambda: self.output)
        assert self.is_alive, self.output
        return self

    def until_output(self, text, count=1, seconds=60):
        until(lambda: self.output.count(text) >= count, seconds, lambda: self.output)

    def until_working(self, count=1):
        """Wait until this many workers have started since the process began, and return those that run."""
        self.until_output("Worker ", count)
        return self.workers()

    def signal(self, number):
        self.process.send_signal(number)

    def freeze(self):
        """Send SIGSTOP, and wait until every thread has stopped."""
        self.signal(signal.SIGSTOP)
        until(lambda: os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG), 15, lambda: self.output)

    def wait(self, seconds=30):
        """Wait for the end of the process, and return its exit code."""
        return self.process.wait(seconds)

    def kill(self):
        """Kill the process and its child processes."""
        started = self.workers()
        self.process.kill()
        self.process.wait()
        for worker in started:
            with suppress(psutil.NoSuchProcess):
                worker.kill()

    def workers(self):
        """Return the worker processes of a supervisor."""
        try:
            return psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []


def is_running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until_gone(processes, seconds=60):
    until(lambda: not any(map(is_running, processes)), seconds, "processes still run")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port, path):
    """Return the status and the body of a response of a health port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.fixture
def start_patient_process(transactional_db, tmp_path):
    """Start workers that may take long to stop, as on a busy machine, before they give up or are killed."""
    with started_processes(tmp_path, {"STOP_SECONDS": "15"}) as start:
        yield start


@contextmanager
def started_processes(folder, environment):
    """Start worker processes, and kill those that still run at the end."""
    started = []

    def start(*arguments, **options):
        written = folder / f"worker-{len(started)}"
        started.append(WorkerProcess(written, *arguments, **{**environment, **options}))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
