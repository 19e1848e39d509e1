"""The processes of a fleet, and where figures are written."""

import json
import os
import subprocess
import sys

import pytest

from tests.fleet.oracle import read_journals
from tests.support.servers import CACHE
from tests.support.worker_processes import ROOT

#: Figures of the last run. The pages about failover and poolers state them.
FIGURES = CACHE / "fleet.json"


class WebProcess:
    """A process of ``tests.fleet.web``."""

    def __init__(self, folder, requests, threads, pause, environment):
        self.journal = folder / "journal"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fleet.web", *map(str, (self.journal, requests, threads, pause))],
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
        return len(self.output.splitlines())

    def acknowledged(self):
        return read_journals(self.journal)

    def wait(self, seconds):
        assert self.process.wait(seconds) == 0, self.output


@pytest.fixture
def start_web(tmp_path):
    started = []

    def start(requests, threads, pause=0.0, **environment):
        folder = tmp_path / f"web-{len(started)}"
        folder.mkdir()
        started.append(WebProcess(folder, requests, threads, pause, environment))
        return started[-1]

    yield start
    for web in started:
        web.process.kill()
        web.process.wait()


@pytest.fixture
def report(request, capsys):
    """Return a function that prints figures, and writes them to ``FIGURES`` under the name of the test."""

    def write(**figures):
        all_figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        FIGURES.parent.mkdir(exist_ok=True)
        FIGURES.write_text(json.dumps({**all_figures, request.node.name: figures}, indent=2) + "\n")
        with capsys.disabled():
            print(f"\n{request.node.name}: {json.dumps(figures)}")

    return write
