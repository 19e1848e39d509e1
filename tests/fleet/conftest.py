"""The processes of a fleet, and where figures are written."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.fleet.oracle import read_journals
from tests.support.servers import CACHE
from tests.support.worker_processes import ROOT

#: Figures of the last run, in a file for each test. The pages about hosts, failover and poolers state them.
FIGURES = CACHE / "fleet"


def pytest_configure():
    """Let Ctrl-C and SIGTERM end the run so that it removes its processes and network namespaces."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


@pytest.fixture(scope="session")
def django_db_modify_db_settings():
    """Keep the name of the database. Processes that a test starts would not know pytest-django's own suffix."""


class WebProcess:
    """A process of ``tests.fleet.web``."""

    def __init__(self, folder, requests, threads, pause, within, environment):
        self.journal = folder / "journal"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", "tests.fleet.web", *map(str, (self.journal, requests, threads, pause))],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.support.worker_settings", **environment},
            )

    @property
    def output(self):
        return self._log.read_text()

    @property
    def errors(self):
        return self.output.count("failed at ")

    def acknowledged(self):
        return read_journals(self.journal)

    def stop(self):
        """Let the process finish its current requests and end."""
        self.process.terminate()
        self.wait(60)

    def wait(self, seconds):
        assert self.process.wait(seconds) == 0, self.output


@pytest.fixture
def start_web(tmp_path):
    started = []

    def start(requests, threads, pause=0.0, within=(), **environment):
        folder = tmp_path / f"web-{len(started)}"
        folder.mkdir()
        started.append(WebProcess(folder, requests, threads, pause, within, environment))
        return started[-1]

    yield start
    for web in started:
        web.process.kill()
        web.process.wait()


@pytest.fixture
def report(request, capsys):
    """Return a function that prints figures, and writes them to ``FIGURES``."""

    def write(**figures):
        FIGURES.mkdir(parents=True, exist_ok=True)
        (FIGURES / f"{request.node.name}.json").write_text(json.dumps(figures, indent=2) + "\n")
        with capsys.disabled():
            print(f"\n{request.node.name}: {json.dumps(figures)}")

    return write
