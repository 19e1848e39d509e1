"""Runs the example shop with separate processes, its own database, and HTTP."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.servers import ROOT, free_port

PROJECT = ROOT / "example_project"
COMMAND_SECONDS = 60
START_SECONDS = 60
STOP_SECONDS = 15
LOOK_SECONDS = 0.05


class Shop:
    """The server of a shop, and a worker while a test needs one. Their output is in the folder."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.environment = {
            **os.environ,
            "DATABASE_URL": database_url,
            "DEBUG": "0",  # shows errors as customers see them, with the Content-Security-Policy
            "DJANGO_SETTINGS_MODULE": "tests.browser.settings",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{PROJECT}",
            "PYTHONUNBUFFERED": "1",
        }
        #: The name of the session's cookie, and its value for each person: see ``scripts.prepare``.
        self.cookie, self.sessions = self.script("prepare")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def script(self, name: str, *arguments: str) -> Any:
        """Return the JSON output of a script of ``tests.browser.scripts``, which runs in the project."""
        done = subprocess.run(
            [sys.executable, "-m", f"tests.browser.scripts.{name}", *arguments],
            env=self.environment,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        assert done.returncode == 0, f"{name} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    @contextmanager
    def opened(self) -> Iterator["Shop"]:
        # --insecure: static files are served although DEBUG is off.
        options = ("--noreload", "--insecure", "--skip-checks")
        with self._running("runserver", f"127.0.0.1:{self.port}", *options) as (process, log):
            until(lambda: self._answers(process), START_SECONDS, log.read_text)
            yield self

    @contextmanager
    def worker(self) -> Iterator[None]:
        with self._running("run_jobworker", "--slots", "4") as (process, log):
            yield
            assert process.poll() is None, f"The worker exited:\n{log.read_text()}"

    @contextmanager
    def _running(self, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        log = self.folder / f"{command[0]}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *command],
                env=self.environment,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            yield process, log
        finally:
            end(process)

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, "The server left."
        try:
            with urllib.request.urlopen(f"{self.url}/", timeout=5) as reply:
                return bool(reply.status == 200)
        except urllib.error.URLError:
            return False


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(condition: Callable[[], object], seconds: float, what: Callable[[], str]) -> None:
    """Wait with a deadline; ``what`` describes the state in the error."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"Not true within {seconds} s:\n{what()}"
        time.sleep(LOOK_SECONDS)
