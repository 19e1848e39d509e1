"""Runs the example shop with separate processes, its own database, and HTTP."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import psycopg
from psycopg.sql import SQL, Identifier

from tests.support.servers import ROOT, free_port

PROJECT = ROOT / "example_project"
COMMAND_SECONDS = 60
START_SECONDS = 60
STOP_SECONDS = 15


@contextmanager
def database(name, folder):
    """Create a SQLite file, or a database on the server of ``JOBCHAINS_TEST_DATABASE``, and yield its URL."""
    server = os.environ.get("JOBCHAINS_TEST_DATABASE", "sqlite").rstrip("/")
    if server == "sqlite":
        yield f"sqlite:///{folder / name}.sqlite3"
        return
    unique = f"browser_{name}_{os.getpid()}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(unique)))
        try:
            yield f"{server}/{unique}"
        finally:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(unique)))


class Shop:
    """The server of a shop, and a worker while a test needs one. Their output is in the folder."""

    def __init__(self, folder, database_url, settings="tests.browser.settings"):
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {
            **os.environ,
            "DATABASE_URL": database_url,
            "DEBUG": "0",  # shows errors as customers see them, with the Content-Security-Policy
            "DJANGO_SETTINGS_MODULE": settings,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{PROJECT}",
            "PYTHONUNBUFFERED": "1",
        }
        self._options = {"env": environment, "cwd": PROJECT, "stdin": subprocess.DEVNULL}
        #: The name of the session's cookie, and its value for each person: see ``scripts.prepare``.
        self.cookie, self.sessions = self.script("prepare")

    def script(self, name):
        """Return the JSON output of a script of ``tests.browser.scripts``, which runs in the project."""
        command = [sys.executable, "-m", f"tests.browser.scripts.{name}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, **self._options)
        assert done.returncode == 0, f"{name} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    @contextmanager
    def opened(self):
        # --insecure: static files are served although DEBUG is off.
        options = ("--noreload", "--insecure", "--skip-checks")
        with self._running("runserver", f"127.0.0.1:{self.port}", *options) as (process, log):
            deadline = time.monotonic() + START_SECONDS
            while not self._answers():
                assert process.poll() is None, f"The server exited:\n{log.read_text()}"
                assert time.monotonic() < deadline, f"No answer within {START_SECONDS} s:\n{log.read_text()}"
                time.sleep(0.05)
            yield self

    @contextmanager
    def worker(self, *options):
        with self._running("run_jobworker", "--slots", "4", *options) as (process, log):
            yield
            assert process.poll() is None, f"The worker exited:\n{log.read_text()}"

    @contextmanager
    def _running(self, *command):
        log = self.folder / f"{command[0]}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *command], stdout=output, stderr=output, **self._options
            )
        try:
            yield process, log
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _answers(self):
        try:
            with urllib.request.urlopen(f"{self.url}/", timeout=5) as reply:
                return reply.status == 200
        except urllib.error.URLError:
            return False
